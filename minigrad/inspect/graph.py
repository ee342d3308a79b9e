"""Graph: what was recorded as plain data, to read, to save as JSON, to collapse, to draw. `recorded.graph` makes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.backend import is_array
from minigrad.inspect import draw
from minigrad.tensor import Tensor


@dataclass(frozen=True)
class GraphCall:
    """A call of a module, which is drawn as a box.

    Attributes:
        id: callers have smaller ones than what they call.
        path, kind: the module's path ("" for the outermost) and the name of its class.
        parent: the id of the call that it was made in, or None.
    """

    id: int
    path: str
    kind: str
    parent: int | None


@dataclass(frozen=True)
class GraphNode:
    """An operation, or a tensor that went in.

    Attributes:
        id: tensors have the smallest ones, and operations larger ones than what went into them.
        kind: "operation"; "leaf", which gradients are asked for; "constant", which they are not; or "module", a call
            that `collapse` made one node of.
        name: the operation's; the tensor's, as `graph` was told it, or ""; the module's path.
        shape, dtype: of the value, the last one if there are several.
        options: the operation's, and those of its inputs that are numbers.
        call: the id of the call that it belongs to; None outside modules, or without `tracing`.
        module: that call's path; for what a walk made (`create_graph`), which belongs to no call, that of the operation
            walked.
        line: "file:line" of the user's code that made it; None without `tracing`.
        output: whether `graph` was asked for it.
        value_norm, gradient_norm: Euclidean norms: of a tensor and its `.grad`; of an operation's values and the
            gradient that came to them, if `tracing(values=True)` kept these.
    """

    id: int
    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    options: dict[str, Any]
    call: int | None
    module: str | None
    line: str | None
    output: bool
    value_norm: float | None
    gradient_norm: float | None


@dataclass(frozen=True)
class GraphEdge:
    """A value on its way into an operation.

    Attributes:
        source, target: ids of the nodes.
        place: which input of the target it is.
        part: which of the source's values, if it has several, else None.
        shape: the value's.
        gradient_norm: of what the target's pullback gave back for it, if `tracing(values=True)` kept that.
    """

    source: int
    target: int
    place: int
    part: int | None
    shape: tuple[int, ...]
    gradient_norm: float | None


@dataclass(frozen=True, repr=False)
class Graph:
    """A graph as plain data: nodes in the order of their ids, edges in that of their targets, calls by their ids."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    calls: dict[int, GraphCall]

    def __repr__(self) -> str:
        return f"Graph({len(self.nodes)} nodes, {len(self.edges)} edges, {len(self.calls)} calls of modules)"

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """{"nodes": [...], "edges": [...], "calls": [...]} of dicts, lists, strings, numbers and None, for JSON."""
        parts: dict[str, Iterable[Any]] = {"nodes": self.nodes, "edges": self.edges, "calls": self.calls.values()}
        return {name: [plain_data(asdict(thing)) for thing in things] for name, things in parts.items()}

    def around(self, call: int | None) -> list[int]:
        """The ids of this call and of those that it was made in, outermost first."""
        calls: list[int] = []
        while call is not None:
            calls.append(call)
            call = self.calls[call].parent
        return calls[::-1]

    def collapse(self, depth: int) -> Graph:
        """The graph in which each call of a module is one node if it was made `depth` calls below the outermost one.

        With 0 the outermost call is one node itself. ValueError if `depth` is negative.
        """
        if depth < 0:
            raise ValueError(f"collapse: depth must be 0 (the outermost module) or more, got {depth}")
        nodes: list[GraphNode] = []
        folded: dict[int, list[GraphNode]] = {}  # by the call that becomes one node
        for node in self.nodes:
            around = self.around(node.call)
            if len(around) > depth:
                folded.setdefault(around[depth], []).append(node)
            else:
                nodes.append(node)
        nodes += [self._as_one(self.calls[call], members) for call, members in folded.items()]
        new_id = {member.id: members[-1].id for members in folded.values() for member in members}
        edges: dict[Any, GraphEdge] = {}
        for edge in self.edges:
            source, target = new_id.get(edge.source, edge.source), new_id.get(edge.target, edge.target)
            if source != target:
                key = (edge.source, edge.part, target, None if edge.target in new_id else edge.place)
                edges.setdefault(key, replace(edge, source=source, target=target))
        calls = {id: call for id, call in self.calls.items() if len(self.around(id)) <= depth}
        return Graph(sorted(nodes, key=lambda node: node.id), list(edges.values()), calls)

    def _as_one(self, call: GraphCall, members: list[GraphNode]) -> GraphNode:
        operations = 0
        for node in members:
            operations += node.options["operations"] if node.kind == "module" else node.kind == "operation"
        return replace(
            members[-1],
            kind="module",
            name=call.path or call.kind,
            options={"class": call.kind, "operations": operations},
            call=call.parent,
            module=None if call.parent is None else self.calls[call.parent].path,
            output=any(node.output for node in members),
        )

    # ---- drawings ----------------------------------------------------------------------------------------------------

    def to_dot(self) -> str:
        """The graph in Graphviz's language, with modules as nested boxes."""
        return draw.dot(self)

    def to_svg(self) -> str:
        """A drawing that any browser shows. ValueError for more than 2,000 nodes."""
        return draw.svg(self)

    def _repr_svg_(self) -> str | None:
        return self.to_svg() if len(self.nodes) <= draw.MOST_NODES else None

    def save(self, path: str | Path) -> None:
        """Write the drawing into a file: .svg, or .dot for Graphviz. ValueError for another ending."""
        path = Path(path)
        drawings = {".svg": self.to_svg, ".dot": self.to_dot}
        if path.suffix not in drawings:
            raise ValueError(f"save: the name must end in .svg or .dot, got {path.name!r}")
        path.write_text(drawings[path.suffix](), encoding="utf-8")


def plain_data(value: Any) -> Any:
    """What JSON has a form for; else a description."""
    if isinstance(value, Mapping):
        return {str(key): plain_data(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain_data(part) for part in value]
    if isinstance(value, (Tensor, np.ndarray)) or is_array(value):
        return f"array of shape {tuple(value.shape)}, {value.dtype}"
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)
