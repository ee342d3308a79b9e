"""Operations on each element: arithmetic, comparison, choice, functions of one variable, and what changes only form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad import backend, special
from minigrad.operation import namespace, op

# ---- arithmetic ------------------------------------------------------------------------------------------------------


@op(linear=True)
def add(x: Any, y: Any) -> Any:
    """x + y."""
    return x + y, (lambda g: g, lambda g: g)


@op(linear=True)
def subtract(x: Any, y: Any) -> Any:
    """x - y."""
    return x - y, (lambda g: g, lambda g: -g)


@op
def multiply(x: Any, y: Any) -> Any:
    """x * y."""
    return x * y, (lambda g: g * y, lambda g: g * x)


@op(floating=True)
def divide(x: Any, y: Any) -> Any:
    """x / y; d/dy = -(x / y) / y, where y² could overflow."""
    quotient = x / y
    return quotient, (lambda g: g / y, lambda g: -g * quotient / y)


@op
def floor_divide(x: Any, y: Any) -> Any:
    """⌊x / y⌋; no gradient."""
    return x // y, None


@op
def remainder(x: Any, y: Any) -> Any:
    """x - y ⌊x / y⌋, which has the sign of y; d/dx = 1, d/dy = -⌊x / y⌋."""
    return x % y, (lambda g: g, lambda g: -g * (x // y))


@op(linear=True)
def negative(x: Any) -> Any:
    """-x."""
    return -x, lambda g: -g


@op
def power(x: Any, y: Any) -> Any:
    """x ** y; d/dx = y x^(y-1), 0 where y = 0; d/dy = x^y ln x, 0 where x = 0 and y >= 0."""
    library = namespace(x, y)
    value = library.power(x, y)

    def of_base(g: Any) -> Any:
        if isinstance(y, (int, float)):
            return g * (y * library.power(x, y - 1)) if y != 0 else g * 0.0
        constant = y == 0
        return g * library.where(constant, 0.0, y * library.power(x, library.where(constant, 1.0, y - 1)))

    def of_exponent(g: Any) -> Any:
        constant = (x == 0) & (y >= 0)
        if isinstance(x, (int, float)):
            log_x = math.log(x) if x > 0 else -math.inf if x == 0 else math.nan
        else:
            log_x = library.log(library.where(constant, 1.0, x))
        return g * library.where(constant, 0.0, value * log_x)

    return value, (of_base, of_exponent)


# ---- comparison and logic: no gradient -------------------------------------------------------------------------------


@op
def equal(x: Any, y: Any) -> Any:
    """x == y."""
    return x == y, None


@op
def not_equal(x: Any, y: Any) -> Any:
    """x != y."""
    return x != y, None


@op
def less(x: Any, y: Any) -> Any:
    """x < y."""
    return x < y, None


@op
def less_equal(x: Any, y: Any) -> Any:
    """x <= y."""
    return x <= y, None


@op
def greater(x: Any, y: Any) -> Any:
    """x > y."""
    return x > y, None


@op
def greater_equal(x: Any, y: Any) -> Any:
    """x >= y."""
    return x >= y, None


@op
def bitwise_and(x: Any, y: Any) -> Any:
    """x & y: "and" of booleans, bit by bit of integers."""
    return x & y, None


@op
def bitwise_or(x: Any, y: Any) -> Any:
    """x | y: "or" of booleans, bit by bit of integers."""
    return x | y, None


@op
def invert(x: Any) -> Any:
    """~x: the bits of integers, "not" of booleans."""
    return ~x, None


@op
def isnan(x: Any) -> Any:
    """Whether x is NaN."""
    return namespace(x).isnan(x), None


@op
def sign(x: Any) -> Any:
    """-1, 0 or 1; its gradient is 0 everywhere."""
    return namespace(x).sign(x), lambda g: g * 0.0


# ---- choice ----------------------------------------------------------------------------------------------------------


@op(exempt=["condition"])
def where(condition: Any, x: Any, y: Any) -> Any:
    """x where `condition` holds, else y."""
    value = namespace(condition, x, y).where(condition, x, y)
    return value, (None, lambda g: where(condition, g, 0.0), lambda g: where(condition, 0.0, g))


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """`value` (a number or 0-d tensor) where the boolean `mask` holds, x elsewhere."""
    if not hasattr(mask, "dtype") or mask.dtype != np.bool_:
        kind = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"masked_fill takes a boolean mask, got {kind}; write mask == 0 or mask.bool()")
    return where(mask, value, x)


@op
def maximum(x: Any, y: Any) -> Any:
    """The larger of x and y; NaN if one is. Where neither is larger each gets half of the gradient."""
    return namespace(x, y).maximum(x, y), (lambda g: _winnings(g, x > y, x < y), lambda g: _winnings(g, x < y, x > y))


@op
def minimum(x: Any, y: Any) -> Any:
    """The smaller of x and y; NaN if one is. Where neither is smaller each gets half of the gradient."""
    return namespace(x, y).minimum(x, y), (lambda g: _winnings(g, x < y, x > y), lambda g: _winnings(g, x > y, x < y))


def _winnings(g: Any, won: Any, lost: Any) -> Any:
    return where(won, g, where(lost, 0.0, 0.5 * g))


# ---- functions of one variable ---------------------------------------------------------------------------------------


@op(floating=True)
def exp(x: Any) -> Any:
    """e^x."""
    y = namespace(x).exp(x)
    return y, lambda g: g * y


@op(floating=True)
def log(x: Any) -> Any:
    """ln x; d/dx = 1/x."""
    return namespace(x).log(x), lambda g: g / x


@op(floating=True)
def sqrt(x: Any) -> Any:
    """√x; d/dx = 1 / (2√x)."""
    y = namespace(x).sqrt(x)
    return y, lambda g: g / (2.0 * y)


@op(floating=True)
def tanh(x: Any) -> Any:
    """tanh x; d/dx = 1 - tanh² x."""
    y = namespace(x).tanh(x)
    return y, lambda g: g * (1.0 - y * y)


@op(floating=True)
def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), for x < 0 as e^x / (1 + e^x), so that nothing overflows or cancels; d/dx = σ (1 - σ)."""
    library = namespace(x)
    negative = x < 0
    e = library.exp(library.where(negative, x, -x))
    y = library.where(negative, e, 1.0) / (1.0 + e)
    return y, lambda g: g * y * (1.0 - y)


