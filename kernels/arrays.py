"""What launchers ask of arrays: kernels get bare addresses, so what does not fit is found here or by nobody."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from minigrad.backend import Array, DeviceError, device_of, is_array


def is_plain(value: object) -> TypeGuard[Array]:
    """Whether it is an array whose numbers are all there is to it: no masked one, whose mask would be passed over."""
    return is_array(value) and not isinstance(value, np.ma.MaskedArray)


def described(value: Any) -> str:
    """An array's dtype and shape, or the type of what is none, for an error."""
    return f"{value.dtype} {value.shape}" if is_plain(value) else type(value).__name__


def check_alike(what: str, array: Any, like: Array, shape: tuple[int, ...], dtype: Any = None) -> None:
    """ValueError or DeviceError unless it has this shape and dtype (that of `like` for None), where `like` is."""
    dtype = like.dtype if dtype is None else np.dtype(dtype)
    if not is_plain(array) or array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{what} must be an array of {dtype} {shape}, got {described(array)}")
    if device_of(array) != device_of(like):
        raise DeviceError(f"{what} is on {device_of(array)}, other arrays of the call are on {device_of(like)}")


def check_written(what: str, array: Array) -> None:
    """ValueError unless a kernel may write to it, element by element in order."""
    if not getattr(array.flags, "writeable", True):  # CuPy's arrays always are
        raise ValueError(f"{what} of shape {array.shape} is read-only")
    if not lies_side_by_side(array):
        raise ValueError(f"{what} of shape {array.shape} is not contiguous")


def contiguous(array: Array) -> Array:
    """The array, or a copy whose elements lie side by side; without axes it stays without."""
    return array if lies_side_by_side(array) else copied(array)


def lies_side_by_side(array: Array) -> bool:
    """Whether its elements follow one another in order, at multiples of their size: no view of bytes at odd places."""
    return array.flags.c_contiguous and address_of(array) % array.itemsize == 0


def copied(array: Array) -> Array:
    """A copy in order. (`ascontiguousarray` makes none of what is in order already, but at an odd place.)"""
    return array.copy(order="C")


def address_of(array: Array) -> int:
    """Where an array's first element lies, in the memory of its device."""
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
