"""Where a drawing puts things: nodes in rows, each below what goes into it, and each call of a module in its own box.

A box is laid out as the whole drawing is: what is directly in it, nodes and smaller boxes, is put into rows by the
longest way from above, and each row ordered by the mean place of its neighbours (Sugiyama et al. 1981, "Methods for
visual understanding of hierarchical system structures"). An edge keeps a lane free in every row that it passes: it
bends between rows only, and crosses neither nodes nor boxes in which it has no end.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minigrad.inspect.graph import Graph, GraphEdge

GAP, ROW_GAP, LANE, PADDING, HEADER = 14.0, 30.0, 6.0, 12.0, 22.0  # pixels
SWEEPS = 12

Size = tuple[float, float]  # width, height


@dataclass(frozen=True, slots=True)
class Item:
    """What takes a place in a row of a box: a "node" or a "call" by its id, or a numbered "lane"."""

    kind: str
    number: int


@dataclass(frozen=True, slots=True)
class Link:
    """The part of an edge that is in one box; edges with the same source and ends share it.

    Attributes:
        source: the id of the node that the edge comes from.
        upper, lower: the ends; None where it comes in, or goes out, through the box's border.
    """

    source: int
    upper: Item | None
    lower: Item | None


@dataclass(slots=True)
class Piece:
    """An upright piece of an edge, in pixels."""

    x: float
    top: float
    bottom: float


Neighbours = dict[Item, list[tuple[Item, float]]]  # with the place of the link's end, from the other's middle
Way = list[tuple["int | None", Link]]  # the boxes that an edge passes, one after another, each with its part there


@dataclass(frozen=True)
class Rectangle:
    """Pixels from the left and from the top."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """Rectangles of nodes and calls by their ids, and for each edge the upright pieces that are to be connected."""

    size: Size
    nodes: dict[int, Rectangle]
    calls: dict[int, Rectangle]
    routes: list[list[Piece]]


class _Box:
    """The inside of a call, or the whole drawing: filled, then arranged in its own coordinates, then moved into place.

    Attributes:
        order, sizes: of what `add` put in: an item's number is above those of what goes into it. `arrange` adds the
            sizes of lanes.
        ports: where each link ends, from the middle of its lower end. All are there before `arrange`.
        lanes: those that each link passes. This and all that follows is made by `arrange`.
        rows, row_of: the items of each row from the left, and the row of each item.
        tops, heights: of the rows.
        center: of each item, from the left.
        size: of the box; before `arrange` the least width alone.
    """

    def __init__(self, least_width: float = 0.0) -> None:
        self.order: dict[Item, int] = {}
        self.sizes: dict[Item, Size] = {}
        self.ports: dict[Link, float] = {}
        self.lanes: dict[Link, list[Item]] = {}
        self.rows: list[list[Item]] = []
        self.row_of: dict[Item, int] = {}
        self.tops: list[float] = []
        self.heights: list[float] = []
        self.center: dict[Item, float] = {}
        self.size: Size = (least_width, 0.0)

    def add(self, item: Item, number: int, size: Size) -> None:
        self.order[item], self.sizes[item] = number, size

    def arrange(self, header: float, tensors: set[Item]) -> None:
        """Rows, lanes, then places."""
        self._fill_rows(tensors)
        neighbours = self._keep_lanes()
        self._order_rows(neighbours)
        top = header
        for row in self.rows:
            self.heights.append(max(self.sizes[item][1] for item in row))
            self.tops.append(top)
            top += self.heights[-1] + ROW_GAP
        left = min(self.center[item] - self.sizes[item][0] / 2 for item in self.center)
        right = max(self.center[item] + self.sizes[item][0] / 2 for item in self.center)
        width = max(right - left + 2 * PADDING, self.size[0])
        shift = (width - (right - left)) / 2 - left
        self.center = {item: x + shift for item, x in self.center.items()}
        self.size = (width, top - ROW_GAP + PADDING)

    def _fill_rows(self, tensors: set[Item]) -> None:
        before: dict[Item, list[Item]] = {}
        after: dict[Item, list[Item]] = {}
        for link in self.ports:
            a, b = link.upper, link.lower
            if a and b and self.order[a] < self.order[b]:
                before.setdefault(b, []).append(a)
                after.setdefault(a, []).append(b)
        for item in sorted(self.order, key=self.order.__getitem__):
            self.row_of[item] = max((self.row_of[a] + 1 for a in before.get(item, ())), default=0)
        for item in tensors & after.keys():  # close to where they are used
            self.row_of[item] = min(self.row_of[b] for b in after[item]) - 1
        self.rows = [[] for _ in range(1 + max(self.row_of.values()))]
        for item, row in self.row_of.items():
            self.rows[row].append(item)

    def _keep_lanes(self) -> Neighbours:
        """A lane in each row that a link passes; returns what is connected in adjacent rows."""
        neighbours: Neighbours = {}
        for link, port in self.ports.items():
            a, b = link.upper, link.lower
            start, end = self.row_of[a] if a else -1, self.row_of[b] if b else len(self.rows)
            lanes = [Item("lane", len(self.sizes) + row - start) for row in range(start + 1, end)]
            for row, lane in enumerate(lanes, start + 1):
                self.rows[row].append(lane)
                self.sizes[lane], self.row_of[lane] = (LANE, 0.0), row
            self.lanes[link] = lanes
            stops = [item for item in (a, *lanes, b) if item]
            for upper, lower in itertools.pairwise(stops):
                neighbours.setdefault(upper, []).append((lower, port if lower == b else 0.0))
                neighbours.setdefault(lower, []).append((upper, 0.0))
        return neighbours

    def _order_rows(self, neighbours: Neighbours) -> None:
        """Down and up again: each row is ordered by the mean place of its neighbours above, or below, and put there."""
        for row in self.rows:
            self._put(row, dict.fromkeys(row, 0.0))
        for sweep in range(SWEEPS):
            step = -1 if sweep % 2 == 0 else 1
            for row in self.rows[::-step]:
                wished = {}
                for item in row:
                    beside = self.row_of[item] + step
                    places = [
                        self.center[other] + port
                        for other, port in neighbours.get(item, ())
                        if self.row_of[other] == beside
                    ]
                    wished[item] = sum(places) / len(places) if places else self.center[item]
                row.sort(key=wished.__getitem__)
                self._put(row, wished)

    def _put(self, row: Sequence[Item], wished: Mapping[Item, float]) -> None:
        """Give a row's items, in their order, places without overlap, in the mean where they are wished."""
        edge = -float("inf")
        for item in row:
            half = self.sizes[item][0] / 2
            self.center[item] = max(wished[item], edge + half)
            edge = self.center[item] + half + GAP
        shift = sum(wished[item] - self.center[item] for item in row) / len(row)
        for item in row:
            self.center[item] += shift

    def move(self, x: float, y: float) -> None:
        """Put the box's corner there."""
        self.center = {item: place + x for item, place in self.center.items()}
        self.tops = [top + y for top in self.tops]

    def rectangle(self, item: Item) -> Rectangle:
        """An item's place, in the middle of its row's height."""
        width, height = self.sizes[item]
        row = self.row_of[item]
        return Rectangle(
            self.center[item] - width / 2, self.tops[row] + (self.heights[row] - height) / 2, width, height
        )

    def span(self, item: Item) -> tuple[float, float]:
        """Top and bottom of its row."""
        row = self.row_of[item]
        return self.tops[row], self.tops[row] + self.heights[row]


