"""Operations that rearrange elements: no arithmetic, so a pullback is the opposite rearrangement."""

from __future__ import annotations

from typing import Any

from minigrad.operation import namespace, op


@op(linear=True)
def reshape(x: Any, *, shape: int | tuple[int, ...]) -> Any:
    """The elements in order, in another shape; one length may be -1."""
    before = x.shape
    return namespace(x).reshape(x, shape), lambda g: reshape(g, before)


@op(linear=True)
def transpose(x: Any, *, axes: tuple[int, ...] | None = None) -> Any:
    """The axes in another order; reversed by default."""
    back = None if axes is None else tuple(sorted(range(len(axes)), key=[a % len(axes) for a in axes].__getitem__))
    return namespace(x).transpose(x, axes), lambda g: transpose(g, back)


@op(linear=True)
def swapaxes(x: Any, *, axis1: int, axis2: int) -> Any:
    """Two axes exchanged."""
    return namespace(x).swapaxes(x, axis1, axis2), lambda g: swapaxes(g, axis1, axis2)


@op(linear=True)
def expand_dims(x: Any, *, axis: int | tuple[int, ...]) -> Any:
    """New axes of length 1 at `axis` of the result."""
    before = x.shape
    return namespace(x).expand_dims(x, axis), lambda g: reshape(g, before)


@op(linear=True)
def squeeze(x: Any, *, axis: int | tuple[int, ...] | None = None) -> Any:
    """Without the axes of length 1 given by `axis`, or without all of them."""
    before = x.shape
    return namespace(x).squeeze(x, axis), lambda g: reshape(g, before)


@op(linear=True)
def broadcast_to(x: Any, *, shape: tuple[int, ...]) -> Any:
    """x repeated along axes of length 1 and new leading axes, without copying; the engine sums its gradient."""
    return namespace(x).broadcast_to(x, shape), lambda g: g


@op(linear=True)
def concatenate(*arrays: Any, axis: int = 0) -> Any:
    """The arrays of a list one after another along an existing axis; each gets its piece of the gradient."""
    lengths = [x.shape[axis] for x in arrays]
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths) - 1)]
    return namespace(*arrays).concatenate(arrays, axis), lambda g: split(g, tuple(ends), axis)


@op(linear=True)
def stack(*arrays: Any, axis: int = 0) -> Any:
    """The arrays of a list, all of one shape, along a new axis."""

    def pullback(g: Any) -> list[Any]:
        place = axis % g.ndim
        return [g[(slice(None),) * place + (i,)] for i in range(g.shape[place])]

    return namespace(*arrays).stack(arrays, axis), pullback


@op(linear=True)
def split(x: Any, *, indices: tuple[int, ...], axis: int = 0) -> Any:
    """A tuple of x's pieces along `axis`, cut before each of `indices`."""
    pieces = namespace(x).split(x, indices, axis)
    return tuple(pieces), lambda g: concatenate(list(g), axis)
