"""graph(): what was recorded as plain data, with names, modules and lines; collapsed to a depth."""

import json
import math

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from minigrad.inspect.graph import Graph
from models import Transformer
from tests.support import leaf


def small_transformer() -> Transformer:
    return Transformer(9, 9, d_model=8, num_heads=2, d_ff=16)


def named(graph: Graph, name: str):
    (node,) = [node for node in graph.nodes if node.name == name]
    return node


def into(graph: Graph, node) -> list:
    """(name of the source, place, part, shape) of each edge into a node."""
    by_id = {n.id: n for n in graph.nodes}
    return [(by_id[e.source].name, e.place, e.part, e.shape) for e in graph.edges if e.target == node.id]


def test_nodes_and_edges():
    x, w, data = leaf([[1.0, 2.0]]), leaf([[1.0], [2.0]], np.float32), mg.Tensor([[3.0, 4.0]])
    y = (x * data) @ w.double() * 0.5
    graph = mg.graph(y.sum(), {"x": x, "w": w, "data": data})
    assert [(n.kind, n.name) for n in graph.nodes[:3]] == [("leaf", "x"), ("constant", "data"), ("leaf", "w")]
    assert [n.name for n in graph.nodes[3:]] == ["multiply", "astype", "matmul", "multiply", "sum"]
    assert {n.kind for n in graph.nodes[3:]} == {"operation"}
    assert into(graph, named(graph, "matmul")) == [("multiply", 0, None, (1, 2)), ("astype", 1, None, (2, 1))]
    halved = [n for n in graph.nodes if n.name == "multiply"][-1]
    assert halved.options == {"y": 0.5}
    assert (halved.shape, halved.dtype) == ((1, 1), "float64")
    assert named(graph, "w").dtype == "float32" and named(graph, "w").shape == (2, 1)
    assert [n.output for n in graph.nodes] == [False] * 7 + [True]
    assert named(graph, "sum").options["axis"] is None
    assert all(n.module is n.call is n.line is None for n in graph.nodes)


def test_ids_are_in_an_order_in_which_values_are_made():
    graph = mg.graph(small_transformer()([[3, 4]], [[1, 5]]))
    assert [node.id for node in graph.nodes] == list(range(len(graph.nodes)))
    assert all(edge.source < edge.target for edge in graph.edges)
    kinds = [node.kind == "operation" for node in graph.nodes]
    assert kinds == sorted(kinds)


def test_one_tensor_used_twice_is_one_node_with_two_edges():
    x = leaf([2.0])
    graph = mg.graph(x * x, {"x": x})
    assert len(graph.nodes) == 2
    assert [(e.source, e.target, e.place) for e in graph.edges] == [(0, 1, 0), (0, 1, 1)]


def test_several_values_are_one_node_and_its_edges_say_which():
    first, second = leaf([[1.0, 2.0, 3.0]]).split([1, 2], dim=1)
    graph = mg.graph((first + second).sum())
    assert into(graph, named(graph, "add")) == [("split", 0, 0, (1, 1)), ("split", 1, 1, (1, 2))]
    graph = mg.graph([first, second])
    assert [(n.name, n.output) for n in graph.nodes] == [("", False), ("split", True)]


def test_several_outputs_and_a_leaf_itself():
    x = leaf([1.0])
    graph = mg.graph([x, x * 2], {"x": x})
    assert [(n.name, n.output) for n in graph.nodes] == [("x", True), ("multiply", True)]


def test_an_operation_of_a_list_and_one_with_arrays_among_its_options():
    x = leaf([1.0, 2.0])
    y = mg.cat([x, x[np.array([0, 1])], x[1:]])
    graph = mg.graph(y)
    assert [place for _, place, _, _ in into(graph, graph.nodes[-1])] == [0, 1, 2]
    keys = [str(n.options["key"]) for n in graph.nodes if n.name == "getitem"]
    assert keys == ["array of shape (2,), int64", "slice(1, None, None)"]


def test_it_is_ready_for_json():
    x = leaf([1.0, math.inf])
    with mg.tracing(values=True):
        y = mg.where(x > 1, -math.inf, x)
    data = mg.graph(y).to_dict()
    read = json.loads(json.dumps(data, allow_nan=False))
    assert read == data
    assert set(data) == {"nodes", "edges", "calls"}
    assert data["nodes"][-1]["options"] == {"x": "-inf"}
    assert data["nodes"][-1]["value_norm"] == "inf"


