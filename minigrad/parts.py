"""A sum of values that are computed in parts, at once: each in a thread of its own, in which its graph stays.

In the caller's graph the sum is one operation. Its pullback has each thread walk its own part's graph, so `backward()`,
`grad()`, hooks of leaves and all else that looks at the caller's graph do as they do without parts.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from minigrad import ops
from minigrad.autograd import gradients_between, restored
from minigrad.bfloat import takes_bfloat16
from minigrad.checkpoint import graph_ends
from minigrad.dividing import undivided
from minigrad.memory import next_serial
from minigrad.operation import Node, op
from minigrad.random import next_key, replayed
from minigrad.tensor import Tensor
from minigrad.threads import as_in_this_thread, run_at_once
from minigrad.watchers import is_watched

Result = TypeVar("Result")


class Part:
    """A value that a function made in a thread, and where the graph of that ends, which is the part's own.

    Attributes:
        value: a Tensor; None once its graph was walked.
        ends: the leaves and the nodes made elsewhere that the value's gradient flows to.
    """

    value: Tensor | None
    ends: list[Any]

    def __init__(self, place: int, count: int) -> None:
        self._place, self._count = place, count

    def __repr__(self) -> str:
        return f"part {self._place + 1} of {self._count}"

    def compute(self, function: Callable[[], Tensor], key: tuple[int, int, int], mark: int) -> None:
        """Call the function. Its random numbers are named by the part and `key`; nodes below `mark` are not its own."""
        seed, step, call = key
        # A stream's calls count from 1. No thread draws 2**24 times in a part; without parts none comes to 2**56.
        with replayed((seed, step, (self._place + 1 << 56) + (call << 24))):
            self.value = ops.alias(function())  # a value of this part, even if that was made elsewhere
        live = [self.value] if self.value.requires_grad else []
        self.ends = graph_ends(live, lambda node: node.serial < mark)

    def pulled_back(self, gradient: Any) -> list[Any]:
        """The gradients of the ends, given that of the value. The part's graph is freed."""
        value, self.value = self.kept(), None
        return gradients_between([value], [gradient], self.ends, create_graph=False, keep=False)

    def kept(self) -> Tensor:
        """The value. Raises RuntimeError if its graph was walked."""
        if self.value is None:
            raise RuntimeError(
                "a sum of parts can be differentiated once, with retain_graph=True too, since the parts' graphs are "
                "freed: compute it again"
            )
        return self.value


def computed_parts(functions: Sequence[Callable[[], Tensor]]) -> list[Part]:
    """The parts that the functions, at least one, compute: the first in this thread, each other in one of its own.

    Each draws random numbers from a stream of its own, named by where this thread's stream stands, which moves on by
    one call. While somebody watches this thread (`tracing`, `detect_anomaly`, `profile`) it does all the work itself,
    one part after the other, so that it is seen. The numbers are the same.

    Raises RuntimeError within a part of another such call; what a function raises, when all have ended.
    """
    parts = [Part(place, len(functions)) for place in range(len(functions))]
    key, mark = next_key(), next_serial()
    calls = [functools.partial(part.compute, f, key, mark) for part, f in zip(parts, functions, strict=True)]
    _run(parts, calls)
    return parts


def weighted_sum(parts: Sequence[Part], weights: Sequence[float]) -> Tensor:
    """The sum of the parts' values, floats of one shape and dtype, each times its weight.

    It is differentiated once: its gradient frees the parts' graphs, also with retain_graph=True, and has no graph:
    RuntimeError for create_graph=True. Within a function of a part there are gradients of gradients as everywhere.
    """
    inputs = [restored(end, {}) if type(end) is Node else end for part in parts for end in part.ends]
    return summed(inputs, parts=parts, weights=weights) if inputs else Tensor._of(_sum(parts, weights))


@takes_bfloat16
@op(linear=True)  # its body cannot run on Tensors
def summed(*inputs: Any, parts: Sequence[Part], weights: Sequence[float]) -> Any:
    """The weighted sum of the parts; the inputs are the ends of the parts, one after the other."""

    def pullback(g: Any) -> list[Any]:
        if isinstance(g, Tensor):
            raise RuntimeError(
                "a sum of parts has no gradients of gradients (create_graph=True): compute it on one thread, or take "
                "gradients within a part's function"
            )
        live = [(part, np.asarray(g * weight)) for part, weight in zip(parts, weights, strict=True) if part.ends]
        calls = [functools.partial(part.pulled_back, gradient) for part, gradient in live]
        found = _run([part for part, _ in live], calls)
        return [gradient for gradients in found for gradient in gradients]

    return _sum(parts, weights), pullback


def _sum(parts: Sequence[Part], weights: Sequence[float]) -> Any:
    arrays = [part.kept()._data for part in parts]
    total = sum(array.astype(np.float64) * weight for array, weight in zip(arrays, weights, strict=True))
    return np.asarray(total).astype(arrays[0].dtype)


class _Thread(threading.local):
    inside = False  # of a part


_thread = _Thread()


def _run(parts: Sequence[Part], calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """What the calls return, one of each part: at once, or in turn if somebody watches."""
    if _thread.inside:
        raise RuntimeError("a part cannot be computed in parts again: call ParallelLoss outside of its own function")
    tasks = [functools.partial(_within, part, call) for part, call in zip(parts, calls, strict=True)]
    if is_watched():
        return [task() for task in tasks]
    return run_at_once([as_in_this_thread(task) for task in tasks])


def _within(part: Part, call: Callable[[], Result]) -> Result:
    """call(), within which neither batches nor operations are divided, and whose error says in which part it came."""
    _thread.inside = True
    try:
        with undivided():
            return call()
    except Exception as error:
        error.add_note(f"in {part}")
        raise
    finally:
        _thread.inside = False