@op
def abs(x: Any) -> Any:
    """|x|; d/dx = sign x, 0 at 0."""
    library = namespace(x)
    return library.abs(x), lambda g: g * library.sign(x)


@op
def relu(x: Any) -> Any:
    """max(0, x); d/dx = 1 where x > 0, else 0. NaN stays NaN."""
    y = namespace(x).maximum(x, 0)
    return y, lambda g: where(y <= 0, 0.0, g)


_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)


@op(floating=True)
def erf(x: Any) -> Any:
    """2/√π ∫₀ˣ e^(-t²) dt; d/dx = 2/√π e^(-x²)."""
    library = namespace(x)
    value = library.erf(x) if hasattr(library, "erf") else special.erf(x)  # NumPy and CuPy have none
    return value, lambda g: g * (_TWO_OVER_SQRT_PI * library.exp(-x * x))


_SQRT_HALF = math.sqrt(0.5)
_SQRT_TWO_OVER_PI = math.sqrt(2.0 / math.pi)


@op(floating=True)
def gelu(x: Any, *, approximate: str = "none") -> Any:
    """x Φ(x) with Φ(x) = (1 + erf(x/√2)) / 2; "tanh": Φ(x) ≈ (1 + tanh u) / 2 with u = √(2/π) (x + 0.044715 x³).

    Hendrycks & Gimpel 2016, "Gaussian error linear units", section 2. d/dx = Φ + x Φ'.
    """
    if approximate == "none":
        phi = 0.5 * (1.0 + erf(_SQRT_HALF * x))
        return x * phi, lambda g: g * (phi + x * (0.5 * _SQRT_TWO_OVER_PI) * exp(-0.5 * (x * x)))
    if approximate == "tanh":
        phi = 0.5 * (1.0 + tanh(_SQRT_TWO_OVER_PI * x * (1.0 + 0.044715 * (x * x))))
        du = _SQRT_TWO_OVER_PI * (1.0 + (3 * 0.044715) * (x * x))  # u'; and Φ' = 2 Φ (1 - Φ) u'
        return x * phi, lambda g: g * (phi + x * (2.0 * phi * (1.0 - phi)) * du)
    raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")


# ---- form ------------------------------------------------------------------------------------------------------------


@op(linear=True)
def alias(x: Any) -> Any:
    """x itself, as a value of its own in the graph."""
    return x, lambda g: g


@op
def constant(x: Any) -> Any:
    """x itself, to which no gradient flows."""
    return x, None


@op(linear=True)
def copy(x: Any) -> Any:
    """A copy of x."""
    return x.copy(), lambda g: g


@op(linear=True)
def astype(x: Any, *, dtype: Any) -> Any:
    """x in another dtype; the gradient returns in x's."""
    return x.astype(dtype), lambda g: g


@op(linear=True)
def to_device(x: Any, *, device: str) -> Any:
    """x on another device; the gradient returns to x's."""
    source = backend.device_of(x)
    return backend.to_device(x, device), lambda g: to_device(g, device=source)
