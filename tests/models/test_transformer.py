"""The whole Transformer, from ids to logits: beside PyTorch, what it may not see, how it starts, what it refuses."""

import copy
import math

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from models import Transformer
from nn.optim import Adam
from tests.cupy_standin import installed
from tests.models.gradients import assert_same_gradients
from tests.support import assert_close, torch_or_skip

PAD, BOS, EOS = 0, 1, 2
VARIANTS = [
    {},
    {"norm_first": True},
    {"final_norm": True, "activation": "gelu"},
    {"positions": "learned", "tie_embeddings": True},
]


def small_model(source_vocabulary=11, target_vocabulary=9, **options):
    mg.manual_seed(0)
    sizes = {"d_model": 16, "num_heads": 4, "d_ff": 32, "dropout": 0.0}
    return Transformer(source_vocabulary, target_vocabulary, **{**sizes, **options})


def padded_rows(rng, vocabulary, lengths, first=()):
    """Random ids (B, N) of rows of these lengths, each beginning with `first`, filled up with PAD."""
    ids = np.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = [*first, *rng.integers(3, vocabulary, length - len(first))]
    return ids


def batch(source_vocabulary=11, target_vocabulary=9):
    """Source (3, 7), target that begins with BOS (3, 5), and the symbols that follow each of it (3, 5)."""
    rng = np.random.default_rng(0)
    source = padded_rows(rng, source_vocabulary, (7, 4, 1))
    target = padded_rows(rng, target_vocabulary, (5, 3, 2), first=[BOS])
    following = np.pad(target[:, 1:], ((0, 0), (0, 1)))
    following[np.arange(3), [4, 2, 1]] = EOS
    return source, target, following


def loss_of(model, source, target, following, label_smoothing=0.1):
    logits = model(source, target)
    rows = logits.reshape(-1, logits.shape[-1])
    return F.cross_entropy(rows, mg.Tensor(following.reshape(-1)), ignore_index=PAD, label_smoothing=label_smoothing)


# ---- beside PyTorch --------------------------------------------------------------------------------------------------


def torch_model(torch, ours, dtype, tied):
    """PyTorch's stacks, embeddings and projection under the names that ours have, with the values of ours."""
    kind, width = getattr(torch, dtype), ours.d_model
    stack = torch.nn.Transformer(width, 4, 2, 2, 32, dropout=0.0, batch_first=True, dtype=kind)
    theirs = torch.nn.Module()
    theirs.source_embedding = torch.nn.Embedding(9, width, padding_idx=PAD, dtype=kind)
    theirs.target_embedding = torch.nn.Embedding(9, width, padding_idx=PAD, dtype=kind)
    theirs.encoder, theirs.decoder = stack.encoder, stack.decoder
    theirs.generator = torch.nn.Linear(width, 9, dtype=kind)
    if tied:
        theirs.source_embedding.weight = theirs.target_embedding.weight = theirs.generator.weight
    theirs.load_state_dict({name: torch.tensor(value) for name, value in ours.state_dict().items()})
    return theirs


def torch_logits(torch, theirs, table, source, target):
    """What PyTorch's parts make of the ids; its masks hide where they are True."""
    source, target, table = torch.tensor(source), torch.tensor(target), torch.tensor(table)
    later = torch.triu(torch.ones(target.shape[1], target.shape[1], dtype=torch.bool), 1)
    scale = math.sqrt(table.shape[1])
    memory = theirs.encoder(
        theirs.source_embedding(source) * scale + table[: source.shape[1]], src_key_padding_mask=source == PAD
    )
    output = theirs.decoder(
        theirs.target_embedding(target) * scale + table[: target.shape[1]],
        memory,
        tgt_mask=later,
        tgt_key_padding_mask=target == PAD,
        memory_key_padding_mask=source == PAD,
    )
    return theirs.generator(output)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
def test_logits_loss_and_every_gradient_equal_torchs(tied, dtype, tolerance):
    torch = torch_or_skip()
    source, target, following = batch(9, 9)
    ours = small_model(9, 9, final_norm=True, tie_embeddings=tied).to(dtype)
    theirs = torch_model(torch, ours, dtype, tied)

    expected = torch_logits(torch, theirs, ours.source_positions.table.numpy(), source, target)
    torch_loss = torch.nn.functional.cross_entropy(
        expected.reshape(-1, 9), torch.tensor(following).reshape(-1), ignore_index=PAD, label_smoothing=0.1
    )
    torch_loss.backward()
    loss = loss_of(ours, source, target, following)
    loss.backward()

    assert_close(ours(source, target), expected, tolerance, "the logits")
    assert_close(loss, torch_loss, tolerance, "the loss")
    assert_same_gradients(ours, theirs, tolerance)


