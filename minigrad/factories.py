"""Making tensors, in PyTorch's names: of one value, in order, at random, or around memory that another library holds.

`minigrad.tensor` makes them of Python numbers and of arrays. All that is random comes from this thread's stream (see
`manual_seed`) or from a `Generator`, is drawn on the CPU, and is therefore the same on every device.

The options are the same everywhere:
    dtype: NumPy dtype or its name; by default that of `get_default_dtype()` unless said otherwise.
    device: "cpu", "cuda", "cuda:1"; by default that of `get_default_device()`.
    requires_grad: whether the tensor is a leaf that gradients are asked for; floating dtypes only.
    generator: where random numbers come from instead of this thread's stream.
`*_like` take shape, dtype and device of a tensor, unless these are given.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad import backend, dtypes
from minigrad.promotion import get_default_dtype, result_type
from minigrad.random import Generator, next_generator
from minigrad.scalars import check_held, number
from minigrad.shape_methods import sizes_of
from minigrad.tensor import Tensor

Sizes = int | Sequence[int]

# ---- one value -------------------------------------------------------------------------------------------------------


def zeros(*size: Sizes, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros: `zeros(2, 3)` or `zeros((2, 3))`."""
    return _made(np.zeros(_shape("zeros", size), _or_default(dtype)), device, requires_grad)


