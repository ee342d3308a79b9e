"""checkpoint: a part of a computation that keeps no intermediate arrays, and is run again for its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np

from minigrad import ops
from minigrad.autocast import same_autocast
from minigrad.autograd import gradients_between, restored
from minigrad.backend import Array, array_module, is_array, on_device_of, to_device
from minigrad.bfloat import takes_bfloat16
from minigrad.dtypes import finfo, is_floating
from minigrad.factories import zeros
from minigrad.grad_mode import GradMode, is_grad_enabled
from minigrad.memory import Memory, next_serial
from minigrad.operation import Node, Operation, op
from minigrad.random import replayed, stream_position
from minigrad.tensor import Tensor
from minigrad.watchers import Watcher, watching

GOLDEN_RATIO = 0.5 * (math.sqrt(5.0) - 1.0)


def checkpoint(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """fn(*args, **kwargs), whose graph is not kept, but made anew when gradients are asked for.

    Memory for time: with n layers in √n checkpoints the arrays of some 2√n layers are alive at once, and every layer
    runs twice (Chen et al. 2016, "Training deep nets with sublinear memory cost"). Gradients flow to all that fn
    reaches: tensors among its arguments, parameters and other tensors that it refers to. Random numbers from the
    thread's stream, such as dropout's, are the same in both runs. An output that is not used counts as used with the
    gradient 0.

    fn returns a Tensor or a tuple of Tensors (a named tuple comes back as a plain one), TypeError otherwise; under
    `no_grad` it is called and no more, and may return anything. It must change nothing, and compute the same again:
    taking gradients raises RuntimeError if a tensor that an operation in it read was written over since, or if it gives
    other values, as a module does that went from training to evaluation in between.

    An array that is itself an argument is copied. One in a list, a dict or a closure is not, nor is a number that
    `item()` or `numpy()` takes out of a tensor: leave them as they are. That they changed is noticed by the values
    alone, where an element of an output of n elements differs by more than about 8 √n units of its dtype's rounding
    (64 at least) of what stands beside it.
    """
    if not is_grad_enabled():
        return fn(*args, **kwargs)
    segment = _Segment(fn, [_kept(x) for x in args], {name: _kept(x) for name, x in kwargs.items()})
    reading = _Reading()
    with watching(reading):
        outputs, several = segment.run()
    live = [place for place, y in enumerate(outputs) if y.requires_grad]
    if live:
        ends = graph_ends([outputs[place] for place in live], lambda node: node.serial < reading.first)
        sources = [restored(end, {}) if type(end) is Node else end for end in ends]
        segment.remember(outputs, live, ends, reading.memories)
        for place, y in zip(live, checkpointed(sources, segment=segment), strict=True):
            outputs[place] = y
    return tuple(outputs) if several else outputs[0]


@takes_bfloat16
@op(linear=True)  # its pullback serves arrays and Tensors as it is
def checkpointed(*inputs: Any, segment: _Segment) -> Any:
    """The values of a segment without its graph; the inputs are what gradients flow to."""
    return segment.values(), segment.pulled_back


class _Segment:
    """A call of fn, and all that it takes to repeat it."""

    live: list[int]  # places of the outputs that carry gradients
    sources: list[Any]  # the nodes and leaves that their gradients flow to
    memories: WeakSet[Memory]  # of all that fn read and that is still there to be written over
    mark: int  # a serial number, taken when the first run had ended: later writes have higher ones
    forms: list[_Form]  # of all outputs
    first_values: tuple[Array, ...] | None  # until they are handed out

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.position, self.autocast = stream_position(), same_autocast()

    def __repr__(self) -> str:
        return f"segment of {getattr(self.fn, '__qualname__', type(self.fn).__name__)}"

    def run(self) -> tuple[list[Tensor], bool]:
        """fn's outputs, and whether it returned a tuple. Each is a value of its own, even if fn returns its input."""
        result = self.fn(*self.args, **self.kwargs)
        outputs = result if isinstance(result, tuple) else (result,)
        for place, y in enumerate(outputs):
            if not isinstance(y, Tensor):
                raise TypeError(
                    f"checkpoint: fn must return a Tensor or a tuple of Tensors; its output {place} is "
                    f"{type(y).__name__}"
                )
        return [ops.alias(y) for y in outputs], isinstance(result, tuple)

    def remember(self, outputs: list[Tensor], live: list[int], sources: list[Any], memories: set[Memory]) -> None:
        """What the first run has shown."""
        self.live = live
        self.sources = sources
        self.memories, self.mark = WeakSet(memories), next_serial()
        self.forms = [_Form(y) for y in outputs]
        self.first_values = tuple(outputs[place].data for place in live)

    def run_again(self, record: bool) -> list[Tensor]:
        """The live outputs of another run with the same random numbers."""
        if any(memory.last_write > self.mark for memory in self.memories):
            raise RuntimeError(
                "checkpoint: a tensor that fn reads was changed in place after the call, so its gradient would be "
                "wrong; change a copy instead, or change it before"
            )
        with GradMode(record), replayed(self.position), self.autocast:
            outputs, _ = self.run()
        forms = [_Form(y) for y in outputs]
        if len(forms) != len(self.forms) or not all(map(_Form.agrees, forms, self.forms)):
            raise RuntimeError(
                "checkpoint: fn, run again for its gradients, gives other values than at first; it must not depend on "
                "what changes in between, such as a module's mode or random numbers that are not the thread's"
            )
        return [outputs[place] for place in self.live]

    def values(self) -> tuple[Array, ...]:
        """The live outputs' arrays: those of the first run, once, as nothing here may keep them; then of another."""
        values, self.first_values = self.first_values, None
        return values or tuple(y.data for y in self.run_again(record=False))

    def pulled_back(self, gradients: Sequence[Any]) -> list[Any]:
        """The gradients of the sources: arrays of arrays; of Tensors Tensors, with a graph."""
        outputs = self.run_again(record=True)
        known = set(self.sources)
        missing = known.difference(graph_ends([y for y in outputs if y.requires_grad], known.__contains__))
        if missing:
            raise RuntimeError(
                f"checkpoint: {len(missing)} of the tensors that gradients flow to take no part when fn is run again; "
                "change neither their requires_grad nor which tensors fn uses before the gradients are taken"
            )
        # An unused output of several comes with zeros. They are not walked back: 0 · ∞ within fn would be NaN.
        used = [place for place, g in enumerate(gradients) if len(gradients) == 1 or not _is_zero(g)]
        create_graph = isinstance(gradients[0], Tensor)
        found = gradients_between(
            [outputs[place] for place in used], [gradients[place] for place in used], self.sources, create_graph
        )
        return [_zeros(x, create_graph) if g is None else g for x, g in zip(self.sources, found, strict=True)]


