"""Where values are made: within `tracing()` each node keeps the module and the user's line that made it.

Anomaly mode (`minigrad.inspect.anomaly`) and drawings (`minigrad.inspect.graph`) read what is kept here.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.backend import Array, is_array
from minigrad.operation import Node, Operation
from minigrad.tensor import Tensor
from minigrad.watchers import Watcher, watching

# ---- calls of modules ------------------------------------------------------------------------------------------------


class Call:
    """One call of a module; a module that is called twice has two.

    Attributes:
        module: which what was made in the call keeps alive.
        parent: the call within which this one was made.
    """

    __slots__ = ("_path", "module", "parent")

    def __init__(self, module: Any, parent: Call | None) -> None:
        self.module, self.parent = module, parent
        self._path: str | None = None  # sought when it is read: not every watcher asks, and to seek it takes time

    @property
    def path(self) -> str:
        """The module's, such as "encoder.layers.0.self_attn", seen from the outermost module called, ""."""
        if self._path is None:
            self._path = _path(self.module, self.parent)
        return self._path

    @property
    def kind(self) -> str:
        """The name of the module's class."""
        return type(self.module).__name__


class _Calls(threading.local):
    innermost: Call | None = None  # of those that this thread is in


_calls = _Calls()


class inside:
    """A block that is a call of `module`. `nn.Module` runs `forward` in it while somebody watches."""

    __slots__ = ("_call",)

    def __init__(self, module: Any) -> None:
        self._call = Call(module, _calls.innermost)

    def __enter__(self) -> None:
        _calls.innermost = self._call

    def __exit__(self, *exception: object) -> None:
        _calls.innermost = self._call.parent


def _path(module: Any, parent: Call | None) -> str:
    """The module's name within the nearest caller that has it; below the caller's, its class's name if none has."""
    if parent is None:
        return ""
    caller: Call | None = parent
    while caller is not None:
        for name, part in caller.module.named_modules():
            if part is module:
                return _joined(caller.path, name)
        caller = caller.parent
    return _joined(parent.path, type(module).__name__)


def _joined(*names: str) -> str:
    return ".".join(name for name in names if name)


# ---- origins ---------------------------------------------------------------------------------------------------------

_PACKAGES = {"minigrad", "nn"}  # the user's line is the innermost one outside these


@dataclass(slots=True)
class Origin:
    """Where a node was made: `tensor.node.origin`.

    Attributes:
        call: the call of a module that it was made in, or None.
        file, line, function: of the user's code.
        retraced: made by a walk with `create_graph`; the rest is then of the node that was walked.
        values: with `tracing(values=True)`: copies of the operation's values, usually one.
        gradient: likewise of what the last walk brought for the value, or one for each of several values.
        gradients: likewise of what it gave to each input, None for one that needs none.
    """

    call: Call | None
    file: str
    line: int
    function: str
    retraced: bool = False
    values: tuple[Array, ...] = ()
    gradient: Any = None
    gradients: tuple[Array | None, ...] = ()

    @property
    def module(self) -> str | None:
        """The path of the module that made it; "" for the outermost one, None outside modules."""
        return self.call.path if self.call else None

    @property
    def source(self) -> str:
        """The text of the line, or "" where it cannot be read."""
        return linecache.getline(self.file, self.line).strip()


def _origin_here() -> Origin:
    """Of the operation that is running: the innermost frame outside minigrad and nn."""
    frame = sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES:
        frame = frame.f_back
    return Origin(_calls.innermost, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


class Tracer(Watcher):
    """Stamps each node with its origin, and on request keeps copies of values and gradients there.

    Attributes:
        walked_nodes: those whose pullbacks are running: what is made meanwhile inherits the last one's origin.
    """

    def __init__(self, values: bool = False) -> None:
        self._keeps_values = values
        self.walked_nodes: list[Node] = []

    def origin(self) -> Origin | None:
        """Of what is being made; None if it is made by the walk of a node whose origin is not known."""
        if not self.walked_nodes or self.walked_nodes[-1].operation.name == "checkpointed":  # whose function runs again
            return _origin_here()
        known = self.walked_nodes[-1].origin
        return known and Origin(known.call, known.file, known.line, known.function, retraced=True)

    def made(
        self,
        operation: Operation,
        inputs: Sequence[Any],
        options: dict[str, Any],
        values: tuple[Tensor, ...],
        node: Node | None,
    ) -> None:
        if node is None:
            return
        node.origin = node.origin or self.origin()
        for value in values:
            if value.node is not None:  # one value of several has a node of its own
                value.node.origin = node.origin
        if self._keeps_values and node.origin:
            node.origin.values = tuple(_copied(value) for value in values)

    def walking(self, node: Node) -> None:
        self.walked_nodes.append(node)

    def walked(self, node: Node, gradient: Any, results: Sequence[Any] | None) -> None:
        self.walked_nodes.pop()
        if self._keeps_values and node.origin and results is not None:
            node.origin.gradient = _copied(gradient)
            node.origin.gradients = _copied(results)


@contextmanager
def tracing(values: bool = False) -> Iterator[None]:
    """A block, or the run of a decorated function, whose nodes keep where they were made: `tensor.node.origin`.

    It is this thread's. `mg.graph` shows what was kept, and `mg.detect_anomaly` names it. Inside, a sub-layer of
    `models.stack` is not one operation, as it often is outside, but has all of its layers'.

    Args:
        values: also keep copies of each operation's values, and of the gradients along each edge of the graph when it
            is walked inside the block: as much memory again. A later walk writes its own in their place.
    """
    with watching(Tracer(values)):
        yield


def plain(value: Any) -> Array:
    """The array of a Tensor, an array itself, or a number as one."""
    if isinstance(value, Tensor):
        return value.data
    return value if is_array(value) else np.asarray(value)


def _copied(value: Any) -> Any:
    if value is None:
        return None
    return tuple(_copied(part) for part in value) if isinstance(value, (tuple, list)) else plain(value).copy()
