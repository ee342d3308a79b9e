"""The operators of a Tensor, `x + y`, `x == y`, `x[i]`, handed on to `minigrad.ops`; named methods are in `methods`.

What assigns (`x += y`, `x[i] = v`) is in `minigrad.writing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from minigrad import ops
from minigrad.backend import is_array

if TYPE_CHECKING:
    from minigrad.tensor import Tensor


class Operators:
    """What Tensor inherits: Python's operators. The other operand is a tensor, an array or a number, on either side."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def ndim(self) -> int: ...

    # ---- arithmetic --------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Tensor:
        return ops.add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return ops.add(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return ops.subtract(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return ops.subtract(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return ops.multiply(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return ops.multiply(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return ops.divide(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return ops.divide(other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return ops.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return ops.floor_divide(other, self)

    def __mod__(self, other: Any) -> Tensor:
        return ops.remainder(self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return ops.remainder(other, self)

    def __pow__(self, other: Any) -> Tensor:
        return ops.power(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return ops.power(other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return ops.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return ops.matmul(other, self)

    def __neg__(self) -> Tensor:
        return ops.negative(self)

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Tensor:
        return ops.abs(self)

    def __invert__(self) -> Tensor:
        return ops.invert(self)

    # ---- logic and comparison ----------------------------------------------------------------------------------------

    def __and__(self, other: Any) -> Tensor:
        return ops.bitwise_and(self, other)

    def __or__(self, other: Any) -> Tensor:
        return ops.bitwise_or(self, other)

    def __xor__(self, other: Any) -> Tensor:
        return ops.bitwise_xor(self, other)

    __rand__ = __and__
    __ror__ = __or__
    __rxor__ = __xor__

    def __eq__(self, other: Any) -> Any:
        return ops.equal(self, other) if _is_operand(other) else NotImplemented

    def __ne__(self, other: Any) -> Any:
        return ops.not_equal(self, other) if _is_operand(other) else NotImplemented

    def __lt__(self, other: Any) -> Tensor:
        return ops.less(self, other)

    def __le__(self, other: Any) -> Tensor:
        return ops.less_equal(self, other)

    def __gt__(self, other: Any) -> Tensor:
        return ops.greater(self, other)

    def __ge__(self, other: Any) -> Tensor:
        return ops.greater_equal(self, other)

    # ---- elements ----------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Tensor:
        return ops.getitem(self, key=ops.plain_key(key))

    def __reversed__(self) -> Any:
        return ops.flip(self, axis=0) if self.ndim else self

    def __contains__(self, value: Any) -> bool:
        """Whether an element equals `value`, a number or a tensor that broadcasts."""
        if not _is_operand(value):
            raise TypeError(f"in: an element of a tensor is a number, not {type(value).__name__}")
        return bool(ops.any(ops.equal(self, value)))


def _is_operand(value: Any) -> bool:
    return isinstance(value, (Operators, np.generic, float, int)) or is_array(value)