def test_a_module_names_parameters_and_buffers():
    model = small_transformer()
    graph = mg.graph(model([[3, 4]], [[1, 5]]), model)
    leaves = {n.name for n in graph.nodes if n.kind == "leaf"}
    assert leaves == {name for name, _ in model.named_parameters()}
    with pytest.raises(TypeError, match="graph: names must be a module or a mapping to tensors, not list"):
        mg.graph(leaf([1.0]) * 2, [leaf([1.0])])


def test_modules_lines_and_calls():
    model = small_transformer()
    with mg.tracing():
        loss = model([[3, 4]], [[1, 5]]).sum()
    graph = mg.graph(loss, model)
    weight = named(graph, "encoder.layers.0.linear1.weight")
    assert weight.module == "encoder.layers.0.linear1"
    assert weight.line is None
    total = named(graph, "sum")
    assert total.module is None and total.line.startswith(f"{__file__}:")
    paths = [graph.calls[call].path for call in graph.around(weight.call)]
    assert paths == ["", "encoder", "encoder.layers.0", "encoder.layers.0.linear1"]
    assert graph.calls[0].kind == "Transformer" and graph.calls[0].parent is None


def test_a_tensor_belongs_to_the_innermost_call_that_has_all_its_uses():
    shared = leaf([1.0, 1.0], np.float32)

    class Scale(nn.Module):
        def forward(self, x):
            return x * shared * shared

    with mg.tracing():
        once = Scale()(mg.ones(2))
        twice = nn.Sequential(Scale(), Scale())(mg.ones(2))
        outside = Scale()(mg.ones(2)) + shared
    assert [named(mg.graph(y, {"w": shared}), "w").module for y in (once, twice, outside)] == ["", "", None]
    graph = mg.graph(twice, {"w": shared})
    assert graph.calls[named(graph, "w").call].kind == "Sequential"


def test_norms():
    x = leaf([3.0, 4.0])
    with mg.tracing(values=True):
        y = (x * 2).sum()
        y.backward(retain_graph=True)
    graph = mg.graph(y, {"x": x})
    assert named(graph, "x").value_norm == 5 and named(graph, "x").gradient_norm == pytest.approx(math.sqrt(8))
    assert named(graph, "multiply").value_norm == 10
    assert named(graph, "multiply").gradient_norm == pytest.approx(math.sqrt(2))
    assert [e.gradient_norm for e in graph.edges] == pytest.approx([math.sqrt(8), math.sqrt(2)])
    plain = mg.graph(leaf([3.0, 4.0]) * 2)
    assert (plain.nodes[-1].value_norm, plain.nodes[-1].gradient_norm) == (None, None)


def test_gradients_of_gradients_are_outside_the_boxes_but_know_their_module():
    layer = nn.Linear(2, 1)
    x = leaf([[1.0, 2.0]], np.float32)
    with mg.tracing():
        y = layer(x.exp()).exp()
        (g,) = mg.grad(y, [x], create_graph=True)
    graph = mg.graph(g)
    retraced = [n for n in graph.nodes if n.kind == "operation" and n.module == "" and n.call is None]
    assert retraced
    graph.to_svg()


def test_what_has_no_graph_is_an_error():
    with pytest.raises(RuntimeError, match=r"graph: output 1 of shape \(2,\) does not require grad, so nothing"):
        mg.graph([leaf([1.0]) * 2, mg.ones(2)])
    y = (leaf([1.0]) * 2).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="graph: sum was freed by an earlier backward; take the graph before"):
        mg.graph(y)


@pytest.mark.slow
def test_what_is_no_output_or_no_name_is_an_error():
    x = leaf([1.0])
    for outputs, error, text in (
        ([], ValueError, "graph: takes at least one output, got none"),
        ([x, 3], TypeError, "graph: output 1 must be a Tensor, not int"),
        (3, TypeError, "graph: output 0 must be a Tensor, not int"),
    ):
        with pytest.raises(error, match=text):
            mg.graph(outputs)
    for names, text in (({3: x}, "got 3: Tensor"), ({"x": [x]}, "got 'x': list")):
        with pytest.raises(TypeError, match=f"graph: names must map strings to Tensors, {text}"):
            mg.graph(x * 2, names)


def test_a_long_chain():
    x = leaf([1.0])
    for _ in range(100_000):
        x = x + 1.0
    graph = mg.graph(x)
    assert len(graph.nodes) == 100_001 and len(graph.edges) == 100_000
    assert graph.to_dot().count("->") == 100_000
    assert repr(graph) == "Graph(100001 nodes, 100000 edges, 0 calls of modules)"


