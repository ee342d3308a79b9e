"""Attention of float16 and bfloat16, run by the emulator: as exact as plain attention of the same precision, with every
option, whatever the order of threads; faults planted in the source are found.

MINIGRAD_FULL=1 tries every head dimension with both dtypes and every order.
"""

from functools import partial
from itertools import product

import numpy as np
import pytest

from kernels import attention_forward, devices
from kernels.call import Call, Options, with_aligned_rows
from kernels.emulator import EmulatedModule, EmulatorError, running
from tests.kernels import faults
from tests.kernels.emulator.compiled import WAYS, needs_compiler
from tests.kernels.reference import Attention
from tests.kernels.support import (
    FULL,
    SHAPES,
    assert_close,
    assert_nothing_reported,
    assert_same_bits,
    built_by,
    errors,
    every,
    is_as_exact_as_plain,
    random_inputs,
    run,
)

bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes, which has bfloat16, is not installed").bfloat16

# ---- lengths, causal masks, head dimensions --------------------------------------------------------------------------

WIDTHS = (16, 20, 32, 64, 128, 256)
ACCURACY = [(np.float16, width) for width in WIDTHS] + [(bfloat16, 64)]
ACCURACY += every((bfloat16, width) for width in (16, 20, 32, 128, 256))
ACCURACY += every((np.float16, width) for width in (1, 7, 37, 96, 200))


@needs_compiler
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype, width", ACCURACY)
def test_as_exact_as_plain_attention_in_any_order_of_threads(dtype, width, shape):
    sizes, keys, options = SHAPES[shape]
    inputs = random_inputs(dtype, (*sizes, width), keys=keys)
    results = run(inputs, **options)
    assert all(x.dtype == dtype for x in results[:4])
    assert_close(inputs, results, options)
    for order, seed, copies in WAYS:
        with running(order, seed, copies):
            again = run(inputs, **options)
        assert_same_bits(again, results, f"with threads {order}, copies {copies}")


@needs_compiler
def test_log_sum_exp():
    inputs = random_inputs(np.float16, (2, 2, 101, 64), keys=77)
    options = {"is_causal": True, "causal_offset": -30}
    _, lse = attention_forward(*inputs[1:], **options)
    exact = Attention(*inputs[1:], **options).lse
    np.testing.assert_array_equal(np.isinf(lse), np.isinf(exact))
    np.testing.assert_allclose(lse[np.isfinite(exact)], exact[np.isfinite(exact)], atol=2e-6)


# ---- options ---------------------------------------------------------------------------------------------------------

B, H, N_Q, N_K = 2, 4, 67, 83
DROPOUT = {"dropout_p": 0.3, "dropout_key": (5, 6, 7)}


