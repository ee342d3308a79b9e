"""tracing(): each node keeps the module and the user's line that made it, and on request values and gradients."""

import threading
from pathlib import Path

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from models import Transformer
from tests.support import leaf


def line_of(mark: str) -> int:
    """The number of the line in this file that ends with the comment `# mark`."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return number


def doubled(function):
    def decorated(x):
        return function(x) * 2  # decorator

    return decorated


@doubled
def squared(x):
    return x * x  # decorated


class Net(nn.Module):
    """Calls a part, a part of a part directly, a module that it does not hold, and an operation of its own."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)])

    def forward(self, x):
        x = self.blocks[0](x)
        self.seen = [x, self.blocks[0][0](x), stranger(x)]
        return x.exp()  # in a module


stranger = nn.Linear(2, 2)


def test_off_nothing_is_kept_and_modules_are_not_entered(monkeypatch):
    monkeypatch.setattr(nn.module, "inside", None)
    y = Net()(leaf([1.0, 2.0], np.float32))
    assert y.node.origin is None


def test_the_line_is_the_users():
    x = leaf([1.0, 2.0])
    with mg.tracing():
        y = x.softmax(dim=0)  # method
        z = F.mse_loss(y, y * 2)  # function of nn
        squares = [v * v for v in (x, y)]  # comprehension
        w = (lambda v: v.exp())(x)  # lambda
        s = squared(x)  # not this line
    found = [t.node.origin for t in (y, z, *squares, w, s)]
    marks = ["method", "function of nn", "comprehension", "comprehension", "lambda", "decorator"]
    assert [origin.line for origin in found] == [line_of(mark) for mark in marks]
    assert {origin.file for origin in found} == {__file__}
    assert found[0].function == "test_the_line_is_the_users"
    assert found[0].source == "y = x.softmax(dim=0)  # method"
    assert s.node.inputs[0].origin.line == line_of("decorated")
    assert all(origin.module is None for origin in found)


@pytest.mark.parametrize("names", [{}, {"__name__": "__main__"}])
def test_a_line_of_code_that_is_in_no_file(names):
    names |= {"x": leaf([1.0]), "mg": mg}
    exec(compile("with mg.tracing():\n    y = x * 2\n", "<stdin>", "exec"), names)
    origin = names["y"].node.origin
    assert (origin.file, origin.line, origin.function, origin.source) == ("<stdin>", 2, "<module>", "")


def test_the_path_of_a_module_is_seen_from_the_outermost_one():
    net = Net()
    with mg.tracing():
        y = net(leaf([1.0, 2.0], np.float32))
        alone = net.blocks[1](y)
    assert (y.node.origin.module, y.node.origin.call.kind) == ("", "Net")
    assert y.node.origin.line == line_of("in a module")
    assert [t.node.origin.module for t in net.seen] == ["blocks.0.0", "blocks.0.0", "Linear"]
    parents = [t.node.origin.call.parent for t in net.seen]
    assert [call.path for call in parents] == ["blocks.0", "", ""]
    assert alone.node.origin.module == ""


def test_a_module_called_twice_has_two_calls():
    layer = nn.Linear(2, 2)
    twice = nn.Sequential(layer, layer)
    with mg.tracing():
        y = twice(leaf([1.0, 2.0], np.float32))
    first, second = y.node.inputs[0].origin.call, y.node.origin.call
    assert first.path == second.path == "0"
    assert first is not second and first.parent is second.parent


def test_a_module_that_its_caller_was_given_has_the_path_by_which_an_outer_one_holds_it():
    class Calling(nn.Module):
        def forward(self, x, module):
            return module(x)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.calling, self.part = Calling(), nn.Linear(2, 2)

        def forward(self, x):
            return self.calling(x, self.part)

    with mg.tracing():
        call = Outer()(leaf([1.0, 2.0], np.float32)).node.origin.call
    assert (call.path, call.parent.path, call.parent.parent.path) == ("part", "calling", "")


def test_paths_in_a_transformer():
    model = Transformer(9, 9, d_model=8, num_heads=2, d_ff=16, num_encoder_layers=1, num_decoder_layers=1)
    with mg.tracing():
        graph = mg.graph(model([[3, 4]], [[1, 5]]))
    modules = {node.module for node in graph.nodes}
    assert {"", "encoder.layers.0.self_attn", "decoder.layers.0.multihead_attn.out_proj", "generator"} <= modules
    assert modules <= {name for name, _ in model.named_modules()}


def test_paths_are_sought_only_when_they_are_read(monkeypatch):
    """Within checkpoint modules are watched too, but nobody asks where a value was made."""
    twice, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), leaf([1.0, 2.0], np.float32)
    sought, named_modules = [], nn.Module.named_modules
    monkeypatch.setattr(nn.Module, "named_modules", lambda self: sought.append(self) or named_modules(self))
    mg.checkpoint(twice, x).sum().backward()
    with mg.tracing():
        y = twice(x)
    assert sought == []
    assert [y.node.origin.module for _ in range(2)] == ["1", "1"]
    assert len(sought) == 1


