"""The methods of a Tensor that only give its elements another shape or place; names are PyTorch's."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minigrad import ops

if TYPE_CHECKING:
    from minigrad.tensor import Tensor

Dim = int | Sequence[int] | None


class ShapeMethods:
    """What Tensor inherits by way of `Methods`: they compute nothing, and many give views."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def ndim(self) -> int: ...
        def size(self, dim: int | None = None) -> Any: ...
        def __getitem__(self, key: Any) -> Tensor: ...

    @property
    def T(self) -> Tensor:
        """The axes in reverse order, as in NumPy; `.mT` transposes the matrices of a batch."""
        return ops.transpose(self, None)

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        return ops.swapaxes(self, -1, -2)

    def reshape(self, *shape: Any) -> Tensor:
        """The elements in order in another shape; one length may be -1. A view where it can be."""
        return ops.reshape(self, sizes_of(shape))

    view = reshape

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Two dimensions exchanged."""
        if self.ndim == 0:
            return ops.moveaxis(self, axes_of(self, dim0), axes_of(self, dim1))
        return ops.swapaxes(self, dim0, dim1)

    def permute(self, *order: Any, dims: Sequence[int] | None = None) -> Tensor:
        """The dimensions in another order: `permute(1, 0)`, `permute((1, 0))` or `permute(dims=(1, 0))`."""
        return ops.transpose(self, sizes_of(order if dims is None else (dims,)))

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
        """The dimensions `source` at the places `destination`, the others in their order."""
        return ops.moveaxis(self, axes_of(self, source), axes_of(self, destination))

    def flip(self, *axes: Any, dims: Sequence[int] | None = None) -> Tensor:
        """The elements in reverse order along each dimension of `flip(0, 1)`, `flip((0, 1))` or `flip(dims=(0, 1))`."""
        return ops.flip(self, axes_of(self, sizes_of(axes if dims is None else (dims,))))

    def roll(self, shifts: int | Sequence[int], dims: Dim = None) -> Tensor:
        """The elements moved on by `shifts` along `dims`, or as one row; the last come round to the front."""
        steps, axes = _integers(shifts), _integers(dims)
        many = [len(n) if isinstance(n, tuple) else 1 for n in (steps, axes)]
        if many[0] != many[1]:
            raise ValueError(f"roll: {many[0]} shifts {shifts} for {many[1]} dimensions {dims}; give one for each")
        return ops.roll(self, steps, axes)

    def repeat(self, *repeats: Any) -> Tensor:
        """The tensor so many times along each dimension; numbers beyond its own are new dimensions in front."""
        times = tuple(sizes_of(repeats))
        if len(times) < self.ndim or (times and min(times) < 0):
            raise ValueError(
                f"repeat: {times} of a tensor of shape {self.shape}; give each dimension a number, 0 or more"
            )
        return ops.tile(self, times)

    def expand(self, *sizes: Any) -> Tensor:
        """Repeat axes of length 1, and new axes in front, without copying; -1 keeps a length."""
        shape = sizes_of(sizes)
        if len(shape) < self.ndim or -1 in shape[: len(shape) - self.ndim]:
            raise ValueError(
                f"expand: shape {self.shape} to {shape}; name every dimension, -1 keeps an old one's length"
            )
        own = (1,) * (len(shape) - self.ndim) + self.shape
        return ops.broadcast_to(self, tuple(n if wish == -1 else wish for n, wish in zip(own, shape, strict=True)))

    def view_as(self, other: Tensor) -> Tensor:
        """The elements in the shape of `other`."""
        return self.reshape(other.shape)

    def expand_as(self, other: Tensor) -> Tensor:
        """Broadcast to the shape of `other`."""
        return self.expand(other.shape)

    def squeeze(self, dim: Dim = None) -> Tensor:
        """Without axes of length 1: all of them, or those of `dim` that have length 1."""
        chosen = axes_of(self, dim)
        dims = range(self.ndim) if chosen is None else chosen if isinstance(chosen, tuple) else (chosen,)
        axes = tuple(d for d in dims if self.size(d) == 1)
        if len({d % self.ndim for d in dims}) < len(dims):
            raise ValueError(f"squeeze: a dimension stands twice in {dim}, shape {self.shape}")
        return ops.squeeze(self, axis=axes)

    def unsqueeze(self, dim: int) -> Tensor:
        """A new dimension of length 1 at `dim`."""
        return ops.expand_dims(self, dim)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """The axes from start_dim to end_dim, both included, as one."""
        if self.ndim == 0:
            axes_of(self, start_dim), axes_of(self, end_dim)  # raise for a dimension that is not there
            return self.reshape(1)
        self.size(start_dim), self.size(end_dim)  # raise for a dimension that is not there
        start, end = start_dim % self.ndim, end_dim % self.ndim
        if start > end:
            raise ValueError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}, shape {self.shape}")
        return self.reshape(*self.shape[:start], math.prod(self.shape[start : end + 1]), *self.shape[end + 1 :])

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Tensor:
        """Dimension `dim` as several of the given sizes, of which one may be -1."""
        length, place = self.size(dim), dim % self.ndim
        known = math.prod(n for n in sizes if n != -1)
        free = length // known if known else 0  # what -1 stands for
        inferred = tuple(free if n == -1 else n for n in sizes)
        if math.prod(inferred) != length or list(sizes).count(-1) > 1:
            raise ValueError(f"unflatten: sizes {tuple(sizes)} do not make up dimension {dim}, shape {self.shape}")
        return self.reshape(*self.shape[:place], *inferred, *self.shape[place + 1 :])

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        """The `length` elements from `start` on along `dim`; a negative start counts from the end."""
        size = self.size(dim)
        first = start + size if start < 0 else start
        if not (0 <= first <= size and 0 <= length <= size - first):
            raise IndexError(
                f"narrow: {length} elements from {start} on, dimension {dim} of shape {self.shape} has {size}"
            )
        return self[(slice(None),) * (dim % self.ndim) + (slice(first, first + length),)]

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """At most `chunks` pieces of one length along `dim`; the last may be shorter."""
        chunks = operator.index(chunks)
        if chunks < 1:
            raise ValueError(f"chunk: at least one piece must be asked for, not {chunks}")
        length = self.size(dim)
        return self.split(-(-length // chunks), dim) if length else self.split([0] * chunks, dim)

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        """The slices along `dim`, without that dimension."""
        length = self.size(dim)
        return tuple([part.squeeze(dim) for part in self.split(1, dim)]) if length else ()

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Pieces of `split_size` along `dim` (the last may be shorter), or of the given sizes."""
        length = self.size(dim)
        if not isinstance(split_size, Sequence):
            split_size = operator.index(split_size)
            if split_size < 1:
                raise ValueError(f"split: pieces must have a length of 1 or more, not {split_size}")
            cuts = tuple(range(split_size, length, split_size))
        else:
            if sum(split_size) != length or min(split_size) < 0:
                raise ValueError(
                    f"split: sizes {tuple(split_size)} add up to {sum(split_size)}, dimension {dim} has length {length}"
                )
            cuts = tuple(itertools.accumulate(split_size))[:-1]
        return ops.split(self, cuts, dim)


def sizes_of(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """PyTorch takes `view(2, 3)` and `view((2, 3))`."""
    return tuple(arguments[0]) if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)) else arguments


def axes_of(x: ShapeMethods, dim: Dim) -> int | tuple[int, ...] | None:
    """The dimensions as NumPy takes them; of a 0-d tensor PyTorch knows dimension 0 or -1, which is none to NumPy."""
    axes = _integers(dim)
    if x.ndim or axes is None:
        return axes
    for axis in axes if isinstance(axes, tuple) else (axes,):
        if axis not in (0, -1):
            raise IndexError(f"dimension {axis} of a tensor with 0 dimensions")
    if isinstance(axes, tuple) and len(axes) > 1:
        raise ValueError(f"dimensions {axes} are one and the same of a tensor with 0 dimensions")
    return ()


def _integers(numbers: Dim) -> int | tuple[int, ...] | None:
    """PyTorch takes a list of dimensions, NumPy a tuple; both take NumPy's integers."""
    if numbers is None:
        return None
    if isinstance(numbers, Sequence):
        return tuple([operator.index(n) for n in numbers])
    return operator.index(numbers)
