"""Operations on each element: arithmetic, choice, functions of one variable, and what changes only form.

Comparison is in `minigrad.ops.logic`, rounding and limits in `minigrad.ops.rounding`, the activations of layers in
`minigrad.ops.activations`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad import backend, dtypes, special
from minigrad.autocast import in_float32
from minigrad.bfloat import takes_bfloat16, takes_numbers_whole
from minigrad.operation import namespace, op
from minigrad.ops.logic import isfinite
from minigrad.scalars import check_held, number

# ---- arithmetic ------------------------------------------------------------------------------------------------------


@op(linear=True)
def add(x: Any, y: Any) -> Any:
    """x + y."""
    return x + y, (lambda g: g, lambda g: g)


@op(linear=True)
def subtract(x: Any, y: Any) -> Any:
    """x - y."""
    return x - y, (lambda g: g, lambda g: -g)


@takes_numbers_whole
@op
def multiply(x: Any, y: Any) -> Any:
    """x * y."""
    return x * y, (lambda g: g * y, lambda g: g * x)


@takes_numbers_whole
@op(floating=True)
def divide(x: Any, y: Any) -> Any:
    """x / y; d/dy = -(x / y) / y, where y² could overflow."""
    quotient = x / y
    return quotient, (lambda g: g / y, lambda g: -g * quotient / y)


@op
def floor_divide(x: Any, y: Any) -> Any:
    """⌊x / y⌋; no gradient. ZeroDivisionError for integers divided by 0."""
    x, y = _counted(x, y)
    _refuse_integer_zero("floor_divide", x, y)
    return x // y, None


@op
def remainder(x: Any, y: Any) -> Any:
    """x - y ⌊x / y⌋, which has the sign of y; d/dx = 1, d/dy = -⌊x / y⌋. ZeroDivisionError as for floor_divide."""
    x, y = _counted(x, y)
    _refuse_integer_zero("remainder", x, y)
    return x % y, (lambda g: g, lambda g: -g * (x // y))


def _refuse_integer_zero(name: str, x: Any, y: Any) -> None:
    """Integers have no infinity and no NaN; NumPy would answer 0."""
    if not any(_is_floating(z) for z in (x, y)) and _any(y == 0):
        raise ZeroDivisionError(f"{name}: an integer is divided by 0; make one of them floating for inf or NaN")


def _is_floating(x: Any) -> bool:
    return dtypes.is_floating(x.dtype) if hasattr(x, "dtype") else isinstance(x, float)


def _any(condition: Any) -> bool:
    """Whether a condition, of numbers too, holds anywhere."""
    return bool(condition.any() if hasattr(condition, "any") else condition)


def _counted(*operands: Any) -> list[Any]:
    """Booleans as integers, where the result is a number: NumPy would give int8."""
    return [x.astype(np.int64) if getattr(x, "dtype", None) == np.bool_ else x for x in operands]


@op(linear=True)
def negative(x: Any) -> Any:
    """-x."""
    return -x, lambda g: -g


@in_float32
@op
def power(x: Any, y: Any) -> Any:
    """x ** y; d/dx = y x^(y-1), 0 where y = 0; d/dy = x^y ln x, 0 where x = 0 and y >= 0."""
    x, y = _counted(x, y)
    library = namespace(x, y)
    if not any(_is_floating(z) for z in (x, y)) and _any(y < 0):
        raise ValueError("Integers to negative integer powers are not allowed.")  # as NumPy says; CuPy answers 0
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


@in_float32
@op
def square(x: Any) -> Any:
    """x²; d/dx = 2x. Of booleans as integers, as in PyTorch."""
    (x,) = _counted(x)
    return x * x, lambda g: g * (2 * x)


@in_float32
@op(floating=True)
def reciprocal(x: Any) -> Any:
    """1 / x; d/dx = -1 / x²."""
    y = 1.0 / x
    return y, lambda g: -g * y * y


@op(floating=True)
def lerp(x: Any, y: Any, weight: Any) -> Any:
    """x + w (y - x), from the nearer end, so that w = 1 gives y exactly; d/dx = 1 - w, d/dy = w, d/dw = y - x."""
    path = y - x
    from_x, from_y = x + weight * path, y - (1.0 - weight) * path
    if isinstance(weight, (int, float)):
        value = from_x if -0.5 < weight < 0.5 else from_y
    else:
        value = where(abs(weight) < 0.5, from_x, from_y)
    return value, (lambda g: g * (1.0 - weight), lambda g: g * weight, lambda g: g * path)


# ---- choice ----------------------------------------------------------------------------------------------------------


@op(exempt=["condition"])
def where(condition: Any, x: Any, y: Any) -> Any:
    """x where `condition` holds, else y."""
    for choice, other in ((x, y), (y, x)):
        if type(choice) is int and hasattr(other, "dtype") and other.dtype.kind in "iu":
            check_held("where", choice, other.dtype)
    value = namespace(condition, x, y).where(condition, x, y)
    return value, (None, lambda g: where(condition, g, 0.0), lambda g: where(condition, 0.0, g))


@takes_bfloat16
@op(linear=True, exempt=["mask"])
def cleared(x: Any, mask: Any) -> Any:
    """Floating x, with 0 where the boolean `mask` of its shape holds, be it NaN there: 10 times as fast as `where`.

    As integers the bits are kept by -1, all ones, and cleared by 0.
    """
    if mask.dtype.kind != "b" or mask.shape != x.shape:
        raise ValueError(f"cleared: takes a boolean mask of shape {x.shape}, got {mask.dtype} of shape {mask.shape}")
    kept = mask.astype(f"i{x.dtype.itemsize}")
    kept -= 1
    kept &= x.view(kept.dtype)
    return kept.view(x.dtype), (lambda g: cleared(g, mask), None)


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """`value` (a number or 0-d tensor) where the boolean `mask` holds, x elsewhere; in x's dtype."""
    if not hasattr(mask, "dtype") or mask.dtype != np.bool_:
        kind = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"masked_fill takes a boolean mask, got {kind}; write mask == 0 or mask.bool()")
    if getattr(value, "ndim", 0) != 0:
        raise ValueError(f"masked_fill takes a number or a 0-d tensor as value, got one of shape {value.shape}")
    if isinstance(value, np.generic) or not hasattr(value, "shape"):
        value = number("masked_fill: value", value)
        check_held("masked_fill", value, x.dtype)
    elif x.dtype.kind in "iu":
        check_held("masked_fill", number("masked_fill: value", value), x.dtype)
    filled = where(mask, value, x)
    return filled if filled.dtype == x.dtype else astype(filled, dtype=x.dtype)


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


