"""Places in a drawing: nothing overlaps, boxes hold what is theirs, edges meet their nodes and cross no others."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigrad as mg
import nn
import nn.functional as F
from minigrad.inspect.graph import Graph
from minigrad.inspect.layout import ROW_GAP, Layout, Rectangle, layout
from minigrad.inspect.trace import inside
from models import Transformer
from models.stack import EncoderLayer
from nn.rooms import attention_room
from tests.support import leaf

ROUNDING = 1e-6  # pixels


def places_of(graph: Graph) -> Layout:
    sizes = {node.id: (20.0 + 7 * (node.id % 9), 30.0) for node in graph.nodes}
    return layout(graph, sizes, {id: 10.0 * (id % 20) for id in graph.calls})


def overlap(a: Rectangle, b: Rectangle) -> bool:
    return (
        a.x < b.x + b.width - ROUNDING
        and b.x < a.x + a.width - ROUNDING
        and a.y < b.y + b.height - ROUNDING
        and b.y < a.y + a.height - ROUNDING
    )


def holds(outer: Rectangle, inner: Rectangle) -> bool:
    return (
        outer.x <= inner.x
        and outer.y <= inner.y
        and inner.x + inner.width <= outer.x + outer.width + ROUNDING
        and inner.y + inner.height <= outer.y + outer.height + ROUNDING
    )


def check(graph: Graph) -> None:
    found = places_of(graph)
    whole = Rectangle(0, 0, *found.size)
    around = {node.id: graph.around(node.call) for node in graph.nodes}
    for a, b in itertools.combinations(found.nodes.values(), 2):
        assert not overlap(a, b)
    for a, b in itertools.combinations(found.calls, 2):
        nested = a in graph.around(b)
        assert holds(found.calls[a], found.calls[b]) if nested else not overlap(found.calls[a], found.calls[b])
    for id, place in found.nodes.items():
        assert holds(whole, place)
        for call, box in found.calls.items():
            assert holds(box, place) if call in around[id] else not overlap(box, place)
    for edge, route in zip(graph.edges, found.routes, strict=True):
        check_route(graph, found, edge, route, {*around[edge.source], *around[edge.target]})


def check_route(graph, found, edge, route, boxes) -> None:
    source, target = found.nodes[edge.source], found.nodes[edge.target]
    first, last = route[0], route[-1]
    assert (first.x, first.top) == pytest.approx((source.x + source.width / 2, source.y + source.height))
    assert last.bottom == pytest.approx(target.y)
    assert target.x < last.x < target.x + target.width
    heights = [y for piece in route for y in (piece.top, piece.bottom)]
    assert heights == sorted(heights)  # downwards only
    pieces = [Rectangle(piece.x, piece.top, 0.0, piece.bottom - piece.top) for piece in route]
    bends = [Rectangle(min(a.x, b.x), a.bottom, abs(a.x - b.x), b.top - a.bottom) for a, b in itertools.pairwise(route)]
    assert [bend.height for bend in bends] == pytest.approx([ROW_GAP] * len(bends))  # between two rows
    for part in (*pieces, *bends):
        part = Rectangle(part.x - 3 * ROUNDING, part.y, part.width + 6 * ROUNDING, part.height)
        assert not any(overlap(part, place) for place in found.nodes.values())
        assert not any(overlap(part, box) for call, box in found.calls.items() if call not in boxes)


def test_a_perceptron():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with mg.tracing():
        loss = F.cross_entropy(model(mg.ones(5, 3)), [0, 1, 0, 1, 0])
    check(mg.graph(loss, model))


def test_an_attention_head():
    q, k, v = [leaf(np.ones((2, 3, 4))) for _ in range(3)]
    with attention_room("plain"):
        check(mg.graph(F.scaled_dot_product_attention(q, k, v, is_causal=True), {"q": q, "k": k, "v": v}))


def test_an_encoder_layer():
    layer = EncoderLayer(8, 2, 16)
    with mg.tracing():
        check(mg.graph(layer(mg.ones(2, 5, 8)), layer))


@pytest.mark.parametrize("depth", range(5))
def test_a_transformer(depth):
    model = Transformer(9, 9, d_model=8, num_heads=2, d_ff=16)
    with mg.tracing():
        check(mg.graph(model([[3, 4]], [[1, 5]]), model).collapse(depth))


def test_inputs_meet_their_operation_side_by_side_in_their_order():
    x, y = leaf([1.0]), leaf([2.0])
    graph = mg.graph(x - y)
    first, second = places_of(graph).routes
    assert first[-1].x < second[-1].x
    assert first[0].x < second[0].x  # and so do not cross


def test_a_tensor_is_close_above_its_use():
    x, w = leaf([1.0]), leaf([2.0])
    places = places_of(mg.graph(x.exp().exp() * w, {"x": x, "w": w})).nodes
    x, w, first, second, product = [places[id] for id in range(5)]
    assert x.y < first.y < second.y == w.y < product.y


class Named:
    """Stands for a module in `inside`."""

    def named_modules(self):
        return iter([("", self)])


@st.composite
def graphs(draw):
    """Additions of random earlier values, in random nested calls."""
    values = [leaf([1.0]) for _ in range(draw(st.integers(1, 3)))]

    def fill(depth: int) -> None:
        for _ in range(draw(st.integers(1, 4))):
            if depth < 3 and draw(st.booleans()):
                with inside(Named()):
                    fill(depth + 1)
            else:
                a, b = [values[draw(st.integers(0, len(values) - 1))] for _ in range(2)]
                values.append(a + b)

    with mg.tracing():
        fill(0)
    return mg.graph(values)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_any_graph(graph):
    check(graph)
    check(graph.collapse(1))