def ones(*size: Sizes, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones: `ones(2, 3)` or `ones((2, 3))`."""
    return _made(np.ones(_shape("ones", size), _or_default(dtype)), device, requires_grad)


def full(
    size: Sizes, fill_value: Any, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """A tensor with one number everywhere: bool of a bool, int64 of an int, unless a dtype is given.

    Raises ValueError for a number that the dtype cannot hold, TypeError for a tensor that requires grad.
    """
    value = number("full: fill_value", fill_value)
    chosen = result_type([value]) if dtype is None else dtypes.tensor_dtype(dtype)
    check_held("full", value, chosen)
    return _made(np.full(_shape("full", (size,)), value, chosen), device, requires_grad)


def zeros_like(input: Tensor, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """Zeros of the tensor's shape, dtype and device."""
    return zeros(input.shape, **_options_of(input, dtype, device), requires_grad=requires_grad)


def ones_like(input: Tensor, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """Ones of the tensor's shape, dtype and device."""
    return ones(input.shape, **_options_of(input, dtype, device), requires_grad=requires_grad)


def full_like(
    input: Tensor, fill_value: Any, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """One number everywhere, in the tensor's shape, dtype (in which 2.5 may become 2) and device."""
    return full(input.shape, fill_value, **_options_of(input, dtype, device), requires_grad=requires_grad)


def eye(
    n: int, m: int | None = None, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """The matrix (n, m), or (n, n), with ones on its diagonal and zeros elsewhere."""
    rows, columns = _shape("eye", (n, n if m is None else m))
    return _made(np.eye(rows, columns, dtype=_or_default(dtype)), device, requires_grad)


# ---- in order --------------------------------------------------------------------------------------------------------


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... up to but without `end`; from 0 if one number is given. int64 of integers.

    For an integer dtype the three numbers are truncated first, as in PyTorch. Raises ValueError for a step of 0, one
    that leads away from `end`, numbers that are not finite, and integers that int64 cannot hold.
    """
    start, end = (0, start) if end is None else (start, end)
    start, end, step = (number("arange: each bound", x) for x in (start, end, step))
    if dtype is not None and np.dtype(dtype).kind in "iu":
        start, end, step = (math.trunc(x) if math.isfinite(x) else x for x in (start, end, step))
    if not all(map(math.isfinite, (start, end, step))):
        raise ValueError(f"arange: the bounds and the step must be finite, got {start}, {end} and {step}")
    if step == 0 or (end - start) / step < 0:
        raise ValueError(f"arange: steps of {step} do not lead from {start} to {end}")
    if isinstance(start + end + step, int):
        for bound in (start, end, step):
            check_held("arange", bound, np.dtype(np.int64))
        array, chosen = np.arange(start, end, step, dtype=np.int64), np.dtype(np.int64)
    else:
        array, chosen = start + step * np.arange(math.ceil((end - start) / step)), get_default_dtype()
    return _made(array.astype(chosen if dtype is None else dtype), device, requires_grad)


def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """`steps` numbers at equal distances from `start` to `end`, both included; `start` alone for one.

    For an integer dtype both ends are truncated first, and then the numbers, as in PyTorch.
    """
    (count,) = _shape("linspace", (steps,))
    ends = number("linspace: start", start), number("linspace: end", end)
    if dtype is not None and np.dtype(dtype).kind in "iu":
        ends = math.trunc(ends[0]), math.trunc(ends[1])
    array = np.linspace(*ends, count)
    return _made(array.astype(_or_default(dtype)), device, requires_grad)


# ---- at random -------------------------------------------------------------------------------------------------------


def rand(
    *size: Sizes,
    generator: Generator | None = None,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform numbers in [0, 1). The same in every dtype, but for the digits that a narrower one lacks."""
    shape, chosen = _shape("rand", size), _drawn_dtype("rand", dtype)
    numbers = next_generator(generator).random(shape)
    places = 2.0 ** (dtypes.finfo(chosen).nmant + 1)  # cut off, not rounded: a number just below 1 must not become 1
    return _made((np.floor(numbers * places) / places).astype(chosen), device, requires_grad)


def randn(
    *size: Sizes,
    generator: Generator | None = None,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal numbers. Drawn in float64 and then rounded, so that they are the same in every dtype."""
    shape, chosen = _shape("randn", size), _drawn_dtype("randn", dtype)
    return _made(next_generator(generator).standard_normal(shape).astype(chosen), device, requires_grad)


def randint(
    low: Any = 0,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = np.int64,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Integers from `low` to below `high`, equally likely: `randint(3, 10, (2, 4))`, from 0 in `randint(10, (2, 4))`.

    Raises ValueError if there is no such integer, or the dtype cannot hold them.
    """
    if isinstance(high, (tuple, list)):
        high, size = None, high
    if size is None:
        raise TypeError("randint: give a size, such as (2, 3), after the bounds")
    low, high = (0, low) if high is None else (low, high)
    low, high = operator.index(low), operator.index(high)
    if low >= high:
        raise ValueError(f"randint: there is no integer from {low} to below {high}")
    _check_integers("randint", low, high, dtype)
    shape = _shape("randint", (size,))
    return _made(next_generator(generator).integers(low, high, shape).astype(dtype), device, requires_grad)


def randperm(n: int, *, generator: Generator | None = None, dtype: Any = np.int64, device: str | None = None) -> Tensor:
    """The integers from 0 to n - 1 in random order, each order equally likely.

    Raises ValueError if the dtype cannot hold them.
    """
    (count,) = _shape("randperm", (n,))
    _check_integers("randperm", 0, count, dtype)
    return _made(next_generator(generator).permutation(count).astype(dtype), device, False)


def rand_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform numbers in [0, 1), in the tensor's shape, dtype and device."""
    options = _options_of(input, dtype, device)
    return rand(input.shape, generator=generator, requires_grad=requires_grad, **options)


def randn_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal numbers, in the tensor's shape, dtype and device."""
    options = _options_of(input, dtype, device)
    return randn(input.shape, generator=generator, requires_grad=requires_grad, **options)


def randint_like(
    input: Tensor,
    low: Any = 0,
    high: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Integers from `low` (0 if one bound is given) to below `high`, in the tensor's shape, dtype and device."""
    options = _options_of(input, dtype, device)
    return randint(low, high, input.shape, generator=generator, requires_grad=requires_grad, **options)


# ---- memory of others ------------------------------------------------------------------------------------------------


def from_dlpack(ext_tensor: Any) -> Tensor:
    """A tensor around the memory of a PyTorch tensor, an array, or whatever has `__dlpack__`: shared, not copied.

    What one side writes the other sees, but graphs do not notice what the other side writes. Memory that is lent for
    reading only, such as a broadcast array's, cannot be written here either: that is a RuntimeError. A minigrad tensor
    gives its `detach()`. Raises TypeError for what has no `__dlpack__` or a dtype that a tensor cannot hold.
    """
    if not hasattr(ext_tensor, "__dlpack__"):
        raise TypeError(f"from_dlpack: takes what has __dlpack__, got {type(ext_tensor).__name__}")
    backend.refuse_masked(ext_tensor)
    kind, index = ext_tensor.__dlpack_device__()
    if isinstance(ext_tensor, Tensor) and not ext_tensor.requires_grad:
        return ext_tensor.detach()
    library = backend.cuda_device(f"cuda:{index}")[0] if kind == _DLPACK_CUDA else np
    return _around(library.from_dlpack(ext_tensor))


_DLPACK_CUDA = 2  # DLDeviceType in dlpack.h


# ---- what they share -------------------------------------------------------------------------------------------------


def _made(array: Any, device: str | None, requires_grad: bool) -> Tensor:
    """A tensor of an array (or NumPy scalar) that nobody else has."""
    array = backend.to_device(np.asarray(array), backend.get_default_device() if device is None else device)
    return _around(array).requires_grad_(requires_grad)


def _around(array: Any) -> Tensor:
    return Tensor._of(backend.plain_array(array))


def _or_default(dtype: Any) -> Any:
    return get_default_dtype() if dtype is None else dtypes.tensor_dtype(dtype)


def _drawn_dtype(name: str, dtype: Any) -> np.dtype:
    chosen = np.dtype(_or_default(dtype))
    if not dtypes.is_floating(chosen):
        raise TypeError(f"{name}: draws fractions, which {chosen} cannot hold; use a floating dtype, or randint")
    return chosen


def _options_of(input: Tensor, dtype: Any, device: str | None) -> dict[str, Any]:
    return {"dtype": input.dtype if dtype is None else dtype, "device": input.device if device is None else device}


def _shape(name: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    """The sizes, given one by one or as one tuple. TypeError for what is no integer, ValueError for a negative one."""
    try:
        shape = tuple([operator.index(n) for n in sizes_of(size)])
    except TypeError as error:
        raise TypeError(f"{name}: sizes must be integers, got {sizes_of(size)}") from error
    if any(n < 0 for n in shape):
        raise ValueError(f"{name}: sizes must be 0 or more, got {shape}")
    return shape


def _check_integers(name: str, low: int, high: int, dtype: Any) -> None:
    """ValueError unless the dtype can hold every integer from `low` to below `high`."""
    chosen = dtypes.tensor_dtype(dtype)
    if dtypes.is_floating(chosen):
        most = 2 ** (dtypes.finfo(chosen).nmant + 1)  # beyond it some integers are missing
        limits = -most, most
    else:
        limits = (0, 1) if chosen.kind == "b" else (np.iinfo(chosen).min, np.iinfo(chosen).max)
    if low < high and not limits[0] <= low <= high - 1 <= limits[1]:
        raise ValueError(f"{name}: {chosen} cannot hold the integers from {low} to below {high}")