_LN_2 = math.log(2.0)


@in_float32
@op(floating=True)
def exp(x: Any) -> Any:
    """e^x."""
    y = namespace(x).exp(x)
    return y, lambda g: g * y


@in_float32
@op(floating=True)
def log(x: Any) -> Any:
    """ln x; d/dx = 1/x."""
    return namespace(x).log(x), lambda g: g / x


@in_float32
@op(floating=True)
def exp2(x: Any) -> Any:
    """2^x; d/dx = 2^x ln 2."""
    y = namespace(x).exp2(x)
    return y, lambda g: g * (y * _LN_2)


@in_float32
@op(floating=True)
def log2(x: Any) -> Any:
    """log₂ x; d/dx = 1 / (x ln 2)."""
    return namespace(x).log2(x), lambda g: g / (x * _LN_2)


@in_float32
@op(floating=True)
def expm1(x: Any) -> Any:
    """e^x - 1, exact near 0; d/dx = e^x."""
    y = namespace(x).expm1(x)
    return y, lambda g: g * (y + 1.0)


@in_float32
@op(floating=True)
def log1p(x: Any) -> Any:
    """ln(1 + x), exact near 0; d/dx = 1 / (1 + x)."""
    return namespace(x).log1p(x), lambda g: g / (1.0 + x)


@op(floating=True)
def sqrt(x: Any) -> Any:
    """√x; d/dx = 1 / (2√x)."""
    y = namespace(x).sqrt(x)
    return y, lambda g: g / (2.0 * y)


@in_float32
@op(floating=True)
def rsqrt(x: Any) -> Any:
    """1 / √x; d/dx = -1 / (2 x √x)."""
    y = 1.0 / namespace(x).sqrt(x)
    return y, lambda g: g * (-0.5 * (y * y * y))


