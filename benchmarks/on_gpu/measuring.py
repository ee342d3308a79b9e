"""What work on a GPU takes, by the GPU's own clock and CuPy's pool of memory, and the time a program has left."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType

Work = Callable[[], object]


class Gpu:
    """The current GPU of `cupy`. What is timed must run on the default stream, as CuPy's and PyTorch's work does."""

    def __init__(self, cupy: ModuleType, repeat_for: float) -> None:
        """`repeat_for`: for how many seconds at most a measurement repeats its work."""
        self.cupy, self._repeat_for = cupy, repeat_for

    @property
    def name(self) -> str:
        return self.cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()

    def seconds(self, work: Work) -> float:
        """The median of as many runs as there is time for, 30 at most, after one to warm up."""
        work()
        (first,) = self._times(work, 1)
        return statistics.median([first, *self._times(work, min(29, int(self._repeat_for / max(first, 1e-6))))])

    def _times(self, work: Work, runs: int) -> list[float]:
        # Python hands out the runs without waiting for them, so that its own work hides behind the GPU's.
        events = [self.cupy.cuda.Event() for _ in range(runs + 1)]
        events[0].record()
        for event in events[1:]:
            work()
            event.record()
        events[-1].synchronize()
        return [self.cupy.cuda.get_elapsed_time(a, b) / 1000 for a, b in pairwise(events)]

    def rate(self, work: Work, seconds: float) -> float:
        """Runs per second, by the wall clock: for work that Python itself has a share in."""
        for _ in range(3):
            work()
        self.wait()
        runs, start = 0, time.perf_counter()
        while runs < 3 or time.perf_counter() - start < seconds:
            work()
            runs += 1
        self.wait()
        return runs / (time.perf_counter() - start)

    def peak_bytes(self, work: Work) -> int:
        """How much memory CuPy takes from the GPU while `work` runs, if nothing that it freed before is used again."""
        pool = self.cupy.cuda.MemoryPool()
        with self.cupy.cuda.using_allocator(pool.malloc):
            work()
        self.wait()
        return pool.total_bytes()

    def wait(self) -> None:
        """Until all work is done."""
        self.cupy.cuda.runtime.deviceSynchronize()

    def free(self) -> None:
        """Gives unused memory back, for others on the same GPU."""
        self.cupy.get_default_memory_pool().free_all_blocks()

    def free_bytes(self) -> int:
        """How much memory of the GPU nobody holds now."""
        self.free()
        return self.cupy.cuda.runtime.memGetInfo()[0]


class Deadline:
    """So many seconds after it was made; None: never."""

    def __init__(self, seconds: float | None) -> None:
        self._start, self._seconds = time.monotonic(), seconds

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def passed(self) -> bool:
        return self._seconds is not None and self.elapsed > self._seconds
