"""What programs that measure ask of CuPy: events, of the wall clock, and memory pools, which count NumPy's memory."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any


class Event:
    """A point in a stream's work: here the time at which it was recorded."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.seconds: float | None = None

    def record(self, stream: Any = None) -> None:
        self.seconds = time.perf_counter()

    def synchronize(self) -> None:
        pass


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """In milliseconds."""
    assert start_event.seconds is not None and end_event.seconds is not None, "an event was not recorded"
    return (end_event.seconds - start_event.seconds) * 1000


class MemoryPool:
    """Counts what arrays take at most while it is the allocator."""

    def __init__(self) -> None:
        self._peak = 0

    def malloc(self, size: int) -> Any:
        raise NotImplementedError("arrays of the stand-in take NumPy's memory")

    def total_bytes(self) -> int:
        return self._peak

    def free_all_blocks(self, stream: Any = None) -> None:
        pass

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        tracemalloc.start()
        try:
            yield
            self._peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def using_allocator(allocator: Callable[[int], Any]) -> contextlib.AbstractContextManager[None]:
    return allocator.__self__.counting()  # type: ignore[attr-defined]


def add_to(cupy: Any) -> None:
    """These, and what a GPU says of itself."""
    cupy.__version__ = "stand-in"
    cupy.get_default_memory_pool = MemoryPool
    cupy.cuda.runtime.getDeviceProperties = lambda device: {"name": b"the emulator"}
    cupy.cuda.runtime.memGetInfo = lambda: (2**33, 2**33)  # free and in all
    for thing in (Event, get_elapsed_time, MemoryPool, using_allocator):
        setattr(cupy.cuda, thing.__name__, thing)
