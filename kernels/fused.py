"""Layer norm, cross entropy, GELU and dropout in one launch each way, for many operations of arrays.

What the kernels compute is in rows.cu and elementwise.cu; how they are launched, and in which dtypes they compute, in
`kernels.elements`. What is done with all parameters at once is in `kernels.parameters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels.arrays import check_alike, contiguous, described, is_plain
from kernels.dropout import read_dropout
from kernels.elements import THREADS, WARP, check_dtype, launch, launch_elements, launch_rows
from minigrad.backend import Array, array_module, on_device_of

GELU_FORMS = {"none": 0, "tanh": 1}
PARTS, ROWS_OF_PART = 64, 64  # layer norm sums over rows in so many parts at most, of so many rows at least

# ---- arguments -------------------------------------------------------------------------------------------------------


def _operand(what: str, array: Array | None, like: Array, shape: tuple[int, ...], dtype: Any = None) -> Any:
    """The array, checked and made contiguous; None for None."""
    if array is None:
        return None
    check_alike(what, array, like, shape, dtype)
    return contiguous(array)


def _rows(name: str, x: Array) -> tuple[int, int]:
    """The shape of an array of rows. ValueError or TypeError for another."""
    if not is_plain(x) or x.ndim != 2:
        raise ValueError(f"{name}: rows must be an array (M, n), got {x.shape if is_plain(x) else described(x)}")
    check_dtype(name, x)
    return x.shape


def _form_of_gelu(x: Array, approximate: str) -> np.int32:
    """The number of a form. ValueError or TypeError for another, and for what is no array of numbers."""
    if not is_plain(x):
        raise ValueError(f"gelu: x must be an array, got {described(x)}")
    check_dtype("gelu", x)
    if approximate not in GELU_FORMS:
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return np.int32(GELU_FORMS[approximate])


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
            launch_rows("layer_norm_forward", x, x, weight, bias, y, mean, inverse, *sizes)
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
            launch_rows("layer_norm_backward", x, g, x, weight, mean, inverse, d_x, *sizes)
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
            launch_rows("cross_entropy_forward", logits, logits, target, losses, peak, total, *options)
    return losses, peak, total


def cross_entropy_backward(
    g: Array, logits: Array, target: Array, peak: Array, total: Array, *, ignored: int, label_smoothing: float
) -> Array:
    """The gradient of logits, g (softmax(logits) - q), given that of the losses: g (M,), float32, of any stride.

    peak, total: what `cross_entropy_forward` returned, which it made for rows that count only; the others' are not
    looked at. The other arguments are those that it was given.
    """
    rows, classes = _rows("cross_entropy", logits)
    with on_device_of(logits):
        library = array_module(logits)
        logits = contiguous(logits)
        target = _operand("cross_entropy: target", target, logits, (rows,), np.int64)
        peak = _operand("cross_entropy: peak", peak, logits, (rows,), np.float32)
        total = _operand("cross_entropy: total", total, logits, (rows,), np.float32)
        check_alike("cross_entropy: the gradient", g, logits, (rows,), np.float32)
        step = g.strides[0] // g.itemsize  # 0 below a mean or a sum, which give all rows one gradient
        d_logits = library.empty_like(logits)
        if logits.size:
            options = np.int64(rows), np.int64(classes), np.int64(ignored), np.float32(label_smoothing)
            arrays = g, np.int64(step), logits, target, peak, total, d_logits
            launch_rows("cross_entropy_backward", logits, *arrays, *options)
    return d_logits


# ---- GELU ------------------------------------------------------------------------------------------------------------


def gelu_forward(x: Array, *, approximate: str) -> Array:
    """x Φ(x) of each element, with Φ as "none" (exact) or "tanh": Hendrycks & Gimpel 2016, section 2."""
    form = _form_of_gelu(x, approximate)
    with on_device_of(x):
        x = contiguous(x)
        y = array_module(x).empty_like(x)
        if x.size:
            launch_elements("gelu_forward", x, x, y, np.int64(x.size), form)
    return y


def gelu_backward(g: Array, x: Array, *, approximate: str) -> Array:
    """g (Φ + x Φ'), the gradient of x given that of the value, of x's shape."""
    form = _form_of_gelu(x, approximate)
    with on_device_of(x):
        x = contiguous(x)
        g = _operand("gelu: the gradient", g, x, x.shape)
        d_x = array_module(x).empty_like(x)
        if x.size:
            launch_elements("gelu_backward", x, g, x, d_x, np.int64(x.size), form)
    return d_x


# ---- dropout ---------------------------------------------------------------------------------------------------------


def apply_dropout(x: Array, p: float, key: Sequence[int]) -> Array:
    """x 0 where an element is dropped, with probability p, and x / (1 - p) elsewhere: Srivastava et al. 2014.

    Which are dropped follows from key = (seed, step, call), integers below 2**64, and from the elements' places in x,
    whatever its strides and dtype. So the gradient of x is the same function of that of the value, and nothing is kept.
    Raises ValueError and TypeError for arguments that do not fit.
    """
    if not is_plain(x):
        raise ValueError(f"dropout: x must be an array, got {described(x)}")
    check_dtype("dropout", x)
    words, drop_below, keep_scale = read_dropout(p, key, "dropout: p", "key")
    with on_device_of(x):
        x = contiguous(x)
        y = array_module(x).empty_like(x)
        if x.size:
            numbers = *map(np.uint32, words), np.uint32(drop_below), np.float32(keep_scale)
            launch_elements("dropout", x, x, y, np.int64(x.size), *numbers)
    return y
