"""Layer norm, root mean square norm and GELU as one operation each, in few passes over memory.

Each stands after the plain composition that it equals, which is its reference. Here are no checks: they are in
`nn.functional`, from which these are called. Fused attention is in `nn.fused_room`, fused cross entropy in `nn.losses`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernels.fused import gelu_backward, gelu_forward, layer_norm_backward, layer_norm_forward
from minigrad import op, ops, special
from minigrad.backend import array_module
from minigrad.bfloat import takes_bfloat16
from minigrad.dividing import divide
from minigrad.grad_mode import is_grad_enabled
from minigrad.ops.elementwise import narrowed, widened
from minigrad.sums import ones_like_row, row_dots, row_means, sum_of_rows

NS_OF_LAYER_NORM, NS_OF_GELU, NS_OF_A_PASS = 1.5, 4.0, 0.3  # nanoseconds for each number, roughly
AT_ONCE = 1 << 18  # numbers that many passes go over in turn, so that they stay in the cache

# ---- layer norm ------------------------------------------------------------------------------------------------------


def plain_layer_norm(x: Any, weight: Any, bias: Any, *, axes: int, eps: float) -> Any:
    """The definition, as a composition of operations: (x - mean) / √(variance + eps) * weight + bias."""
    axis, wide = tuple(range(-axes, 0)), widened(x)
    away = wide - ops.mean(wide, axis=axis, keepdims=True)
    variance = ops.mean(away * away, axis=axis, keepdims=True)
    y = away / ops.sqrt(variance + eps)
    y = y if weight is None else y * weight
    return narrowed(y if bias is None else y + bias, x.dtype)


@op(reference=plain_layer_norm, floating=True, optional=["weight", "bias"])
def fused_layer_norm(x: Any, weight: Any, bias: Any, *, axes: int, eps: float) -> Any:
    """With x̂ the normalized rows, s their standard deviation and ĝ = g weight: ∂x = (ĝ - mean ĝ - x̂ mean(ĝ x̂)) / s.

    Sums along rows and columns are products with a vector of ones, the fastest way that NumPy has.
    """
    library, shape = array_module(x), x.shape
    n = math.prod(shape[x.ndim - axes :])
    m = math.prod(shape[: x.ndim - axes])
    factor = 1.0 / n if n else 1.0
    x = x.reshape(m, n)
    w = ones_like_row(x, n) if weight is None else weight.reshape(n)
    b = None if bias is None else bias.reshape(n)
    y, normalized, inverse = [library.empty(size, x.dtype) for size in (shape, (m, n), (m, 1))]
    y_rows = y.reshape(m, n)

    def forward(start: int, stop: int) -> None:
        part = slice(start, stop)
        its_x = x[part]
        rows = library.subtract(its_x, row_means(its_x)[:, None], out=normalized[part])
        scale = row_dots(rows, rows)  # n times the variance
        scale *= factor
        scale += eps
        library.sqrt(scale, out=scale)
        rows *= library.divide(1.0, scale[:, None], out=inverse[part])
        value = library.multiply(rows, w, out=y_rows[part])
        if b is not None:
            value += b

    divide(x, m, NS_OF_LAYER_NORM * n, forward)
    has_weight, has_bias = weight is not None, bias is not None

    def pullback(g: Any) -> tuple[Any, Any, Any]:
        g = g.reshape(m, n)
        d_x = library.empty(shape, g.dtype)
        d_x_rows, w_of_mean = d_x.reshape(m, n), w * factor
        d_w: dict[int, Any] = {}  # the parts' sums
        d_b: dict[int, Any] = {}

        def backward(start: int, stop: int) -> None:
            part = slice(start, stop)
            rows = normalized[part]
            product = g[part] * rows
            mean, mean_of_product = g[part] @ w_of_mean, product @ w_of_mean
            if has_weight:
                d_w[start] = sum_of_rows(product)
            if has_bias:
                d_b[start] = sum_of_rows(g[part])
            d_rows = library.multiply(g[part], w, out=d_x_rows[part])
            d_rows -= mean[:, None]
            d_rows -= library.multiply(rows, mean_of_product[:, None], out=product)
            d_rows *= inverse[part]

        divide(g, m, NS_OF_LAYER_NORM * n, backward)
        d_weight = _sum_of_parts(d_w).reshape(shape[-axes:]) if has_weight else None
        return d_x, d_weight, _sum_of_parts(d_b).reshape(shape[-axes:]) if has_bias else None

    return y, pullback


def _sum_of_parts(sums: dict[int, Any]) -> Any:
    """In the order of the rows that they begin with, whichever was made first."""
    return sum([sums[start] for start in sorted(sums)][1:], start=sums[0])


@takes_bfloat16
@op(reference=plain_layer_norm, floating=True, optional=["weight", "bias"])
def kernel_layer_norm(x: Any, weight: Any, bias: Any, *, axes: int, eps: float) -> Any:
    """The same by kernels, for arrays on a GPU; the gradients' formulas are at `kernels.layer_norm_backward`."""
    n = math.prod(x.shape[x.ndim - axes :])
    rows = (math.prod(x.shape[: x.ndim - axes]), n)  # (M, n)
    w, b = [None if values is None else values.reshape(n) for values in (weight, bias)]
    x_rows, shape, has_bias = x.reshape(rows), x.shape, bias is not None
    y, mean, inverse = layer_norm_forward(x_rows, w, b, eps=eps)

    def pullback(g: Any) -> tuple[Any, Any, Any]:
        d_x, d_w, d_b = layer_norm_backward(g.reshape(rows), x_rows, w, mean, inverse, has_bias=has_bias)
        d_w, d_b = [None if d is None else d.reshape(shape[-axes:]) for d in (d_w, d_b)]
        return d_x.reshape(shape), d_w, d_b

    return y.reshape(shape), pullback


