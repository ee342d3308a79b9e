"""Watchers: who is told of each operation of a thread, and who changes what it is called with. Nobody costs nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minigrad.operation import Node, Operation
    from minigrad.tensor import Tensor

Cast = Callable[["Operation", Sequence[Any]], "Sequence[Any] | None"]


class Watcher:
    """What is told of each operation of its thread, and of each step back, within `watching(self)`."""

    def calling(self, operation: Operation) -> None:
        """An operation's body is about to run."""

    def made(
        self,
        operation: Operation,
        inputs: Sequence[Any],
        options: dict[str, Any],
        values: tuple[Tensor, ...],
        node: Node | None,
    ) -> None:
        """An operation has made `values`; `node` is its record, or None if it is not recorded."""

    def walking(self, node: Node) -> None:
        """The pullbacks of `node` are about to run."""

    def walked(self, node: Node, gradient: Any, results: Sequence[Any] | None) -> None:
        """The pullbacks of `node` took `gradient` to `results`, one an input; None if an error came instead."""


class _Thread(threading.local):
    watchers: tuple[Watcher, ...] = ()
    cast: Cast | None = None


_thread = _Thread()
active = 0  # how many watchers and casts there are in all threads: all that an operation looks at if there is none
_counting = threading.Lock()


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """A block in which `watcher` is told what this thread does."""
    _thread.watchers = (*_thread.watchers, watcher)
    _count(1)
    try:
        yield
    finally:  # blocks within generators may end in another order than they began
        _thread.watchers = tuple([other for other in _thread.watchers if other is not watcher])
        _count(-1)


def set_cast(cast: Cast | None) -> None:
    """Let `cast` say what each operation of this thread is called with instead of its operands, None for these."""
    former, _thread.cast = _thread.cast, cast
    _count((cast is not None) - (former is not None))


def cast_operands(operation: Operation, operands: Sequence[Any]) -> Sequence[Any] | None:
    """What the operation is to be called with instead; None for what it was called with."""
    return _thread.cast and _thread.cast(operation, operands)


def _count(more: int) -> None:
    global active
    with _counting:
        active += more


def is_watched() -> bool:
    """Whether this thread has a watcher."""
    return active > 0 and bool(_thread.watchers)


def tell(event: str, *about: Any) -> None:
    """Call the method named `event` of each of this thread's watchers; of all, even if one raises an error."""
    _tell_all(_thread.watchers, event, about)


def _tell_all(watchers: Sequence[Watcher], event: str, about: Sequence[Any]) -> None:
    if watchers:
        try:
            getattr(watchers[0], event)(*about)
        finally:
            _tell_all(watchers[1:], event, about)
