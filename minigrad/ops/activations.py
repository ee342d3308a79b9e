"""Activation functions of layers, which act on each element; softmax, along an axis, is in `minigrad.ops.softmax`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.autocast import in_float32
from minigrad.operation import namespace, op
from minigrad.ops.elementwise import abs, cleared, erf, exp, expm1, log1p, maximum, narrowed, tanh, where, widened
from minigrad.scalars import number
from minigrad.sums import zeros_like_row


@op(floating=True)
def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), for x < 0 as e^x / (1 + e^x), so that nothing overflows or cancels; d/dx = σ (1 - σ)."""
    library = namespace(x)
    negative = x < 0
    e = library.exp(library.where(negative, x, -x))
    y = library.where(negative, e, 1.0) / (1.0 + e)
    return y, lambda g: g * y * (1.0 - y)


@op
def relu(x: Any) -> Any:
    """max(0, x); d/dx = 1 where x > 0, else 0. NaN stays NaN."""
    zero = zeros_like_row(x, x.shape[-1]) if type(x) is np.ndarray and x.ndim > 1 else 0  # beside 0 twice as slow
    y = namespace(x).maximum(x, zero)
    return y, lambda g: cleared(g, y <= 0)


@op(floating=True)
def leaky_relu(x: Any, *, negative_slope: float = 0.01) -> Any:
    """x where x > 0, else a x with a = `negative_slope`; d/dx = 1 or a.

    Maas, Hannun & Ng 2013, "Rectifier nonlinearities improve neural network acoustic models", equation 2.
    """
    negative_slope = float(number("leaky_relu: negative_slope", negative_slope))
    return where(x > 0, x, negative_slope * x), lambda g: where(x > 0, g, negative_slope * g)


@op(floating=True)
def elu(x: Any, *, alpha: float = 1.0) -> Any:
    """x where x > 0, else α (e^x - 1); d/dx = 1 or α e^x.

    Clevert, Unterthiner & Hochreiter 2016, "Fast and accurate deep network learning by exponential linear units",
    equation 15.
    """
    alpha = float(number("elu: alpha", alpha))
    low = where(x > 0, 0.0, x)  # whose exponential does not overflow
    return where(x > 0, x, alpha * expm1(low)), lambda g: where(x > 0, g, g * (alpha * exp(low)))


@in_float32
@op(floating=True)
def softplus(x: Any, *, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """ln(1 + e^(βx)) / β, x itself where βx > `threshold`; d/dx = σ(βx), or 1.

    With ln(1 + e^z) = max(z, 0) + ln(1 + e^-|z|) nothing overflows.
    """
    beta = float(number("softplus: beta", beta))
    z = beta * x
    linear = z > float(number("softplus: threshold", threshold))
    value = where(linear, x, (maximum(z, 0.0) + log1p(exp(-abs(z)))) / beta)
    return value, lambda g: where(linear, g, g * sigmoid(z))


@op(floating=True)
def silu(x: Any) -> Any:
    """x σ(x), also called swish; d/dx = σ (1 + x (1 - σ)).

    Hendrycks & Gimpel 2016, "Gaussian error linear units", section 2.
    """
    s = sigmoid(x)
    return x * s, lambda g: g * (s * (1.0 + x * (1.0 - s)))


_SQRT_HALF = math.sqrt(0.5)
_SQRT_TWO_OVER_PI = math.sqrt(2.0 / math.pi)


@op(floating=True)
def gelu(x: Any, *, approximate: str = "none") -> Any:
    """x Φ(x) with Φ(x) = (1 + erf(x/√2)) / 2; "tanh": Φ(x) ≈ (1 + tanh u) / 2 with u = √(2/π) (x + 0.044715 x³).

    Hendrycks & Gimpel 2016, "Gaussian error linear units", section 2. d/dx = Φ + x Φ'. float16 is reckoned in float32,
    whose range x² does not leave.
    """
    dtype, x = x.dtype, widened(x)
    if approximate == "none":
        phi = 0.5 * (1.0 + erf(_SQRT_HALF * x))
        return narrowed(x * phi, dtype), lambda g: g * (phi + x * (0.5 * _SQRT_TWO_OVER_PI) * exp(-0.5 * (x * x)))
    if approximate == "tanh":
        phi = 0.5 * (1.0 + tanh(_SQRT_TWO_OVER_PI * x * (1.0 + 0.044715 * (x * x))))
        du = _SQRT_TWO_OVER_PI * (1.0 + (3 * 0.044715) * (x * x))  # u'; and Φ' = 2 Φ (1 - Φ) u'
        return narrowed(x * phi, dtype), lambda g: g * (phi + x * (2.0 * phi * (1.0 - phi)) * du)
    raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
