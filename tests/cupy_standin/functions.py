"""The functions of the stand-in: NumPy's of the same names, if CuPy has them, with CuPy's parameters and refusals."""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tests.cupy_standin.array import Array, check_overlap, check_reachable, run
from tests.cupy_standin.cuda import current_device

NUMBERS = (bool, int, float, complex, np.generic)
_VIEWS = {
    "reshape", "transpose", "swapaxes", "moveaxis", "squeeze", "expand_dims", "broadcast_to", "flip", "diagonal",
    "split", "may_share_memory", "shares_memory",
}  # fmt: skip
_OF_NO_ARRAY = {
    "arange", "empty", "eye", "full", "identity", "indices", "linspace", "ones", "tri", "zeros",
    "can_cast", "promote_types", "result_type",
}  # fmt: skip
_OF_A_LIST = {"concatenate", "stack", "vstack", "hstack", "dstack", "column_stack"}


class Ufunc:
    """A function of each element. `cupy.add` and `cupy.maximum` also have `at`, `cupy.add` has `reduceat`."""

    def __init__(self, name: str, theirs: Any) -> None:
        self.name, self._theirs = name, theirs

    def __call__(self, *operands: Any, out: Any = None, **options: Any) -> Any:
        for operand in operands:
            if not isinstance(operand, (Array, *NUMBERS)):
                raise TypeError(f"Unsupported type {type(operand)}")
        if out is None:
            return run(self._compute, operands, options)
        (out,) = out if isinstance(out, tuple) else (out,)
        if not isinstance(out, Array):
            raise TypeError(f"return arrays must be of ArrayType, got {type(out)}")
        for operand in operands:
            if isinstance(operand, Array) and self.name != "matmul":  # which copies what it reads
                check_overlap(out.host, operand.host)
        run(self._compute, operands, {**options, "out": out})
        return out

    def _compute(self, *operands: Any, **options: Any) -> Any:
        if self.name == "matmul" and not options and all(operand.dtype == "bfloat16" for operand in operands):
            return self._theirs(*operands).astype("bfloat16")  # NumPy's is float32
        try:
            return self._theirs(*operands, **options)
        except ValueError as error:
            if "negative integer powers" not in str(error):
                raise
        base, exponent = operands  # CuPy answers what NumPy refuses: 2 to the -1 is 0
        magnitude = np.power(base, np.abs(exponent), **options)
        return np.where((exponent < 0) & (np.abs(base) != 1), 0, magnitude)

    def at(self, array: Array, key: Any, value: Any = None) -> None:
        if self.name not in ("add", "maximum", "minimum"):
            raise NotImplementedError(f"`{self.name}.at` is not supported yet")
        array.add_at(self.name, key, value)

    def reduceat(self, array: Array, indices: Array, axis: int = 0) -> Any:
        if self.name != "add":
            raise NotImplementedError(f"`{self.name}.reduceat` is not supported yet")
        return run(np.add.reduceat, (array, indices), {"axis": axis})


class _Function:
    """A function of whole arrays, which CuPy, unlike NumPy, does not make of numbers and lists."""

    def __init__(self, name: str, signature: inspect.Signature) -> None:
        self.name, self._signature = name, signature

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        try:
            given = self._signature.bind(*arguments, **options)
        except TypeError as error:
            raise TypeError(f"{self.name}() of CuPy: {error}") from error
        if self.name not in _OF_NO_ARRAY:
            first = next(iter(given.arguments.values()), None)
            parts = first if self.name in _OF_A_LIST or self.name == "ix_" else [first]
            parts = parts[1:] if self.name == "einsum" and isinstance(parts[0], str) else parts
            if self.name == "einsum":
                parts = arguments[1:]
            for part in parts:
                if not isinstance(part, Array):
                    raise TypeError(f"{self.name}() takes CuPy's arrays, not {type(part)}")
        return run(getattr(np, self.name), arguments, options, self.name in _VIEWS)


def _read_table() -> dict[str, inspect.Signature | None]:
    """The functions of CuPy 14 and their parameters: `name ufunc`, or `name(a, axis=, *, dtype=)`."""
    table: dict[str, inspect.Signature | None] = {}
    for line in (Path(__file__).parent / "cupy14.txt").read_text(encoding="utf-8").splitlines():
        name, inside = re.fullmatch(r"(\w+)(?: ufunc|\((.*)\))", line).groups()  # type: ignore[union-attr]
        table[name] = None if inside is None else _signature([part for part in inside.split(", ") if part])
    return table