def layout(graph: Graph, node_sizes: Mapping[int, Size], header_widths: Mapping[int, float]) -> Layout:
    """Places for nodes of these sizes, and for calls with headers of these widths."""
    boxes: dict[int | None, _Box] = {None: _Box()}
    boxes |= {id: _Box(header_widths[id]) for id in graph.calls}  # callers before what they call
    tensors: set[Item] = set()
    first: dict[int, int] = {}  # operation of each call, by its id
    home = {node.id: node.call for node in graph.nodes}
    for node in graph.nodes:
        boxes[node.call].add(Item("node", node.id), node.id, node_sizes[node.id])
        if node.kind in ("leaf", "constant"):
            tensors.add(Item("node", node.id))
        else:
            for around in graph.around(node.call):
                first.setdefault(around, node.id)
    ways = [_way(graph, edge, home) for edge in graph.edges]
    ports = _ports(graph, node_sizes)
    for edge, way, port in zip(graph.edges, ways, ports, strict=True):
        for box, link in way:
            boxes[box].ports[link] = port if link.lower == Item("node", edge.target) else 0.0
    for id, call in reversed(graph.calls.items()):
        boxes[id].arrange(HEADER, tensors)
        boxes[call.parent].add(Item("call", id), first[id], boxes[id].size)
    boxes[None].arrange(PADDING, tensors)

    nodes: dict[int, Rectangle] = {}
    calls: dict[int, Rectangle] = {}
    for where, inside in boxes.items():
        if where is not None:
            inside.move(calls[where].x, calls[where].y)
        for item in inside.order:
            (nodes if item.kind == "node" else calls)[item.number] = inside.rectangle(item)
    routes = [_route(edge, way, boxes, nodes, port) for edge, way, port in zip(graph.edges, ways, ports, strict=True)]
    return Layout(boxes[None].size, nodes, calls, routes)


