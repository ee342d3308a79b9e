"""NumPy or CuPy: which library an array belongs to, devices, moving data, settings of the process.

Here live the only decisions about array libraries and the process; this module knows arrays, not Tensors. CuPy is
imported when a "cuda" device is first asked for, never before.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from types import ModuleType
from typing import Any

import numpy as np

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


def tensor_dtype(dtype: Any) -> np.dtype:
    """The dtype in native byte order. TypeError unless it is one of booleans, integers or floats of up to 64 bits."""
    found = np.dtype(dtype)
    if found.kind not in "fiub":
        raise TypeError(f"a tensor holds floats, integers or booleans, not {found}")
    if found.itemsize > 8:
        raise TypeError(f"a tensor holds floats of 16, 32 or 64 bits, not {found}; use .astype(np.float64)")
    return found if found.isnative else found.newbyteorder("=")


def is_floating(dtype: np.dtype) -> bool:
    """Whether values of this dtype can carry gradients."""
    return dtype.kind == "f"


def array_module(*operands: object) -> ModuleType:
    """CuPy if one of the operands is a CuPy array, else NumPy."""
    for operand in operands:
        if type(operand) is not np.ndarray and _is_cupy(operand):
            return sys.modules["cupy"]
    return np


def _is_cupy(value: object) -> bool:
    cupy = sys.modules.get("cupy")  # never imported: then no array can be CuPy's
    return cupy is not None and isinstance(value, cupy.ndarray)


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
            "pip install 'minigrad[cuda12]' or 'minigrad[cuda13]', by the CUDA version of your driver"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise DeviceError(f"device {device!r}: CuPy finds no usable GPU or driver ({error})") from error
    index = int(number or 0)
    if index >= count:
        raise DeviceError(f"device {device!r}: CuPy sees {count} GPU(s); use device='cpu' or install a driver")
    return cupy, index


# ---- process settings ------------------------------------------------------------------------------------------------


def _keep_freed_memory() -> None:
    """Have glibc keep the memory of freed arrays for the next ones, instead of giving it back to the system each time.

    Otherwise every array of 128 KiB or more is mapped, cleared page by page and unmapped again: a training step of a
    small model then spends up to half of its time there. The process keeps its peak memory. MINIGRAD_KEEP_MEMORY=0 in
    the environment leaves the allocator alone; without glibc nothing is changed.
    """
    if sys.platform != "linux" or os.environ.get("MINIGRAD_KEEP_MEMORY") == "0":
        return
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", lambda parameter, value: 0)
    size = 1 << 30  # bytes
    mmap_threshold, trim_threshold = -3, -1  # arrays below it are not mapped apart; less than it is not given back
    if mallopt(mmap_threshold, size) or mallopt(mmap_threshold, 32 << 20):  # older versions take no more than 32 MiB
        mallopt(trim_threshold, size)


_keep_freed_memory()
