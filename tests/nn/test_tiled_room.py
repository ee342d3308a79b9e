"""The tiled room of attention: what the formulas give in float64, in many small tiles, in memory that grows with N."""

import math
import threading
import tracemalloc

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from minigrad import dividing
from minigrad.dividing import undivided
from nn import tiled_room
from tests.kernels.reference import Attention
from tests.nn.attention import draw, leaves, with_gradients
from tests.support import as_array, assert_close

INF = math.inf
TOLERANCE = {"float32": 1e-6, "float64": 1e-13}
B, H, N_Q, N_K = 2, 3, 11, 15
SHAPES = [(B, H, N_Q, 8), (B, H, N_K, 8), (B, H, N_K, 6)]
PLACES = np.random.default_rng(9).random((B, H, N_Q, N_K)) < 0.4  # with empty rows, and empty tiles
PLACES[:, :, 3:6] = False


@pytest.fixture(autouse=True)
def in_the_tiled_room():
    with F.attention_room("tiled"):
        yield


@pytest.fixture
def small_tiles(monkeypatch):
    """Of 4 queries and 6 keys, so that small inputs have many."""
    monkeypatch.setattr(tiled_room, "QUERIES", 4)
    monkeypatch.setattr(tiled_room, "KEYS", 6)


def attend(*inputs, **options):
    mg.manual_seed(3)  # so that dropout drops the same at every call
    return F.scaled_dot_product_attention(*inputs, **options)


def assert_equals_formulas(shapes, dtype="float64", mask=None, **options):
    """Value and gradients, of a floating mask too, are those of the formulas in float64."""
    arrays = draw(*shapes, dtype=dtype)
    floating = mask is not None and mask.dtype != np.bool_
    inputs = leaves(*arrays, *([mask] if floating else []))
    if mask is not None and not floating:
        options["attn_mask"] = mg.Tensor(mask)
    (weights,) = draw((*shapes[0][:-1], shapes[2][-1]), seed=1, dtype=dtype)
    value, gradients = with_gradients(lambda *inputs: attend(*inputs, **options), inputs, weights)
    lengths = options.pop("key_lengths", None)
    options.pop("attn_mask", None)
    expected = Attention(*arrays, bias=mask, key_lengths=None if lengths is None else as_array(lengths), **options)
    tolerance = TOLERANCE[dtype]
    assert value.dtype == dtype
    assert_close(value, expected.output, tolerance)
    names = ("d_query", "d_key", "d_value", "d_mask")
    for name, found, its in zip(names, gradients, expected.gradients(weights), strict=False):
        assert found.dtype == dtype
        assert_close(found, its, tolerance, name, least=1.0)  # what one visible key alone leaves is rounding


# ---- beside the formulas ---------------------------------------------------------------------------------------------

