"""The stand-in's arrays: NumPy arrays that are hidden, said to be on a GPU, and reached through CuPy's doors only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.cupy_standin.cuda import Device, current_device, note_launch, note_wait

# ---- in and out ------------------------------------------------------------------------------------------------------


def run(function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any], is_view: bool = False) -> Any:
    """NumPy's `function` of the arrays behind the arguments; what it returns is on the current device.

    A view may be taken of an array on any device, and stays there; everything else runs where the current device is.
    """
    found: list[Array] = []
    with np.errstate(all="ignore"):  # a GPU does not warn
        result = function(*[_host(x, found) for x in arguments], **{k: _host(x, found) for k, x in options.items()})
    if is_view:
        return on_device(result, found[0].device.id)
    for array in found:
        check_reachable(array)
    name = getattr(getattr(function, "__self__", function), "name", None) or function.__name__
    if name not in _WITHOUT_LAUNCH:
        note_launch(name)
    if name in _WITH_WAIT:
        note_wait(name)
    return on_device(result, current_device())


_WITHOUT_LAUNCH = {"empty", "empty_like", "can_cast", "promote_types", "result_type"}
# Functions whose results are as long as the numbers say.
_WITH_WAIT = {"nonzero", "flatnonzero", "argwhere", "bincount", "compress", "extract", "unique"}


def _host(value: Any, found: list[Array]) -> Any:
    if isinstance(value, Array):
        found.append(value)
        return value.host
    if type(value) in (tuple, list):
        return type(value)(_host(part, found) for part in value)
    if hasattr(value, "__array__") and not isinstance(value, (np.generic, type)):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


def on_device(value: Any, device: int) -> Any:
    """What NumPy returned, as it lies on a GPU: without axes too."""
    if isinstance(value, (np.ndarray, np.generic)):
        return Array.around(np.asarray(value), device)
    if type(value) in (tuple, list):
        return type(value)(on_device(part, device) for part in value)
    return value


def check_reachable(array: Array) -> None:
    """CuPy's refusal of an array of another GPU, where one does not reach into the memory of another."""
    if array.device.id != current_device():
        raise ValueError(
            f"The device where the array resides ({array.device.id}) is different from the current device "
            f"({current_device()}). Peer access is unavailable between these devices."
        )


def check_overlap(written: np.ndarray, read: Any) -> None:
    """A GPU writes while it reads: where the two overlap but are not the same, nobody knows what comes out."""
    if not isinstance(read, np.ndarray) or not np.may_share_memory(written, read):
        return
    if (read.ctypes.data, read.strides, read.shape) != (written.ctypes.data, written.strides, written.shape):
        assert not np.shares_memory(written, read), "CuPy does not mind that what is written overlaps what is read"


# ---- indices ---------------------------------------------------------------------------------------------------------


def _plain_key(key: Any, shape: tuple[int, ...]) -> tuple[tuple[Any, ...], bool]:
    """(the key with NumPy arrays, whether one is in it). CuPy takes those too, as lists, and copies them.

    It does not look whether an index of an array is within bounds, but goes round.
    """
    parts = [_key_part(part) for part in (key if isinstance(key, tuple) else (key,))]
    if any(_is_mask(part) for part in parts):
        note_wait("mask")  # CuPy counts its places first
    axes = [part.ndim if _is_mask(part) else 0 if part is None or part is Ellipsis else 1 for part in parts]
    if not any(part is Ellipsis for part in parts):
        parts, axes = [*parts, Ellipsis], [*axes, 0]
    axis = 0
    for place, (part, count) in enumerate(zip(parts, axes, strict=True)):
        if isinstance(part, np.ndarray) and part.dtype.kind in "iu" and axis < len(shape) and shape[axis]:
            parts[place] = part % shape[axis]
        axis += len(shape) - sum(axes) if part is Ellipsis else count
    return tuple(parts), any(isinstance(part, np.ndarray) for part in parts)


def _key_part(part: Any) -> Any:
    if isinstance(part, Array):
        check_reachable(part)
        return part.host
    if isinstance(part, list):
        return np.array(part, dtype=None if part else np.int32)
    return np.asarray(part) if isinstance(part, (bool, np.bool_)) else part


def _is_mask(part: Any) -> bool:
    return isinstance(part, np.ndarray) and part.dtype == np.bool_


# ---- the array -------------------------------------------------------------------------------------------------------


