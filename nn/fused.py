"""Layer norm, root mean square norm and GELU as one operation each, in few passes over memory.

Each stands after the plain composition that it equals, which is its reference. Here are no checks: they are in
`nn.functional`, from which these are called. Fused attention is in `nn.rooms`, fused cross entropy in `nn.losses`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernels.fused import gelu_backward, gelu_forward, layer_norm_backward, layer_norm_forward
from minigrad import op, ops, special
from minigrad.backend import array_module
from minigrad.bfloat import takes_bfloat16
from minigrad.grad_mode import is_grad_enabled
from minigrad.ops.elementwise import narrowed, widened

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
    library = array_module(x)
    n = math.prod(x.shape[x.ndim - axes :])
    rows = (math.prod(x.shape[: x.ndim - axes]), n)  # (M, n)
    factor = 1.0 / n if n else 1.0
    normalized = library.reshape(x, rows)
    normalized = normalized - (normalized @ library.ones(n, x.dtype) * factor)[:, None]
    variance = library.einsum("mn,mn->m", normalized, normalized) * factor
    inverse = (1.0 / library.sqrt(variance + eps))[:, None]  # (M, 1)
    normalized *= inverse
    w = library.ones(n, x.dtype) if weight is None else library.reshape(weight, (n,))
    y = normalized * w
    if bias is not None:
        y += library.reshape(bias, (n,))
    shape, shape_of_weight, has_bias = x.shape, None if weight is None else weight.shape, bias is not None

    def pullback(g: Any) -> tuple[Any, Any, Any]:
        g = library.reshape(g, rows)
        product = g * normalized
        ones = library.ones(rows[0], g.dtype)
        d_weight = None if shape_of_weight is None else library.reshape(ones @ product, shape_of_weight)
        d_bias = library.reshape(ones @ g, shape[-axes:]) if has_bias else None
        mean, mean_of_product = (g @ w * factor)[:, None], (product @ w * factor)[:, None]
        d_x = g * w
        d_x -= mean
        d_x -= library.multiply(normalized, mean_of_product, out=product)
        d_x *= inverse
        return library.reshape(d_x, shape), d_weight, d_bias

    return library.reshape(y, shape), pullback


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
    inverse = 1.0 / library.sqrt(library.einsum("mn,mn->m", normalized, normalized) * factor + eps)
    inverse = inverse[:, None]  # (M, 1)
    normalized = normalized * inverse
    w = library.ones(n, x.dtype) if weight is None else library.reshape(weight, (n,))
    shape, shape_of_weight = x.shape, None if weight is None else weight.shape

    def pullback(g: Any) -> tuple[Any, Any]:
        g = library.reshape(g, rows)
        product = g * normalized
        sums = library.ones(rows[0], g.dtype) @ product  # a product with ones is the fastest sum
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
    library = array_module(x)
    recording = is_grad_enabled()
    with np.errstate(over="ignore"):  # e^-2u of far negative x, x² of large ones
        value, slope = (_gelu if approximate == "none" else _gelu_by_tanh)(library, x, recording)
    return value, lambda g: g * slope


def _gelu(library: Any, x: Any, recording: bool) -> tuple[Any, Any]:
    """x Φ(x), and its derivative Φ + x Φ'."""
    phi = library.add(special.erf(x * math.sqrt(0.5)), 1.0, out=library.empty_like(x))
    phi *= 0.5
    value = library.multiply(x, phi, out=library.empty_like(x))
    if not recording:
        return value, None
    slope = library.multiply(x, x, out=library.empty_like(x))
    slope *= -0.5
    library.exp(slope, out=slope)
    slope *= x
    slope *= 1.0 / math.sqrt(2.0 * math.pi)
    slope += phi
    return value, slope


def _gelu_by_tanh(library: Any, x: Any, recording: bool) -> tuple[Any, Any]:
    """x σ(2u) with 2u = a x + b x³, as (1 + tanh u) / 2 = σ(2u): an exponential is faster than tanh.

    Its derivative is σ + x σ (1 - σ) (a + 3 b x²).
    """
    a = 2.0 * math.sqrt(2.0 / math.pi)
    b = 0.044715 * a
    square = library.multiply(x, x, out=library.empty_like(x))
    sigma = library.multiply(square, -b, out=library.empty_like(x))
    sigma -= a
    sigma *= x
    library.exp(sigma, out=sigma)  # e^-2u
    sigma += 1.0
    library.divide(1.0, sigma, out=sigma)
    value = library.multiply(x, sigma, out=library.empty_like(x))
    if not recording:
        return value, None
    square *= 3.0 * b
    square += a
    square *= value
    slope = library.subtract(1.0, sigma, out=library.empty_like(x))
    slope *= square
    slope += sigma
    return value, slope


@takes_bfloat16
@op(reference=ops.gelu)
def kernel_gelu(x: Any, *, approximate: str) -> Any:
    """The same by a kernel, for arrays on a GPU."""
    return gelu_forward(x, approximate=approximate), lambda g: gelu_backward(g, x, approximate=approximate)
