"""Layer norm, cross entropy and GELU, run by the emulator: against float64 and PyTorch, whatever the order of threads;
faults planted in the sources are found; they compile without a spilled register.

MINIGRAD_FULL=1 tries every dtype with every sanitizer and compiler.
"""

import itertools
import math
from functools import partial

import numpy as np
import pytest

from kernels import arrays, elements, fused, modules
from kernels.emulator import EmulatedModule, running
from minigrad.backend import DeviceError
from tests.kernels.compilers import COMPILERS, assert_no_spills, compiled
from tests.kernels.elements import (
    DTYPES,
    OF_ELEMENTWISE,
    OF_ROWS,
    assert_fault_is_found,
    draw,
    each_dtype,
    in_every_order,
    of_sources,
    tolerance,
)
from tests.kernels.emulator.compiled import needs_compiler
from tests.kernels.support import FULL, assert_nothing_reported, built_by
from tests.support import as_array, assert_close, torch_or_skip

SHAPES = [(1, 1), (5, 7), (200, 33), (9, 1024), (2, 1500)]  # rows of a warp each, and long ones of a block

# ---- layer norm ------------------------------------------------------------------------------------------------------

EPS = 1e-5


def layer_norm(x, weight, bias, g):
    """(value, d_x, d_weight, d_bias) by the kernels."""
    y, mean, inverse = fused.layer_norm_forward(x, weight, bias, eps=EPS)
    return y, *fused.layer_norm_backward(g, x, weight, mean, inverse, has_bias=bias is not None)


def exact_layer_norm(x, weight, bias, g):
    x, g = as_array(x), as_array(g)
    w = np.ones(x.shape[1]) if weight is None else as_array(weight)
    away = x - x.mean(axis=1, keepdims=True)
    deviation = np.sqrt((away**2).mean(axis=1, keepdims=True) + EPS)
    normalized, g_hat = away / deviation, g * w
    mean_product = (g_hat * normalized).mean(axis=1, keepdims=True)
    d_x = (g_hat - g_hat.mean(axis=1, keepdims=True) - normalized * mean_product) / deviation
    d_weight = None if weight is None else (g * normalized).sum(axis=0)
    value = normalized * w + (0 if bias is None else as_array(bias))
    return value, d_x, d_weight, None if bias is None else g.sum(axis=0)


@needs_compiler
@pytest.mark.parametrize("affine", ["neither", "weight", "bias", "both"])
@each_dtype
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(shape, dtype, affine):
    x, g, weight, bias = draw(shape, shape, shape[1:], shape[1:], dtype=dtype)
    inputs = x, weight if affine in ("weight", "both") else None, bias if affine in ("bias", "both") else None, g
    names = ("value", "d_x", "d_weight", "d_bias")
    for name, found, exact in zip(names, layer_norm(*inputs), exact_layer_norm(*inputs), strict=True):
        if exact is None:
            assert found is None
        else:
            assert found.dtype == dtype
            assert_close(found, exact, tolerance(dtype), name, least=1e-3)  # one number in a row is its mean


@needs_compiler
def test_layer_norm_in_every_order_of_threads():
    for shape in ((70, 40), (3, 1100)):
        x, g, weight, bias = draw(shape, shape, shape[1:], shape[1:])
        in_every_order(lambda x=x, w=weight, b=bias, g=g: layer_norm(x, w, b, g))


@needs_compiler
def test_layer_norm_of_many_rows_sums_part_by_part():
    shape = (4200, 9)  # 64 parts of 66 rows, the last of which is shorter
    inputs = draw(shape, shape[1:], shape[1:], shape)
    for found, exact in zip(layer_norm(*inputs), exact_layer_norm(*inputs), strict=True):
        assert_close(found, exact, 1e-6)
    assert shape[0] > fused.PARTS * fused.ROWS_OF_PART


