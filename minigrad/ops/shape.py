"""Operations that rearrange elements: no arithmetic, so a pullback is the opposite rearrangement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.bfloat import takes_bfloat16
from minigrad.operation import namespace, op


@takes_bfloat16
@op(linear=True)
def reshape(x: Any, *, shape: int | tuple[int, ...]) -> Any:
    """The elements in order, in another shape; one length may be -1."""
    before = x.shape
    return x.reshape(shape), lambda g: reshape(g, shape=before)


@takes_bfloat16
@op(linear=True)
def transpose(x: Any, *, axes: tuple[int, ...] | None = None) -> Any:
    """The axes in another order; reversed by default."""
    back = None if axes is None else tuple(sorted(range(len(axes)), key=[a % len(axes) for a in axes].__getitem__))
    return namespace(x).transpose(x, axes), lambda g: transpose(g, axes=back)


@takes_bfloat16
@op(linear=True)
def swapaxes(x: Any, *, axis1: int, axis2: int) -> Any:
    """Two axes exchanged."""
    return namespace(x).swapaxes(x, axis1, axis2), lambda g: swapaxes(g, axis1=axis1, axis2=axis2)


@takes_bfloat16
@op(linear=True)
def moveaxis(x: Any, *, source: int | tuple[int, ...], destination: int | tuple[int, ...]) -> Any:
    """The axes `source` at the places `destination`, the others in their order."""
    return namespace(x).moveaxis(x, source, destination), lambda g: moveaxis(g, source=destination, destination=source)


@takes_bfloat16
@op(linear=True)
def flip(x: Any, *, axis: int | tuple[int, ...] | None = None) -> Any:
    """The elements in reverse order along `axis`, or along every axis."""
    return namespace(x).flip(x, axis), lambda g: flip(g, axis)


@takes_bfloat16
@op(linear=True)
def roll(x: Any, *, shift: int | tuple[int, ...], axis: int | tuple[int, ...] | None = None) -> Any:
    """The elements moved on by `shift` along `axis` (None: in the flattened array); the last become the first."""
    back = tuple(-n for n in shift) if isinstance(shift, tuple) else -shift
    return namespace(x).roll(x, shift, axis), lambda g: roll(g, back, axis)


@takes_bfloat16
@op(linear=True)
def expand_dims(x: Any, *, axis: int | tuple[int, ...]) -> Any:
    """New axes of length 1 at `axis` of the result."""
    before = x.shape
    return namespace(x).expand_dims(x, axis), lambda g: reshape(g, before)


@takes_bfloat16
@op(linear=True)
def squeeze(x: Any, *, axis: int | tuple[int, ...] | None = None) -> Any:
    """Without the axes of length 1 given by `axis`, or without all of them."""
    before = x.shape
    return namespace(x).squeeze(x, axis), lambda g: reshape(g, before)


@takes_bfloat16
@op(linear=True)
def broadcast_to(x: Any, *, shape: tuple[int, ...]) -> Any:
    """x repeated along axes of length 1 and new leading axes, without copying; the engine sums its gradient."""
    return namespace(x).broadcast_to(x, shape), lambda g: g


def tile(x: Any, reps: tuple[int, ...]) -> Any:
    """x as often along each axis as `reps` says, which counts from the last axis."""
    ndim = max(x.ndim, len(reps))
    reps = (1,) * (ndim - len(reps)) + reps
    shape = (1,) * (ndim - x.ndim) + x.shape
    row = reshape(x, tuple(n for length in shape for n in (1, length)))  # (1, n_0, 1, n_1, ...)
    tiled = broadcast_to(row, tuple(n for pair in zip(reps, shape, strict=True) for n in pair))
    return reshape(tiled, tuple(times * n for times, n in zip(reps, shape, strict=True)))


@takes_bfloat16
@op(linear=True)
def pad(x: Any, *, pad_width: tuple[tuple[int, int], ...], constant_values: Any = 0) -> Any:
    """x between constants: so many before and behind it along each axis; the gradient is that of x's place."""
    if len(pad_width) != x.ndim:
        raise ValueError(f"pad: {len(pad_width)} pairs of widths for shape {x.shape}; give one for each axis")
    inside = tuple(slice(before, before + n) for (before, _), n in zip(pad_width, x.shape, strict=True))
    library = namespace(x)
    value = library.pad(x, pad_width, constant_values=constant_values) if x.ndim else library.copy(x)
    return value, lambda g: g[(*inside, ...)]


@takes_bfloat16
@op(linear=True)
def tril(x: Any, *, k: int = 0) -> Any:
    """The matrices' lower triangles, up to the k-th diagonal; 0 above."""
    return namespace(x).tril(_matrices("tril", x), k), lambda g: tril(g, k)


@takes_bfloat16
@op(linear=True)
def triu(x: Any, *, k: int = 0) -> Any:
    """The matrices' upper triangles, from the k-th diagonal; 0 below."""
    return namespace(x).triu(_matrices("triu", x), k), lambda g: triu(g, k)


def _matrices(name: str, x: Any) -> Any:
    if x.ndim < 2:
        raise ValueError(f"{name}: takes matrices (..., n, m), got shape {x.shape}")
    return x


def _check_tensors(name: str, arrays: Sequence[Any]) -> None:
    for x in arrays:
        if not hasattr(x, "shape"):
            raise TypeError(f"{name}: takes tensors, got {type(x).__name__}")


@takes_bfloat16
@op(linear=True)
def concatenate(*arrays: Any, axis: int = 0) -> Any:
    """The arrays of a list one after another along an existing axis; each gets its piece of the gradient.

    One of shape (0,) adds nothing, whatever the others' shapes, as in PyTorch.
    """
    _check_tensors("concatenate", arrays)
    nothing = [x.shape == (0,) for x in arrays]
    joined = [x for x, empty in zip(arrays, nothing, strict=True) if not empty] or arrays
    value = namespace(*arrays).concatenate(joined, axis)
    lengths = [0 if empty else x.shape[axis] for x, empty in zip(arrays, nothing, strict=True)]
    ends = tuple([sum(lengths[: i + 1]) for i in range(len(lengths) - 1)])

    def pullback(g: Any) -> list[Any]:
        pieces = split(g, ends, axis)
        return [reshape(piece, (0,)) if empty else piece for piece, empty in zip(pieces, nothing, strict=True)]

    return value, pullback


@takes_bfloat16
@op(linear=True)
def stack(*arrays: Any, axis: int = 0) -> Any:
    """The arrays of a list, all of one shape, along a new axis."""
    _check_tensors("stack", arrays)

    def pullback(g: Any) -> list[Any]:
        place = axis % g.ndim
        return [g[(slice(None),) * place + (i,)] for i in range(g.shape[place])]

    return namespace(*arrays).stack(arrays, axis), pullback


@takes_bfloat16
@op(linear=True)
def split(x: Any, *, indices: tuple[int, ...], axis: int = 0) -> Any:
    """A tuple of x's pieces along `axis`, cut before each of `indices`."""
    pieces = namespace(x).split(x, indices, axis)
    return tuple(pieces), lambda g: concatenate(list(g), axis)