def test_a_torch_transformer_loads_but_for_embeddings_and_projection():
    torch = torch_or_skip()
    theirs = torch.nn.Transformer(16, 4, 2, 2, 32, batch_first=True)
    ours = small_model(final_norm=True)
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert missing == ["source_embedding.weight", "target_embedding.weight", "generator.weight", "generator.bias"]
    assert unexpected == []
    for name, value in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[name], value.numpy())


# ---- what it may not see ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", VARIANTS)
def test_a_later_target_symbol_leaves_every_earlier_logit_as_it_is_to_the_bit(options):
    model = small_model(**options).eval()
    source, target, _ = batch()
    before = model(source, target).numpy()
    for place in range(1, target.shape[1]):
        for symbol in (PAD, EOS, 5):
            changed = target.copy()
            changed[:, place:] = symbol
            after = model(source, changed).numpy()
            np.testing.assert_array_equal(after[:, :place], before[:, :place])
            assert (after[0, place] != before[0, place]).any() or target[0, place] == symbol


@pytest.mark.parametrize("options", VARIANTS)
def test_longer_padding_changes_nothing(options):
    model = small_model(**options).eval()
    source, target, _ = batch()
    longer = model(np.pad(source, ((0, 0), (0, 9))), np.pad(target, ((0, 0), (0, 6)))).numpy()
    assert_close(longer[:, : target.shape[1]], model(source, target), 1e-6)


@pytest.mark.parametrize("options", VARIANTS)
def test_other_rows_of_a_batch_change_nothing(options):
    model = small_model(**options).eval()
    source, target, _ = batch()
    together = model(source, target).numpy()
    for row, (n_s, n_t) in enumerate([(7, 5), (4, 3), (1, 2)]):
        alone = model(source[row : row + 1, :n_s], target[row : row + 1, :n_t]).numpy()
        assert_close(together[row, :n_t], alone[0], 1e-6)


def test_attention_is_on_nothing_hidden_and_its_rows_add_up_to_one():
    model = small_model().eval()
    source, target, _ = batch()
    logits, weights = model(source, target, need_weights=True)
    assert_close(logits, model(source, target), 1e-6)
    source_kept, target_kept = (source != PAD)[:, None, None], (target != PAD)[:, None, None]
    causal = np.tril(np.ones((5, 5), bool))
    for path, attention in weights.items():
        kept = target_kept & causal if path.startswith("decoder") and path.endswith("self_attn") else source_kept
        n_q = 7 if path.startswith("encoder") else 5
        assert attention.shape == (3, 4, n_q, kept.shape[-1])
        np.testing.assert_array_equal(attention.numpy() > 0, np.broadcast_to(kept, attention.shape))
        assert_close(attention.sum(-1), np.ones(attention.shape[:-1]), 1e-6)
    assert sorted(weights) == sorted(
        [f"{stack}.layers.{i}.self_attn" for stack in ("encoder", "decoder") for i in range(2)]
        + [f"decoder.layers.{i}.multihead_attn" for i in range(2)]
    )


def test_a_source_of_padding_alone_gives_finite_logits_and_gradients():
    model = small_model()
    source, target, following = batch()
    source[1] = PAD
    loss = loss_of(model, source, target, following)
    loss.backward()
    assert np.isfinite(loss.item())
    assert all(np.isfinite(parameter.grad.numpy()).all() for parameter in model.parameters())


# ---- how it starts and learns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", VARIANTS)
def test_every_parameter_gets_a_gradient_and_all_is_float32(options):
    model = small_model(**{**options, "dropout": 0.1})
    source, target, following = batch()
    logits, weights = model(source, target, need_weights=True)
    loss_of(model, source, target, following).backward()
    optimizer = Adam(model.parameters())
    optimizer.step()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.numpy()
        assert np.isfinite(gradient).all() and gradient.any(), name
        assert parameter.dtype == gradient.dtype == np.float32, name
    tensors = [logits, model.encode(source), *weights.values()]
    assert {tensor.dtype for tensor in tensors} == {np.dtype(np.float32)}


