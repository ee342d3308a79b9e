"""bfloat16: the upper half of a float32. Numbers are kept and matrices multiplied in it; all else is made in float32.

NumPy and CuPy have it from the package ml_dtypes, as a dtype of another kind, whose arithmetic with Python's numbers
ends in float32 or float64, and whose sums are added up in its own eight bits. So the engine runs a body on float32
copies and rounds once what comes out, unless the operation says `@takes_bfloat16`: then its body gets the arrays as
they are. PyTorch's operations on a CPU do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from minigrad import ops
from minigrad.dtypes import is_bfloat16, is_floating

if TYPE_CHECKING:
    from minigrad.operation import Operation

Function = TypeVar("Function", bound=Callable[..., Any])

_taken_as_they_are: set[Operation] = set()
_taking_numbers_whole: set[Operation] = set()


def takes_bfloat16(function: Function) -> Function:
    """Above `@op`: the operation moves numbers, or multiplies matrices of 16-bit numbers, and needs no float32."""
    _taken_as_they_are.add(function.operation)  # type: ignore[attr-defined]
    return function


def takes_numbers_whole(function: Function) -> Function:
    """Above `@op`: beside bfloat16 a Python number is not rounded to it first, as in PyTorch's products."""
    _taking_numbers_whole.add(function.operation)  # type: ignore[attr-defined]
    return function


def body_for(operation: Operation, operands: Sequence[Any]) -> Callable[..., Any]:
    """The operation's body, by way of float32 if it computes in bfloat16 and does not take that."""
    computing = [x for place, x in enumerate(operands) if place not in operation.exempt]
    if operation in _taken_as_they_are or not any([is_bfloat16(getattr(x, "dtype", None)) for x in computing]):
        return operation.body
    return _by_float32(operation)


def _by_float32(operation: Operation) -> Callable[..., Any]:
    body, rounds = operation.body, operation not in _taking_numbers_whole

    def rounded(*operands: Any, **options: Any) -> Any:
        wide = [_widened(_rounded_number(x) if rounds and type(x) in (float, int) else x) for x in operands]
        result = body(*wide, **options)
        if type(result) is not tuple or len(result) != 2:
            return result  # the engine says what is wrong with it
        value, pullbacks = result
        value = tuple([_rounded(part) for part in value]) if type(value) is tuple else _rounded(value)
        if isinstance(pullbacks, (tuple, list)):
            return value, tuple([_of_float32(f) for f in pullbacks])
        return value, _of_float32(pullbacks)

    return rounded


def _of_float32(pullback: Any) -> Any:
    """The pullback with its gradient, or gradients, as float32. The engine rounds what it gives."""
    if not callable(pullback):
        return pullback

    def widely(g: Any) -> Any:
        return pullback(tuple([_widened(part) for part in g]) if isinstance(g, tuple) else _widened(g))

    return widely


def _widened(x: Any) -> Any:
    return ops.astype(x, dtype=np.float32) if is_bfloat16(getattr(x, "dtype", None)) else x


def _rounded_number(x: float) -> float:
    return float(np.array(x, np.float32).astype("bfloat16"))


def _rounded(x: Any) -> Any:
    return x.astype("bfloat16") if is_floating(x.dtype) else x
