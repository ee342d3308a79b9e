"""autocast: a block in which products are made of 16-bit numbers, and what needs float32's range or sums in float32.

Which operations these are is written where each is defined: `@in_16_bits` or `@in_float32` above it. All others compute
in the common dtype of their operands, as ever. The casts are operations themselves, recorded like any other, so the
gradient of each leaf arrives in the leaf's own dtype.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from minigrad import ops
from minigrad.dtypes import is_16_bit, tensor_dtype
from minigrad.operation import Operation
from minigrad.tensor import Tensor
from minigrad.threads import inherited
from minigrad.watchers import set_cast

Function = TypeVar("Function", bound=Callable[..., Any])

_FLOAT32 = np.dtype(np.float32)
_dtype_of: dict[Operation, np.dtype | None] = {}  # of the operations that autocast changes; None: the block's dtype


class _Thread(threading.local):
    def __init__(self) -> None:
        self.dtype: np.dtype | None = None  # of products; None outside of blocks
        self.former: list[np.dtype | None] = []  # of the blocks that this thread is in


_thread = _Thread()

# ---- blocks ----------------------------------------------------------------------------------------------------------


class autocast:
    """Mixed precision in a `with` block, or while a decorated function runs, in this thread: `torch.autocast`.

    Products (matmul, linear, einsum, attention) cast their floating tensors to `dtype` and give that. Softmax, norms of
    layers, losses, sums, means, exponentials, logarithms and powers cast them to float32 and give float32. float64
    stays as it is. Put the model's call and the loss into the block, `backward()` behind it. Gradients too small for
    float16 are saved by `nn.optim.GradScaler`; bfloat16 has float32's range and fewer digits.

    Args:
        dtype: float16 or bfloat16, which needs the package ml_dtypes. TypeError for another.
        enabled: False for a block without mixed precision, within one that has it.
    """

    def __init__(self, dtype: Any = "float16", enabled: bool = True) -> None:
        name = dtype if isinstance(dtype, str) else getattr(dtype, "name", getattr(dtype, "__name__", None))
        if name not in ("float16", "bfloat16"):
            raise TypeError(f"autocast: dtype must be 'float16' or 'bfloat16', not {dtype!r}")
        narrow = tensor_dtype(name)
        self._dtype = narrow if enabled else None

    def __enter__(self) -> None:
        _thread.former.append(_thread.dtype)
        _set(self._dtype)

    def __exit__(self, *exception: object) -> None:
        _set(_thread.former.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.isroutine(function) or inspect.iscoroutinefunction(function):
            raise TypeError(f"autocast decorates a function, not {function!r}: use a block")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"autocast cannot decorate the generator {function.__name__}: use a block inside it")

        @functools.wraps(function)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return decorated


@inherited
def same_autocast() -> autocast:
    """A block with what this thread has now, for what is run again later, or in another thread."""
    return autocast(_thread.dtype or "float16", enabled=_thread.dtype is not None)


def _set(dtype: np.dtype | None) -> None:
    _thread.dtype = dtype
    set_cast(None if dtype is None else _cast_operands)


# ---- what is cast ----------------------------------------------------------------------------------------------------


def in_16_bits(function: Any = None, *, exempt: Iterable[str] = ()) -> Any:
    """Decorates an operation, or a function of tensors: within autocast its floating tensors are cast to 16 bits first.

    A function, unlike an operation, then runs outside autocast, in which its parts would be cast once more.
    `exempt` names inputs of a function that are not cast.
    """
    if function is None:
        return functools.partial(in_16_bits, exempt=exempt)
    return _in_dtype(function, None, frozenset(exempt))


def in_float32(function: Function) -> Function:
    """As `in_16_bits`, to float32."""
    return _in_dtype(function, _FLOAT32, frozenset())


def _in_dtype(function: Any, dtype: np.dtype | None, exempt: frozenset[str]) -> Any:
    if hasattr(function, "operation"):  # which asks `_cast_operands` itself, at no cost while nobody casts
        _dtype_of[function.operation] = dtype
        return function
    exempt_places = {place for place, name in enumerate(inspect.signature(function).parameters) if name in exempt}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _thread.dtype is None or not any(isinstance(x, Tensor) for x in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        target = dtype or _thread.dtype
        args = tuple([x if place in exempt_places else _cast(x, target) for place, x in enumerate(args)])
        kwargs = {name: x if name in exempt else _cast(x, target) for name, x in kwargs.items()}
        with autocast(enabled=False):
            return function(*args, **kwargs)

    return call


def _cast_operands(operation: Operation, operands: Sequence[Any]) -> Sequence[Any] | None:
    """What the operation is to be called with instead, or None."""
    if operation not in _dtype_of:
        return None
    dtype = _dtype_of[operation] or _thread.dtype
    cast = [_cast(x, dtype) for x in operands]
    return cast if any(new is not old for new, old in zip(cast, operands, strict=True)) else None


def _cast(x: Any, dtype: Any) -> Any:
    """x in this dtype if it is a tensor or array of floats of 16 or 32 bits."""
    given = getattr(x, "dtype", dtype)
    return ops.astype(x, dtype=dtype) if given != dtype and (given == _FLOAT32 or is_16_bit(given)) else x