def _way(graph: Graph, edge: GraphEdge, home: Mapping[int, int | None]) -> Way:
    """From the inner boxes around the source of an edge, to the one around both its ends, to the inner ones again."""
    out, into = graph.around(home[edge.source]), graph.around(home[edge.target])
    shared = sum(a == b for a, b in zip(out, into, strict=False))
    a_items = [*(Item("call", call) for call in out[shared:]), Item("node", edge.source)]
    b_items = [*(Item("call", call) for call in into[shared:]), Item("node", edge.target)]
    leaving: Way = [(call, Link(edge.source, a, None)) for call, a in zip(out[shared:], a_items[1:], strict=True)]
    entering: Way = [(call, Link(edge.source, None, b)) for call, b in zip(into[shared:], b_items[1:], strict=True)]
    both = Link(edge.source, a_items[0], b_items[0])
    return [*reversed(leaving), (out[shared - 1] if shared else None, both), *entering]


def _ports(graph: Graph, node_sizes: Mapping[int, Size]) -> list[float]:
    """For each edge where it meets its target, from that one's middle: the inputs side by side."""
    count: dict[int, int] = {}
    number = []
    for edge in graph.edges:
        count[edge.target] = count.get(edge.target, 0) + 1
        number.append(count[edge.target])
    return [
        node_sizes[edge.target][0] * (n / (count[edge.target] + 1) - 0.5)
        for edge, n in zip(graph.edges, number, strict=True)
    ]


def _route(
    edge: GraphEdge,
    way: Way,
    boxes: Mapping[int | None, _Box],
    nodes: Mapping[int, Rectangle],
    port: float,
) -> list[Piece]:
    source, target = nodes[edge.source], nodes[edge.target]
    bottom = source.y + source.height
    pieces = [Piece(source.x + source.width / 2, bottom, bottom)]
    top: float | None = None  # where the next piece begins, if it leads down into a box
    for call, link in way:
        box = boxes[call]
        if link.upper:
            pieces[-1].bottom = box.span(link.upper)[1]
        for lane in box.lanes[link]:
            upper, lower = box.span(lane)
            pieces.append(Piece(box.center[lane], upper if top is None else top, lower))
            top = None
        if link.lower and top is None:
            top = box.span(link.lower)[0]
    pieces.append(Piece(target.x + target.width / 2 + port, target.y if top is None else top, target.y))
    return pieces
