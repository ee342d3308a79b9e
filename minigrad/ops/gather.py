"""Taking and putting by place along an axis, with PyTorch's rules for indices: compositions of `minigrad.ops.index`.

PyTorch's indices do not count from the end: a negative one is an error, as one beyond the end is. `take_along_axis` is
NumPy's, where they do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.backend import Array, DeviceError, array_module, device_of, is_array, numbers_of, on_device_of
from minigrad.ops.elementwise import astype
from minigrad.ops.index import add_at, getitem, plain_key, put_at
from minigrad.ops.shape import broadcast_to, expand_dims, reshape, squeeze
from minigrad.scalars import check_held, number
from minigrad.tensor import Tensor


def take_along_axis(x: Any, indices: Any, axis: int | None) -> Any:
    """Along `axis` the elements that `indices` name; the other axes of both broadcast. None: of the flattened arrays.

    Raises as `gather` does, but that a negative index counts from the end.
    """
    name = "take_along_axis"
    places = _integers(name, indices, x)
    if axis is None:
        x, places, axis = reshape(x, (-1,)), places.reshape(-1), 0
    if x.ndim == 0:
        raise IndexError(f"{name}: a 0-d tensor has no axis {axis}; None takes of its one element")
    place = checked_axis(name, x, axis)
    if places.ndim != x.ndim:
        raise ValueError(f"{name}: x of shape {x.shape} and indices of shape {places.shape}; give both as many axes")
    others = [(*shape[:place], 1, *shape[place + 1 :]) for shape in (x.shape, places.shape)]
    try:
        common = np.broadcast_shapes(*others)
    except ValueError as error:
        raise ValueError(f"{name}: shapes {x.shape} and {places.shape} do not broadcast beside axis {axis}") from error
    x = broadcast_to(x, (*common[:place], x.shape[place], *common[place + 1 :]))
    places = broadcast_to(places, (*common[:place], places.shape[place], *common[place + 1 :]))
    _check_range(name, places, x.shape[place], -x.shape[place])
    return getitem(x, key=_key(places, place))


def pick(x: Any, indices: Any, axis: int, keepdims: bool) -> tuple[Any, Any]:
    """(values, indices): the one element along `axis` that each of `indices` names, and the indices themselves."""
    _check_tensor("pick", x)
    if x.ndim == 0:  # its only element, whichever axis is asked for
        return reshape(x, ()), indices
    places = expand_dims(indices, axis)
    values = take_places(x, places, axis)
    return (values, places) if keepdims else (squeeze(values, axis), indices)


def gather(x: Any, indices: Any, axis: int) -> Any:
    """Along `axis` the elements that `indices` name: y[i, j] = x[indices[i, j], j] for axis 0.

    The other axes of `indices` may be shorter than x's: they take from the front. 0-d counts as one element along an
    axis. Raises TypeError for indices that are no array of integers, ValueError for shapes that do not fit, IndexError
    that names an index outside 0 ... n - 1. No index at all may have any shape.
    """
    row, key, _ = _along("gather", x, indices, axis)
    return getitem(row, key=key)


def take_places(x: Any, indices: Any, axis: int) -> Any:
    """`gather` with indices that are known to be there, and are not checked."""
    return getitem(reshape(x, x.shape or (1,)), key=_key(plain_key(indices), axis))


def scatter(x: Any, indices: Any, src: Any, axis: int) -> Any:
    """x, but y[indices[i, j], j] = src[i, j] for axis 0: a number, or at least as long as `indices` along each axis.

    Of several for one place the last stays, and gets the gradient. Raises as `gather` does, TypeError for src
    of another dtype than x, IndexError where src is too short.
    """
    row, key, shape = _along("scatter", x, indices, axis)
    is_number = not hasattr(src, "dtype") or isinstance(src, np.generic)
    if is_number:
        values = number("scatter: value", src)
        check_held("scatter", values, x.dtype)
    else:
        values = _source("scatter", x, src, shape)
    return reshape(put_at(row, values, key=key), x.shape)


def scatter_add(x: Any, indices: Any, src: Any, axis: int) -> Any:
    """x + y, where y is src added up at its places: y[indices[i, j], j] += src[i, j] for axis 0. As `scatter` else."""
    row, key, shape = _along("scatter_add", x, indices, axis)
    values = _source("scatter_add", x, src, shape)
    return x + reshape(add_at(values, key=key, shape=row.shape), x.shape)


def index_select(x: Any, indices: Any, axis: int) -> Any:
    """The slices x[..., i, ...] along `axis` for each i of a vector of indices. Raises as `gather` does."""
    name = "index_select"
    places = _integers(name, indices, x).reshape(-1)
    row, place = reshape(x, x.shape or (1,)), checked_axis(name, x, axis)
    if indices.ndim > 1 or (x.ndim == 0 and places.size != 1):
        raise IndexError(f"{name}: takes a vector of indices, of one for a 0-d tensor; got shape {indices.shape}")
    _check_range(name, places, row.shape[place])
    value = getitem(row, key=(slice(None),) * place + (places,))
    return value if x.ndim else reshape(value, ())


def masked_select(x: Any, mask: Any) -> Any:
    """The elements where the boolean `mask` holds, in order, as a vector; x and mask broadcast."""
    _check_tensor("masked_select", x)
    if getattr(mask, "dtype", None) != np.bool_:
        raise TypeError(f"masked_select: takes a boolean mask, got {getattr(mask, 'dtype', type(mask).__name__)}")
    try:
        shape = np.broadcast_shapes(x.shape, mask.shape)
    except ValueError as error:
        raise ValueError(f"masked_select: shapes {x.shape} and {mask.shape} do not broadcast") from error
    return getitem(broadcast_to(x, shape), key=plain_key(broadcast_to(mask, shape)))


def one_hot(x: Any, num_classes: int = -1) -> Any:
    """int64 rows (..., C) for classes x (...): 1 at the class, 0 elsewhere; C = num_classes, -1 for the largest + 1.

    Raises TypeError for classes that are no integers, IndexError that names one outside 0 ... C - 1, ValueError where
    there is nothing to tell C by.
    """
    classes = _integers("one_hot", x, x)
    if num_classes < -1 or (num_classes < 1 and not classes.size):
        raise ValueError(f"one_hot: num_classes {num_classes} for classes of shape {x.shape}; give 1 or more")
    with on_device_of(classes):
        least, most = numbers_of(classes.min(), classes.max()) if classes.size else (0, -1)
        if least < 0:
            raise IndexError(f"one_hot: class {least} is negative; classes count from 0")
        count = most + 1 if num_classes == -1 else num_classes
        _refuse_outside("one_hot", least, most, count)
        return astype(expand_dims(x, -1) == array_module(classes).arange(count), dtype=np.int64)


# ---- what they share -------------------------------------------------------------------------------------------------


def _along(name: str, x: Any, indices: Any, axis: int) -> tuple[Any, tuple[Array, ...], tuple[int, ...]]:
    """x with at least one axis, the key of the elements in it that checked indices name, and the shape of these."""
    places, place = _integers(name, indices, x), checked_axis(name, x, axis)
    if not places.size:  # then they may have any shape, as in PyTorch
        return reshape(x, (-1,)), (places,), places.shape
    row = reshape(x, x.shape or (1,))
    if not _fits(places.shape or (1,), row.shape, place):
        raise ValueError(
            f"{name}: index of shape {places.shape} for a tensor of shape {x.shape}; it needs as many dimensions, none "
            f"longer than the tensor's but dimension {axis}"
        )
    _check_range(name, places, row.shape[place])
    return row, _key(places, place), places.shape


def _source(name: str, x: Any, src: Any, shape: tuple[int, ...]) -> Any:
    """As much of src as there are indices, which have this shape."""
    if getattr(src, "dtype", None) != x.dtype:
        raise TypeError(
            f"{name}: src is {getattr(src, 'dtype', type(src).__name__)}, the tensor {x.dtype}; they must be the same"
        )
    if 0 in shape:
        return reshape(reshape(src, (-1,))[:0], shape)
    if not _fits(shape or (1,), src.shape or (1,)):
        raise IndexError(
            f"{name}: src of shape {src.shape} for an index of shape {shape}; it needs as many dimensions, none "
            "shorter than the index's"
        )
    return reshape(reshape(src, src.shape or (1,))[tuple([slice(n) for n in shape or (1,)])], shape)


def _fits(shape: tuple[int, ...], limits: tuple[int, ...], free: int | None = None) -> bool:
    """Whether there are as many lengths as limits, and none beyond its own but that at the place `free`."""
    pairs = zip(shape, limits, strict=False)
    return len(shape) == len(limits) and all(n <= m or a == free for a, (n, m) in enumerate(pairs))


def _key(places: Array, axis: int) -> tuple[Array, ...]:
    """The key of the elements that `places` names along `axis`, in the row, column ... that each place stands in."""
    if places.ndim < 2:
        return (places,)
    library = array_module(places)
    with on_device_of(places):
        key = list(library.ix_(*[library.arange(n) for n in places.shape]))
    key[axis] = places
    return tuple(key)


def checked_axis(name: str, x: Any, axis: int) -> int:
    """The axis counted from the front; a 0-d tensor has one. IndexError if there is no such axis."""
    _check_tensor(name, x)
    ndim = max(x.ndim, 1)
    if not -ndim <= axis < ndim:
        raise IndexError(f"{name}: dimension {axis} of a tensor with {x.ndim} dimensions, shape {x.shape}")
    return axis % ndim


def _integers(name: str, indices: Any, x: Any) -> Array:
    """The indices as an array of their own. TypeError if they are no integers, DeviceError if they are not where x is.

    A copy: what is written into the caller's later does not change a gradient.
    """
    _check_tensor(name, x)
    if not (isinstance(indices, Tensor) or is_array(indices)) or indices.dtype.kind not in "iu":
        kind = getattr(indices, "dtype", type(indices).__name__)
        raise TypeError(f"{name}: indices must be a tensor or an array of integers, got {kind}")
    places, device = plain_key(indices), device_of(x.data if isinstance(x, Tensor) else x)
    if device_of(places) != device:
        raise DeviceError(f"{name}: indices on {device_of(places)}, the tensor on {device}; use .to(device)")
    return places


def _check_tensor(name: str, x: Any) -> None:
    if not (isinstance(x, Tensor) or is_array(x)):
        raise TypeError(f"{name}: takes a tensor or an array, got {type(x).__name__}")


def _check_range(name: str, places: Array, size: int, least: int = 0) -> None:
    """IndexError that names an index outside least ... size - 1: NumPy would take some from the end, CuPy any."""
    if places.size:
        with on_device_of(places):
            low, high = numbers_of(places.min(), places.max())
        _refuse_outside(name, low, high, size, least)


def _refuse_outside(name: str, low: int, high: int, size: int, least: int = 0) -> None:
    """The same for the least and the greatest of the indices."""
    if low < least or high >= size:
        wrong = low if low < least else high
        raise IndexError(f"{name}: index {wrong} is out of range for an axis of length {size}, {least} to {size - 1}")