def _bias(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _mask(*shape):
    return _bias(*shape, seed=2) > 0


OPTIONS = {
    "a mask for each head": lambda: {"bias": _mask(B, H, N_Q, N_K)},
    "a mask of keys": lambda: {"bias": _mask(B, 1, 1, N_K)},
    "a bias for each head": lambda: {"bias": _bias(B, H, N_Q, N_K)},
    "a bias for all batch entries": lambda: {"bias": _bias(H, N_Q, N_K)},
    "a bias of keys": lambda: {"bias": _bias(1, H, 1, N_K)},
    "a bias that hides": lambda: {"bias": np.where(_mask(N_Q, N_K), 0, -np.inf).astype(np.float32)},
    "key lengths": lambda: {"key_lengths": np.array([0, 41])},
    "dropout": lambda: DROPOUT,
    "everything": lambda: {
        "bias": _bias(B, 1, N_Q, N_K),
        "key_lengths": np.array([70, 83]),
        "is_causal": True,
        "causal_offset": -3,
        "scale": 0.3,
        **DROPOUT,
    },
    "scale 0": lambda: {"scale": 0.0},
    "a negative scale": lambda: {"scale": -0.7, "key_lengths": np.array([50, 83])},
}


@needs_compiler
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype, width", [(np.float16, 64), *every(product((np.float16, bfloat16), WIDTHS))])
def test_options(dtype, width, options, key_heads):
    options = OPTIONS[options]()
    inputs = random_inputs(dtype, (B, H, N_Q, width), key_heads, N_K)
    with running("random", seed=3, copies="early"):
        results = run(inputs, **options)
    assert_close(inputs, results, options)


@needs_compiler
@pytest.mark.parametrize("low", [-1e9, np.finfo(np.float32).min])
@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_rows_of_a_very_low_bias_have_equal_weights(dtype, low):
    """Other libraries hide keys so: where all are hidden, the scores drown and all weights are equal."""
    inputs = random_inputs(dtype, (1, 2, 70, 64))
    usual, is_low = _bias(70, 70), np.arange(70)[:, None] % 3 > 0
    results = run(inputs, bias=np.where(is_low, np.float32(low), usual))
    lowest = np.where(is_low, np.finfo(np.float32).min, usual)  # scores drown in it in float64 too
    assert_close(inputs, results, {"bias": lowest})


@needs_compiler
def test_large_scores():
    inputs = random_inputs(np.float16, (1, 2, 70, 64))
    inputs[1] *= 100  # scores of ±1,000 and more: nearly all weights are 0 or 1
    assert_close(inputs, run(inputs), {})


@needs_compiler
@pytest.mark.parametrize("size", [1e3, 1e4, 1e5, 1e6])
def test_how_exact_weights_of_very_large_scores_are(size):
    """Within the bound that `attention_forward` promises; with a floating bias, which is slower, they are exact."""
    inputs = random_inputs(np.float16, (1, 2, 200, 16))
    options = {"scale": size / 25}  # q.k is nearly 25 at most
    exact = Attention(*inputs[1:], **options)
    scores = np.abs(exact.query @ exact.key.swapaxes(-1, -2)).max() * options["scale"]
    found = errors(inputs, run(inputs, **options), options)
    assert size / 2 < scores < size and max(found["output"], found["d_value"]) <= 2**-23 * scores + 2**-11
    bias = {"bias": np.zeros((200, 1), np.float32)}
    found = errors(inputs, run(inputs, **options, **bias), options | bias)
    assert max(found["output"], found["d_value"]) <= 2**-11


@needs_compiler
def test_nan_and_infinity_stay_in_their_rows():
    inputs = random_inputs(np.float16, (1, 1, 70, 64))
    inputs[1][0, 0, 5], inputs[1][0, 0, 6, 0] = np.nan, np.inf
    output, lse = attention_forward(*inputs[1:])
    wrong = np.isin(np.arange(70), [5, 6])
    assert np.isnan(output[0, 0, wrong]).all() and np.isfinite(output[0, 0, ~wrong]).all()
    assert np.isfinite(lse[0, 0, ~wrong]).all()


# ---- where arrays lie ------------------------------------------------------------------------------------------------


def _projection(width):
    """query, key, value as views of one array (B, N, 3, H, d)."""
    whole = np.random.default_rng(4).standard_normal((2, 50, 3, 2, width)).astype(np.float16)
    return whole, [whole[:, :, i].swapaxes(1, 2) for i in range(3)]


@needs_compiler
@pytest.mark.parametrize("width", [64, 24, 20, 21])
def test_views_of_one_projection(width):
    whole, views = _projection(width)
    grad_output = whole[:, ::-1, 0].swapaxes(1, 2)
    copies = [np.ascontiguousarray(x) for x in (grad_output, *views)]
    assert_same_bits(run([grad_output, *views]), run(copies))


def test_views_are_copied_only_if_their_rows_are_not_aligned():
    for width, shared in ((64, True), (24, True), (20, False)):
        whole, views = _projection(width)
        call = Call(*views, Options())
        for x in (call.query, call.key, call.value):
            assert np.shares_memory(x, whole) == shared
            assert all(stride % 16 == 0 for stride in x.strides[:-1])


def test_aligned_rows():
    x = np.arange(7 * 20, dtype=np.float16).reshape(1, 1, 7, 20)
    padded = np.zeros((1, 1, 7, 24), np.float16)
    assert with_aligned_rows(padded[..., :20]).base is padded
    found = with_aligned_rows(x)
    np.testing.assert_array_equal(found, x)
    assert found.strides[2] == 48
    shifted = np.zeros(1 + 7 * 24, np.float16)[1:].reshape(1, 1, 7, 24)
    assert with_aligned_rows(shifted) is not shifted


@needs_compiler
def test_numbers_beyond_a_row_are_not_read():
    inputs = random_inputs(np.float16, (1, 2, 40, 20))
    filled = [np.full((*x.shape[:-1], 24), np.nan, np.float16) for x in inputs]
    for x, y in zip(inputs, filled, strict=True):
        y[..., :20] = x
    assert_same_bits(run([y[..., :20] for y in filled]), run(inputs))


@needs_compiler
def test_tiles_for_little_shared_memory(monkeypatch):
    monkeypatch.setattr(devices, "EMULATED_SHARED_MEMORY", 99 << 10)
    inputs = random_inputs(np.float16, (1, 1, 70, 256), keys=101)
    assert_close(inputs, run(inputs), {})
    monkeypatch.setattr(devices, "EMULATED_SHARED_MEMORY", 64 << 10)
    with pytest.raises(ValueError, match="256 in float16 needs 98304 bytes of shared memory, this device has 65536"):
        run(inputs)


# ---- faults are found ------------------------------------------------------------------------------------------------

FAULTS = faults.FAULTS | {
    "no wait for what is owned": ("    cp_async_wait<0>();\n", ""),
    "operand in another order": ("&p[m][2 * k + i / 2][i % 2 * 2]", "&p[m][2 * k + i % 2][i / 2 * 2]"),
    "chunks of a row exchanged": ("lane() / 8 % 2) ^", "lane() / 8 % 2 ^ 1) ^"),
}


@needs_compiler
@pytest.mark.parametrize("fault", FAULTS | faults.FORWARD)
def test_a_fault_in_forward_is_found(fault):
    inputs = random_inputs(np.float16, (1, 1, 150, 64), keys=203)
    options = {"is_causal": True, "causal_offset": 60}
    is_close = partial(is_as_exact_as_plain, inputs, options)
    assert faults.shows((FAULTS | faults.FORWARD)[fault], faults.forward(inputs, options), is_close)


@needs_compiler
@pytest.mark.parametrize("fault", [*every(FAULTS), *faults.BACKWARD])
def test_a_fault_in_backward_is_found(fault):
    inputs = random_inputs(np.float16, (1, 1, 203, 64), keys=150)
    options = {"is_causal": True, "causal_offset": -5}
    is_close = partial(is_as_exact_as_plain, inputs, options)
    assert faults.shows((FAULTS | faults.BACKWARD)[fault], faults.backward(inputs, options), is_close)


@needs_compiler
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("width", [64, *every([16, 20, 128, 256])])
def test_shared_memory_that_is_one_row_short_is_found(width, backward):
    inputs = random_inputs(np.float16, (1, 1, 150, width))
    with faults.short_of_shared_memory(2 * width, backward=backward), pytest.raises(EmulatorError, match="shared mem"):
        run(inputs)


@needs_compiler
@pytest.mark.parametrize("width", WIDTHS if FULL else (16, 64))
def test_no_bank_conflicts(width):
    assert faults.bank_conflicts(random_inputs(np.float16, (1, 1, 150, width))) == 0


@needs_compiler
def test_bank_conflicts_are_counted():
    def in_order(code):
        assert code.count("8 * (c ^ (r / per_line % places))") == 1
        return code.replace("8 * (c ^ (r / per_line % places))", "8 * c")

    assert faults.bank_conflicts(random_inputs(np.float16, (1, 1, 150, 64)), in_order) > 1000


def sanitized_run(sanitize, width, options):
    """A call, forward and backward, under a sanitizer, in a process that was started for it."""
    inputs = random_inputs(np.float16, (B, H, N_Q, width), 2, N_K)
    options = OPTIONS[options]() if options else {"is_causal": True}
    with built_by(partial(EmulatedModule, sanitize=sanitize)), running("random", seed=1, copies="early"):
        assert_close(inputs, run(inputs, **options), options)


@needs_compiler
@pytest.mark.parametrize("sanitize", ["address", "thread"])
@pytest.mark.parametrize("width, options", [(16, None), *every(product(WIDTHS, [None, "everything"]))])
def test_sanitizers_report_nothing(width, options, sanitize):
    assert_nothing_reported(sanitize, f"{__name__}:sanitized_run", sanitize, width, options)
