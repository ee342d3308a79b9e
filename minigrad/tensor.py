"""Tensor: an array, its gradient, and the node that made it.

The operations that are methods (`x.exp()`, `x.sum(dim)`) are in `minigrad.methods`; how values are recorded in
`minigrad.operation`, how gradients flow in `minigrad.autograd`.

`tensor`, `operation` and `ops` know one another: a method calls an operation, which makes a Tensor. That works because
none of their functions runs before all three are read, in the order that `minigrad/__init__.py` begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad import operation, ops
from minigrad.backend import DEFAULT_DTYPE, Array, DeviceError, device_of, is_array, is_floating, plain_array, to_device
from minigrad.methods import Methods

if TYPE_CHECKING:
    from minigrad.operation import Node

Flag = bool  # within the class `bool` is a method


class Memory:
    """What views of one array share: the number of times it was written over."""

    version = 0


class Tensor(Methods):
    """An n-dimensional array that remembers how it was made, if a gradient may be asked for.

    Args:
        data: numbers, nested lists, an array or a Tensor; always copied. Python floats become float32, ints int64;
            an array keeps its dtype.
        requires_grad: whether `backward()` gives this leaf a `.grad`. Floating dtypes only, else RuntimeError.
        dtype: NumPy dtype or its name.
        device: "cpu", "cuda", "cuda:1"; by default where the data is. DeviceError if it is not there.

    Attributes:
        data: the array. Assigning replaces it, which graphs that use it notice; writing into `x.data[...]` they do not.
        grad: a Tensor of the same shape after `backward()`, else None.
        node: how the value was made; None for leaves and constants.
    """

    __slots__ = ("__weakref__", "_data", "_grad", "_memory", "_requires_grad", "node")
    __array_ufunc__ = None  # NumPy leaves `array * tensor` to us
    __hash__ = object.__hash__

    _data: Array
    _grad: Tensor | None
    _memory: Memory
    _requires_grad: bool
    node: Node | None

    def __init__(self, data: Any, requires_grad: bool = False, dtype: Any = None, device: str | None = None) -> None:
        array = data._data if isinstance(data, Tensor) else data
        self._data = _new_array(array, dtype, device)
        self._memory = Memory()
        self._grad = self.node = None
        self._requires_grad = False
        self.requires_grad = requires_grad

    @classmethod
    def _of(cls, array: Array, memory: Memory | None = None) -> Tensor:
        """A constant around an array as it is, not copied."""
        tensor = object.__new__(Tensor)
        tensor._data = array
        tensor._memory = memory or Memory()
        tensor._grad = tensor.node = None
        tensor._requires_grad = False
        return tensor

    # ---- what it is --------------------------------------------------------------------------------------------------

    @property
    def data(self) -> Array:
        """The array itself, not a copy."""
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        array = value._data if isinstance(value, Tensor) else value
        self._replace(_new_array(array, self.dtype, self.device))

    @property
    def grad(self) -> Tensor | None:
        """What `backward()` has added up here; None before, or after `zero_grad()`."""
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"grad must be a Tensor or None, got {type(value).__name__}")
        if value is not None and value.shape != self.shape:
            raise ValueError(f"grad of shape {value.shape} for a tensor of shape {self.shape}; they must be equal")
        self._grad = value

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to this tensor."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and not is_floating(self.dtype):
            raise RuntimeError(
                f"only floating-point tensors can require gradients, this one is {self.dtype}; "
                "write 1.0 for 1, or use .float()"
            )
        if self.node is not None and not value:
            raise RuntimeError(
                "requires_grad can be changed on leaves only; use .detach() for a tensor without history"
            )
        self._requires_grad = bool(value)

    def requires_grad_(self, requires_grad: Flag = True) -> Tensor:
        """Set `requires_grad`; returns the tensor itself."""
        self.requires_grad = requires_grad
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether no operation made it (or none that was recorded)."""
        return self.node is None

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each dimension."""
        return self._data.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._data.ndim

    @property
    def dtype(self) -> np.dtype:
        """The array's NumPy dtype."""
        return self._data.dtype

    @property
    def device(self) -> str:
        """ "cpu", "cuda:0", "cuda:1" ..."""
        return device_of(self._data)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the length of one dimension; IndexError if there is no such one."""
        if dim is None:
            return self.shape
        if not -self.ndim <= dim < self.ndim:
            raise IndexError(f"dimension {dim} of a tensor with {self.ndim} dimensions, shape {self.shape}")
        return self.shape[dim]

    def dim(self) -> int:
        """The number of dimensions."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    # ---- to and from other things ------------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray:
        """The values as a NumPy array; on the CPU it shares the tensor's memory, so write into a copy of it."""
        return to_device(self._data, "cpu")

    def item(self) -> Any:
        """The Python number of a tensor with one element; ValueError for more.

        Add up losses with it: `total += loss` would keep the graph of every loss alive.
        """
        if self.numel() != 1:
            raise ValueError(f"item() needs a tensor with one element, this one has shape {self.shape}")
        return self._data.item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers; a number for a 0-d tensor."""
        return self._data.tolist()

    def detach(self) -> Tensor:
        """The same values, sharing memory, without history."""
        return Tensor._of(self._data, self._memory)

    def clone(self) -> Tensor:
        """A copy, differentiable."""
        return ops.copy(self)

    def to(self, target: Any) -> Tensor:
        """On another device ("cpu", "cuda", "cuda:1") or in another dtype (np.float64, "float16"); differentiable."""
        if isinstance(target, str) and target.partition(":")[0] in ("cpu", "cuda"):
            return self if target == self.device else ops.to_device(self, device=target)
        if target is None:
            raise TypeError("to: name a device such as 'cuda' or a dtype such as 'float64', not None")
        try:
            dtype = np.dtype(target)
        except TypeError as error:
            raise TypeError(f"to: {target!r} is neither a device ('cpu', 'cuda', 'cuda:1') nor a dtype") from error
        if dtype.kind not in "fiub":
            raise TypeError(f"to: a tensor holds floats, integers or booleans, not {dtype}")
        return self if dtype == self.dtype else ops.astype(self, dtype=dtype)

    def float(self) -> Tensor:
        """As float32."""
        return self.to(np.float32)

    def double(self) -> Tensor:
        """As float64."""
        return self.to(np.float64)

    def long(self) -> Tensor:
        """As int64, truncated."""
        return self.to(np.int64)

    def bool(self) -> Tensor:
        """As booleans: whether not zero."""
        return self.to(np.bool_)

    def __bool__(self) -> Flag:
        return bool(self.item())

    def __float__(self) -> Any:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind != "i" or self.numel() != 1:
            raise TypeError(
                f"only a tensor with one integer can be an index, this one is {self.dtype} of shape {self.shape}"
            )
        return int(self.item())

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return (self[place] for place in range(len(self)))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self._requires_grad:
            raise RuntimeError(
                "a tensor that requires grad is not made a NumPy array silently, which would leave the graph; "
                "use the operations of minigrad, or .numpy() for the values"
            )
        if copy is False:
            raise ValueError("a NumPy array of a tensor is always a copy")
        return np.array(self.numpy(), dtype=dtype)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 else format(str(self), spec)

    def __repr__(self) -> str:
        values = np.array2string(self.numpy(), separator=", ", prefix="tensor(", threshold=50)
        notes = [] if self.dtype in (DEFAULT_DTYPE, np.int64, np.bool_) else [f"dtype={self.dtype}"]
        notes += [] if self.device == "cpu" else [f"device={self.device!r}"]
        if self.node is not None:
            notes.append(f"made by {self.node.operation.name}")
        elif self.requires_grad:
            notes.append("requires_grad=True")
        return f"tensor({', '.join([values, *notes])})"

    def __reduce__(self) -> Any:
        if self.node is not None:
            raise RuntimeError(
                f"only leaves can be copied or pickled, this tensor was made by {self.node.operation.name}; "
                "use .detach() first"
            )
        return type(self)._rebuilt, (type(self), self._data, self._requires_grad)

    def __copy__(self) -> Tensor:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        rebuild, (cls, data, requires_grad) = self.__reduce__()
        memo[id(self)] = copy = rebuild(cls, data.copy(), requires_grad)
        return copy

    @staticmethod
    def _rebuilt(cls: type[Tensor], data: Array, requires_grad: Flag) -> Tensor:
        tensor = object.__new__(cls)
        tensor._data, tensor._memory, tensor._requires_grad = data, Memory(), requires_grad
        tensor._grad = tensor.node = None
        return tensor

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def backward(self, gradient: Any = None, retain_graph: Flag | None = None, create_graph: Flag = False) -> None:
        """Add d self / d leaf to `.grad` of every leaf: see `minigrad.autograd.backward`."""
        from minigrad import autograd  # it is read after this module

        autograd.backward(self, gradient, retain_graph=retain_graph, create_graph=create_graph)

    # ---- writing: what the engine notices ----------------------------------------------------------------------------

    def _replace(self, array: Array) -> None:
        """Take another array as this tensor's own, perhaps of another dtype or on another device."""
        self._data = array
        self._written()

    def _written(self) -> None:
        """Tell the graphs that hold these values that they were written over. An optimizer says it after each step."""
        self._memory.version += 1

    def copy_(self, source: Any) -> Tensor:
        """Write the values of `source`, broadcast, into this tensor. RuntimeError if it requires grad, but for a leaf
        inside `no_grad`."""
        self._write(..., source, "copy_")
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        self._write(ops.plain_key(key), value, "x[i] = v")

    def _write(self, key: Any, value: Any, what: str) -> None:
        if self._requires_grad and (self.node is not None or operation.is_grad_enabled()):
            raise RuntimeError(
                f"{what}: this tensor requires grad, so its values are not written over; "
                "make a new one with mg.where(condition, a, b), or write to a leaf inside mg.no_grad()"
            )
        if isinstance(value, Tensor) and value._requires_grad and operation.is_grad_enabled():
            raise RuntimeError(
                f"{what}: the value requires grad, and writing it here would lose its gradient; "
                "make a new tensor with mg.where(condition, a, b) or mg.cat, or write its .detach()"
            )
        if self.numel() and any(s == 0 and n > 1 for s, n in zip(self._data.strides, self.shape, strict=True)):
            raise RuntimeError(
                f"{what}: this tensor of shape {self.shape} is an expanded view; write to a .clone() of it"
            )
        values = value._data if isinstance(value, Tensor) else value
        if is_array(values) and device_of(values) != self.device:
            raise DeviceError(
                f"{what}: the value is on {device_of(values)}, the tensor on {self.device}; move it first"
            )
        try:
            self._data[key] = values
        except (IndexError, OverflowError, TypeError, ValueError) as error:
            raise type(error)(f"{what}: {error} (this tensor has shape {self.shape})") from error
        self._written()

    def _updated(self, value: Tensor) -> Tensor:
        """What `x -= y` leaves in x: a leaf that requires grad is written in place, otherwise x is the new tensor."""
        return self.copy_(value) if self._requires_grad and self.node is None else value

    def __iadd__(self, other: Any) -> Tensor:
        return self._updated(ops.add(self, other))

    def __isub__(self, other: Any) -> Tensor:
        return self._updated(ops.subtract(self, other))

    def __imul__(self, other: Any) -> Tensor:
        return self._updated(ops.multiply(self, other))

    def __itruediv__(self, other: Any) -> Tensor:
        return self._updated(ops.divide(self, other))

    def __ifloordiv__(self, other: Any) -> Tensor:
        return self._updated(ops.floor_divide(self, other))

    def __imod__(self, other: Any) -> Tensor:
        return self._updated(ops.remainder(self, other))

    def __ipow__(self, other: Any) -> Tensor:
        return self._updated(ops.power(self, other))

    def __imatmul__(self, other: Any) -> Tensor:
        return self._updated(ops.matmul(self, other))

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

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return ops.abs(self)

    def __invert__(self) -> Tensor:
        return ops.invert(self)

    def __and__(self, other: Any) -> Tensor:
        return ops.bitwise_and(self, other)

    def __or__(self, other: Any) -> Tensor:
        return ops.bitwise_or(self, other)

    __rand__ = __and__
    __ror__ = __or__

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

    def __getitem__(self, key: Any) -> Tensor:
        return ops.getitem(self, key=ops.plain_key(key))


def _is_operand(value: Any) -> bool:
    return isinstance(value, (Tensor, np.generic, float, int)) or is_array(value)


def _new_array(data: Any, dtype: Any, device: str | None) -> Array:
    """A fresh array of the data: Python floats in the default dtype, arrays in their own."""
    if not is_array(data):
        if isinstance(data, (list, tuple)) and any(isinstance(part, Tensor) for part in data):
            raise TypeError(
                "a tensor is made of numbers or of an array; join a list of tensors with mg.stack or mg.cat"
            )
        keep = isinstance(data, np.generic)
        data = np.array(data)
        if dtype is None and not keep and is_floating(data.dtype):
            dtype = DEFAULT_DTYPE
    if data.dtype.kind not in "fiub":
        raise TypeError(f"a tensor holds floats, integers or booleans, not {data.dtype}")
    data = plain_array(data)
    array = data if device is None else to_device(data, device)
    return array.astype(dtype or array.dtype)  # astype copies
