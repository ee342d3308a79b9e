"""Graphs as pictures: in Graphviz's language, and as SVG that needs nothing installed."""

from __future__ import annotations

import itertools
import re
from html import escape
from typing import TYPE_CHECKING

from minigrad.inspect.layout import Piece, Rectangle, layout

if TYPE_CHECKING:
    from minigrad.inspect.graph import Graph, GraphCall, GraphEdge, GraphNode

MOST_NODES = 2000  # of an SVG: nobody reads a larger one
CHARACTER, LINE = 6.7, 15.0  # pixels of a letter, and from line to line
BOX_STYLE = 'fill="#5577aa" fill-opacity="0.07" stroke="#5577aa"'
FILLS = {"operation": "#ffffff", "leaf": "#cfe8ff", "constant": "#eeeeee", "module": "#fff0d0"}


# ---- words -----------------------------------------------------------------------------------------------------------

# All but the characters of XML (W3C 2008, "Extensible Markup Language 1.0", production 2); half a surrogate pair has no
# form in UTF-8 either.
_NO_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _readable(text: str) -> str:
    """The text with what no drawing can hold as an escape sequence, such as \\x00."""
    return _NO_CHARACTER.sub(lambda found: ascii(found[0])[1:-1], text)


def _node_lines(graph: Graph, node: GraphNode) -> list[str]:
    """What is written in a node: its name, as seen from the box that it is in, and its shape."""
    name = node.name or node.kind
    box = graph.calls[node.call].path if node.call is not None else ""
    if box and node.kind != "operation":
        name = name.removeprefix(f"{box}.")
    if node.kind == "module" and node.options["class"] != name:
        name = f"{name}: {node.options['class']}"
    return [_readable(name), _shape(node.shape)]


def _call_title(graph: Graph, call: GraphCall) -> str:
    above = graph.calls[call.parent].path if call.parent is not None else ""
    path = call.path.removeprefix(f"{above}.") if above else call.path
    return _readable(f"{path}: {call.kind}" if path else call.kind)


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "number"


def _node_notes(node: GraphNode) -> str:
    """All else that is known of a node."""
    lines = [f"{node.name or node.kind}: {node.shape} {node.dtype}"]
    lines += [f"{name} = {value}" for name, value in node.options.items()]
    lines += [f"made at {node.line}"] if node.line else []
    lines += [f"in {node.module}"] if node.module else []
    lines += [f"norm of the value {node.value_norm:.4g}"] if node.value_norm is not None else []
    lines += [f"norm of the gradient {node.gradient_norm:.4g}"] if node.gradient_norm is not None else []
    return _readable("\n".join(lines))


def _edge_notes(edge: GraphEdge) -> str:
    norm = "" if edge.gradient_norm is None else f"\nnorm of the gradient {edge.gradient_norm:.4g}"
    return f"{edge.shape}{norm}"


# ---- Graphviz --------------------------------------------------------------------------------------------------------

DOT_SHAPES = {"operation": "box", "leaf": "ellipse", "constant": "ellipse", "module": "box3d"}


def dot(graph: Graph) -> str:
    """The graph in Graphviz's language."""
    inside: dict[int | None, list[str]] = {None: []}
    inside |= {id: [] for id in graph.calls}
    for node in graph.nodes:
        attributes = {
            "label": "\n".join(_node_lines(graph, node)),
            "tooltip": _node_notes(node),
            "shape": DOT_SHAPES[node.kind],
            "fillcolor": FILLS[node.kind],
            "style": "filled,dashed" if node.kind == "constant" else "filled",
            "penwidth": "2" if node.output else "1",
        }
        inside[node.call].append(f"n{node.id} {_attributes(attributes)};")
    for id, call in reversed(graph.calls.items()):  # what is called before its caller
        lines = [f"label={_quoted(_call_title(graph, call))};", *inside[id]]
        inside[call.parent] += [f"subgraph cluster_{id} {{", *[f"  {line}" for line in lines], "}"]
    arrows = [
        f"n{e.source} -> n{e.target} {_attributes({'label': _shape(e.shape), 'tooltip': _edge_notes(e)})};"
        for e in graph.edges
    ]
    defaults = ["node [fontname=monospace, fontsize=11];", "edge [fontname=monospace, fontsize=9];"]
    body = [*defaults, 'graph [fontname=monospace, fontsize=11, color="#888888"];', *inside[None], *arrows]
    return "\n".join(["digraph minigrad {", *[f"  {line}" for line in body], "}\n"])