def test_an_error_in_a_module_leaves_the_path_as_it_was():
    with mg.tracing():
        with pytest.raises(ValueError):
            Net()(leaf([1.0, 2.0, 3.0], np.float32))
        y = stranger(leaf([1.0, 2.0], np.float32))
    assert y.node.origin.module == ""


def test_several_values_have_one_origin():
    with mg.tracing():
        first, second = leaf([[1.0, 2.0]]).split(1, dim=1)  # split
    assert first.node.origin is second.node.origin is first.node.inputs[0].origin
    assert first.node.origin.line == line_of("split")


def test_what_a_walk_records_inherits_the_origin():
    x = leaf([1.0, 2.0])
    with mg.tracing():
        y = F.softmax(x.exp(), dim=0)  # forward
        (g,) = mg.grad(y[0], [x], create_graph=True)  # backward
        z = g * 2  # after
    inherited = {node.line for node in mg.graph(g).nodes if node.line}
    assert f"{__file__}:{line_of('forward')}" in inherited
    made_inside = [n for n in behind(g.node) if n.origin.retraced]
    assert made_inside and {n.origin.line for n in made_inside} <= {line_of("forward"), line_of("backward")}
    assert z.node.origin.line == line_of("after") and not z.node.origin.retraced


def behind(node):
    found, waiting = {node}, [node]
    while waiting:
        new = {x for x in waiting.pop().inputs if type(x) is type(node)} - found
        found |= new
        waiting += new
    return found


def test_a_walk_of_what_was_made_outside_leaves_no_wrong_line():
    x = leaf([1.0, 2.0])
    y = x.exp()
    with mg.tracing():
        (g,) = mg.grad(y, [x], mg.Tensor([1.0, 1.0], dtype=np.float64), create_graph=True)
    assert {n.origin and n.origin.retraced for n in behind(g.node)} <= {None, False}


def test_a_pullback_that_raises_leaves_later_lines_right():
    @mg.op
    def broken(x):
        def pullback(g):
            raise ZeroDivisionError("broken")

        return x * 1, pullback

    x = leaf([1.0])
    with mg.tracing():
        with pytest.raises(ZeroDivisionError, match="broken"):
            broken(x).sum().backward()
        y = x * 2  # after the error
    assert y.node.origin.line == line_of("after the error") and not y.node.origin.retraced


def test_values_and_gradients_are_kept_as_copies():
    x, y = leaf([[1.0, 2.0]]), leaf([[3.0], [4.0]])
    with mg.tracing(values=True):
        z = x * y
        loss = (z * z).sum()
        loss.backward()
    origin = z.node.origin
    expected = x.numpy() * y.numpy()
    np.testing.assert_array_equal(mg.Tensor(origin.values[0]).numpy(), expected)
    assert not np.shares_memory(origin.values[0], z.data)
    np.testing.assert_array_equal(mg.Tensor(origin.gradient).numpy(), 2 * expected)
    np.testing.assert_array_equal(
        mg.Tensor(origin.gradients[0]).numpy(), 2 * expected * y.numpy()
    )  # not summed over what was broadcast
    np.testing.assert_array_equal(mg.Tensor(origin.gradients[1]).numpy(), 2 * expected * x.numpy())


def test_values_and_gradients_of_a_tuple_and_of_an_input_without_gradient():
    x = leaf([[3.0, 1.0, 2.0]])
    with mg.tracing(values=True):
        values, _ = x.max(dim=1)
        _, second = (x * 2).split([1, 2], dim=1)
        scaled = second * mg.Tensor(2.0, dtype=np.float64)
        (values.sum() + scaled.sum()).backward()
    split = second.node.inputs[0].origin
    assert [part.shape for part in split.values] == [(1, 1), (1, 2)]
    assert split.gradient[0].tolist() == [[0.0]]  # the first part is not used
    assert split.gradient[1].tolist() == [[2.0, 2.0]]
    assert scaled.node.origin.gradients[1] is None


def test_without_values_none_are_kept():
    x = leaf([1.0])
    with mg.tracing():
        y = x * 2
        y.sum().backward()
    assert y.node.origin.values == () and y.node.origin.gradient is None and y.node.origin.gradients == ()


def test_no_grad_leaves_no_origin_and_no_error():
    with mg.tracing(values=True), mg.no_grad():
        assert (leaf([1.0]) * 2).node is None


def test_blocks_may_be_nested_and_functions_decorated():
    @mg.tracing(values=True)
    def doubled_twice(x):
        with mg.tracing():
            return x * 2

    y = doubled_twice(leaf([1.0]))
    assert y.node.origin.values[0].tolist() == [2.0]


def test_threads_do_not_see_one_another():
    found = {}
    ready, done = threading.Event(), threading.Event()

    def elsewhere():
        ready.wait(10)
        found["elsewhere"] = nn.Linear(2, 2)(leaf([1.0, 2.0], np.float32)).node.origin
        with mg.tracing():
            found["own"] = nn.Linear(2, 2)(leaf([1.0, 2.0], np.float32)).node.origin.module
        done.set()

    class Waiting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            ready.set()
            assert done.wait(10)
            return self.inner(x)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    with mg.tracing():
        y = Waiting()(leaf([1.0, 2.0], np.float32))
    thread.join(10)
    assert found == {"elsewhere": None, "own": ""}
    assert y.node.origin.module == "inner"