CASES = {
    "no options": {},
    "causal": {"is_causal": True},
    "causal after a cache": {"is_causal": True, "causal_offset": 5},
    "causal with empty rows": {"is_causal": True, "causal_offset": -5},
    "causal with no visible key": {"is_causal": True, "causal_offset": -N_Q},
    "causal with nothing hidden": {"is_causal": True, "causal_offset": N_K},
    "places": {"mask": PLACES},
    "places shared by heads": {"mask": PLACES[:, :1]},
    "places shared by queries": {"mask": PLACES[:, :, :1]},
    "places of queries": {"mask": PLACES[0, 0, :, :1]},
    "lengths": {"key_lengths": mg.Tensor([7, 0])},
    "a scale": {"scale": 0.3},
    "all at once": {
        "mask": PLACES[:, :1],
        "is_causal": True,
        "causal_offset": 2,
        "key_lengths": mg.Tensor([14, 4]),
        "scale": 0.7,
    },
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_formulas(small_tiles, case, dtype):
    assert_equals_formulas(SHAPES, dtype, **CASES[case])


@pytest.mark.parametrize("offset", [-6, -1, 0, 1, 3, 50])
@pytest.mark.parametrize(("n_q", "n_k"), [(1, 1), (4, 6), (5, 7), (3, 20), (20, 3), (8, 12), (0, 5)])
def test_any_lengths_and_causal_offsets(small_tiles, n_q, n_k, offset):
    assert_equals_formulas([(1, 2, n_q, 4), (1, 2, n_k, 4), (1, 2, n_k, 4)], is_causal=True, causal_offset=offset)


MASK_SHAPES = [(N_K,), (N_Q, 1), (N_Q, N_K), (B, 1, 1, N_K), (1, H, N_Q, N_K), (B, H, N_Q, 1), (B, H, N_Q, N_K)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", MASK_SHAPES)
def test_a_float_mask_and_its_gradient(small_tiles, shape, dtype):
    (mask,) = draw(shape, seed=2, dtype=dtype)
    mask[(0,) * mask.ndim] = -INF
    assert_equals_formulas(SHAPES, dtype, mask=mask, is_causal=True, causal_offset=3)


def test_whole_tiles_in_float32():
    shapes = [(1, 2, 600, 32), (1, 2, 1300, 32), (1, 2, 1300, 32)]
    assert_equals_formulas(shapes, "float32")
    assert_equals_formulas(shapes, "float32", is_causal=True, causal_offset=300, key_lengths=mg.Tensor([900]))


def test_it_is_as_exact_as_the_plain_room():
    """Also where scores are large: what is kept of a row is not rounded."""
    arrays = draw((1, 2, 300, 64), (1, 2, 700, 64), (1, 2, 700, 64), dtype="float32")
    arrays[0] *= 8
    (weights,) = draw((1, 2, 300, 64), seed=1)
    with F.attention_room("plain"):
        exact = results(leaves(*[x.astype(np.float64) for x in arrays]), weights)
        plain = results(leaves(*arrays), weights)
    for found, its, right in zip(results(leaves(*arrays), weights), plain, exact, strict=True):
        size = np.linalg.norm(right)
        assert np.linalg.norm(found - right) < max(1.5 * np.linalg.norm(its - right), 1e-6 * size)


def results(inputs, weights):
    value, gradients = with_gradients(attend, inputs, weights)
    return [as_array(x) for x in (value, *gradients)]


@pytest.mark.parametrize("case", [*CASES, "dropout"])
def test_gradients_pass_gradcheck(small_tiles, case):
    options = dict(CASES[case]) if case in CASES else {"dropout_p": 0.4, "is_causal": True, "causal_offset": 2}
    mask = options.pop("mask", None)
    options["attn_mask"] = None if mask is None else mg.Tensor(mask)
    arrays = draw((B, H, N_Q, 3), (B, H, N_K, 3), (B, H, N_K, 2))
    assert mg.gradcheck(lambda *inputs: attend(*inputs, **options), arrays, order=2)


@pytest.mark.parametrize("shape", [(N_K,), (B, 1, N_Q, 1), (1, H, N_Q, N_K)])
def test_gradients_with_a_float_mask_pass_gradcheck(small_tiles, shape):
    arrays = draw((B, H, N_Q, 3), (B, H, N_K, 3), (B, H, N_K, 2), shape)
    arrays[3].flat[0] = -INF
    assert mg.gradcheck(lambda *inputs: attend(*inputs, is_causal=True, dropout_p=0.3), arrays, order=2)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_mask_of_another_dtype(small_tiles, dtype):
    q, k, v, mask = draw(*SHAPES, (N_Q, N_K), dtype="float32")
    inputs = [*leaves(q, k, v), mg.Tensor(mask.astype(dtype), requires_grad=True)]
    value, gradients = with_gradients(attend, inputs, draw((B, H, N_Q, 6), seed=1)[0])
    with F.attention_room("plain"):
        expected, expected_gradients = with_gradients(attend, inputs, draw((B, H, N_Q, 6), seed=1)[0])
    assert value.dtype == expected.dtype == np.float32 and gradients[3].dtype == dtype
    assert_close(value, expected, 1e-6)
    for found, its in zip(gradients, expected_gradients, strict=True):
        assert_close(found, its, 1e-3 if found.dtype == np.float16 else 1e-6)


# ---- dropout ---------------------------------------------------------------------------------------------------------


def drawn_factor(p, **options):
    """What the weights are multiplied by, seen from outside: with queries of 0 all visible keys weigh the same."""
    q, k = mg.zeros(B, H, N_Q, 1, dtype=np.float64), mg.zeros(B, H, N_K, 1, dtype=np.float64)
    values = mg.Tensor(np.broadcast_to(np.eye(N_K), (B, H, N_K, N_K)))
    return as_array(attend(q, k, values, dropout_p=p, **options)) / as_array(attend(q, k, values, **options)).clip(1e-9)


@pytest.mark.parametrize("options", [{}, {"is_causal": True, "causal_offset": 3}, {"key_lengths": mg.Tensor([13, 5])}])
def test_dropout_is_the_same_going_back(small_tiles, options):
    factor = drawn_factor(0.4, **options)
    assert np.isclose(factor, 1 / 0.6).any() and (np.isclose(factor, 1 / 0.6) | (factor == 0)).all()
    arrays = draw(*SHAPES)
    (weights,) = draw((B, H, N_Q, 6), seed=1)
    value, gradients = with_gradients(
        lambda *inputs: attend(*inputs, dropout_p=0.4, **options), leaves(*arrays), weights
    )
    lengths = options.get("key_lengths")
    others = {name: option for name, option in options.items() if name != "key_lengths"}
    expected = Attention(*arrays, key_lengths=None if lengths is None else as_array(lengths), **others)
    expected.factor = factor
    assert_close(value, (expected.weights * factor) @ arrays[2], 1e-13)
    for found, its in zip(gradients, expected.gradients(weights), strict=False):
        assert_close(found, its, 1e-13)


def test_tiles_heads_and_calls_drop_other_weights(small_tiles):
    factor = drawn_factor(0.5)
    tiles = [factor[b, h, i : i + 4, j : j + 6] for b in range(B) for h in range(H) for i in (0, 4) for j in (0, 6)]
    assert len({tile.tobytes() for tile in tiles}) == len(tiles)
    mg.manual_seed(0)
    inputs = leaves(*draw(*SHAPES))
    first, second = (F.scaled_dot_product_attention(*inputs, dropout_p=0.5).numpy() for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_so_many_weights_are_dropped(p):
    k, v = mg.zeros(1000, 1), mg.ones(1000, 1)
    output = attend(mg.zeros(500, 1), k, v, dropout_p=p).numpy()
    kept = output.mean() * (1 - p)
    assert abs(kept - (1 - p)) < 4 * math.sqrt(p * (1 - p) / 500_000) + 1e-7


# ---- what is hidden --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["is_causal", "boolean", "float", "lengths"])
def test_what_is_hidden_changes_no_bit(small_tiles, form):
    q, k, v = draw((2, 2, 17, 8), (2, 2, 17, 8), (2, 2, 17, 8), dtype="float32")
    early = 9
    visible = np.tril(np.ones((17, 17), bool))
    options = {
        "is_causal": {"is_causal": True},
        "boolean": {"attn_mask": mg.Tensor(visible)},
        "float": {"attn_mask": mg.Tensor(np.where(visible, 0, -INF))},
        "lengths": {"key_lengths": mg.Tensor([early, early])},
    }[form]

    def first_outputs_and_gradients(late):
        inputs = leaves(*[np.concatenate([x[:, :, :early], x[:, :, early:] * late + late], 2) for x in (q, k, v)])
        output = attend(*inputs, **options)[:, :, :early]
        return [output.numpy(), *[gradient.numpy() for gradient in mg.grad(output, inputs, q[:, :, :early])]]

    for found, expected in zip(first_outputs_and_gradients(-300.0), first_outputs_and_gradients(1.0), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")
def test_nan_does_not_leak_from_hidden_keys(small_tiles):
    q, k, v = draw(*SHAPES, dtype="float32")
    clean = attend(*map(mg.Tensor, (q, k, v)), is_causal=True).numpy()
    spoilt = k.copy()
    spoilt[:, :, N_Q:] = np.nan
    np.testing.assert_array_equal(attend(*map(mg.Tensor, (q, spoilt, v)), is_causal=True).numpy(), clean)


def test_nan_in_padding_reaches_neither_values_nor_gradients(small_tiles):
    q, k, v = draw(*SHAPES)
    lengths = mg.Tensor([7, 3])

    def everything(padding):
        arrays = [q, k.copy(), v.copy()]
        for x in arrays[1:]:
            x[0, :, 7:] = x[1, :, 3:] = padding
        value, gradients = with_gradients(lambda *x: attend(*x, key_lengths=lengths), leaves(*arrays), q[..., :6])
        return [value.numpy(), *[gradient.numpy() for gradient in gradients]]

    for found, expected in zip(everything(np.nan), everything(0.0), strict=True):
        np.testing.assert_array_equal(found, expected)


# ---- cost ------------------------------------------------------------------------------------------------------------


def test_hidden_tiles_are_passed_over(monkeypatch):
    monkeypatch.setattr(tiled_room, "QUERIES", 4)
    monkeypatch.setattr(tiled_room, "KEYS", 4)
    seen = []
    scores = tiled_room._Tiles.scores

    def noted(self, tile, *others):
        seen.append((tile.rows.start, tile.columns.start))
        return scores(self, tile, *others)

    monkeypatch.setattr(tiled_room._Tiles, "scores", noted)
    q, k, v = leaves(*draw((16, 4), (16, 4), (16, 4)))
    attend(q, k, v, is_causal=True).sum().backward()
    expected = [(i, j) for i in (0, 4, 8, 12) for j in (0, 4, 8, 12) if j <= i]
    assert seen == 2 * expected


@pytest.mark.cpu_only(reason="it looks at NumPy's memory")
@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True, "dropout_p": 0.1, "key_lengths": mg.Tensor([2000])}, {"attn_mask": "a row"}]
)
def test_memory_grows_with_the_length_alone(options):
    n = 2048
    inputs = leaves(*draw(*[(1, 2, n, 16)] * 3, dtype="float32"))
    if options.get("attn_mask") == "a row":
        inputs += leaves(np.zeros(n, np.float32))
        options = {}
    tracemalloc.start()
    with undivided():  # each thread has tiles of its own
        attend(*inputs, **options).sum().backward()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n * n * 4 / 4  # of one head's scores; tiles take 1 MiB, results and gradients four times 256 KiB


@pytest.mark.cpu_only(reason="on a GPU one thread launches all")
def test_heads_in_several_threads_give_the_same_bits(small_tiles, monkeypatch):
    arrays = draw(*SHAPES, dtype="float32")
    (weights,) = draw((B, H, N_Q, 6), seed=1)

    def everything():
        value, gradients = with_gradients(lambda *x: attend(*x, dropout_p=0.3), leaves(*arrays), weights)
        return [value.numpy(), *[gradient.numpy() for gradient in gradients]]

    scores, threads = tiled_room._Tiles.scores, set()

    def noted(self, *others):
        threads.add(threading.get_ident())
        return scores(self, *others)

    monkeypatch.setattr(tiled_room._Tiles, "scores", noted)
    monkeypatch.setattr(dividing, "LEAST_WORK", 1.0)
    found = []
    for count in (1, 4):
        monkeypatch.setattr(dividing, "_count", count)
        threads.clear()
        found.append(everything())
        assert len(threads) == count
    for together, alone in zip(*found, strict=True):
        np.testing.assert_array_equal(together, alone)