def _attributes(values: dict[str, str]) -> str:
    return "[" + ", ".join(f"{name}={_quoted(value)}" for name, value in values.items()) + "]"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# ---- SVG -------------------------------------------------------------------------------------------------------------


def svg(graph: Graph) -> str:
    """The graph as SVG: data flows downwards; what is known of each thing is shown where the pointer rests on it."""
    if len(graph.nodes) > MOST_NODES:
        raise ValueError(
            f"to_svg: a drawing of {len(graph.nodes)} nodes could not be read (at most {MOST_NODES}); "
            "draw .collapse(depth) of the graph, or give to_dot() to Graphviz"
        )
    words = {node.id: _node_lines(graph, node) for node in graph.nodes}
    titles = {id: _call_title(graph, call) for id, call in graph.calls.items()}
    sizes = {id: (CHARACTER * max(map(len, lines)) + 14, LINE * len(lines) + 6) for id, lines in words.items()}
    found = layout(graph, sizes, {id: CHARACTER * len(title) + 16 for id, title in titles.items()})
    size = f'width="{found.size[0]:.0f}" height="{found.size[1]:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="11">',
            '<defs><marker id="arrow" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" '
            'orient="90"><path d="M0,0 L6,3 L0,6 z" fill="#555555"/></marker></defs>',
            f'<rect {size} fill="#ffffff"/>',
            *[f'<rect class="call" {_at(box)} rx="4" {BOX_STYLE}/>' for box in found.calls.values()],
            *[_arrow(edge, route) for edge, route in zip(graph.edges, found.routes, strict=True)],
            *[_title(title, found.calls[id]) for id, title in titles.items()],
            *[_node(node, words[node.id], found.nodes[node.id]) for node in graph.nodes],
            "</svg>\n",
        ]
    )


def _title(title: str, place: Rectangle) -> str:
    """A box's, with a rim that keeps arrows away from the letters."""
    return (
        f'<text x="{place.x + 8:.1f}" y="{place.y + LINE:.1f}" fill="#335588" stroke="#ffffff" stroke-width="3" '
        f'paint-order="stroke">{escape(title)}</text>'
    )


def _node(node: GraphNode, lines: list[str], place: Rectangle) -> str:
    rounded = place.height / 2 if node.kind in ("leaf", "constant") else 2
    dashed = ' stroke-dasharray="3 2"' if node.kind == "constant" else ""
    texts = [
        f'<text x="{place.x + place.width / 2:.1f}" y="{place.y + LINE * (i + 1):.1f}" text-anchor="middle">'
        f"{escape(line)}</text>"
        for i, line in enumerate(lines)
    ]
    return (
        f'<g class="{node.kind}"><title>{escape(_node_notes(node))}</title><rect {_at(place)} rx="{rounded:g}" '
        f'fill="{FILLS[node.kind]}" stroke="#333333" stroke-width="{2 if node.output else 1}"{dashed}/>'
        f"{''.join(texts)}</g>"
    )


def _arrow(edge: GraphEdge, route: list[Piece]) -> str:
    """Straight down each piece, and in a curve from one to the next."""
    path = f"M{route[0].x:.1f},{route[0].top:.1f} V{route[0].bottom:.1f}"
    for a, b in itertools.pairwise(route):
        middle = (a.bottom + b.top) / 2
        path += f" C{a.x:.1f},{middle:.1f} {b.x:.1f},{middle:.1f} {b.x:.1f},{b.top:.1f} V{b.bottom:.1f}"
    return (
        f'<path class="edge" d="{path}" fill="none" stroke="#555555" marker-end="url(#arrow)">'
        f"<title>{escape(_edge_notes(edge))}</title></path>"
    )


def _at(place: Rectangle) -> str:
    return f'x="{place.x:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" height="{place.height:.1f}"'
