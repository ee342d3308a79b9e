"""NumPy or CuPy: which library an array belongs to, devices, moving data.

Here live the only decisions about array libraries; this module knows arrays, not Tensors. CuPy is
imported when a "cuda" device is first asked for, never before.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np

from minigrad.dtypes import tensor_dtype

Array = Any  # numpy.ndarray or cupy.ndarray: CuPy need not be installed, so the type cannot name it


class DeviceError(RuntimeError):
    """A device that is not there, or operands that live on different devices."""


# ---- which library ---------------------------------------------------------------------------------------------------


def is_array(value: object) -> bool:
    """Whether `value` is a NumPy or CuPy array."""
    return isinstance(value, np.ndarray) or _is_cupy(value)


def plain_array(value: Array) -> Array:
    """The array as a tensor holds it: in native byte order, and no subclass of NumPy's with another arithmetic.

    Raises TypeError for one that hides elements, and as `tensor_dtype`.
    """
    refuse_masked(value)
    array = value if _is_cupy(value) else np.asarray(value)
    dtype = tensor_dtype(array.dtype)
    return array if array.dtype == dtype else array.astype(dtype)


def refuse_masked(value: object) -> None:
    """TypeError for an array that hides elements."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("a masked array would lose its mask; fill it first, with array.filled(value)")


def array_module(*operands: object) -> ModuleType:
    """CuPy if one of the operands is a CuPy array, else NumPy."""
    for operand in operands:
        if type(operand) is not np.ndarray and _is_cupy(operand):
            return sys.modules["cupy"]
    return np


def _is_cupy(value: object) -> bool:
    cupy = sys.modules.get("cupy")  # never imported: then no array can be CuPy's
    return cupy is not None and isinstance(value, cupy.ndarray)


def numbers_of(*arrays: Array) -> list[Any]:
    """What arrays without axes hold, as Python's numbers; of a GPU, the current one, it waits for them all at once."""
    library = array_module(*arrays)
    if library is np:
        return [array.item() for array in arrays]
    return library.stack([library.asarray(array) for array in arrays]).tolist()


def refuse_places_outside(x: Any, key: Any) -> None:
    """IndexError for an index beyond an axis of x in an array of indices: CuPy goes round silently, NumPy refuses."""
    if array_module(x) is np:
        return
    shape = x.shape
    parts = key if isinstance(key, tuple) else (key,)
    taken = [0 if part is None or part is Ellipsis else _axes_of(part) for part in parts]
    axis = 0
    axes, ends = [], []
    for part, count in zip(parts, taken, strict=True):
        if is_array(part) and part.dtype.kind in "iu" and part.size and axis < len(shape):
            axes.append(axis)
            ends += [part.min(), part.max()]
        axis += len(shape) - sum(taken) if part is Ellipsis else count
    numbers = numbers_of(*ends)
    for axis, least, most in zip(axes, numbers[::2], numbers[1::2], strict=True):
        if not -shape[axis] <= least <= most < shape[axis]:
            wrong = least if least < -shape[axis] else most
            raise IndexError(f"index {wrong} is out of bounds for axis {axis} with size {shape[axis]}")


def _axes_of(part: Any) -> int:
    """How many axes a part of a key takes: a mask as many as it has."""
    return part.ndim if is_array(part) and part.dtype == np.bool_ else 0 if isinstance(part, bool) else 1


# ---- devices ---------------------------------------------------------------------------------------------------------


def device_of(array: Array) -> str:
    """ "cpu", "cuda:0", "cuda:1" ...: where the array's memory is."""
    if type(array) is np.ndarray or not _is_cupy(array):
        return "cpu"
    return f"cuda:{array.device.id}"


def to_device(array: Array, device: str) -> Array:
    """The array on `device` ("cpu", "cuda", "cuda:1"); itself if it is there already.

    Raises DeviceError if the device does not exist or is not one of these names.
    """
    if device == "cpu":  # a no-op for a NumPy array
        return sys.modules["cupy"].asnumpy(array) if _is_cupy(array) else array
    cupy, index = cuda_device(device)
    with cupy.cuda.Device(index):
        return cupy.asarray(array)


def cuda_available() -> bool:
    """Whether CuPy is installed and sees a GPU. Never raises."""
    try:
        cuda_device("cuda")
    except DeviceError:
        return False
    return True


def cuda_device(device: str) -> tuple[ModuleType, int]:
    """CuPy and the GPU's number, of "cuda" or "cuda:1". Raises DeviceError that says what is missing."""
    name, _, number = str(device).partition(":")
    if name != "cuda" or not (number.isdigit() or device == "cuda"):
        raise DeviceError(f'unknown device {device!r}: write "cpu", "cuda" or "cuda:1"')
    try:
        cupy = importlib.import_module("cupy")
    except Exception as error:
        raise DeviceError(
            f"device {device!r} needs CuPy, which cannot be imported ({error}): "
            "pip install -e '.[cuda12]' or '.[cuda13]', by the CUDA version of your driver"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise DeviceError(f"device {device!r}: CuPy finds no usable GPU or driver ({error})") from error
    index = int(number or 0)
    if index >= count:
        raise DeviceError(f"device {device!r}: CuPy sees {count} GPU(s); use device='cpu' or install a driver")
    return cupy, index


def on_device_of(array: Array) -> AbstractContextManager[Any]:
    """A block in which CuPy runs where the array is; whatever is done with arrays beside operations needs it.

    CuPy makes results on its current GPU and does not reach into others. On the CPU, and with one GPU, nothing to do.
    """
    if type(array) is np.ndarray or not _is_cupy(array):
        return nullcontext()
    device = array.device
    return nullcontext() if device.id == sys.modules["cupy"].cuda.runtime.getDevice() else device


# ---- the default device ----------------------------------------------------------------------------------------------

_default_device = "cpu"


def get_default_device() -> str:
    """Where tensors are made unless it is said otherwise: "cpu" at first, else "cuda:0", "cuda:1" ..."""
    return _default_device


def set_default_device(device: str) -> None:
    """Make a device that of all new tensors, in the whole process: of factories, of `Tensor(...)` and so of layers.

    What is a Tensor or on a GPU already stays where it is. Raises DeviceError if the device is not there.
    """
    global _default_device
    _default_device = "cpu" if device == "cpu" else f"cuda:{cuda_device(device)[1]}"
