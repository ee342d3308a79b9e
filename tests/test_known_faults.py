"""What users of small engines ran into, where it takes several parts of the project together to go wrong."""

import copy
import pickle

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from models import Transformer
from nn.optim import SGD, Adam, AdamW, CosineSchedule, clip_grad_norm_

SOURCE, TARGET = np.array([[3, 4, 5, 0], [6, 7, 3, 4]]), np.array([[1, 5, 4], [1, 8, 0]])


def small_model(**options):
    mg.manual_seed(0)
    return Transformer(9, 10, **{"d_model": 8, "num_heads": 2, "d_ff": 16, "max_length": 6, **options})


def train_step(model, optimizer):
    optimizer.zero_grad()
    logits = model(SOURCE, TARGET)
    loss = F.cross_entropy(logits.reshape(-1, 10), mg.Tensor([5, 4, 2, 8, 2, -100]))
    loss.backward()
    norm = clip_grad_norm_(model.parameters(), np.float64(1.0))
    optimizer.step()
    return logits, loss, norm


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_numpys_float64_numbers_as_options_leave_a_model_in_float32(kind):
    model = small_model(dropout=np.float64(0.1))
    optimizer = kind(model.parameters(), lr=np.float64(0.1), weight_decay=np.float64(0.1))
    schedule = CosineSchedule(optimizer, total_steps=3, min_lr=np.float64(0.01))
    for _ in range(2):
        results = train_step(model, optimizer)
        schedule.step()
    parts = [part for p in model.parameters() for part in (p, p.grad)]
    assert {tensor.dtype for tensor in (*results, *parts)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("room", ["plain", "fused"])
def test_a_query_that_only_two_masks_together_leave_nothing(room):
    """The first query may see itself alone by causality, and anything but the first key by the other mask."""
    rng = np.random.default_rng(0)
    q, k, v = (mg.Tensor(x, requires_grad=True) for x in rng.standard_normal((3, 4, 2)))
    hidden = np.array([False, True, True, True])
    for mask in (hidden, np.where(hidden, 0.0, -np.inf)):
        with F.attention_room(room):
            output = F.scaled_dot_product_attention(q, k, v, mg.Tensor(mask), is_causal=True)
        assert output[0].tolist() == [0, 0] and output[1].tolist() == v[1].tolist()
        gradients = mg.grad((output**2).sum(), [q, k, v], create_graph=True)
        second = mg.grad(sum((g**2).sum() for g in gradients), [q, k, v])
        assert all(np.isfinite(g.numpy()).all() for g in (*gradients, *second))
        assert gradients[0][0].tolist() == gradients[2][0].tolist() == [0, 0]


@pytest.mark.parametrize("room", ["plain", "fused"])
@pytest.mark.parametrize("n_q", [1, 31, 33])
@pytest.mark.parametrize("n_k", [1, 2, 32, 65])
def test_equal_values_stay_what_they_are_at_any_length(room, n_q, n_k):
    """No key past the end takes part, and no memory beside a strided view: that is NaN here."""
    rng = np.random.default_rng(0)
    memory = np.full((n_q + n_k + 2, 2, 7), np.nan, np.float32)  # (N, H, d + 2)
    memory[:n_q, :, :5] = rng.standard_normal((n_q, 2, 5))
    memory[n_q : n_q + n_k, :, :5] = rng.standard_normal((n_k, 2, 5))
    whole = mg.Tensor(memory).transpose(0, 1)  # (H, N, d + 2)
    q, k = whole[:, :n_q, :5], whole[:, n_q : n_q + n_k, :5]
    with F.attention_room(room):
        output = F.scaled_dot_product_attention(q, k, mg.full((2, n_k, 3), 3.0))
    np.testing.assert_allclose(output.numpy(), np.full((2, n_q, 3), 3.0), rtol=1e-6)


def test_a_transformer_has_as_many_parameters_as_its_formula_says():
    d, d_ff = 8, 16
    attention, feed_forward, norm = 4 * d * d + 4 * d, 2 * d * d_ff + d + d_ff, 2 * d
    encoder = 2 * (attention + feed_forward + 2 * norm)
    decoder = 2 * (2 * attention + feed_forward + 3 * norm)
    expected = (9 + 10) * d + encoder + decoder + 10 * d + 10
    assert sum(p.numel() for p in small_model().parameters()) == expected
    assert sum(p.numel() for p in small_model(tie_embeddings=True).parameters()) == expected - 10 * d


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_model_and_its_optimizer_copied_together_go_on_together(duplicate):
    model = small_model(dropout=0.0)
    pair = model, Adam(model.parameters())
    train_step(*pair)
    twins = duplicate(pair)
    train_step(*pair)
    train_step(*twins)
    for (name, ours), theirs in zip(model.named_parameters(), twins[0].parameters(), strict=True):
        assert ours is not theirs and np.array_equal(ours.numpy(), theirs.numpy()), name
    assert set(twins[1].state) == set(twins[0].parameters())


def test_attention_to_the_source_is_masked_by_the_source_though_both_sides_are_equally_long():
    model = small_model().eval()
    source, target = np.array([[3, 4, 5, 0, 0]]), np.array([[1, 4, 5, 6, 0]])
    weights = model(source, target, need_weights=True)[1]
    for path, attention in weights.items():
        seen = (attention.numpy() > 0).any(axis=(0, 1, 2))  # (N_k,)
        padding = target if path.startswith("decoder") and path.endswith("self_attn") else source
        assert seen.tolist() == (padding[0] != 0).tolist(), path


@pytest.mark.parametrize(
    "choose",
    [
        mg.relu,
        lambda x: x.maximum(0.0),
        lambda x: mg.where(x > 0, x, 0.0),
        lambda x: x.masked_fill(x < 0, 0.0),
        lambda x: mg.stack([x, mg.zeros(2)]).amax(dim=0),
    ],
)
def test_an_infinite_gradient_does_not_reach_what_was_not_chosen(choose):
    x = mg.Tensor([-1.0, 2.0], requires_grad=True)
    choose(x).backward([np.inf, np.inf])
    assert x.grad.tolist() == [0, np.inf]
