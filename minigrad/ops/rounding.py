"""What rounds or limits each element: steps, whose gradient is 0, and bounds, within which the gradient passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.bfloat import takes_bfloat16
from minigrad.dtypes import finfo, is_floating
from minigrad.operation import namespace, op
from minigrad.ops.elementwise import divide, multiply, narrowed, where, widened
from minigrad.ops.logic import isfinite

# ---- steps: the gradient is 0 everywhere -----------------------------------------------------------------------------


@op
def sign(x: Any) -> Any:
    """-1, 0 or 1, of NaN 0; a boolean stays what it is."""
    library = namespace(x)
    return library.copy(x) if x.dtype == np.bool_ else library.where(x == x, library.sign(x), 0), _nothing


@op
def floor(x: Any) -> Any:
    """⌊x⌋; integers stay what they are."""
    return _whole("floor", x), _nothing


@op
def ceil(x: Any) -> Any:
    """⌈x⌉; integers stay what they are."""
    return _whole("ceil", x), _nothing


@op
def rint(x: Any) -> Any:
    """The nearest integer, of two equally near the even one; integers stay what they are."""
    return _whole("rint", x), _nothing


def round(x: Any, decimals: int = 0) -> Any:
    """The nearest number of so many decimals, of two equally near the even one; -3: the nearest thousand.

    float16 is reckoned in float32, whose range x scaled up does not leave.
    """
    if decimals == 0:
        return rint(x)
    scale = 10.0 ** abs(decimals)
    up, down = (multiply, divide) if decimals > 0 else (divide, multiply)
    return narrowed(down(rint(up(widened(x), scale)), scale), x.dtype)


def _whole(name: str, x: Any) -> Any:
    """NumPy's function of that name; some versions of it make integers floats."""
    library = namespace(x)
    return getattr(library, name)(x) if is_floating(x.dtype) else library.copy(x)


def _nothing(g: Any) -> Any:
    """0 in g's dtype, where g is infinite or NaN too."""
    return 0.0 * where(isfinite(g), g, 0.0)


# ---- limits ----------------------------------------------------------------------------------------------------------


@op(optional=["low", "high"])
def clip(x: Any, low: Any, high: Any) -> Any:
    """min(max(x, low), high), a bound of None being none. The gradient is x's where low <= x <= high, else the bound's.

    Where low > high value and gradient are high's. NaN in any of them gives NaN; at x = NaN d/dx = 0.
    """
    if low is None and high is None:
        raise ValueError("clip: give a lower bound, an upper bound or both, got neither")

    def of_x(g: Any) -> Any:
        if low is not None:
            g = where(x >= low, g, 0.0)
        return g if high is None else where(x <= high, g, 0.0)

    def of_low(g: Any) -> Any:
        return where(x < low if high is None else (x < low) & (low < high), g, 0.0)

    def of_high(g: Any) -> Any:
        return where(x > high if low is None else (x > high) | (low > high), g, 0.0)

    return namespace(x, low, high).clip(x, low, high), (of_x, of_low, of_high)


@takes_bfloat16
@op
def nan_to_num(x: Any, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Any:
    """x with numbers in place of NaN, ∞ and -∞ (None: the dtype's largest and smallest); d/dx = 1 where x is finite."""
    if is_floating(x.dtype):  # in float32 the numbers would be that one's
        limits = finfo(x.dtype)
        posinf = float(limits.max) if posinf is None else posinf
        neginf = float(limits.min) if neginf is None else neginf
    value = narrowed(namespace(x).nan_to_num(widened(x), nan=nan, posinf=posinf, neginf=neginf), x.dtype)
    return value, lambda g: where(isfinite(x), g, 0.0)