@needs_compiler
def test_rows_past_the_greatest_grid(monkeypatch):
    monkeypatch.setattr(elements, "MOST_BLOCKS", 2)
    for shape in ((50, 4), (5, 1030)):
        x, g, weight, bias = draw(shape, shape, shape[1:], shape[1:])
        for found, exact in zip(layer_norm(x, weight, bias, g), exact_layer_norm(x, weight, bias, g), strict=True):
            assert_close(found, exact, 1e-6)
    (x,) = draw(5000)
    assert_close(fused.gelu_forward(x, approximate="none"), exact_gelu(x, "none")[0], 1e-6)


@needs_compiler
def test_nan_stays_in_its_row():
    x, g = draw((20, 9), (20, 9))
    x[3, 4] = np.nan
    y, mean, inverse = fused.layer_norm_forward(x, None, None, eps=EPS)
    d_x, _, _ = fused.layer_norm_backward(g, x, None, mean, inverse, has_bias=False)
    assert (np.isnan(y).any(axis=1) == (np.arange(20) == 3)).all()
    assert (np.isnan(d_x).any(axis=1) == (np.arange(20) == 3)).all()


@needs_compiler
def test_any_strides():
    x, g, weight = draw((6, 5), (6, 5), 5)
    strange = np.asfortranarray(x), np.repeat(weight, 2)[::2], None, g[:, ::-1].copy()[:, ::-1]
    for found, other in zip(layer_norm(*strange), layer_norm(x, weight, None, g), strict=True):
        np.testing.assert_array_equal(found, other)
    one = np.broadcast_to(np.float32(0.5), (6, 5))
    np.testing.assert_array_equal(layer_norm(x, weight, None, one)[1], layer_norm(x, weight, None, one.copy())[1])


def test_no_rows_and_no_columns_need_no_launch(monkeypatch):
    for module in (elements, fused):
        monkeypatch.setattr(module, "launch", lambda *arguments: pytest.fail("launched"))
    for shape in ((0, 4), (3, 0)):
        x, weight = np.zeros(shape, np.float32), np.ones(shape[1], np.float32)
        y, d_x, d_weight, d_bias = layer_norm(x, weight, weight, x)
        assert y.shape == d_x.shape == shape and d_weight.tolist() == d_bias.tolist() == [0] * shape[1]
    losses, _, _ = fused.cross_entropy_forward(np.zeros((0, 4), "f"), np.zeros(0, int), ignored=-1, label_smoothing=0)
    assert losses.shape == (0,)
    assert fused.gelu_forward(np.zeros((2, 0), "f"), approximate="none").shape == (2, 0)


# ---- cross entropy ---------------------------------------------------------------------------------------------------


def cross_entropy(logits, target, g, **options):
    """(losses, d_logits) by the kernels."""
    losses, peak, total = fused.cross_entropy_forward(logits, target, **options)
    return losses, fused.cross_entropy_backward(g, logits, target, peak, total, **options)


