"""Grad mode: whether a thread records operations. As blocks, as decorators, and for generators."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from minigrad.threads import inherited


class Mode(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        self.grad_enabled = True
        self.former: list[bool] = []  # of the blocks that this thread is in


mode = Mode()


class GradMode:
    """Sets grad mode in a `with` block, or while a decorated function runs, in this thread; restores it on leaving.

    A decorated generator has the mode while it runs: at each yield its caller gets the caller's own mode back.
    """

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def __enter__(self) -> None:
        mode.former.append(mode.grad_enabled)
        mode.grad_enabled = self._enabled

    def __exit__(self, *exception: object) -> None:
        mode.grad_enabled = mode.former.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function) or isinstance(function, type):
            kind = "class" if isinstance(function, type) else type(function).__name__
            raise TypeError(f"grad mode decorates a function, not a {kind}")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"grad mode cannot decorate the async function {function.__name__}: use a block inside it")

        @functools.wraps(function)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            if inspect.isgeneratorfunction(function):
                return self._steps(function(*args, **kwargs))
            with self:
                return function(*args, **kwargs)

        return decorated

    def _steps(self, generator: Any) -> Any:
        """The same generator with a mode and blocks of its own, which its caller does not see between the steps."""
        own: tuple[bool, list[bool]] = (self._enabled, [])
        step: Callable[[], Any] = functools.partial(next, generator)
        while True:
            callers = mode.grad_enabled, mode.former
            mode.grad_enabled, mode.former = own
            try:
                value = step()
            except StopIteration as stop:
                return stop.value
            finally:
                del step  # with an error that was thrown in, it would hold on to this frame
                own = mode.grad_enabled, mode.former
                mode.grad_enabled, mode.former = callers
            try:
                step = functools.partial(generator.send, (yield value))
            except BaseException as error:  # thrown in by the caller; GeneratorExit if it closes this
                step = functools.partial(generator.throw, error)


def no_grad(function: Any = None) -> Any:
    """A block, or a decorated function, in which nothing is recorded: results require no gradient and keep nothing
    alive. `with no_grad():`, `@no_grad()` and `@no_grad` are all right."""
    return GradMode(False) if function is None else GradMode(False)(function)


def enable_grad(function: Any = None) -> Any:
    """A block, or a decorated function, in which operations are recorded again, within a `no_grad` block."""
    return GradMode(True) if function is None else GradMode(True)(function)


def is_grad_enabled() -> bool:
    """Whether this thread records operations."""
    return mode.grad_enabled


@inherited
def same_grad_mode() -> GradMode:
    """A block with the mode of this thread, for another one."""
    return GradMode(mode.grad_enabled)