def _signature(parts: list[str]) -> inspect.Signature:
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = []
    for part in parts:
        if part.startswith("**"):
            parameters.append(inspect.Parameter(part[2:], inspect.Parameter.VAR_KEYWORD))
        elif part.startswith("*"):
            kind = inspect.Parameter.KEYWORD_ONLY
            if part != "*":
                parameters.append(inspect.Parameter(part[1:], inspect.Parameter.VAR_POSITIONAL))
        else:
            default = None if part.endswith("=") else inspect.Parameter.empty
            parameters.append(inspect.Parameter(part.removesuffix("="), kind, default=default))
    return inspect.Signature(parameters)


_TABLE = _read_table()


@functools.cache
def named(name: str) -> Any:
    """`cupy.<name>`. AttributeError if CuPy 14 has no such thing."""
    if name in _OWN:
        return _OWN[name]
    if name in _TABLE:
        signature = _TABLE[name]
        return Ufunc(name, getattr(np, name)) if signature is None else _Function(name, signature)
    theirs = getattr(np, name, None)
    if (isinstance(theirs, type) and issubclass(theirs, np.generic)) or isinstance(theirs, float) or name == "newaxis":
        return theirs  # dtypes and constants
    raise AttributeError(f"module 'cupy' has no attribute {name!r}")


class Cupy(ModuleType):
    """The module."""

    def __getattr__(self, name: str) -> Any:
        return named(name)


# ---- between the CPU and the GPU -------------------------------------------------------------------------------------


def _array(obj: Any, dtype: Any = None, copy: Any = True) -> Array:
    if isinstance(obj, Array):
        if not copy and obj.device.id == current_device():
            return obj.astype(obj.dtype if dtype is None else dtype, copy=False)
        return obj.copy().astype(obj.dtype if dtype is None else dtype, copy=False)
    if isinstance(obj, (list, tuple)) and any(isinstance(part, Array) for part in obj):
        return named("stack")([_array(part) for part in obj]).astype(obj[0].dtype if dtype is None else dtype)
    host = np.array(obj, dtype=dtype)
    if host.dtype.kind not in "biufc" and host.dtype.name != "bfloat16":  # CuPy 14 has it if ml_dtypes is there
        raise ValueError(f"Unsupported dtype {host.dtype}")
    return Array.around(host, current_device())


def _asarray(a: Any, dtype: Any = None) -> Array:
    return _array(a, dtype, copy=False)


def _ascontiguousarray(a: Any, dtype: Any = None) -> Array:
    array = _asarray(a, dtype)
    return array if array.flags.c_contiguous and array.ndim else array.copy()


def _asnumpy(a: Any) -> np.ndarray:
    return a.get() if isinstance(a, Array) else np.asarray(a)


def _from_dlpack(array: Any) -> Array:
    kind, device = array.__dlpack_device__()
    if kind != 2:  # 2 is CUDA
        raise BufferError("from_dlpack of CuPy takes the memory of a GPU")
    return Array.around(np.from_dlpack(_OnHost(array)), device)


class _OnHost:
    """What NumPy takes of memory that is said to be on a GPU."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _take(a: Array, indices: Any, axis: int | None = None, out: Any = None) -> Array:
    """Like an index of an array: it goes round, where NumPy's `take` refuses."""
    check_reachable(a)
    if out is not None:
        raise NotImplementedError("take(out=) is not in the stand-in")
    if axis is None:
        return a.ravel()[indices]
    return a[(slice(None),) * (axis % max(a.ndim, 1)) + (indices,)]


def _where(condition: Array, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        return condition.nonzero()
    if not isinstance(condition, Array):
        raise AttributeError(f"'{type(condition).__name__}' object has no attribute 'astype'")
    return Ufunc("where", np.where)(condition.astype("?", copy=False), x, y)


_OWN: dict[str, Any] = {
    "ndarray": Array, "array": _array, "asarray": _asarray, "ascontiguousarray": _ascontiguousarray,
    "asnumpy": _asnumpy, "from_dlpack": _from_dlpack, "take": _take, "where": _where,
}  # fmt: skip