class _Reading(Watcher):
    """Notes what fn reads, and the serial number of the first node that it makes."""

    def __init__(self) -> None:
        self.memories: set[Memory] = set()
        self.first = math.inf

    def made(self, operation: Operation, inputs: Sequence[Any], options: Any, values: Any, node: Node | None) -> None:
        self.memories.update(x.memory for x in inputs if isinstance(x, Tensor))
        if node is not None:
            self.first = min(self.first, node.serial)


def graph_ends(outputs: list[Tensor], is_outside: Callable[[Node], bool]) -> list[Any]:
    """Where the graph of fn's outputs ends: at leaves, and at nodes that were not made in fn."""
    found: list[Any] = []
    waiting: list[Any] = [y.node for y in outputs]
    seen = set(waiting)
    while waiting:
        for target in waiting.pop().targets:
            if target is not None and target not in seen:
                seen.add(target)
                if type(target) is not Node or is_outside(target):
                    found.append(target)
                else:
                    waiting.append(target)
    return found


def _kept(argument: Any) -> Any:
    return argument.copy() if is_array(argument) else argument


class _Form:
    """What is kept of an output to notice other values: its shape, its dtype, and sums of a few elements each.

    With n elements these are √n / 8 neighbours. Each has a weight of its own, from 1 to 2, so that the same elements in
    another order have another sum. Beside a NaN or an infinity the others of its sum do not count.
    """

    BLOCK = 2**16  # elements that are float64 at a time: the output as a whole may be all that there is room for

    def __init__(self, y: Tensor) -> None:
        self.shape, self.dtype = y.shape, y.dtype
        with on_device_of(y.data):
            self._look(y.data.reshape(-1))

    def _look(self, elements: Array) -> None:
        library, length = array_module(elements), max(1, math.isqrt(elements.size) // 8)
        weights = 1.0 + (library.arange(length) * GOLDEN_RATIO) % 1.0  # no two are close
        step = length * max(1, self.BLOCK // length)
        starts = range(0, max(1, elements.size), step)
        pairs = [_sums(elements[start : start + step], weights) for start in starts]
        self.sums, self.sizes = [np.concatenate(parts) for parts in zip(*pairs, strict=True)]

    def agrees(self, other: _Form) -> bool:
        """Whether they are equal up to rounding, which a pass through another room of attention may change."""
        if (self.shape, self.dtype) != (other.shape, other.dtype):
            return False
        rounding = float(finfo(self.dtype if is_floating(self.dtype) else np.dtype(np.float64)).eps)
        with np.errstate(invalid="ignore"):  # inf - inf
            near = abs(self.sums - other.sums) < 64 * rounding * self.sizes  # never for infinities
        same = (self.sums == other.sums) | (np.isnan(self.sums) & np.isnan(other.sums))
        return bool((near | same).all())


def _sums(elements: Array, weights: Array) -> tuple[Array, Array]:
    """The weighted sums of so many elements each, the last one's filled up with 0; and bounds of their absolute sums.

    A bound is √(L Σ x²) for L elements x, which is Σ |x| at least (Cauchy and Schwarz).
    """
    library, length = array_module(elements), len(weights)
    rows = library.zeros((-(-elements.size // length), length))
    rows.reshape(-1)[: elements.size] = elements
    sizes = library.sqrt(length * library.einsum("pn,pn->p", rows, rows))
    return to_device(rows @ weights, "cpu"), to_device(sizes, "cpu")


def _zeros(source: Any, as_tensor: bool) -> Any:
    tensor = zeros(source.shape, dtype=source.dtype, device=source.device)
    return tensor if as_tensor else tensor.data


def _is_zero(gradient: Any) -> bool:
    """Whether it is zero, and always will be: not a Tensor that is differentiated in turn."""
    if isinstance(gradient, Tensor):
        return not (gradient.requires_grad or gradient.data.any())
    return not gradient.any()