@pytest.mark.parametrize("options", VARIANTS)
def test_the_first_loss_is_that_of_guessing(options):
    """About ln V, and no less: the decoder does not see its answers. Logits of variance v add v / 2: 1/6 for a Linear's
    uniform start, 1/2 and more for tied embeddings, which first guess that a symbol is repeated."""
    vocabulary = 60
    rng = np.random.default_rng(0)
    model = small_model(vocabulary, vocabulary, **{**options, "d_model": 64, "d_ff": 256})
    source, target = padded_rows(rng, vocabulary, [20] * 16), padded_rows(rng, vocabulary, [10] * 16, first=[BOS])
    following = np.pad(target[:, 1:], ((0, 0), (0, 1)), constant_values=EOS)
    loss = loss_of(model, source, target, following, label_smoothing=0.0)
    excess = loss.item() - math.log(vocabulary)
    assert -0.1 < excess < (1.5 if "tie_embeddings" in options else 0.35)


def test_embeddings_have_the_variance_1_over_d_and_a_zero_row_for_padding():
    model = small_model(400, 300, d_model=64)
    for embedding in (model.source_embedding, model.target_embedding):
        weight = embedding.weight.numpy()
        assert not weight[PAD].any()
        assert abs(weight[PAD + 1 :].std() * 8 - 1) < 0.02


def test_embeddings_are_scaled_by_the_root_of_d_and_get_positions():
    """Without layers, the memory is what the encoder reads."""
    model = small_model(num_encoder_layers=0)
    source, *_ = batch()
    expected = 4 * model.source_embedding.weight.numpy()[source] + model.source_positions.table.numpy()[:7]
    assert_close(model.encode(source), expected, 1e-6)
    assert not small_model(num_encoder_layers=0, dropout=1.0).encode(source).numpy().any()  # it drops both


def test_tied_embeddings_are_one_matrix_counted_once():
    untied, tied = small_model(9, 9), small_model(9, 9, tie_embeddings=True)
    assert tied.generator.weight is tied.target_embedding.weight is tied.source_embedding.weight
    assert len(list(untied.parameters())) - len(list(tied.parameters())) == 2
    assert abs(tied.generator.weight.numpy()[1:].std() * 4 - 1) < 0.2


def test_vocabularies_of_different_sizes_tie_target_and_output_only():
    model = small_model(11, 9, tie_embeddings=True)
    assert model.generator.weight is model.target_embedding.weight
    assert model.source_embedding.weight.shape == (11, 16)


def test_a_copy_keeps_its_ties_and_its_answers():
    model = small_model(9, 9, tie_embeddings=True).eval()
    source, target, _ = batch(9, 9)
    twin = copy.deepcopy(model)
    np.testing.assert_array_equal(twin(source, target).numpy(), model(source, target).numpy())
    assert twin.generator.weight is twin.source_embedding.weight is not model.generator.weight


@pytest.mark.parametrize("options", VARIANTS)
def test_a_state_loads_into_another_model_and_stays_as_it_was(options):
    model, other = small_model(9, 9, **options), small_model(9, 9, **options)
    source, target, following = batch(9, 9)
    state = model.state_dict()
    before = model(source, target).numpy().copy()
    loss_of(model, source, target, following).backward()
    Adam(model.parameters(), lr=0.1).step()
    assert (model(source, target).numpy() != before).any()
    other.load_state_dict(state)
    np.testing.assert_array_equal(other(source, target).numpy(), before)


def test_learned_positions_are_parameters_of_each_side():
    names = [name for name, _ in small_model(positions="learned", max_length=8).named_parameters()]
    assert {"source_positions.table", "target_positions.table"} <= set(names)
    assert not any("positions" in name for name, _ in small_model().named_parameters())


def test_dropout_is_random_in_training_and_absent_in_evaluation():
    model, undropped = small_model(dropout=0.5), small_model(dropout=0.0)
    source, target, _ = batch()
    mg.manual_seed(0, 1)
    first, second = model(source, target).numpy(), model(source, target).numpy()
    mg.manual_seed(0, 1)
    assert (first != second).any()
    np.testing.assert_array_equal(model(source, target).numpy(), first)
    np.testing.assert_array_equal(model.eval()(source, target).numpy(), undropped(source, target).numpy())


def test_without_recording_the_logits_have_no_history():
    model = small_model().eval()
    source, target, _ = batch()
    with mg.no_grad():
        logits = model(source, target)
    assert logits.is_leaf and not logits.requires_grad