# ---- root mean square norm -------------------------------------------------------------------------------------------


def plain_rms_norm(x: Any, weight: Any, *, axes: int, eps: float) -> Any:
    """The definition, as a composition of operations: x / √(mean x² + eps) * weight."""
    y = x / ops.sqrt(ops.mean(x * x, axis=tuple(range(-axes, 0)), keepdims=True) + eps)
    return y if weight is None else y * weight


@op(reference=plain_rms_norm, floating=True, optional=["weight"])
def fused_rms_norm(x: Any, weight: Any, *, axes: int, eps: float) -> Any:
    """With x̂ = x / r the normalized rows, r their root mean squares and ĝ = g weight: ∂x = (ĝ - x̂ mean(ĝ x̂)) / r."""
    library = array_module(x)
    n = math.prod(x.shape[x.ndim - axes :])
    rows = (math.prod(x.shape[: x.ndim - axes]), n)  # (M, n)
    factor = 1.0 / n if n else 1.0
    normalized = library.reshape(x, rows)
    inverse = 1.0 / library.sqrt(row_dots(normalized, normalized) * factor + eps)
    inverse = inverse[:, None]  # (M, 1)
    normalized = normalized * inverse
    w = ones_like_row(x, n) if weight is None else library.reshape(weight, (n,))
    shape, shape_of_weight = x.shape, None if weight is None else weight.shape

    def pullback(g: Any) -> tuple[Any, Any]:
        g = library.reshape(g, rows)
        product = g * normalized
        sums = sum_of_rows(product)
        d_weight = None if shape_of_weight is None else library.reshape(sums, shape_of_weight)
        mean_of_product = (product @ w * factor)[:, None]
        d_x = g * w
        d_x -= library.multiply(normalized, mean_of_product, out=product)
        d_x *= inverse
        return library.reshape(d_x, shape), d_weight

    return library.reshape(normalized * w, shape), pullback


# ---- gelu ------------------------------------------------------------------------------------------------------------


@op(reference=ops.gelu)
def fused_gelu(x: Any, *, approximate: str) -> Any:
    """`minigrad.ops.gelu` of float32 or float64; keeps one array, its derivative, and only if there will be a walk."""
    library, shape = array_module(x), x.shape
    value = library.empty(shape, x.dtype)
    x, values = x.reshape(-1), value.reshape(-1)
    slope = library.empty_like(x) if is_grad_enabled() else None
    compute = _gelu if approximate == "none" else _gelu_by_tanh

    def forward(start: int, stop: int) -> None:
        for first in range(start, stop, AT_ONCE):
            part = slice(first, min(first + AT_ONCE, stop))
            compute(library, x[part], values[part], None if slope is None else slope[part])

    with np.errstate(over="ignore", under="ignore"):  # exponentials of x far from 0, squares
        divide(x, x.size, NS_OF_GELU, forward)
    return value, lambda g: _times_slope(g, slope)


def _times_slope(g: Any, slope: Any) -> Any:
    """g * slope, of any shape and as one row."""
    library, g_row = array_module(g), g.reshape(-1)
    d_x = library.empty(g.shape, g.dtype)
    d_x_row = d_x.reshape(-1)

    def backward(start: int, stop: int) -> None:
        library.multiply(g_row[start:stop], slope[start:stop], out=d_x_row[start:stop])

    divide(d_x, d_x.size, NS_OF_A_PASS, backward)
    return d_x


def _gelu(library: Any, x: Any, value: Any, slope: Any) -> None:
    """Writes x Φ(x), and its derivative Φ + x Φ' unless that is None."""
    phi = special.erf(x * math.sqrt(0.5))
    phi += 1.0
    phi *= 0.5
    library.multiply(x, phi, out=value)
    if slope is None:
        return
    library.multiply(x, x, out=slope)
    slope *= -0.5
    library.exp(slope, out=slope)
    slope *= x
    slope *= 1.0 / math.sqrt(2.0 * math.pi)
    slope += phi


def _gelu_by_tanh(library: Any, x: Any, value: Any, slope: Any) -> None:
    """Writes x σ(2u) with 2u = a x + b x³, as (1 + tanh u) / 2 = σ(2u): an exponential is faster than tanh.

    Its derivative is σ + x σ (1 - σ) (a + 3 b x²).
    """
    a = 2.0 * math.sqrt(2.0 / math.pi)
    b = 0.044715 * a
    square = x * x
    sigma = square * -b
    sigma -= a
    sigma *= x
    library.exp(sigma, out=sigma)  # e^-2u
    sigma += 1.0
    library.divide(1.0, sigma, out=sigma)
    library.multiply(x, sigma, out=value)
    if slope is None:
        return
    square *= 3.0 * b
    square += a
    library.subtract(1.0, sigma, out=slope)
    slope *= value  # 0 for large x, before it meets the square, which overflows sooner
    slope *= square
    slope += sigma


@takes_bfloat16
@op(reference=ops.gelu)
def kernel_gelu(x: Any, *, approximate: str) -> Any:
    """The same by a kernel, for arrays on a GPU."""
    return gelu_forward(x, approximate=approximate), lambda g: gelu_backward(g, x, approximate=approximate)
