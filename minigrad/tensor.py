"""Tensor: an array, its gradient, and the node that made it.

Operators and methods are about a line each: they hand on to `minigrad.ops`, from PyTorch's names (`dim`, `keepdim`) to
NumPy's (`axis`, `keepdims`). How values are recorded is in `minigrad.operation`, how gradients flow in
`minigrad.autograd`.

`tensor`, `operation` and `ops` know one another: a method calls an operation, which makes a Tensor. That works because
none of their functions runs before all three are read, in the order that `minigrad/__init__.py` begins.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minigrad import operation, ops
from minigrad.backend import DEFAULT_DTYPE, Array, DeviceError, device_of, is_array, is_floating, plain_array, to_device

if TYPE_CHECKING:
    from minigrad.operation import Node

Dim = int | Sequence[int] | None
Flag = bool  # within the class `bool` is a method


class Memory:
    """What views of one array share: the number of times it was written over."""

    version = 0


class Tensor:
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

    # ---- elementwise -------------------------------------------------------------------------------------------------

    def exp(self) -> Tensor:
        """e^x."""
        return ops.exp(self)

    def log(self) -> Tensor:
        """ln x."""
        return ops.log(self)

    def exp2(self) -> Tensor:
        """2^x."""
        return ops.exp2(self)

    def log2(self) -> Tensor:
        """log₂ x."""
        return ops.log2(self)

    def expm1(self) -> Tensor:
        """e^x - 1, exact near 0."""
        return ops.expm1(self)

    def log1p(self) -> Tensor:
        """ln(1 + x), exact near 0."""
        return ops.log1p(self)

    def sqrt(self) -> Tensor:
        """√x."""
        return ops.sqrt(self)

    def rsqrt(self) -> Tensor:
        """1 / √x."""
        return ops.rsqrt(self)

    def square(self) -> Tensor:
        """x²."""
        return ops.square(self)

    def reciprocal(self) -> Tensor:
        """1 / x."""
        return ops.reciprocal(self)

    def sin(self) -> Tensor:
        """The sine of radians."""
        return ops.sin(self)

    def cos(self) -> Tensor:
        """The cosine of radians."""
        return ops.cos(self)

    def atan2(self, other: Any) -> Tensor:
        """The angle of the point (other, self), in radians from -π to π."""
        return ops.arctan2(self, other)

    def sinh(self) -> Tensor:
        """The hyperbolic sine."""
        return ops.sinh(self)

    def cosh(self) -> Tensor:
        """The hyperbolic cosine."""
        return ops.cosh(self)

    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
        return ops.tanh(self)

    def sigmoid(self) -> Tensor:
        """1 / (1 + e^-x)."""
        return ops.sigmoid(self)

    def erf(self) -> Tensor:
        """The error function."""
        return ops.erf(self)

    def erfc(self) -> Tensor:
        """1 - erf x, precise where erf x is nearly 1."""
        return ops.erfc(self)

    def relu(self) -> Tensor:
        """max(0, x)."""
        return ops.relu(self)

    def abs(self) -> Tensor:
        """|x|."""
        return ops.abs(self)

    def sign(self) -> Tensor:
        """-1, 0 or 1."""
        return ops.sign(self)

    def floor(self) -> Tensor:
        """⌊x⌋."""
        return ops.floor(self)

    def ceil(self) -> Tensor:
        """⌈x⌉."""
        return ops.ceil(self)

    def round(self) -> Tensor:
        """The nearest integer, of two equally near the even one."""
        return ops.rint(self)

    def clamp(self, min: Any = None, max: Any = None) -> Tensor:
        """min(max(self, min), max); None for no bound. ValueError without any."""
        return ops.clip(self, min, max)

    def nan_to_num(self, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Tensor:
        """Numbers in place of NaN, ∞ and -∞; by default 0 and the dtype's largest and smallest."""
        return ops.nan_to_num(self, nan=nan, posinf=posinf, neginf=neginf)

    def pow(self, exponent: Any) -> Tensor:
        """self ** exponent, a number or a tensor."""
        return ops.power(self, exponent)

    def lerp(self, end: Any, weight: Any) -> Tensor:
        """self + weight (end - self)."""
        return ops.lerp(self, end, weight)

    def maximum(self, other: Any) -> Tensor:
        """The larger of self and other, element by element."""
        return ops.maximum(self, other)

    def minimum(self, other: Any) -> Tensor:
        """The smaller of self and other, element by element."""
        return ops.minimum(self, other)

    def logical_and(self, other: Any) -> Tensor:
        """Whether neither self nor other is 0."""
        return ops.logical_and(self, other)

    def logical_or(self, other: Any) -> Tensor:
        """Whether self or other is not 0."""
        return ops.logical_or(self, other)

    def logical_xor(self, other: Any) -> Tensor:
        """Whether one of self and other is 0 and the other is not."""
        return ops.logical_xor(self, other)

    def logical_not(self) -> Tensor:
        """Whether x is 0."""
        return ops.logical_not(self)

    def isnan(self) -> Tensor:
        """Whether x is NaN."""
        return ops.isnan(self)

    def isinf(self) -> Tensor:
        """Whether x is ∞ or -∞."""
        return ops.isinf(self)

    def isfinite(self) -> Tensor:
        """Whether x is neither NaN nor infinite."""
        return ops.isfinite(self)

    def where(self, condition: Any, other: Any) -> Tensor:
        """self where `condition` holds, else `other`."""
        return ops.where(condition, self, other)

    def masked_fill(self, mask: Any, value: Any) -> Tensor:
        """`value` where the boolean `mask` holds, self elsewhere."""
        return ops.masked_fill(self, mask, value)

    def softmax(self, dim: int) -> Tensor:
        """e^x / Σ e^x along `dim`."""
        return ops.softmax(self, axis=dim)

    def log_softmax(self, dim: int) -> Tensor:
        """x - log Σ e^x along `dim`."""
        return ops.log_softmax(self, axis=dim)

    # ---- reductions --------------------------------------------------------------------------------------------------

    def sum(self, dim: Dim = None, keepdim: Flag = False) -> Tensor:
        """The sum along `dim`, or of all elements."""
        return ops.sum(self, axis=_axes(dim), keepdims=keepdim)

    def mean(self, dim: Dim = None, keepdim: Flag = False) -> Tensor:
        """The mean along `dim`, or of all elements."""
        return ops.mean(self, axis=_axes(dim), keepdims=keepdim)

    def var(self, dim: Dim = None, correction: int = 1, keepdim: Flag = False) -> Tensor:
        """The variance; unbiased by default (divided by n - correction)."""
        return ops.var(self, axis=_axes(dim), correction=correction, keepdims=keepdim)

    def std(self, dim: Dim = None, correction: int = 1, keepdim: Flag = False) -> Tensor:
        """The standard deviation, √var; of equal values its gradient is 0."""
        return ops.std(self, axis=_axes(dim), correction=correction, keepdims=keepdim)

    def prod(self, dim: Dim = None, keepdim: Flag = False) -> Tensor:
        """The product along `dim`, or of all elements; its gradient is exact where elements are 0."""
        return ops.prod(self, axis=_axes(dim), keepdims=keepdim)

    def norm(self, p: Any = 2, dim: Dim = None, keepdim: Flag = False) -> Tensor:
        """√(Σ x²) for p = 2, Σ |x| for 1, max |x| for inf, along `dim` or of all elements; at 0 its gradient is 0."""
        return ops.vector_norm(self, ord=p, axis=_axes(dim), keepdims=keepdim)

    def logsumexp(self, dim: int | Sequence[int], keepdim: Flag = False) -> Tensor:
        """log Σ e^x along `dim`."""
        return ops.logsumexp(self, axis=_axes(dim), keepdims=keepdim)

    def cumsum(self, dim: int) -> Tensor:
        """The sum of the elements up to each along `dim`."""
        return ops.cumsum(self, axis=dim)

    def cumprod(self, dim: int) -> Tensor:
        """The product of the elements up to each along `dim`."""
        return ops.cumprod(self, axis=dim)

    def amax(self, dim: Dim = None, keepdim: Flag = False) -> Tensor:
        """The maximum; tied elements share its gradient equally."""
        return ops.max(self, axis=_axes(dim), keepdims=keepdim)

    def amin(self, dim: Dim = None, keepdim: Flag = False) -> Tensor:
        """The minimum; tied elements share its gradient equally."""
        return ops.min(self, axis=_axes(dim), keepdims=keepdim)

    def max(self, dim: int | None = None, keepdim: Flag = False) -> Any:
        """The maximum of all elements; with `dim`, (values, indices) along it, where one winner gets the gradient."""
        return self.amax() if dim is None else Extremes(*ops.pick(self, ops.argmax(self, axis=dim), dim, keepdim))

    def min(self, dim: int | None = None, keepdim: Flag = False) -> Any:
        """The minimum of all elements; with `dim`, (values, indices) along it, where one winner gets the gradient."""
        return self.amin() if dim is None else Extremes(*ops.pick(self, ops.argmin(self, axis=dim), dim, keepdim))

    def argmax(self, dim: int | None = None, keepdim: Flag = False) -> Tensor:
        """The place of the first largest along `dim`, or in the flattened tensor; int64."""
        return ops.argmax(self, axis=dim, keepdims=keepdim)

    def argmin(self, dim: int | None = None, keepdim: Flag = False) -> Tensor:
        """The place of the first smallest along `dim`, or in the flattened tensor; int64."""
        return ops.argmin(self, axis=dim, keepdims=keepdim)

    def any(self, dim: Dim = None, keepdim: Flag = False) -> Tensor:
        """Whether an element along `dim`, or any at all, is not zero."""
        return ops.any(self, axis=_axes(dim), keepdims=keepdim)

    def all(self, dim: Dim = None, keepdim: Flag = False) -> Tensor:
        """Whether no element along `dim`, or none at all, is zero."""
        return ops.all(self, axis=_axes(dim), keepdims=keepdim)

    # ---- shape -------------------------------------------------------------------------------------------------------

    @property
    def T(self) -> Tensor:
        """The axes in reverse order, as in NumPy; `.mT` transposes the matrices of a batch."""
        return ops.transpose(self, None)

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        return ops.swapaxes(self, -1, -2)

    def matmul(self, other: Any) -> Tensor:
        """The product of vectors, matrices or batches of matrices."""
        return ops.matmul(self, other)

    def dot(self, other: Any) -> Tensor:
        """Σ x_i y_i of two vectors of one length."""
        _check_product("dot", self, other, 1, "two vectors (n) and (n)")
        return ops.matmul(self, other)

    def bmm(self, other: Any) -> Tensor:
        """The products of the matrices of two batches, (b, n, k) and (b, k, m), which do not broadcast."""
        _check_product("bmm", self, other, 3, "two batches of matrices (b, n, k) and (b, k, m)")
        return ops.matmul(self, other)

    def outer(self, other: Any) -> Tensor:
        """The matrix x_i y_j of two vectors."""
        if self.ndim != 1 or getattr(other, "ndim", 0) != 1:
            raise ValueError(f"outer: takes two vectors, got shapes {self.shape} and {getattr(other, 'shape', ())}")
        return ops.outer(self, other)

    def trace(self) -> Tensor:
        """The sum of a matrix's diagonal."""
        if self.ndim != 2:
            raise ValueError(f"trace: takes a matrix, got shape {self.shape}")
        return ops.trace(self)

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """The elements [i, i + offset] of two dimensions, along a new last one."""
        return ops.diagonal(self, offset=offset, axis1=dim1, axis2=dim2)

    def tril(self, diagonal: int = 0) -> Tensor:
        """The lower triangle of the last two dimensions, up to the given diagonal; 0 elsewhere."""
        return ops.tril(self, k=diagonal)

    def triu(self, diagonal: int = 0) -> Tensor:
        """The upper triangle of the last two dimensions, from the given diagonal; 0 elsewhere."""
        return ops.triu(self, k=diagonal)

    def reshape(self, *shape: Any) -> Tensor:
        """The elements in order in another shape; one length may be -1. A view where it can be."""
        return ops.reshape(self, _sizes(shape))

    view = reshape

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Two dimensions exchanged."""
        return ops.swapaxes(self, dim0, dim1)

    def permute(self, *dims: Any) -> Tensor:
        """The dimensions in another order."""
        return ops.transpose(self, _sizes(dims))

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
        """The dimensions `source` at the places `destination`, the others in their order."""
        return ops.moveaxis(self, _axes(source), _axes(destination))

    def flip(self, *dims: Any) -> Tensor:
        """The elements in reverse order along each of `dims`."""
        return ops.flip(self, tuple(_sizes(dims)))

    def roll(self, shifts: int | Sequence[int], dims: Dim = None) -> Tensor:
        """The elements moved on by `shifts` along `dims`, or as one row; the last come round to the front."""
        return ops.roll(self, _axes(shifts), _axes(dims))

    def repeat(self, *repeats: Any) -> Tensor:
        """The tensor so many times along each dimension; numbers beyond its own are new dimensions in front."""
        times = tuple(_sizes(repeats))
        if len(times) < self.ndim or (times and min(times) < 0):
            raise ValueError(
                f"repeat: {times} of a tensor of shape {self.shape}; give each dimension a number, 0 or more"
            )
        return ops.tile(self, times)

    def expand(self, *sizes: Any) -> Tensor:
        """Repeat axes of length 1, and new axes in front, without copying; -1 keeps a length."""
        shape = _sizes(sizes)
        if len(shape) < self.ndim or -1 in shape[: len(shape) - self.ndim]:
            raise ValueError(
                f"expand: shape {self.shape} to {shape}; name every dimension, -1 keeps an old one's length"
            )
        own = (1,) * (len(shape) - self.ndim) + self.shape
        return ops.broadcast_to(self, tuple(n if wish == -1 else wish for n, wish in zip(own, shape, strict=True)))

    def squeeze(self, dim: Dim = None) -> Tensor:
        """Without axes of length 1: all of them, or those of `dim` that have length 1."""
        chosen = _axes(dim)
        dims = range(self.ndim) if chosen is None else chosen if isinstance(chosen, tuple) else (chosen,)
        axes = tuple(d for d in dims if self.size(d) == 1) if self.ndim else ()
        return ops.squeeze(self, axis=axes)

    def unsqueeze(self, dim: int) -> Tensor:
        """A new dimension of length 1 at `dim`."""
        return ops.expand_dims(self, dim)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """The axes from start_dim to end_dim, both included, as one."""
        if self.ndim == 0:
            return self.reshape(1)
        self.size(start_dim), self.size(end_dim)  # raise for a dimension that is not there
        start, end = start_dim % self.ndim, end_dim % self.ndim
        if start > end:
            raise ValueError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}, shape {self.shape}")
        return self.reshape(*self.shape[:start], math.prod(self.shape[start : end + 1]), *self.shape[end + 1 :])

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Tensor:
        """Dimension `dim` as several of the given sizes, of which one may be -1."""
        length, place = self.size(dim), dim % self.ndim
        known = math.prod(n for n in sizes if n != -1)
        free = length // known if known else 0  # what -1 stands for
        inferred = tuple(free if n == -1 else n for n in sizes)
        if math.prod(inferred) != length or list(sizes).count(-1) > 1:
            raise ValueError(f"unflatten: sizes {tuple(sizes)} do not make up dimension {dim}, shape {self.shape}")
        return self.reshape(*self.shape[:place], *inferred, *self.shape[place + 1 :])

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        """The `length` elements from `start` on along `dim`; a negative start counts from the end."""
        size = self.size(dim)
        first = start + size if start < 0 else start
        if not (0 <= first <= size and 0 <= length <= size - first):
            raise IndexError(
                f"narrow: {length} elements from {start} on, dimension {dim} of shape {self.shape} has {size}"
            )
        return self[(slice(None),) * (dim % self.ndim) + (slice(first, first + length),)]

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """At most `chunks` pieces of one length along `dim`; the last may be shorter."""
        if chunks < 1:
            raise ValueError(f"chunk: at least one piece must be asked for, not {chunks}")
        length = self.size(dim)
        return self.split(-(-length // chunks), dim) if length else self.split([0] * chunks, dim)

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        """The slices along `dim`, without that dimension."""
        length = self.size(dim)
        return tuple([part.squeeze(dim) for part in self.split(1, dim)]) if length else ()

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Pieces of `split_size` along `dim` (the last may be shorter), or of the given sizes."""
        length = self.size(dim)
        if not isinstance(split_size, Sequence):
            if split_size < 1:
                raise ValueError(f"split: pieces must have a length of 1 or more, not {split_size}")
            cuts = tuple(range(split_size, length, split_size))
        else:
            if sum(split_size) != length or min(split_size) < 0:
                raise ValueError(
                    f"split: sizes {tuple(split_size)} add up to {sum(split_size)}, dimension {dim} has length {length}"
                )
            cuts = tuple(itertools.accumulate(split_size))[:-1]
        return ops.split(self, cuts, dim)

    def __getitem__(self, key: Any) -> Tensor:
        return ops.getitem(self, key=ops.plain_key(key))


class Extremes(NamedTuple):
    """What `max` and `min` along a dimension give."""

    values: Tensor
    indices: Tensor


def _sizes(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """PyTorch takes `view(2, 3)` and `view((2, 3))`."""
    return tuple(arguments[0]) if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)) else arguments


def _check_product(name: str, x: Tensor, y: Any, ndim: int, wanted: str) -> None:
    """ValueError unless both have so many dimensions, of which matmul broadcasts none."""
    shape = getattr(y, "shape", ())
    fit = x.ndim == len(shape) == ndim and x.shape[-1] == shape[-min(2, ndim)] and x.shape[:-2] == shape[:-2]
    if not fit:
        raise ValueError(f"{name}: takes {wanted}, got shapes {x.shape} and {shape}")


def _axes(dim: Dim) -> int | tuple[int, ...] | None:
    """PyTorch takes a list of dimensions, NumPy a tuple; both take NumPy's integers."""
    if dim is None:
        return None
    if isinstance(dim, Sequence):
        return tuple([operator.index(d) for d in dim])
    return operator.index(dim)


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