class Array:
    """`cupy.ndarray`. Its `host` is the NumPy array behind it, which nothing outside this folder may ask for."""

    __slots__ = ("__weakref__", "_device", "host")
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    host: np.ndarray

    def __init__(self, shape: Any, dtype: Any = float) -> None:
        self.host, self._device = np.empty(shape, dtype), current_device()

    @classmethod
    def around(cls, host: np.ndarray, device: int) -> Array:
        array = object.__new__(cls)
        array.host, array._device = host, device
        return array

    # ---- what it is ----

    shape = property(lambda self: self.host.shape)
    dtype = property(lambda self: self.host.dtype)
    ndim = property(lambda self: self.host.ndim)
    size = property(lambda self: self.host.size)
    strides = property(lambda self: self.host.strides)
    itemsize = property(lambda self: self.host.itemsize)
    nbytes = property(lambda self: self.host.nbytes)
    device = property(lambda self: Device(self._device))
    data = property(lambda self: SimpleNamespace(ptr=self.host.ctypes.data, device_id=self._device))

    @property
    def flags(self) -> Any:
        flags = self.host.flags
        return SimpleNamespace(
            c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous, owndata=flags.owndata
        )  # there is no `writeable`

    @property
    def base(self) -> Array | None:
        return None if self.host.base is None else Array.around(self.host.base, self._device)

    @property
    def T(self) -> Array:
        return self.transpose()

    # ---- becoming something else ----

    def get(self) -> np.ndarray:
        note_wait("get")
        return self.host.copy()

    def item(self) -> Any:
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self.get().item()

    def tolist(self) -> Any:
        return self.get().tolist()

    def tobytes(self, order: str = "C") -> bytes:
        return self.get().tobytes(order)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __bool__(self) -> bool:
        if self.size > 1:
            raise ValueError("The truth value of an array with more than one element is ambiguous.")
        return bool(self.size and self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    # There is no __index__: a number on a GPU is no length and no place of a list.

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[place] for place in range(self.shape[0]))

    def __repr__(self) -> str:
        return repr(self.get())

    def __str__(self) -> str:
        return str(self.get())

    def __reduce__(self) -> Any:
        return _array, (self.get(),)

    def __copy__(self) -> Array:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Array:
        with self.device:
            return self.copy()

    def __dlpack__(self, stream: Any = None, **options: Any) -> Any:
        return self.host.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._device)  # 2 is CUDA

    # ---- NumPy's functions of it are CuPy's ----

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        from tests.cupy_standin.functions import Ufunc  # it is made of arrays

        if method != "__call__":
            return NotImplemented
        if "out" in options:
            (options["out"],) = options["out"]
        return Ufunc(ufunc.__name__, ufunc)(*inputs, **options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        from tests.cupy_standin.functions import named  # it is made of arrays

        if function.__module__ != "numpy" or not all(kind in (Array, np.ndarray) for kind in types):
            return NotImplemented
        try:
            ours = named(function.__name__)
        except AttributeError:
            return NotImplemented
        return ours(*arguments, **options)

    # ---- elements ----

    def __getitem__(self, key: Any) -> Array:
        plain, copies = _plain_key(key, self.shape)
        if copies:
            check_reachable(self)
            note_launch("getitem")
        return Array.around(np.asarray(self.host[plain]), current_device() if copies else self._device)

    def __setitem__(self, key: Any, value: Any) -> None:
        check_reachable(self)
        note_launch("setitem")
        plain, has_array = _plain_key(key, self.shape)
        if isinstance(value, Array):
            check_reachable(value)
            value = value.host
            if not has_array:
                check_overlap(self.host[plain], value)
        elif not has_array and not isinstance(value, (bool, int, float, np.generic)):
            if not isinstance(value, np.ndarray):
                raise TypeError(f"Unsupported type {type(value)}")
            if value.ndim:
                raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        with np.errstate(all="ignore"):
            self.host[plain] = value

    def fill(self, value: Any) -> None:
        self[...] = value

    def add_at(self, name: str, key: Any, value: Any) -> None:
        """What `cupy.add.at` and `cupy.maximum.at` do, of the few dtypes that a GPU's atomic operations have."""
        check_reachable(self)
        note_launch(f"{name}.at")
        plain, has_array = _plain_key(key, self.shape)
        known = ("int32", "float32", "float64", "uint32", "uint64", *(["float16"] if name == "add" else []))
        if has_array and self.dtype.name not in known:
            raise TypeError(f"scatter_{name} only supports {', '.join(known)} as data type, not {self.dtype}")
        getattr(np, name).at(self.host, plain, value.host if isinstance(value, Array) else value)

    def copy(self, order: str = "C") -> Array:
        note_launch("copy")
        return Array.around(self.host.copy(order), current_device())  # from any device to the current one

    def astype(self, dtype: Any, order: str = "K", *, copy: bool = True) -> Array:
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        return run(np.ndarray.astype, (self, dtype, order), {})


def _array(host: np.ndarray) -> Array:
    return Array.around(host.copy(), current_device())


Array.__name__ = "ndarray"  # as errors show it

# ---- methods that are NumPy's, with CuPy's parameters ----------------------------------------------------------------

_VIEWS = {"reshape", "transpose", "swapaxes", "squeeze", "view", "diagonal", "ravel"}
_METHODS = {
    "all": ("axis", "out", "keepdims"),
    "any": ("axis", "out", "keepdims"),
    "argmax": ("axis", "out", "dtype", "keepdims"),
    "argmin": ("axis", "out", "dtype", "keepdims"),
    "argsort": ("axis", "kind"),
    "clip": ("min", "max", "out"),
    "cumprod": ("axis", "dtype", "out"),
    "cumsum": ("axis", "dtype", "out"),
    "dot": ("b", "out"),
    "flatten": ("order",),
    "max": ("axis", "out", "keepdims"),
    "mean": ("axis", "dtype", "out", "keepdims"),
    "min": ("axis", "out", "keepdims"),
    "nonzero": (),
    "prod": ("axis", "dtype", "out", "keepdims"),
    "repeat": ("repeats", "axis"),
    "round": ("decimals", "out"),
    "sort": ("axis", "kind"),
    "std": ("axis", "dtype", "out", "ddof", "keepdims"),
    "sum": ("axis", "dtype", "out", "keepdims"),
    "take": ("indices", "axis", "out"),
    "trace": ("offset", "axis1", "axis2", "dtype", "out"),
    "var": ("axis", "dtype", "out", "ddof", "keepdims"),
    "ravel": ("order",),
    "squeeze": ("axis",),
    "swapaxes": ("axis1", "axis2"),
    "view": ("dtype",),
    "diagonal": ("offset", "axis1", "axis2"),
    "reshape": None,  # a shape, or its lengths one by one
    "transpose": None,
}


def _method(name: str, parameters: tuple[str, ...] | None) -> Callable[..., Any]:
    theirs = getattr(np.ndarray, name)

    @functools.wraps(theirs)
    def method(self: Array, *arguments: Any, **options: Any) -> Any:
        known = ("order",) if parameters is None else parameters
        if not set(options) <= set(known) or (parameters is not None and len(arguments) > len(parameters)):
            raise TypeError(f"{name}() of a CuPy array takes {', '.join(known)}; got {arguments}, {options}")
        return run(theirs, (self, *arguments), options, name in _VIEWS)

    return method


for _name, _parameters in _METHODS.items():
    setattr(Array, _name, _method(_name, _parameters))

# ---- operators -------------------------------------------------------------------------------------------------------

_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
}  # fmt: skip
_COMPARISONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"
}  # fmt: skip
_UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}


def _operator(name: str, reflected: bool = False, in_place: bool = False) -> Callable[..., Any]:
    def operator(self: Array, *others: Any) -> Any:
        from tests.cupy_standin.functions import named  # it is made of arrays

        if any(getattr(type(other), "__array_ufunc__", self) is None for other in others):
            return NotImplemented  # minigrad's Tensors want to do it themselves
        operands = (*others, self) if reflected else (self, *others)
        return named(name)(*operands, **({"out": self} if in_place else {}))

    return operator


for _name, _ufunc in _BINARY.items():
    setattr(Array, f"__{_name}__", _operator(_ufunc))
    setattr(Array, f"__r{_name}__", _operator(_ufunc, reflected=True))
    if _name != "matmul":
        setattr(Array, f"__i{_name}__", _operator(_ufunc, in_place=True))
for _name, _ufunc in {**_COMPARISONS, **_UNARY}.items():
    setattr(Array, f"__{_name}__", _operator(_ufunc))