@op(floating=True)
def sin(x: Any) -> Any:
    """sin x of radians; d/dx = cos x."""
    library = namespace(x)
    return library.sin(x), lambda g: g * library.cos(x)


@op(floating=True)
def cos(x: Any) -> Any:
    """cos x of radians; d/dx = -sin x."""
    library = namespace(x)
    return library.cos(x), lambda g: -g * library.sin(x)


@op(floating=True)
def arctan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y), from -π to π; d/dy = x / (x² + y²), d/dx = -y / (x² + y²), 0 at the origin."""

    def over_square(z: Any) -> Any:
        """z / (x² + y²), in units of the larger of |x| and |y|, whose squares neither overflow nor vanish."""
        unit = constant(maximum(abs(x), abs(y)))
        unit = where((unit > 0) & isfinite(unit), unit, 1.0)
        a, b = x / unit, y / unit
        square = a * a + b * b
        return z / unit / where(square == 0, 1.0, square) / unit

    value = namespace(y, x).arctan2(y, x)
    return value, (lambda g: g * over_square(x), lambda g: -g * over_square(y))


@in_float32
@op(floating=True)
def sinh(x: Any) -> Any:
    """sinh x; d/dx = cosh x."""
    library = namespace(x)
    return library.sinh(x), lambda g: g * library.cosh(x)


@in_float32
@op(floating=True)
def cosh(x: Any) -> Any:
    """cosh x; d/dx = sinh x."""
    library = namespace(x)
    return library.cosh(x), lambda g: g * library.sinh(x)


@op(floating=True)
def tanh(x: Any) -> Any:
    """tanh x; d/dx = 1 - tanh² x."""
    y = namespace(x).tanh(x)
    return y, lambda g: g * (1.0 - y * y)


@op
def abs(x: Any) -> Any:
    """|x|; d/dx = 1 where x > 0, -1 where x < 0, 0 at 0 and at NaN."""
    return namespace(x).abs(x), lambda g: where(x > 0, g, where(x < 0, -g, 0.0))


_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)


@op(floating=True)
def erf(x: Any) -> Any:
    """2/√π ∫₀ˣ e^(-t²) dt; d/dx = 2/√π e^(-x²)."""
    library = namespace(x)
    value = library.erf(x) if hasattr(library, "erf") else special.erf(x)  # NumPy and CuPy have none
    return value, lambda g: g * (_TWO_OVER_SQRT_PI * library.exp(-x * x))


@op(floating=True)
def erfc(x: Any) -> Any:
    """1 - erf x, which keeps its precision where erf x is nearly 1; d/dx = -2/√π e^(-x²)."""
    library = namespace(x)
    value = library.erfc(x) if hasattr(library, "erfc") else special.erfc(x)  # NumPy and CuPy have none
    return value, lambda g: g * (-_TWO_OVER_SQRT_PI * library.exp(-x * x))


# ---- form ------------------------------------------------------------------------------------------------------------


@takes_bfloat16
@op(linear=True)
def alias(x: Any) -> Any:
    """x itself, as a value of its own in the graph."""
    return x, lambda g: g


@takes_bfloat16
@op
def constant(x: Any) -> Any:
    """x itself, to which no gradient flows."""
    return x, None


@takes_bfloat16
@op(linear=True)
def copy(x: Any) -> Any:
    """A copy of x."""
    return x.copy(), lambda g: g


@takes_bfloat16
@op(linear=True)
def astype(x: Any, *, dtype: Any) -> Any:
    """x in another dtype; the gradient returns in x's."""
    return x.astype(dtypes.tensor_dtype(dtype)), lambda g: g


@takes_bfloat16
@op(linear=True)
def to_device(x: Any, *, device: str) -> Any:
    """x on another device; the gradient returns to x's."""
    source = backend.device_of(x)
    return backend.to_device(x, device), lambda g: to_device(g, device=source)


def widened(x: Any) -> Any:
    """16-bit floats as float32, in which many numbers are reckoned up to one; all else as it is."""
    return astype(x, dtype=np.float32) if dtypes.is_16_bit(x.dtype) else x


def narrowed(x: Any, dtype: np.dtype) -> Any:
    """What was reckoned from `widened` values, in 16 bits again if that is what they were."""
    return astype(x, dtype=dtype) if dtypes.is_16_bit(dtype) else x
