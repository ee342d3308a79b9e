"""Writing over a tensor's values: `x[i] = v`, `x.add_(y)`, `x -= y`. Who may, and how graphs come to notice it.

A graph holds values, so they are not written over behind its back: what requires grad is written only if it is a leaf,
inside `no_grad`; and every write is noted in the memory that views and `detach()` share, where a graph looks before
it uses what it kept. Optimizers write into arrays themselves and say so with `minigrad.memory.written`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from minigrad import ops
from minigrad.backend import Array, DeviceError, device_of, is_array, on_device_of, refuse_places_outside, to_device
from minigrad.dtypes import is_bfloat16, is_numeric
from minigrad.grad_mode import is_grad_enabled
from minigrad.memory import Memory, written
from minigrad.promotion import category
from minigrad.scalars import check_held, number

if TYPE_CHECKING:
    from minigrad.operation import Node


class Writing:
    """What Tensor inherits: the methods that change it instead of making another."""

    __slots__ = ()

    if TYPE_CHECKING:
        _data: Array
        _requires_grad: bool
        node: Node | None

        @property
        def memory(self) -> Memory: ...
        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> np.dtype: ...
        @property
        def device(self) -> str: ...

    # ---- in place ----------------------------------------------------------------------------------------------------
    # RuntimeError for a tensor that requires grad, but for a leaf inside `no_grad`; ValueError for a value of a shape
    # that does not broadcast to the tensor's own.

    def copy_(self, source: Any) -> Self:
        """Write the values of `source` into this tensor, cast to its dtype; returns the tensor itself."""
        self._check_shape("copy_", source)
        return self._write("copy_", ..., source)

    def fill_(self, value: Any) -> Self:
        """Write one number everywhere."""
        if getattr(value, "ndim", 0):
            raise ValueError(f"fill_: takes a number or a 0-d tensor, got shape {value.shape}; copy_ broadcasts it")
        if isinstance(value, (int, float, np.generic)):
            value = number("fill_: value", value)
            check_held("fill_", value, self.dtype)
        return self._write("fill_", ..., value)

    def zero_(self) -> Self:
        """Write 0 everywhere."""
        return self._write("zero_", ..., 0)

    def add_(self, other: Any, *, alpha: Any = 1) -> Self:
        """self + alpha other, in place and in this tensor's dtype; RuntimeError for fractions in an integer tensor."""
        return self._write_result("add_", ops.add, other, alpha)

    def sub_(self, other: Any, *, alpha: Any = 1) -> Self:
        """self - alpha other, in place: see `add_`."""
        return self._write_result("sub_", ops.subtract, other, alpha)

    def mul_(self, other: Any) -> Self:
        """self other, in place: see `add_`."""
        return self._write_result("mul_", ops.multiply, other)

    def div_(self, other: Any) -> Self:
        """self / other, in place: see `add_`; never of integers, whose quotients are fractions."""
        return self._write_result("div_", ops.divide, other)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._write("x[i] = v", ops.plain_key(key), value)

    # ---- augmented assignment ----------------------------------------------------------------------------------------

    def _updated(self, value: Any) -> Any:
        """What `x -= y` leaves in x: a leaf that requires grad is written in place, otherwise x is the new tensor."""
        return self.copy_(value) if self._requires_grad and self.node is None else value

    def __iadd__(self, other: Any) -> Any:
        return self._updated(ops.add(self, other))

    def __isub__(self, other: Any) -> Any:
        return self._updated(ops.subtract(self, other))

    def __imul__(self, other: Any) -> Any:
        return self._updated(ops.multiply(self, other))

    def __itruediv__(self, other: Any) -> Any:
        return self._updated(ops.divide(self, other))

    def __ifloordiv__(self, other: Any) -> Any:
        return self._updated(ops.floor_divide(self, other))

    def __imod__(self, other: Any) -> Any:
        return self._updated(ops.remainder(self, other))

    def __ipow__(self, other: Any) -> Any:
        return self._updated(ops.power(self, other))

    def __imatmul__(self, other: Any) -> Any:
        return self._updated(ops.matmul(self, other))

    # ---- what all of them do -----------------------------------------------------------------------------------------

    def _replace(self, array: Array) -> None:
        """Take another array as this tensor's own, perhaps of another dtype or on another device."""
        self._data = array
        written([self.memory])

    def _write(self, what: str, key: Any, value: Any) -> Self:
        """Write into the elements that `key` names; `what` is the caller's name in error messages."""
        self._check_writable(what, value)
        values = value._data if isinstance(value, Writing) else value
        if is_array(values) and device_of(values) != self.device:
            raise DeviceError(
                f"{what}: the value is on {device_of(values)}, the tensor on {self.device}; move it first"
            )
        if isinstance(value, Writing) and value.memory is self.memory:
            with on_device_of(values):
                values = values.copy()  # it may overlap with what is written
        try:
            if not isinstance(values, (int, float)):
                values = _numbers(values, self.device)
            elif is_bfloat16(self.dtype):
                values = float(values)  # which takes no integer beyond 64 bits
            with on_device_of(self._data):
                refuse_places_outside(self._data, key)
                self._data[key] = values
        except (IndexError, OverflowError, TypeError, ValueError) as error:
            raise type(error)(f"{what}: {error} (this tensor has shape {self.shape})") from error
        written([self.memory])
        return self

    def _write_result(self, what: str, operate: Callable[..., Any], other: Any, alpha: Any = 1) -> Self:
        self._check_shape(what, other)
        self._check_writable(what, other)
        alpha = number(f"{what}: alpha", alpha)
        value = operate(self, other if alpha == 1 else alpha * other)
        if category(value.dtype) > category(self.dtype):
            raise RuntimeError(
                f"{what}: result type {value.dtype} can't be cast to {self.dtype}, the dtype of this tensor; "
                "make a new tensor with the operation that has no underscore"
            )
        return self._write(what, ..., value)

    def _check_writable(self, what: str, value: Any) -> None:
        if self._requires_grad and (self.node is not None or is_grad_enabled()):
            raise RuntimeError(
                f"{what}: this tensor requires grad, so its values are not written over; "
                "make a new one with mg.where(condition, a, b), or write to a leaf inside mg.no_grad()"
            )
        if isinstance(value, Writing) and value._requires_grad and is_grad_enabled():
            raise RuntimeError(
                f"{what}: the value requires grad, and writing it here would lose its gradient; "
                "make a new tensor with mg.where(condition, a, b) or mg.cat, or write its .detach()"
            )
        array = self._data
        if array.size and any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True)):
            raise RuntimeError(
                f"{what}: this tensor of shape {self.shape} is an expanded view; write to a .clone() of it"
            )
        if not getattr(array.flags, "writeable", True):  # CuPy's always are
            raise RuntimeError(
                f"{what}: the memory of this tensor is for reading only (a diagonal's, or lent by another library); "
                "write to a .clone() of it"
            )

    def _check_shape(self, what: str, value: Any) -> None:
        """Raises ValueError for a value that does not broadcast to this tensor's shape."""
        shape, own = np.shape(value) if not hasattr(value, "shape") else value.shape, self.shape
        pairs = zip(reversed(shape), reversed(own), strict=False)
        if len(shape) > len(own) or any(n not in (1, m) for n, m in pairs):
            raise ValueError(f"{what}: a value of shape {shape} does not broadcast to this tensor's shape {own}")


def _numbers(values: Any, device: str) -> Array:
    """Lists as an array; TypeError for what are no numbers, and would become some silently: None, "1", 1j."""
    array = values if hasattr(values, "dtype") else np.asarray(values)
    if not is_numeric(array.dtype):
        raise TypeError(f"a tensor holds floats, integers or booleans, not {array.dtype}")
    return array if array is values else to_device(array, device)
