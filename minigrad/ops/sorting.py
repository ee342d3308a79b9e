"""Operations that put elements in order. NaN counts as the greatest, as in NumPy and PyTorch; ties keep their order."""

from __future__ import annotations

from typing import Any

from minigrad.operation import namespace, op
from minigrad.ops.gather import checked_axis, take_places
from minigrad.ops.shape import reshape


@op
def argsort(x: Any, *, axis: int = -1, descending: bool = False) -> Any:
    """The places of the elements along `axis` in the order of their size; int64."""
    library = namespace(x)
    row = reshape(x, x.shape or (1,))  # 0-d counts as one element along an axis
    if not descending:
        order = library.argsort(row, axis=axis, kind="stable")
    else:  # from the back, so that ties come out in their order again
        order = library.argsort(library.flip(row, axis), axis=axis, kind="stable")
        order = row.shape[axis] - 1 - library.flip(order, axis)
    return reshape(order, x.shape), None


def sort(x: Any, axis: int = -1, descending: bool = False) -> tuple[Any, Any]:
    """(values, indices): the elements along `axis` in order, and where each stood, where its gradient goes."""
    checked_axis("sort", x, axis)
    order = argsort(x, axis=axis, descending=descending)
    return take_places(x, order, axis), order


def topk(x: Any, k: int, axis: int = -1, largest: bool = True) -> tuple[Any, Any]:
    """(values, indices): the k largest or smallest elements along `axis`, the most extreme first; ∂x as of `sort`.

    Raises ValueError for a k that is not from 0 to the axis's length.
    """
    place = checked_axis("topk", x, axis)
    length = x.shape[place] if x.ndim else 1
    if not 0 <= k <= length:
        raise ValueError(f"topk: k {k} is out of range for an axis of length {length}, shape {x.shape}")
    order = argsort(x, axis=axis, descending=largest)
    order = order[(slice(None),) * place + (slice(k),)] if x.ndim else order
    return take_places(x, order, axis), order