# ---- collapsed -------------------------------------------------------------------------------------------------------


def test_collapse_makes_calls_at_a_depth_single_nodes():
    model = small_transformer()
    with mg.tracing():
        loss = model([[3, 4]], [[1, 5]]).sum()
    graph = mg.graph(loss, model)
    whole = graph.collapse(0)
    assert [(n.kind, n.name) for n in whole.nodes] == [("module", "Transformer"), ("operation", "sum")]
    operations = sum(n.kind == "operation" for n in graph.nodes) - 1
    assert whole.nodes[0].options == {"class": "Transformer", "operations": operations}
    assert graph.collapse(2).collapse(0) == whole
    assert whole.nodes[0].shape == (1, 2, 9)
    assert [(e.source, e.target, e.shape) for e in whole.edges] == [(whole.nodes[0].id, whole.nodes[1].id, (1, 2, 9))]
    assert whole.calls == {}

    layers = [n for n in graph.collapse(2).nodes if n.kind == "module"]
    assert [n.name for n in layers] == [f"{stack}.layers.{i}" for stack in ("encoder", "decoder") for i in (0, 1)]
    assert [n.module for n in layers] == ["encoder", "encoder", "decoder", "decoder"]
    assert all(node.call is None or node.call in graph.collapse(2).calls for node in graph.collapse(2).nodes)
    deep = graph.collapse(9)
    assert deep.nodes == graph.nodes and deep.edges == graph.edges and deep.calls == graph.calls
    with pytest.raises(ValueError, match=r"collapse: depth must be 0 \(the outermost module\) or more, got -1"):
        graph.collapse(-1)


def test_collapse_keeps_the_order_and_what_goes_into_each_node():
    model = small_transformer()
    with mg.tracing(), F.attention_room("fused"):  # kernels take masks that were made outside of the model's layers
        graph = mg.graph(model([[3, 4]], [[1, 5]]), model)
    for depth in range(5):
        collapsed = graph.collapse(depth)
        ids = {node.id for node in collapsed.nodes}
        assert all(e.source in ids and e.target in ids and e.source < e.target for e in collapsed.edges)
        assert [n.id for n in collapsed.nodes] == sorted(ids)
        assert sum(n.output for n in collapsed.nodes) == 1
    collapsed = graph.collapse(2)
    (second,) = [n for n in collapsed.nodes if n.name == "decoder.layers.1"]
    assert {name for name, *_ in into(collapsed, second)} == {"decoder.layers.0", "encoder.layers.1"}


def test_a_module_called_twice_is_two_nodes():
    layer = nn.Linear(2, 2)
    with mg.tracing():
        y = nn.Sequential(layer, nn.Linear(2, 2), layer)(leaf([[1.0, 2.0]], np.float32))
    collapsed = mg.graph(y, {"w": layer.weight, "b": layer.bias}).collapse(1)
    assert sum(n.kind == "module" for n in collapsed.nodes) == 3
    assert {"w", "b"} <= {n.name for n in collapsed.nodes}


def test_a_value_that_one_module_takes_at_two_places_goes_into_it_by_one_edge():
    class Twice(nn.Module):
        def forward(self, x):
            return x.exp() * x + x

    with mg.tracing():
        y = Twice()(leaf([1.0, 2.0], np.float32).sin()) * 2
    graph = mg.graph(y)
    assert sum(graph.nodes[edge.source].name == "sin" for edge in graph.edges) == 3
    collapsed = graph.collapse(0)
    assert [node.name for node in collapsed.nodes if node.kind != "leaf"] == ["sin", "Twice", "multiply"]
    (sine,) = [node.id for node in collapsed.nodes if node.name == "sin"]
    assert [edge.place for edge in collapsed.edges if edge.source == sine] == [0]
    x = leaf([1.0])
    assert [edge.place for edge in mg.graph(x * x).collapse(0).edges] == [0, 1]  # into an operation by one each


def test_a_checkpoint_is_named_after_its_function():
    def layer(x):
        return x * 2

    class Doubling:
        __call__ = staticmethod(layer)

    x = leaf([1.0])
    nodes = [mg.graph(mg.checkpoint(fn, x)).to_dict()["nodes"][-1] for fn in (layer, Doubling())]
    assert nodes[0]["options"]["segment"].endswith(".<locals>.layer")
    assert nodes[1]["options"] == {"segment": "segment of Doubling"}
