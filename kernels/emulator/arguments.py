"""The arguments of a launch: CuPy's rules for turning values into bytes, and the checks that CuPy does not make."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.emulator.build import EmulatorError

KINDS = {"f": "float", "i": "int", "u": "unsigned", "b": "bool", "V": "struct"}  # of NumPy's dtypes
INTEGERS = {"int", "unsigned", "bool"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel; `target` is what a pointer points to."""

    size: int  # bytes
    kind: str  # "pointer", "float", "int", "unsigned", "bool" or "struct"
    target_size: int
    target_kind: str
    target_is_const: bool
    type: str  # as the compiler writes it

    @classmethod
    def read(cls, line: str) -> Parameter:
        """A parameter as parameters.h describes it."""
        size, kind, target_size, target_kind, const, signature = line.split("\t")
        name = signature.partition("T = ")[2].rpartition("]")[0].partition(";")[0]
        name = name.replace("{anonymous}::", "").replace("(anonymous namespace)::", "")
        return cls(int(size), kind, int(target_size), target_kind, bool(const), name)


def packed(values: Any, parameters: list[Parameter], kernel: str) -> list[Any]:
    """The arguments' bytes, as ctypes objects. EmulatorError for one that does not fit its parameter.

    An array passes its pointer, None a null pointer, a Python int 8 bytes, a Python float a double, a NumPy scalar its
    own bytes, and an array of one element of a structured dtype that element.
    """
    values = tuple(values)
    if len(values) != len(parameters):
        types = ", ".join(parameter.type for parameter in parameters)
        raise EmulatorError(f"{kernel} takes {len(parameters)} arguments ({types}), {len(values)} were passed")
    return [
        _packed(value, parameter, f"{kernel}: args[{place}]")
        for place, (value, parameter) in enumerate(zip(values, parameters, strict=True))
    ]


def _packed(value: Any, parameter: Parameter, where: str) -> Any:
    if value is None:
        _check(parameter.kind == "pointer", where, parameter, "None, which is a null pointer,")
        return ctypes.c_void_p(0)
    if isinstance(value, np.ndarray) and not _is_struct(value):
        return _pointer(value, parameter, where)
    return _by_value(value, parameter, where)


def _is_struct(value: np.ndarray) -> bool:
    return value.size == 1 and value.dtype.names is not None


def _pointer(array: np.ndarray, parameter: Parameter, where: str) -> Any:
    """The address of the array's first element. Strides are the kernel's business: it is told of them, or not."""
    dtype = array.dtype
    if dtype.hasobject:
        raise EmulatorError(f"{where}: an array of Python objects has no numbers that a kernel could read")
    if not dtype.isnative:
        raise EmulatorError(f"{where}: an array of {dtype}, whose bytes are not in this machine's order")
    _check(parameter.kind == "pointer", where, parameter, f"an array of {dtype}, which is a pointer,")
    if not parameter.target_is_const and not array.flags.writeable:
        raise EmulatorError(f"{where}: the kernel may write through {parameter.type}, and the array is read-only")
    if not _fits_target(dtype, parameter):
        raise EmulatorError(
            f"{where}: the kernel takes {parameter.type}, an array of {dtype} was passed; "
            "array.astype(...) converts it, array.view(...) takes its bytes as they are"
        )
    return ctypes.c_void_p(array.ctypes.data)


def _fits_target(dtype: np.dtype, parameter: Parameter) -> bool:
    """Whether the elements are what the pointer points to. Unsigned numbers, vectors and void may hold any bytes."""
    if parameter.target_kind == "float":
        return dtype.kind == "f" and dtype.itemsize == parameter.target_size
    if parameter.target_kind == "int" and parameter.target_size > 1:
        return dtype.kind in "iub" and dtype.itemsize == parameter.target_size
    return True


def _by_value(value: Any, parameter: Parameter, where: str) -> Any:
    if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
        try:
            number = np.asarray(value, np.int64) if type(value) is int else np.asarray(value)
        except OverflowError:
            number = np.asarray(value, np.uint64)
        what = f"a Python {type(value).__name__} of {number.itemsize} bytes"
    elif isinstance(value, (np.generic, np.ndarray)):
        number = np.asarray(value)
        what = f"{number.dtype if number.dtype.names is None else 'a struct'} of {number.itemsize} bytes"
    else:
        raise EmulatorError(
            f"{where}: {type(value).__name__} cannot be passed; arrays, NumPy scalars, Python numbers and None can"
        )
    _check(number.itemsize == parameter.size and _same_kind(number.dtype, parameter), where, parameter, what)
    return (ctypes.c_char * number.itemsize).from_buffer_copy(number.tobytes())


def _same_kind(dtype: np.dtype, parameter: Parameter) -> bool:
    kind = KINDS.get(dtype.kind, dtype.kind)
    if parameter.kind in INTEGERS | {"pointer"}:
        return kind in INTEGERS  # an address may be given as a number
    return kind == parameter.kind or parameter.kind == "struct"


def _check(fits: bool, where: str, parameter: Parameter, what: str) -> None:
    if fits:
        return
    hints = {"float": {4: "np.float32", 8: "np.float64"}, "int": {4: "np.int32", 8: "np.int64", 2: "np.int16"}}
    hints["unsigned"] = {4: "np.uint32", 8: "np.uint64", 2: "np.uint16"}
    hint = hints.get(parameter.kind, {}).get(parameter.size)
    advice = f"; write {hint}(...)" if hint else ""
    raise EmulatorError(
        f"{where}: the kernel takes {parameter.type} ({parameter.size} bytes), {what} was passed{advice}"
    )
