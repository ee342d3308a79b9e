"""autocast: a block in which products are made of float16, and what needs float32's range or sums is made in float32.

Which operations these are is written where each is defined: `@in_float16` or `@in_float32` above it. All others compute
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
from minigrad.operation import Operation
from minigrad.tensor import Tensor
from minigrad.watchers import set_cast

Function = TypeVar("Function", bound=Callable[..., Any])

_FLOAT16, _FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)
_reckoned_in: dict[Operation, np.dtype] = {}  # of the operations that autocast changes


class _Thread(threading.local):
    def __init__(self) -> None:
        self.enabled = False
        self.former: list[bool] = []  # of the blocks that this thread is in


_thread = _Thread()

# ---- blocks ----------------------------------------------------------------------------------------------------------


class autocast:
    """Mixed precision in a `with` block, or while a decorated function runs, in this thread: `torch.autocast`.

    Products (matmul, linear, einsum, attention) cast their floating tensors to float16 and give float16. Softmax, norms
    of layers, losses, sums, means, exponentials, logarithms and powers cast them to float32 and give float32. float64
    stays as it is. Put the model's call and the loss into the block, `backward()` behind it; gradients too small for
    float16 are saved by `nn.optim.GradScaler`.

    Args:
        dtype: "float16", the only one that there is: NumPy has no bfloat16. TypeError for another.
        enabled: False for a block without mixed precision, within one that has it.
    """

    def __init__(self, dtype: Any = "float16", enabled: bool = True) -> None:
        if dtype not in ("float16", np.float16, _FLOAT16):
            raise TypeError(f"autocast: dtype must be 'float16', the one 16-bit dtype of a tensor, not {dtype!r}")
        self._enabled = bool(enabled)

    def __enter__(self) -> None:
        _thread.former.append(_thread.enabled)
        _set(self._enabled)

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


def same_autocast() -> autocast:
    """A block with what this thread has now, for what is run again later."""
    return autocast(enabled=_thread.enabled)


def _set(enabled: bool) -> None:
    _thread.enabled = enabled
    set_cast(_cast_operands if enabled else None)


# ---- what is cast ----------------------------------------------------------------------------------------------------


def in_float16(function: Any = None, *, exempt: Iterable[str] = ()) -> Any:
    """Decorates an operation, or a function of tensors: within autocast its floating tensors are cast to float16 first.

    A function, unlike an operation, then runs outside autocast, in which its parts would be cast once more.
    `exempt` names inputs of a function that are not cast.
    """
    if function is None:
        return functools.partial(in_float16, exempt=exempt)
    return _in_dtype(function, _FLOAT16, frozenset(exempt))


def in_float32(function: Function) -> Function:
    """As `in_float16`, to float32."""
    return _in_dtype(function, _FLOAT32, frozenset())


def _in_dtype(function: Any, dtype: np.dtype, exempt: frozenset[str]) -> Any:
    if hasattr(function, "operation"):  # which asks `_cast_operands` itself, at no cost while nobody casts
        _reckoned_in[function.operation] = dtype
        return function
    exempt_places = {place for place, name in enumerate(inspect.signature(function).parameters) if name in exempt}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _thread.enabled or not any(isinstance(x, Tensor) for x in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        args = tuple([x if place in exempt_places else _cast(x, dtype) for place, x in enumerate(args)])
        kwargs = {name: x if name in exempt else _cast(x, dtype) for name, x in kwargs.items()}
        with autocast(enabled=False):
            return function(*args, **kwargs)

    return call


def _cast_operands(operation: Operation, operands: Sequence[Any]) -> Sequence[Any] | None:
    """What the operation is to be called with instead, or None."""
    dtype = _reckoned_in.get(operation)
    if dtype is None:
        return None
    cast = [_cast(x, dtype) for x in operands]
    return cast if any(new is not old for new, old in zip(cast, operands, strict=True)) else None


def _cast(x: Any, dtype: np.dtype) -> Any:
    """x in this dtype if it is a tensor or array of float16 or float32."""
    given = getattr(x, "dtype", dtype)
    return ops.astype(x, dtype=dtype) if given != dtype and given in (_FLOAT16, _FLOAT32) else x