def test_encode_and_decode_are_the_two_halves_of_the_model():
    model = small_model().eval()
    source, target, _ = batch()
    memory = model.encode(source)
    assert memory.shape == (3, 7, 16)
    np.testing.assert_array_equal(model.decode(target, memory, source).numpy(), model(source, target).numpy())


def test_ids_come_as_tensors_arrays_of_any_integers_or_lists():
    model = small_model().eval()
    source, target, _ = batch()
    expected = model(source, target).numpy()
    for kind in (mg.Tensor, np.ndarray.tolist, lambda ids: ids.astype(np.int32), lambda ids: ids.astype(np.uint8)):
        np.testing.assert_array_equal(model(kind(source), kind(target)).numpy(), expected)


@pytest.mark.parametrize("options", VARIANTS)
def test_on_a_gpu_nothing_leaves_it_and_ids_are_taken_there(options):
    source, target, _ = batch()
    expected = small_model(**options)(source, target)
    with installed():
        model = small_model(**options).to("cuda")
        logits, weights = model(source, mg.Tensor(target, device="cuda"), need_weights=True)
        assert {tensor.device for tensor in (logits, *weights.values())} == {"cuda:0"}
        assert_close(logits.numpy(), expected, 1e-6)
        with pytest.raises(mg.DeviceError, match=r"cuda:0 and \(3, 7\) on cpu"):
            model(mg.Tensor(source, device="cpu"), target)


# ---- what it refuses -------------------------------------------------------------------------------------------------


def test_ids_that_are_no_ids_are_refused():
    model = small_model(max_length=8)
    source, target, _ = batch()
    with pytest.raises(TypeError, match="source_ids must be integers, got float64; convert them"):
        model(source.astype(np.float64), target)
    with pytest.raises(TypeError, match="target_ids must be integers, got bool"):
        model(source, target > 0)
    with pytest.raises(ValueError, match=r"source_ids must have two axes, \(B, N\), got shape \(7,\)"):
        model(source[0], target)
    with pytest.raises(ValueError, match=r"target_ids must have two axes, \(B, N\), got shape \(3, 5, 1\)"):
        model(source, target[:, :, None])


@pytest.mark.parametrize(("wrong", "name"), [(11, "11"), (-1, "-1")])
def test_an_id_that_is_not_in_the_vocabulary_is_named(wrong, name):
    model = small_model(11, 9)
    source, target, _ = batch()
    source[0, 3] = wrong
    with pytest.raises(IndexError, match=rf"{name}\b.*\b11\b"):
        model(source, target)
    source, target, _ = batch()
    target[0, 3] = 9
    with pytest.raises(IndexError, match=r"\b9\b.*\b9\b"):
        model(source, target)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_sequence_past_the_longest_names_both_lengths(positions):
    model = small_model(max_length=8, positions=positions)
    ids = np.full((2, 8), 3)
    assert model(ids, ids).shape == (2, 8, 9)
    with pytest.raises(ValueError, match="sequence of length 9 was given, but max_length is 8"):
        model(np.full((2, 9), 3), ids)
    with pytest.raises(ValueError, match="sequence of length 9 was given, but max_length is 8"):
        model(ids, np.full((2, 9), 3))


def test_sides_that_do_not_belong_together_are_refused():
    model = small_model()
    source, target, _ = batch()
    with pytest.raises(ValueError, match=r"target_ids \(2, 5\), source_ids \(3, 7\) and memory \(3, 7, 16\) do not"):
        model(source, target[:2])
    with pytest.raises(ValueError, match=r"source_ids \(3, 6\) and memory \(3, 7, 16\) do not fit"):
        model.decode(target, model.encode(source), source[:, :6])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_heads": 3}, "d_model must be a multiple of num_heads, got 16 and 3"),
        ({"activation": "tanh"}, "activation must be one of relu, gelu, gelu_tanh, got 'tanh'"),
        ({"positions": "rotary"}, "positions must be one of sinusoidal, learned, got 'rotary'"),
        ({"dropout": 1.5}, "from 0 to 1, got 1.5"),
        ({"max_length": 0}, "must be at least 1, got 16 and 0"),
        ({"pad_id": 9}, "padding_idx must be from 0 to 8, got 9"),
    ],
)
def test_sizes_and_names_that_do_not_fit_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        small_model(**options)
