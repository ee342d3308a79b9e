"""profile(): which operations take the time of a block, forward and backward, and the memory that they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter
from typing import Any

from minigrad.backend import Array, array_module, device_of, is_array
from minigrad.operation import Node, Operation
from minigrad.tensor import Tensor
from minigrad.watchers import Watcher, watching

# ---- what it tells ---------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """What a profile tells of the operations of one name.

    Attributes:
        name: the operation's.
        calls: how often its body ran; 0 if only pullbacks of earlier calls were seen.
        forward_ms, backward_ms: in its bodies, and in its pullbacks, without the time of other operations in them.
        value_bytes: memory of all values made. A view of an input, as `reshape` makes most often, takes none.
        gradient_bytes: memory of all gradients that its pullbacks made as arrays. One that is handed on takes none.
            With `create_graph` operations make them, and they count as values.
    """

    name: str
    calls: int = 0
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    value_bytes: int = 0
    gradient_bytes: int = 0

    @property
    def ms(self) -> float:
        """Forward and backward."""
        return self.forward_ms + self.backward_ms


@contextmanager
def profile() -> Iterator[Profile]:
    """A block whose time is told by operation: `with minigrad.profile() as p: ...`, then `print(p)`.

    It is this thread's: what others do meanwhile is not seen. Times are an operation's own: what other operations take
    within it (in a function that `checkpoint` runs again, in a pullback with `create_graph`) is in their lines. So all
    lines add up to the time of the block. The time of an operation that ended in an error is that of what is around it.

    While somebody watches, `models.stack` computes layer after layer instead of a sub-layer at once, so that all are
    seen.

    Forward is an operation's body and its record, backward its pullbacks. Outside operations are Python and data,
    optimizers, hooks, and what a walk does between pullbacks: adding gradients up, copying them to `.grad`. `p.region`
    gives a part of that a line of its own.

    A GPU works on while Python goes ahead. So each operation is waited for, from the first one there on: its line has
    the time that the GPU took for it, and the whole block takes longer than it would otherwise.

    To look costs some 4 µs a call and as much a step back, most of it outside operations: a training step of 4 ms takes
    a fifth longer, one of 70 ms 2 %.
    """
    profiled = Profile()
    with watching(profiled):
        profiled._start()
        try:
            yield profiled
        finally:
            profiled._stop()


# ---- how it comes to know --------------------------------------------------------------------------------------------


class Profile(Watcher):
    """What `profile()` has seen: a table as a string, and plain data. It can be read once the block has ended.

    The clock's time always goes to the innermost of what runs. What has ended in an error stays open, since watchers
    are not told of that; it is closed with what is around it, which gets its time.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._regions: dict[str, float] = {}
        self._open: list[object] = []  # what runs, outermost first, which is the block
        self._seconds: list[float] = []  # for how long each of these has been the innermost
        self._devices: dict[str, Any] = {}  # GPUs that operations ran on
        self._thread = get_ident()

    def _start(self) -> None:
        self._begun = self._since = perf_counter()
        self._open.append(self)
        self._seconds.append(0.0)

    def _stop(self) -> None:
        self._outside = self._ended(self) or 0.0
        self._total = self._since - self._begun

    # ---- reading -----------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> list[Row]:
        """One for the operations of each name; what took longest comes first."""
        self._check_ended()
        return sorted(self._rows.values(), key=lambda row: -row.ms)

    @property
    def regions(self) -> dict[str, float]:
        """The milliseconds in each `region` that are no operation's, nor those of a region within it."""
        self._check_ended()
        return {name: 1000 * seconds for name, seconds in self._regions.items()}

    @property
    def outside_ms(self) -> float:
        """The time that belongs to no operation and no region."""
        self._check_ended()
        return 1000 * self._outside

    @property
    def total_ms(self) -> float:
        """How long the block took, by the clock on the wall."""
        self._check_ended()
        return 1000 * self._total

    def _check_ended(self) -> None:
        if self._open:
            raise RuntimeError("profile: the block still runs; read what it tells after its end")

    def __str__(self) -> str:
        titles = ("operation", "calls", "forward ms", "backward ms", "total ms", "share", "value MiB", "grad MiB")
        lines: list[tuple[str, ...]] = [titles]
        for row in self.rows:
            times = [f"{ms:,.2f}" for ms in (row.forward_ms, row.backward_ms)]
            sizes = [f"{size / 2**20:,.1f}" for size in (row.value_bytes, row.gradient_bytes)]
            lines.append((row.name, f"{row.calls:,}", *times, *self._part(row.ms), *sizes))
        for name, ms in (*self.regions.items(), ("outside operations", self.outside_ms)):
            lines.append((f"({name})", "", "", "", *self._part(ms), "", ""))
        lines.append(("total", "", "", "", *self._part(self.total_ms), "", ""))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join([name.ljust(widths[0]), *map(str.rjust, texts, widths[1:])]).rstrip() for name, *texts in lines
        )

    def _part(self, ms: float) -> tuple[str, str]:
        return f"{ms:,.2f}", f"{ms / self.total_ms:.1%}" if self.total_ms else "-"

    # ---- taking the time ---------------------------------------------------------------------------------------------

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """A part of the block that has a line of its own for its time outside operations: "optimizer", "data".

        RuntimeError outside the block, or in another thread.
        """
        if not self._open or get_ident() != self._thread:
            raise RuntimeError(f"profile: region({name!r}) must lie within the block, in the same thread")
        inside = object()
        self._begin(inside)
        try:
            yield
        finally:
            self._regions[name] = self._regions.get(name, 0.0) + (self._ended(inside) or 0.0)

    def calling(self, operation: Operation) -> None:
        self._begin(operation)

    def made(
        self,
        operation: Operation,
        inputs: Sequence[Any],
        options: dict[str, Any],
        values: tuple[Tensor, ...],
        node: Node | None,
    ) -> None:
        arrays = [value.data for value in values]
        self._notice(arrays)
        seconds = self._ended(operation)
        if seconds is None:
            return
        row = self._row(operation)
        row.calls += 1
        row.forward_ms += 1000 * seconds
        row.value_bytes += _new_bytes(arrays, [x.data for x in inputs if isinstance(x, Tensor)])

    def walking(self, node: Node) -> None:
        self._begin(node)

    def walked(self, node: Node, gradient: Any, results: Sequence[Any] | None) -> None:
        gradients = gradient if isinstance(gradient, tuple) else (gradient,)
        arrays = [g.data if isinstance(g, Tensor) else g for g in gradients]
        self._notice(arrays)
        seconds = self._ended(node)
        if seconds is None:
            return
        row = self._row(node.operation)
        row.backward_ms += 1000 * seconds
        row.gradient_bytes += _new_bytes(results or (), arrays)

    def _row(self, operation: Operation) -> Row:
        name = operation.name
        return self._rows.get(name) or self._rows.setdefault(name, Row(name))

    def _begin(self, what: object) -> None:
        self._tick()
        self._open.append(what)
        self._seconds.append(0.0)

    def _ended(self, what: object) -> float | None:
        """Closes the innermost `what` and all that was left open within it, and returns their seconds.

        None if it is not open: it began before the block.
        """
        place = len(self._open) - 1
        while place >= 0 and self._open[place] is not what:
            place -= 1
        if place < 0:
            return None
        self._tick()
        seconds = 0.0
        while len(self._open) > place:
            self._open.pop()
            seconds += self._seconds.pop()
        return seconds

    def _tick(self) -> None:
        """Gives the time since the last tick to what has been the innermost."""
        for device in self._devices.values():
            device.synchronize()
        now = perf_counter()
        self._seconds[-1] += now - self._since
        self._since = now

    def _notice(self, arrays: Sequence[Any]) -> None:
        """Keeps in mind the GPUs that arrays are on: the next tick waits for them."""
        for array in arrays:
            device = device_of(array)
            if device != "cpu":
                self._devices[device] = array.device


def _new_bytes(made: Sequence[Any], given: Sequence[Any]) -> int:
    """The bytes of arrays that share no memory with what was given, nor with one another; all else is passed over."""
    known = [array for array in given if is_array(array)]
    size = 0
    for array in made:
        if is_array(array) and not any([_shares_memory(array, other) for other in known]):
            size += array.nbytes
            known.append(array)
    return size


def _shares_memory(array: Array, older: Array) -> bool:
    if array.base is None:  # no view of another
        return array is older
    return type(array) is type(older) and array_module(array).may_share_memory(array, older)
