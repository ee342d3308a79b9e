"""What is done with all parameters of a model in one launch: Adam's step, and the size and scale of their gradients.

What the kernels compute is in parameters.cu. They find the arrays by a table of addresses, which lies where the arrays
do. Most steps are like the last one: parameters stay where they are, and an allocator gives gradients the places that
the last ones left. So tables are kept, by their content.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from kernels.arrays import address_of, check_alike, check_written, described, is_plain, lies_side_by_side
from kernels.elements import CHUNK, MOST_BLOCKS, THREADS, are_taken, check_dtype, launch
from minigrad.backend import Array, array_module, device_of, on_device_of


class Parameter(NamedTuple):
    """A parameter's values and what moves them, all of one shape and dtype, on one device, contiguous.

    Where only a gradient is worked on, the others are None.
    """

    values: Array | None
    gradient: Array
    mean: Array | None  # the running mean of gradients
    mean_square: Array | None


# struct Parameter and struct Step of parameters.cu, field by field.
ROW = np.dtype([(name, np.int64) for name in (*Parameter._fields, "length", "first_block")])
STEP = np.dtype([(name, np.float32) for name in ("keep", "l2", "beta1", "share1", "beta2", "share2", "eps", "rate")])

# ---- Adam ------------------------------------------------------------------------------------------------------------


def adam_step(
    parameters: Sequence[Parameter],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    l2: float = 0.0,
    decay: float = 0.0,
) -> None:
    """Write the values and means that follow over those that are there: Kingma & Ba 2015, algorithm 1.

    Args:
        parameters: all of one dtype, float32, float16 or bfloat16, and on one device. No two share memory: threads
            would write to it at the same time.
        step: how many steps these parameters have moved with this one, 1 or more.
        lr: the length of a step, 0 or more.
        betas: the shares of the running means of g and of g² that a step keeps, each in [0, 1).
        eps: added to the root of the mean of g², 0 or more.
        l2: this times the values is added to the gradient first: Adam's weight decay.
        decay: this times lr times the values is taken off them first: AdamW's.

    Raises ValueError, TypeError and DeviceError for arrays that do not fit together; nothing has been changed then.
    """
    if not step >= 1:
        raise ValueError(f"adam_step: step must be 1 or more, got {step}")
    for moved in parameters:
        _check("adam_step", parameters[0].gradient, moved.gradient, **moved._asdict())
        for name in ("values", "mean", "mean_square"):
            check_written(f"adam_step: {name}", getattr(moved, name))
    beta1, beta2 = betas
    root_share = math.sqrt(1 - beta2**step)
    numbers = np.zeros(1, STEP)  # an array of one struct passes by value
    numbers[0] = (
        1 - lr * decay, l2, beta1, 1 - beta1, beta2, 1 - beta2, eps * root_share, lr * root_share / (1 - beta1**step)
    )  # fmt: skip
    table = _Table([moved for moved in parameters if moved.gradient.size])
    table.launch("adam", numbers)


# ---- gradients -------------------------------------------------------------------------------------------------------


def are_taken_together(gradients: Sequence[Array]) -> bool:
    """Whether the functions below are better than array operations: all are on one GPU, of one dtype, contiguous."""
    first = gradients[0]
    return (
        are_taken(*gradients)
        and all(device_of(array) == device_of(first) and lies_side_by_side(array) for array in gradients)
        and len(set(map(address_of, gradients))) == len(gradients)  # none is written to by two threads
    )


def squared_norm(gradients: Sequence[Array]) -> Array:
    """The sum of the squares of all elements, float32, an array without axes."""
    table = _Table.of_gradients("squared_norm", gradients)
    with on_device_of(gradients[0]):
        sums = array_module(gradients[0]).empty(table.blocks, np.float32)
        table.launch("squares_of_chunks", sums)
        return array_module(gradients[0]).sum(sums)


def scale(gradients: Sequence[Array], factor: Array) -> None:
    """Multiply all, in place, by a number: an array without axes, which lies where they do."""
    table = _Table.of_gradients("scale", gradients, are_written=True)
    check_alike("scale: factor", factor, gradients[0], (), getattr(factor, "dtype", np.float32))
    with on_device_of(gradients[0]):
        table.launch("scale_gradients", np.float32(1), factor.astype(np.float32, copy=False), None)


def unscale(gradients: Sequence[Array], factor: float) -> Array:
    """Multiply all by a number, in place. Returns whether all are finite then, an array without axes."""
    table = _Table.of_gradients("unscale", gradients, are_written=True)
    with on_device_of(gradients[0]):
        finite = array_module(gradients[0]).empty(table.blocks, np.bool_)
        table.launch("scale_gradients", np.float32(factor), None, finite)
        return array_module(gradients[0]).all(finite)


# ---- the table -------------------------------------------------------------------------------------------------------


class _Table:
    """Parameters as the kernels read them, and how many blocks work on them: one for each chunk of each."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._like = next((moved.gradient for moved in parameters), None)
        self._rows = np.zeros(len(parameters), ROW)
        self.blocks = 0
        for place, moved in enumerate(parameters):
            addresses = [0 if array is None else address_of(array) for array in moved]
            self._rows[place] = (*addresses, moved.gradient.size, self.blocks)
            self.blocks += -(-moved.gradient.size // CHUNK)
        if self.blocks > MOST_BLOCKS:
            raise ValueError(f"{self.blocks} blocks of work, a GPU takes fewer than 2**31 in one launch")

    @classmethod
    def of_gradients(cls, name: str, gradients: Sequence[Array], are_written: bool = False) -> _Table:
        """A table without anything else."""
        if not gradients:
            raise ValueError(f"{name}: there must be one gradient at least")
        for array in gradients:
            _check(name, gradients[0], array, gradient=array)
            if are_written:
                check_written(f"{name}: gradient", array)
        return cls([Parameter(None, array, None, None) for array in gradients if array.size])

    def launch(self, name: str, *arguments: Any) -> None:
        if self._like is not None:
            with on_device_of(self._like):
                library = array_module(self._like)
                table = _kept(library, device_of(self._like), _stream(library), self._rows.tobytes())
                launch(name, self._like, (self.blocks,), (THREADS,), table, np.int32(len(self._rows)), *arguments)


@functools.lru_cache(maxsize=16)
def _kept(library: ModuleType, device: str, stream: int, table: bytes) -> Array:
    """A table where the kernel reads it: there already if it is one of the last few of this stream.

    Another stream makes its own: it would not wait until this one has copied it.
    """
    return library.asarray(np.frombuffer(table, np.int64))


def _stream(library: ModuleType) -> int:
    """The queue in which a GPU gets its work now."""
    return 0 if library is np else library.cuda.get_current_stream().ptr


def _check(name: str, first: Array, like: Array, **arrays: Array | None) -> None:
    """ValueError, TypeError or DeviceError for what is not as `first` is, or not of the shape of `like`."""
    for array in (first, like):
        if not is_plain(array):
            raise ValueError(f"{name}: gradient must be an array, got {described(array)}")
    check_dtype(name, first)
    for its, array in arrays.items():
        check_alike(f"{name}: {its}", array, first, like.shape)
        if not lies_side_by_side(array):
            raise ValueError(f"{name}: {its} of shape {like.shape} is not contiguous")
