"""Large work on arrays, divided: an operation does its rows in parts, each in a thread of its own at the same time.

NumPy computes in one thread, but for products, which its BLAS may divide; that waits for work by spinning, which slows
whatever the other threads do. So `minigrad.process` puts BLAS on one thread, and operations divide large products of
matrices, attention, norms, GELU and an optimizer's step themselves, where that is worth a thread's start. Middling
products are left to BLAS's threads if these wait only briefly.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigrad.backend import Array
from minigrad.threads import run_at_once

Work = Callable[[int, int], Any]
"""Does the rows from one number to below another; it only calls NumPy, and writes to arrays that nobody else does."""

MOST_THREADS = 128
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # it may use
LEAST_WORK = 100_000.0  # nanoseconds that a part takes by estimate: with less, the start of a thread is not worth it


def get_num_threads() -> int:
    """Into how many parts, computed at once, operations divide large work on a CPU at most."""
    return _count


def set_num_threads(number: int) -> None:
    """Let operations divide large work on a CPU into so many parts: 1 for none.

    As long as nobody calls it, that is MINIGRAD_NUM_THREADS in the environment, or else OMP_NUM_THREADS, or else how
    many cores the process may use; if the first makes no sense, a warning says so. Results with another number differ
    by rounding; with the same one they are the same bits again, as long as one thread at a time computes (or
    `nn.ParallelLoss` does): how many threads BLAS takes for a product is the whole process's.

    Raises ValueError for anything but an integer from 1 to 128.
    """
    global _count
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST_THREADS:
        raise ValueError(f"set_num_threads: the number must be an integer from 1 to {MOST_THREADS}, got {number!r}")
    _count = number


def _default() -> int:
    given = os.environ.get("MINIGRAD_NUM_THREADS", "")
    if (number := _number(given)) is not None:
        return number
    number = _number(os.environ.get("OMP_NUM_THREADS", "")) or min(CORES, MOST_THREADS)
    if given:
        warnings.warn(
            f"MINIGRAD_NUM_THREADS={given!r} is passed over: it must be an integer from 1 on. Operations divide large "
            f"work into {number}, as if it were not set",
            stacklevel=2,
        )
    return number


def _number(text: str) -> int | None:
    """Of threads, if that is what the text says. OMP_NUM_THREADS may also be a list, such as "4,2"."""
    return min(int(text), MOST_THREADS) if text.isdecimal() and int(text) > 0 else None


_count = _default()


class _Thread(threading.local):
    divides = True


_thread = _Thread()


@contextmanager
def undivided() -> Iterator[None]:
    """A block in which this thread does all of its work alone, as where other threads do as much at the same time."""
    former, _thread.divides = _thread.divides, False
    try:
        yield
    finally:
        _thread.divides = former


def parts_at_most() -> int:
    """Into how many parts this thread may divide its work now."""
    return _count if _thread.divides else 1


def is_worth_dividing(nanoseconds: float) -> bool:
    """Whether `divide` may divide work that takes so long in all; where not, the work itself costs less than a call."""
    return nanoseconds >= 2 * LEAST_WORK


def divide(like: Array, rows: int, nanoseconds: float, work: Work) -> None:
    """work(0, rows), in parts at once if it is large and on a CPU.

    Args:
        like: one of the arrays that it is about.
        rows: how many there are.
        nanoseconds: that each takes in one thread, roughly.
        work: must give the same whichever parts it is called for.
    """
    total = rows * nanoseconds
    if not is_worth_dividing(total) or rows < 2 or _count < 2 or not _thread.divides or type(like) is not np.ndarray:
        work(0, rows)
        return
    parts = min(_count, rows, int(total / LEAST_WORK))
    edges = [rows * part // parts for part in range(parts + 1)]
    run_at_once([functools.partial(work, start, stop) for start, stop in itertools.pairwise(edges)])
