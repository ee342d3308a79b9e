"""Layer norm, cross entropy and GELU in one launch each way, where array operations take many: arrays in, arrays out.

What the kernels compute is in rows.cu and elementwise.cu; they read and write float32, float16 or bfloat16, and compute
in float32. Arrays of NumPy are run by `kernels.emulator`, arrays of CuPy by `cupy.RawModule`. What is done with all
parameters at once is in `kernels.parameters`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from kernels.modules import kernel
from minigrad.backend import Array, DeviceError, array_module, cuda_device, device_of, is_array, on_device_of

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}  # as elements.cuh numbers them
SOURCES = ("ptx.cuh", "elements.cuh", "rows.cu", "elementwise.cu", "parameters.cu")
GELU_FORMS = {"none": 0, "tanh": 1}
THREADS, WARP, CHUNK = 256, 32, 1024  # of elements.cuh: threads of a block, and of a warp; elements of a chunk
LONG_ROW = 1024  # from so many elements on a row has a block, not a warp
MOST_BLOCKS = 2**31 - 1
PARTS, ROWS_OF_PART = 64, 64  # a sum over rows is made in so many parts at most, of so many rows at least

# ---- which arrays ----------------------------------------------------------------------------------------------------


def are_taken(first: Array, *others: Array | None) -> bool:
    """Whether these arrays, of which others may be None, are better given to kernels than to the array library.

    They are if they lie on a GPU and are all of one dtype that the kernels compute in. On a CPU NumPy is much faster
    than the emulator, which runs for whoever calls it.
    """
    if isinstance(first, np.ndarray):
        return False
    same = all(array is None or array.dtype == first.dtype for array in others)
    return same and computes_in(first.dtype.name, device_of(first))


@functools.cache
def computes_in(dtype: str, device: str) -> bool:
    """Whether the kernels can be run for this dtype on this device."""
    if dtype not in DTYPES or device == "cpu" or dtype == "float32":
        return dtype in DTYPES
    cupy, index = cuda_device(device)
    return int(cupy.cuda.Device(index).compute_capability) >= 80  # 16 bits are rounded by instructions of the A100


def _operand(what: str, array: Array | None, like: Array, shape: tuple[int, ...], dtype: Any = None) -> Any:
    """The array, checked and made contiguous; None for None."""
    if array is None:
        return None
    _check(what, array, like, shape, dtype)
    return contiguous(array)


def _check(what: str, array: Array, like: Array, shape: tuple[int, ...], dtype: Any = None) -> None:
    """ValueError or DeviceError for what does not fit: kernels get bare addresses, and nobody else looks."""
    dtype = like.dtype if dtype is None else np.dtype(dtype)
    if not is_array(array) or array.dtype != dtype or array.shape != shape:
        found = f"{array.dtype} {array.shape}" if is_array(array) else type(array).__name__
        raise ValueError(f"{what} must be an array of {dtype} {shape}, got {found}")
    if device_of(array) != device_of(like):
        raise DeviceError(f"{what} is on {device_of(array)}, other arrays of the call are on {device_of(like)}")


def contiguous(array: Array) -> Array:
    """The array, or a copy whose elements lie side by side; without axes it stays without."""
    return array if array.flags.c_contiguous else array_module(array).ascontiguousarray(array)


def _rows(name: str, x: Array) -> tuple[int, int]:
    """The shape of an array of rows. ValueError or TypeError for another."""
    if not is_array(x) or x.ndim != 2:
        raise ValueError(f"{name}: rows must be an array (M, n), got {x.shape if is_array(x) else type(x).__name__}")
    _check_dtype(name, x)
    return x.shape


def _check_dtype(name: str, x: Array) -> None:
    if x.dtype.name not in DTYPES:
        raise TypeError(f"{name}: the kernels compute in {', '.join(DTYPES)}, got {x.dtype}")


# ---- launches --------------------------------------------------------------------------------------------------------


def launch(name: str, like: Array, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Any) -> None:
    """Run a kernel, built for the dtype of `like`, where that array is."""
    options = (f"-DDTYPE={DTYPES[like.dtype.name]}",)
    found = kernel(array_module(like), device_of(like), SOURCES, options, name)
    with on_device_of(like):
        found(grid, block, arguments)


def _launch_rows(name: str, x: Array, *arguments: Any) -> None:
    """A warp for each row, or a block for each long one."""
    rows, columns = x.shape
    threads = WARP if columns < LONG_ROW else THREADS
    at_once = min(THREADS // threads, rows)  # rows of a block
    grid = min(-(-rows // at_once), MOST_BLOCKS)
    launch(name, x, (grid,), (threads, at_once), *arguments)


def _launch_elements(name: str, x: Array, *arguments: Any) -> None:
    launch(name, x, (min(-(-x.size // CHUNK), MOST_BLOCKS),), (THREADS,), *arguments)


# ---- layer norm ------------------------------------------------------------------------------------------------------


def layer_norm_forward(x: Array, weight: Array | None, bias: Array | None, *, eps: float) -> tuple[Array, Array, Array]:
    """(x - mean) / √(variance + eps) * weight + bias of each row: Ba et al. 2016, equations 3 and 4.

    x (M, n); weight, bias (n,) in x's dtype, or None. Returns the value (M, n) in x's dtype, and each row's mean and
    1 / √(variance + eps), float32 (M,). Raises ValueError, TypeError and DeviceError for arrays that do not fit.
    """
    rows, columns = _rows("layer_norm", x)
    with on_device_of(x):
        library = array_module(x)
        x = contiguous(x)
        weight = _operand("layer_norm: weight", weight, x, (columns,))
        bias = _operand("layer_norm: bias", bias, x, (columns,))
        y = library.empty_like(x)
        mean, inverse = library.empty(rows, np.float32), library.empty(rows, np.float32)
        if x.size:
            sizes = np.int64(rows), np.int64(columns), np.float32(eps)
            _launch_rows("layer_norm_forward", x, x, weight, bias, y, mean, inverse, *sizes)
    return y, mean, inverse


def layer_norm_backward(
    g: Array, x: Array, weight: Array | None, mean: Array, inverse: Array, *, has_bias: bool
) -> tuple[Array, Array | None, Array | None]:
    """The gradients of x, weight and bias, given that of the value: g (M, n), and what `layer_norm_forward` returned.

    With x̂ the normalized rows: ∂x = (ĝ - mean ĝ - x̂ mean(ĝ x̂)) inverse with ĝ = g weight, ∂weight = Σ g x̂ and
    ∂bias = Σ g over the rows, in a fixed order. None for a weight or bias that is not there.
    """
    rows, columns = _rows("layer_norm", x)
    with on_device_of(x):
        library = array_module(x)
        x = contiguous(x)
        g = _operand("layer_norm: the gradient", g, x, x.shape)
        weight = _operand("layer_norm: weight", weight, x, (columns,))
        mean = _operand("layer_norm: mean", mean, x, (rows,), np.float32)
        inverse = _operand("layer_norm: inverse", inverse, x, (rows,), np.float32)
        d_x = library.empty_like(x)
        made = library.empty if x.size else library.zeros
        d_weight = None if weight is None else made(columns, x.dtype)
        d_bias = made(columns, x.dtype) if has_bias else None
        sizes = np.int64(rows), np.int64(columns)
        if x.size:
            _launch_rows("layer_norm_backward", x, g, x, weight, mean, inverse, d_x, *sizes)
            if weight is not None or has_bias:
                _launch_sums(g, x, mean, inverse, d_weight, d_bias)
    return d_x, d_weight, d_bias


def _launch_sums(g: Array, x: Array, mean: Array, inverse: Array, d_weight: Array | None, d_bias: Array | None) -> None:
    """Over the rows, in two launches: of parts of them, and of these."""
    rows, columns = x.shape
    rows_of_part = max(-(-rows // PARTS), ROWS_OF_PART)
    parts = -(-rows // rows_of_part)
    sums = array_module(x).empty((2, parts, columns), np.float32)
    lines = min(THREADS // WARP, max(rows, 2))  # of a block: two of them add up what all have found
    sizes = np.int64(rows), np.int64(columns), np.int64(rows_of_part)
    grid = -(-columns // WARP), parts
    launch("layer_norm_sums_of_parts", x, grid, (WARP, lines), g, x, mean, inverse, sums, *sizes)
    arrays = sums, d_weight, d_bias
    launch("layer_norm_sums", x, (-(-columns // THREADS),), (THREADS,), *arrays, np.int64(columns), np.int32(parts))


# ---- cross entropy ---------------------------------------------------------------------------------------------------


def cross_entropy_forward(
    logits: Array, target: Array, *, ignored: int, label_smoothing: float
) -> tuple[Array, Array, Array]:
    """-Σ_c q_c log softmax(logits)_c of each row, q_c = (1 - ε) [c = target] + ε / C: Szegedy et al. 2016, section 7.

    logits (M, C); target (M,), int64: a row whose target is `ignored`, or none of 0 ... C - 1, has the loss 0, whatever
    it holds. Returns the losses, each row's maximum, and its sum of e^(logits - maximum): float32 (M,), the last two of
    rows that count only.
    """
    rows, classes = _rows("cross_entropy", logits)
    with on_device_of(logits):
        library = array_module(logits)
        logits = contiguous(logits)
        target = _operand("cross_entropy: target", target, logits, (rows,), np.int64)
        losses = (library.empty if logits.size else library.zeros)(rows, np.float32)
        peak, total = library.empty_like(losses), library.empty_like(losses)
        if logits.size:
            options = np.int64(rows), np.int64(classes), np.int64(ignored), np.float32(label_smoothing)
            _launch_rows("cross_entropy_forward", logits, logits, target, losses, peak, total, *options)
    return losses, peak, total


def cross_entropy_backward(
    g: Array, logits: Array, target: Array, peak: Array, total: Array, *, ignored: int, label_smoothing: float
) -> Array:
    """The gradient of logits, g (softmax(logits) - q), given that of the losses: g (M,), float32, of any stride.

    peak, total: what `cross_entropy_forward` returned; the other arguments are those that it was given.
    """
    rows, classes = _rows("cross_entropy", logits)
    with on_device_of(logits):
        library = array_module(logits)
        logits = contiguous(logits)
        target = _operand("cross_entropy: target", target, logits, (rows,), np.int64)
        peak = _operand("cross_entropy: peak", peak, logits, (rows,), np.float32)
        total = _operand("cross_entropy: total", total, logits, (rows,), np.float32)
        _check("cross_entropy: the gradient", g, logits, (rows,), np.float32)
        step = g.strides[0] // g.itemsize  # 0 below a mean or a sum, which give all rows one gradient
        d_logits = library.empty_like(logits)
        if logits.size:
            options = np.int64(rows), np.int64(classes), np.int64(ignored), np.float32(label_smoothing)
            arrays = g, np.int64(step), logits, target, peak, total, d_logits
            _launch_rows("cross_entropy_backward", logits, *arrays, *options)
    return d_logits


# ---- GELU ------------------------------------------------------------------------------------------------------------


def gelu_forward(x: Array, *, approximate: str) -> Array:
    """x Φ(x) of each element, with Φ as "none" (exact) or "tanh": Hendrycks & Gimpel 2016, section 2."""
    _check_dtype("gelu", x)
    with on_device_of(x):
        x = contiguous(x)
        y = array_module(x).empty_like(x)
        if x.size:
            _launch_elements("gelu_forward", x, x, y, np.int64(x.size), np.int32(GELU_FORMS[approximate]))
    return y


def gelu_backward(g: Array, x: Array, *, approximate: str) -> Array:
    """g (Φ + x Φ'), the gradient of x given that of the value, of x's shape."""
    _check_dtype("gelu", x)
    with on_device_of(x):
        x = contiguous(x)
        g = _operand("gelu: the gradient", g, x, x.shape)
        d_x = array_module(x).empty_like(x)
        if x.size:
            _launch_elements("gelu_backward", x, g, x, d_x, np.int64(x.size), np.int32(GELU_FORMS[approximate]))
    return d_x