def exact_cross_entropy(logits, target, g, ignored, label_smoothing):
    x, classes = as_array(logits), logits.shape[1]
    e = np.exp(x - x.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    q = (1 - label_smoothing) * np.eye(classes)[target] + label_smoothing / classes
    counts = (target != ignored)[:, None]
    losses = -np.where(counts, q * np.log(p), 0).sum(axis=1)
    return losses, np.where(counts, as_array(g)[:, None] * (p - q), 0)


@needs_compiler
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@each_dtype
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_cross_entropy(shape, dtype, label_smoothing):
    (logits,), (g,) = draw(shape, dtype=dtype), draw(shape[0], seed=1)
    target = np.random.default_rng(2).integers(0, shape[1], shape[0])
    options = {"ignored": int(target[1]), "label_smoothing": label_smoothing}
    losses, d_logits = cross_entropy(logits, target, g, **options)
    exact_losses, exact_gradient = exact_cross_entropy(logits, target, g, **options)
    assert losses.dtype == np.float32 and d_logits.dtype == dtype
    assert_close(losses, exact_losses, 1e-6)
    assert_close(d_logits, exact_gradient, tolerance(dtype) + 1e-7)  # its smallest float16 numbers are subnormal


@needs_compiler
def test_cross_entropy_in_every_order_of_threads():
    for shape in ((20, 40), (3, 1100)):
        (logits, g), target = draw(shape, shape[0]), np.arange(shape[0]) % 7
        in_every_order(lambda x=logits, t=target, g=g: cross_entropy(x, t, g, ignored=2, label_smoothing=0.1))


@needs_compiler
def test_what_counts_for_nothing():
    """An ignored row, and one whose target is no class: 0, whatever it holds."""
    logits, target = draw((4, 3))[0], np.array([-100, 1, 3, 2])
    logits[[0, 2]], logits[3] = np.nan, np.inf
    losses, d_logits = cross_entropy(logits, target, np.ones(4, "f"), ignored=2, label_smoothing=0.0)
    assert losses[[0, 2, 3]].tolist() == [0, 0, 0] and not d_logits[[0, 2, 3]].any()
    assert losses[1] > 0 and d_logits[1].all()


@needs_compiler
def test_great_logits_keep_their_precision():
    logits, target = draw((30, 11))[0] + np.float32(4096), np.arange(30) % 11
    losses, d_logits = cross_entropy(logits, target, np.ones(30, "f"), ignored=-1, label_smoothing=0.1)
    exact = exact_cross_entropy(logits, target, np.ones(30), -1, 0.1)
    assert_close(losses, exact[0], 1e-6)
    assert_close(d_logits, exact[1], 1e-6)


@needs_compiler
def test_one_gradient_for_all_rows_is_not_copied(monkeypatch):
    logits, target = draw((6, 5))[0], np.arange(6) % 5
    monkeypatch.setattr(fused, "contiguous", lambda x: x if x.flags.c_contiguous else pytest.fail("copied"))
    one = np.broadcast_to(np.float32(0.25), 6)
    found, expected = [cross_entropy(logits, target, g, ignored=-1, label_smoothing=0.0)[1] for g in (one, one.copy())]
    np.testing.assert_array_equal(found, expected)


# ---- GELU ------------------------------------------------------------------------------------------------------------


def exact_gelu(x, form):
    """(value, slope)"""
    x = as_array(x)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    phi = (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    if form == "tanh":
        root = math.sqrt(2 / math.pi)
        phi = (1 + np.tanh(root * (x + 0.044715 * x**3))) / 2
        density = 2 * phi * (1 - phi) * root * (1 + 3 * 0.044715 * x**2)
    return x * phi, phi + x * density


@needs_compiler
@pytest.mark.parametrize("form", fused.GELU_FORMS)
@each_dtype
@pytest.mark.parametrize("shape", [(), (1,), (1025,), (3, 700)])
def test_gelu(shape, dtype, form):
    x, g = [np.array(3 * numbers, dtype) for numbers in draw(shape, shape)]
    y, d_x = fused.gelu_forward(x, approximate=form), fused.gelu_backward(g, x, approximate=form)
    value, slope = exact_gelu(x, form)
    assert y.dtype == d_x.dtype == dtype
    assert_close(y, value, tolerance(dtype))
    assert_close(d_x, as_array(g) * slope, tolerance(dtype))
    in_every_order(lambda: [fused.gelu_backward(g, x, approximate=form)])


# ---- beside PyTorch --------------------------------------------------------------------------------------------------


def of_torch(function, *arrays, g):
    """The value and the gradients of PyTorch's function of these arrays, given the gradient of the value."""
    torch = torch_or_skip()
    leaves = [torch.tensor(array, requires_grad=True) for array in arrays]
    value = function(torch.nn.functional, *leaves)
    return value, *torch.autograd.grad(value, leaves, torch.tensor(g))


@needs_compiler
def test_they_equal_pytorch():
    x, weight, bias, g = draw((30, 50), 50, 50, (30, 50))
    expected = of_torch(lambda f, x, w, b: f.layer_norm(x, (50,), w, b, EPS), x, weight, bias, g=g)
    for found, its in zip(layer_norm(x, weight, bias, g), expected, strict=True):
        assert_close(found, its, 1e-6)
    target, g_losses = np.arange(30) % 50, g[:, 0].copy()
    torch = torch_or_skip()
    options = {"label_smoothing": 0.2, "ignore_index": 3, "reduction": "none"}
    expected = of_torch(lambda f, x: f.cross_entropy(x, torch.tensor(target), **options), x, g=g_losses)
    for found, its in zip(cross_entropy(x, target, g_losses, ignored=3, label_smoothing=0.2), expected, strict=True):
        assert_close(found, its, 1e-6)
    for form in fused.GELU_FORMS:
        value, d_x = of_torch(lambda f, x, form=form: f.gelu(x, approximate=form), x, g=g)
        assert_close(fused.gelu_forward(x, approximate=form), value, 1e-6)
        assert_close(fused.gelu_backward(g, x, approximate=form), d_x, 1e-6)


# ---- what does not fit -----------------------------------------------------------------------------------------------

X, ROW = np.zeros((3, 4), np.float32), np.zeros(4, np.float32)
IDS, EACH_ROW = np.zeros(3, np.int64), np.zeros(3, np.float32)
CLASSES = {"ignored": -1, "label_smoothing": 0.0}
WRONG = [
    (ValueError, r"layer_norm: rows must be an array \(M, n\), got \(4,\)",
     lambda: fused.layer_norm_forward(ROW, None, None, eps=EPS)),
    (ValueError, r"got list", lambda: fused.layer_norm_forward([1.0], None, None, eps=EPS)),
    (TypeError, "layer_norm: the kernels compute in float32, float16, bfloat16, got float64",
     lambda: fused.layer_norm_forward(X.astype("d"), None, None, eps=EPS)),
    (ValueError, r"layer_norm: weight must be an array of float32 \(4,\), got float32 \(3,\)",
     lambda: fused.layer_norm_forward(X, ROW[:3], None, eps=EPS)),
    (ValueError, r"layer_norm: bias must be an array of float32 \(4,\), got float16 \(4,\)",
     lambda: fused.layer_norm_forward(X, ROW, ROW.astype("e"), eps=EPS)),
    (ValueError, r"layer_norm: the gradient must be an array of float32 \(3, 4\), got float32 \(4,\)",
     lambda: fused.layer_norm_backward(ROW, X, None, EACH_ROW, EACH_ROW, has_bias=False)),
    (ValueError, r"layer_norm: mean must be an array of float32 \(3,\), got float32 \(4,\)",
     lambda: fused.layer_norm_backward(X, X, None, ROW, EACH_ROW, has_bias=False)),
    (ValueError, r"cross_entropy: target must be an array of int64 \(3,\), got int32 \(3,\)",
     lambda: fused.cross_entropy_forward(X, IDS.astype(np.int32), **CLASSES)),
    (ValueError, r"cross_entropy: the gradient must be an array of float32 \(3,\), got float",
     lambda: fused.cross_entropy_backward(1.0, X, IDS, EACH_ROW, EACH_ROW, **CLASSES)),
    (TypeError, "gelu: the kernels compute in .*, got int64", lambda: fused.gelu_forward(IDS, approximate="none")),
    (ValueError, "gelu: x must be an array, got list", lambda: fused.gelu_forward([1.0], approximate="none")),
    (ValueError, "gelu: x must be an array, got MaskedArray",
     lambda: fused.gelu_forward(np.ma.array(X), approximate="none")),
    (ValueError, "gelu: approximate must be 'none' or 'tanh', got 'erf'",
     lambda: fused.gelu_forward(X, approximate="erf")),
    (ValueError, "gelu: approximate must be 'none' or 'tanh', got None",
     lambda: fused.gelu_backward(X, X, approximate=None)),
    (ValueError, r"layer_norm: weight must be an array of float32 \(4,\), got MaskedArray",
     lambda: fused.layer_norm_forward(X, np.ma.array(ROW), None, eps=EPS)),
    (ValueError, r"gelu: the gradient must be an array of float32 \(3, 4\), got float32 \(4,\)",
     lambda: fused.gelu_backward(ROW, X, approximate="none")),
]  # fmt: skip


@pytest.mark.parametrize("error, text, call", WRONG)
def test_what_does_not_fit_is_refused(error, text, call):
    with pytest.raises(error, match=text):
        call()


def test_arrays_apart_are_refused(monkeypatch):
    monkeypatch.setattr(arrays, "device_of", lambda array: "cuda:0" if array is ROW else "cpu")
    with pytest.raises(DeviceError, match="layer_norm: weight is on cuda:0, other arrays of the call are on cpu"):
        fused.layer_norm_forward(X, ROW, None, eps=EPS)


# ---- faults are found ------------------------------------------------------------------------------------------------


def error_of_long_rows():
    """How far the results for rows of a block each are off; of columns of a whole warp, so that no index is out."""
    shape = (3, 1056)
    inputs = draw(shape, shape[1:], shape[1:], shape)
    pairs = zip(layer_norm(*inputs), exact_layer_norm(*inputs), strict=True)
    return np.max([np.linalg.norm(found - exact) / np.linalg.norm(exact) for found, exact in pairs])


BARRIERS = [
    "    __syncthreads();  // all values are there\n",
    "    __syncthreads();  // all have been read\n",
    "    __syncthreads();  // the sums of all lines are there\n",
]


@needs_compiler
@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_missing_barrier_is_found(barrier):
    assert_fault_is_found(OF_ROWS, barrier, error_of_long_rows)


def rows_sanitized(sanitize, dtype):
    """In a process that was started for the sanitizer; sizes that fill no warp and no block."""
    with of_sources(OF_ROWS), built_by(partial(EmulatedModule, sanitize=sanitize)), running("random", seed=1):
        for shape in ((70, 33), (2, 1030)):
            x, g, weight = draw(shape, shape, shape[1:], dtype=dtype)
            layer_norm(x, weight, weight, g)
            ids, (g_losses,) = np.arange(shape[0]) % 33, draw(shape[0])
            cross_entropy(x, ids, g_losses, ignored=1, label_smoothing=0.1)


def gelu_sanitized(sanitize, dtype):
    """As `rows_sanitized`; a size that fills no chunk."""
    with of_sources(OF_ELEMENTWISE), built_by(partial(EmulatedModule, sanitize=sanitize)), running("random", seed=1):
        x, g = draw(1030, 1030, dtype=dtype)
        for form in fused.GELU_FORMS:
            fused.gelu_backward(g, fused.gelu_forward(x, approximate=form), approximate=form)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES if FULL else ["float32"])
@pytest.mark.parametrize("run", ["rows_sanitized", "gelu_sanitized"])
@pytest.mark.parametrize("sanitize", ["address", "thread"])
def test_sanitizers_report_nothing(sanitize, run, dtype):
    assert_nothing_reported(sanitize, f"{__name__}:{run}", sanitize, dtype)


# ---- compiled for a GPU ----------------------------------------------------------------------------------------------

KERNELS = [
    "layer_norm_forward", "layer_norm_backward", "layer_norm_sums_of_parts", "layer_norm_sums",
    "cross_entropy_forward", "cross_entropy_backward", "gelu_forward", "gelu_backward", "dropout",
    "adam", "squares_of_chunks", "scale_gradients",
]  # fmt: skip
BUILDS = list(itertools.product(DTYPES, COMPILERS))
SAMPLED = [("float32", compiler) for compiler in COMPILERS[:3]] + [("bfloat16", COMPILERS[2])]


@pytest.mark.parametrize("dtype, compiler", BUILDS if FULL else SAMPLED)
def test_no_register_is_spilled(dtype, compiler):
    code, options = modules.source_text(elements.SOURCES), (f"-DDTYPE={elements.DTYPES[dtype]}",)
    binary = compiled(*compiler, code, options)
    assert_no_spills(binary, *KERNELS)
    assert max(kernel.registers for kernel in binary.kernels.values()) <= 32  # 2048 threads of a multiprocessor
