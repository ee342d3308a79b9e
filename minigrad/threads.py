"""Threads that work beside the caller's, and what is a thread's own and can be taken along to them.

Random streams cannot: who draws in several threads gives each its own.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
Block = Callable[[], AbstractContextManager[Any]]

# ---- what is taken along ---------------------------------------------------------------------------------------------

_inherited: list[Block] = []


def inherited(block: Block) -> Block:
    """Decorates a function that makes a block in which another thread has what the calling one has now."""
    _inherited.append(block)
    return block


def as_in_this_thread(call: Callable[[], Result]) -> Callable[[], Result]:
    """The call with what this thread has now: grad mode, autocast, the pinned room of attention."""
    blocks = [block() for block in _inherited]

    def called() -> Result:
        with ExitStack() as stack:
            for block in blocks:
                stack.enter_context(block)
            return call()

    return called


# ---- threads ---------------------------------------------------------------------------------------------------------


def run_at_once(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """What the calls return. The first runs in this thread, each other one in a thread of its own, at the same time.

    They have this thread's context (`contextvars`: np.errstate is in it), and only what `as_in_this_thread` gives them
    beside it. All have ended when this does. The first error, in the order of the calls, is then raised. After Ctrl-C
    too the others are waited for, but not after a second one. Threads are kept for the next calls.
    """
    jobs: list[_Job] = []
    try:
        for call in calls[1:]:
            jobs.append(_started(call))
        first = calls[0]()
    finally:
        _wait_for(jobs)
        errors = [job.error for job in jobs if job.error is not None]
        for job in jobs:
            job.error = None  # whose traceback refers to the job
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()  # which the traceback of the one that is raised refers to
    return [first, *[job.result for job in jobs]]


class _Job:
    """A call, the context that it runs in, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._context = contextvars.copy_context()
        self.result: Any = None
        self.error: BaseException | None = None
        self.running = threading.Lock()  # held until it has ended
        self.running.acquire()

    def run(self) -> None:
        try:
            self.result = self._context.run(self._call)
        except BaseException as error:  # which is the caller's, whatever it is
            self.error = error


_idle: list[SimpleQueue[_Job]] = []  # of threads that wait for a job
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_idle.clear)  # a child has none of its parent's threads


def _started(call: Callable[[], Any]) -> _Job:
    job = _Job(call)
    try:
        jobs = _idle.pop()
    except IndexError:
        jobs = SimpleQueue()
        threading.Thread(target=_work, args=(jobs,), name="minigrad", daemon=True).start()
    jobs.put(job)
    return job


def _work(jobs: SimpleQueue[_Job]) -> None:
    """The life of a thread. It ends with the process."""
    while True:
        job = jobs.get()
        running = job.running
        job.run()
        del job  # first, so that whoever waits for it finds nothing of it kept alive, and this thread free again
        _idle.append(jobs)
        running.release()


def _wait_for(jobs: Sequence[_Job]) -> None:
    try:
        for job in jobs:
            with job.running:
                pass
    except KeyboardInterrupt:
        for job in jobs:
            with job.running:
                pass
        raise
