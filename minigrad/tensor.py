"""Tensor: an array, its gradient, and the node that made it.

What it inherits is in files of their own: the operations that are methods (`x.exp()`, `x.sum(dim)`) in
`minigrad.methods`, operators and indexing (`x + y`, `x[i]`) in `minigrad.operators`, other dtypes and devices in
`minigrad.casts`, writing over its values in `minigrad.writing`. How values are recorded is in `minigrad.operation`, how
gradients flow in `minigrad.autograd`.

`tensor`, `operation` and `ops` know one another: a method calls an operation, which makes a Tensor. That works because
none of their functions runs before all three are read, in the order that `minigrad/__init__.py` begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad import ops
from minigrad.backend import Array, device_of, get_default_device, is_array, on_device_of, plain_array, to_device
from minigrad.casts import Casts
from minigrad.dtypes import is_floating, tensor_dtype
from minigrad.hooks import Hooked, Hooks
from minigrad.memory import Memory, changing
from minigrad.methods import Methods
from minigrad.operators import Operators
from minigrad.promotion import get_default_dtype
from minigrad.writing import Writing

if TYPE_CHECKING:
    from minigrad.operation import Node


class Tensor(Methods, Operators, Casts, Writing, Hooked):
    """An n-dimensional array that remembers how it was made, if a gradient may be asked for.

    Args:
        data: numbers, nested lists, an array or a Tensor; always copied. Python floats become the default dtype
            (float32, unless `set_default_dtype` says otherwise), ints int64; an array keeps its dtype.
        requires_grad: whether `backward()` gives this leaf a `.grad`. Floating dtypes only, else RuntimeError.
        dtype: NumPy dtype or its name.
        device: "cpu", "cuda", "cuda:1"; by default where a Tensor or an array of CuPy is, else that of
            `get_default_device()`. DeviceError if it is not there.

    Attributes:
        data: the array. Assigning replaces it, which graphs that use it notice; writing into `x.data[...]` they do not.
        grad: a Tensor of the same shape after `backward()`, else None.
        node: how the value was made; None for leaves and constants.
    """

    __slots__ = ("__weakref__", "_data", "_grad", "_memory", "_requires_grad", "hooks", "node")
    __array_ufunc__ = None  # NumPy leaves `array * tensor` to us
    __hash__ = object.__hash__

    _data: Array
    _grad: Tensor | None
    _memory: Memory | None  # None until a view or a graph shares it
    _requires_grad: bool
    node: Node | None
    hooks: Hooks | None  # of a leaf

    def __init__(self, data: Any, requires_grad: bool = False, dtype: Any = None, device: str | None = None) -> None:
        if isinstance(data, Tensor):
            data, device = data._data, data.device if device is None else device
        self._data = _new_array(data, dtype, device)
        self._memory = Memory()
        self._grad = self.node = self.hooks = None
        self._requires_grad = False
        self.requires_grad = requires_grad

    @classmethod
    def _of(cls, array: Array, memory: Memory | None = None) -> Tensor:
        """A constant around an array as it is, not copied."""
        tensor = object.__new__(Tensor)
        tensor._data = array
        tensor._memory = memory
        tensor._grad = tensor.node = tensor.hooks = None
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
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(
                f"requires_grad must be True or False, got {value!r}; a dtype is given by name, as dtype=..."
            )
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

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set `requires_grad`; returns the tensor itself."""
        self.requires_grad = requires_grad
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether no operation made it (or none that was recorded)."""
        return self.node is None

    @property
    def memory(self) -> Memory:
        """What this tensor shares with its views and the graphs that hold its values; made when first asked for."""
        if self._memory is None:
            with changing:
                self._memory = self._memory or Memory()
        return self._memory

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
        return Tensor._of(self._data, self.memory)

    def clone(self) -> Tensor:
        """A copy, differentiable."""
        return ops.copy(self)

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ValueError(
                f"bool() of a tensor with {self.numel()} elements, shape {self.shape}, is ambiguous; "
                "use .any() or .all()"
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu" or self.numel() != 1:
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

    def __dlpack__(self, **options: Any) -> Any:
        """This tensor's memory for another library: see `minigrad.from_dlpack` for what follows from sharing it."""
        if self._requires_grad:
            raise BufferError(
                "a tensor that requires grad does not share its memory, since graphs would not notice what is done "
                "to it; share its .detach()"
            )
        if min(self._data.strides, default=0) < 0:
            raise BufferError(
                "a view that runs backwards, such as x[::-1], is not shared, since other libraries have none: PyTorch "
                "aborts the process; share its .clone()"
            )
        return self._data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._data.__dlpack_device__()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 else format(str(self), spec)

    def __repr__(self) -> str:
        values = np.array2string(self.numpy(), separator=", ", prefix="tensor(", threshold=50)
        notes = [f"size={self.shape}"] if self.numel() == 0 and self.ndim != 1 else []
        shown_by_values = [np.int64, np.bool_] if self.numel() else []
        notes += [] if self.dtype in (get_default_dtype(), *shown_by_values) else [f"dtype={self.dtype}"]
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
        return type(self)._rebuilt, (type(self), self._data, self._requires_grad, self.device)

    def __copy__(self) -> Tensor:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        rebuild, (cls, data, requires_grad, device) = self.__reduce__()
        with on_device_of(data):
            copy = rebuild(cls, data.copy(), requires_grad, device)
        copy._grad = None if self._grad is None else self._grad.detach().clone()
        return copy

    @staticmethod
    def _rebuilt(cls: type[Tensor], data: Array, requires_grad: bool, device: str) -> Tensor:
        tensor = object.__new__(cls)
        tensor._data, tensor._memory, tensor._requires_grad = to_device(data, device), Memory(), requires_grad
        tensor._grad = tensor.node = tensor.hooks = None
        return tensor

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def backward(self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False) -> None:
        """Add d self / d leaf to `.grad` of every leaf: see `minigrad.autograd.backward`."""
        from minigrad import autograd  # it is read after this module

        autograd.backward(self, gradient, retain_graph=retain_graph, create_graph=create_graph)


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
            dtype = get_default_dtype()
    data = plain_array(data)
    if device is None and device_of(data) == "cpu":
        device = get_default_device()
    array = data if device is None else to_device(data, device)
    with on_device_of(array):
        return array.astype(array.dtype if dtype is None else tensor_dtype(dtype))  # astype copies
