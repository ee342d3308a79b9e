"""The article's claims about attention and layer norm, by running them; its own code first. § are its sections."""

import math

import numpy as np
import pytest

import minigrad as mg
import minigrad as torch
import nn
import nn.functional as F
from tests.support import assert_close, torch_or_skip

# ---- § 10: the article's lines, with its imports alone changed (and its comments left out) ---------------------------


# fmt: off
def scaled_dot_product_attention(q, k, v, mask=None):
    d_k = q.size(-1)

    scores = torch.matmul(q, k.transpose(-2, -1))

    scores = scores / math.sqrt(d_k)

    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)

    attention_weights = F.softmax(scores, dim=-1)

    output = torch.matmul(attention_weights, v)

    return output, attention_weights
# fmt: on


def draw(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


MASKS = {
    "none": None,
    "of integers": np.tril(np.ones((6, 6), np.int64)),
    "of floats": np.tril(np.ones((6, 6), np.float32)),
    "boolean": np.tril(np.ones((6, 6), bool)),
    "of padding": np.array([1, 1, 1, 1, 0, 0])[None, None, None],
}


@pytest.mark.parametrize("form", MASKS)
def test_section_10_output_and_weights_equal_pytorch(form):
    real_torch = torch_or_skip()
    arrays = draw((2, 3, 6, 8), (2, 3, 6, 8), (2, 3, 6, 8))
    mask = MASKS[form]
    output, weights = scaled_dot_product_attention(*map(mg.Tensor, arrays), None if mask is None else mg.Tensor(mask))
    q, k, v = map(real_torch.tensor, arrays)
    visible = real_torch.ones(6, 6, dtype=bool) if mask is None else real_torch.tensor(mask != 0)
    expected = real_torch.nn.functional.scaled_dot_product_attention(q, k, v, visible)
    scores = (q @ k.transpose(-2, -1) / math.sqrt(8)).masked_fill(~visible, -math.inf)
    assert output.dtype == weights.dtype == np.float32
    assert_close(output, expected, 1e-6, "the output")
    assert_close(weights, scores.softmax(-1), 1e-6, "the weights")


@pytest.mark.parametrize("room", ["plain", "fused"])
@pytest.mark.parametrize("form", ["none", "boolean"])
def test_section_10_is_what_the_rooms_compute_gradients_included(form, room):
    arrays = draw((2, 3, 6, 8), (2, 3, 6, 8), (2, 3, 6, 8))
    (upstream,) = draw((2, 3, 6, 8), seed=1)
    ours, articles = ([mg.Tensor(x, requires_grad=True) for x in arrays] for _ in range(2))
    mask = None if MASKS[form] is None else mg.Tensor(MASKS[form])
    expected, _ = scaled_dot_product_attention(*articles, mask)
    with F.attention_room(room):
        output = F.scaled_dot_product_attention(*ours, mask)
    assert_close(output, expected, 1e-6)
    for found, its in zip(mg.grad(output, ours, upstream), mg.grad(expected, articles, upstream), strict=True):
        assert_close(found, its, 1e-5)


# ---- § 4: scaled dot-product attention -------------------------------------------------------------------------------


@pytest.mark.parametrize("d_k", [4, 64, 256])
def test_section_4_3_the_variance_of_a_score_is_d_k_and_1_when_scaled(d_k):
    q, k = draw((500, d_k), (500, d_k))
    scores = q @ k.T
    assert abs(scores.mean()) < 0.05 * math.sqrt(d_k)
    assert scores.var() == pytest.approx(d_k, rel=0.05)
    assert (scores / math.sqrt(d_k)).var() == pytest.approx(1, rel=0.05)


def test_section_4_3_without_the_scale_the_gradient_vanishes_as_d_k_grows():
    def gradient_of_scores(d_k, scale):
        q, k = draw((2000, d_k), (20, d_k))
        scores = mg.Tensor(q @ k.T * scale, requires_grad=True)
        weights = F.softmax(scores, dim=-1)
        (weights * mg.Tensor(draw((2000, 20), seed=1)[0])).sum().backward()
        return np.abs(scores.grad.numpy()).mean()

    unscaled = [gradient_of_scores(d_k, 1.0) for d_k in (16, 256, 4096)]
    scaled = [gradient_of_scores(d_k, d_k**-0.5) for d_k in (16, 256, 4096)]
    assert unscaled[0] > 3 * unscaled[1] > 9 * unscaled[2]  # by about 1/√d_k
    assert max(scaled) < 1.05 * min(scaled)


@pytest.mark.filterwarnings("error")
def test_section_4_4_rows_add_up_to_1_and_stay_exact_at_1000():
    (scores,) = draw((50, 40))
    weights = F.softmax(mg.Tensor(scores * 1000), dim=-1).numpy()
    assert (weights >= 0).all() and (weights <= 1).all()
    assert_close(weights.sum(-1), np.ones(50), 1e-6)
    extreme = mg.Tensor([[1000.0, 1000.0, -1000.0], [-1000.0, -1000.0, -1000.0]])
    assert_close(F.softmax(extreme, dim=-1), [[0.5, 0.5, 0], [1 / 3] * 3], 1e-6)
    # a constant added to a row changes nothing, so the scores' size alone does no harm
    shifted = F.softmax(mg.Tensor(scores.astype(np.float64) + 1000), dim=-1)
    assert_close(shifted, F.softmax(mg.Tensor(scores, dtype=np.float64), dim=-1), 1e-12)


def test_section_4_5_an_output_lies_among_the_values_and_equal_keys_give_their_mean():
    q, k, v = map(mg.Tensor, draw((6, 8), (6, 8), (6, 8)))
    output, values = F.scaled_dot_product_attention(q, k, v).numpy(), v.numpy()
    assert (output >= values.min(0)).all() and (output <= values.max(0)).all()
    of_equal_keys = F.scaled_dot_product_attention(q, k[:1].expand(6, 8), v)
    assert_close(of_equal_keys, np.tile(values.mean(0), (6, 1)), 1e-6)


# ---- § 5: many heads -------------------------------------------------------------------------------------------------


def test_section_5_many_heads_are_separate_heads_joined_and_projected():
    D, H = 12, 3
    layer = nn.MultiHeadAttention(D, H).to(np.float64)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = mg.randn(2, 5, D, dtype=np.float64)
    output, weights = layer(x, x, x, is_causal=True, need_weights=True)

    w_q, w_k, w_v = layer.in_proj_weight.split(D)
    b_q, b_k, b_v = layer.in_proj_bias.split(D)
    mask = mg.Tensor(np.tril(np.ones((5, 5))))
    heads = []
    for i in range(H):
        rows = slice(i * D // H, (i + 1) * D // H)  # W_i: the columns of W^Q are rows of its transpose
        q, k, v = (x @ w[rows].T + b[rows] for w, b in ((w_q, b_q), (w_k, b_k), (w_v, b_v)))  # (B, N, d)
        head, its_weights = scaled_dot_product_attention(q, k, v, mask)
        assert_close(weights[:, i], its_weights, 1e-10)
        heads.append(head)
    expected = mg.cat(heads, dim=-1) @ layer.out_proj.weight.T + layer.out_proj.bias
    assert_close(output, expected, 1e-10)


# ---- § 7.2: layer norm -----------------------------------------------------------------------------------------------


def test_section_7_2_layer_norm_is_its_formula_at_each_position():
    (x, gamma, beta), epsilon = draw((2, 5, 16), (16,), (16,)), 1e-5
    found = F.layer_norm(mg.Tensor(x), 16, mg.Tensor(gamma), mg.Tensor(beta), epsilon).numpy()
    for b, n in np.ndindex(2, 5):
        row = x[b, n].astype(np.float64)
        mu = sum(row) / 16
        sigma2 = sum((row - mu) ** 2) / 16
        assert_close(found[b, n], (row - mu) / math.sqrt(sigma2 + epsilon) * gamma + beta, 1e-6)


def test_section_7_2_layer_norm_knows_nothing_of_the_batch():
    x, other = draw((3, 16), (3, 16))
    together = F.layer_norm(mg.Tensor(np.stack([x, other])), 16).numpy()
    with_another = F.layer_norm(mg.Tensor(np.stack([x, other * 1e3 + 5])), 16).numpy()
    np.testing.assert_array_equal(together[0], with_another[0])


# ---- § 8.1: masked attention -----------------------------------------------------------------------------------------


def test_section_8_1_the_added_mask_with_its_cases_put_right():
    """M is 0 for j <= i and -inf for j > i: the text has them the other way round."""
    q, k, v = map(mg.Tensor, draw((6, 8), (6, 8), (6, 8)))
    i, j = np.indices((6, 6))
    added = np.where(j <= i, 0, -np.inf)
    expected = F.softmax(q @ k.T / math.sqrt(8) + mg.Tensor(added.astype(np.float32)), dim=-1) @ v
    assert_close(F.scaled_dot_product_attention(q, k, v, is_causal=True), expected, 1e-6)
    assert_close(F.scaled_dot_product_attention(q, k, v, mg.Tensor(added)), expected, 1e-6)
