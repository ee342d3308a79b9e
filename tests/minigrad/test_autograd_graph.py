"""The life of a graph: long chains, many paths, freeing, memory, and what an error leaves behind."""

import contextlib
import gc
import tracemalloc
import weakref

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor
from tests.support import leaf


@pytest.fixture
def no_collector():
    """Whatever dies within the test does so because nothing refers to it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# ---- size ------------------------------------------------------------------------------------------------------------


def chain(x, length):
    y = x
    for _ in range(length):
        y = y + 0.0
    return y


def test_a_chain_of_100000_operations_is_walked_and_freed_without_recursion():
    x = leaf(1.0)
    y = chain(x, 100_000)
    y.backward()
    assert x.grad.item() == 1


@pytest.mark.usefixtures("no_collector")
def test_a_chain_of_100000_operations_is_dropped_unwalked_without_recursion():
    y = chain(leaf(1.0), 100_000)
    node = weakref.ref(y.node)
    del y
    assert node() is None


def test_a_long_chain_has_gradients_of_gradients_though_its_values_are_gone():
    """Released values are computed again, without recursion."""
    x = leaf(1.0)
    y = x
    for _ in range(5_000):
        y = y * 1.0
    (slope,) = mg.grad(y * y, x, create_graph=True)
    (curvature,) = mg.grad(slope, x)
    assert (slope.item(), curvature.item()) == (2, 2)


def counted():
    """An operation that doubles, and the list of its pullback's calls."""
    calls = []

    @mg.op
    def double(x):
        return x + x, (lambda g: calls.append(1) or g + g)

    @mg.op
    def add(x, y):
        return x + y, lambda g: calls.append(1) or (g, g)

    return double, add, calls


def test_each_of_forty_doublings_is_walked_once():
    """x = x + x forty times has 2⁴⁰ paths; each operation's pullback is called once."""
    _, add, calls = counted()
    x = leaf(1.0)
    y = x
    for _ in range(40):
        y = add(y, y)
    y.backward()
    assert x.grad.item() == 2.0**40
    assert len(calls) == 40


def test_each_of_twenty_doublings_is_walked_once_for_gradients_of_gradients():
    x = leaf(1.5)
    y = x
    for _ in range(20):
        y = y + y
    z = y * y
    (slope,) = mg.grad(z, x, create_graph=True)
    (curvature,) = mg.grad(slope, x)
    assert curvature.item() == 2 * 2.0**40


# ---- freeing ---------------------------------------------------------------------------------------------------------


def test_a_second_backward_is_an_error_unless_the_graph_is_kept():
    x = leaf(2.0)
    y = x * x
    y.backward()
    with pytest.raises(
        RuntimeError,
        match="multiply: this part of the graph was freed by an earlier backward; give that one retain_graph=True",
    ):
        y.backward()
    assert x.grad.item() == 4


def test_a_part_that_two_graphs_share_is_freed_with_the_first():
    x = leaf(2.0)
    shared = x.exp()
    first, second = shared * 2, shared * 3
    first.backward()
    with pytest.raises(RuntimeError, match="exp: this part of the graph was freed"):
        second.backward()
    with pytest.raises(RuntimeError, match="exp: this part of the graph was freed"):
        mg.grad(shared * 1.0, x)


def test_nothing_is_accumulated_when_a_freed_part_is_met():
    """Noticed before the walk begins, so nothing is called, whether made before the freed part or after it."""
    x, w = leaf(2.0), leaf(3.0)
    calls = []

    @mg.op
    def noted(x):
        return x * 1.0, lambda g: calls.append(1) or g

    before = noted(w)
    shared = x * x
    shared.backward()
    x.grad = None
    with pytest.raises(RuntimeError, match="multiply: this part of the graph was freed"):
        (before + noted(w) * shared).backward()
    assert x.grad is None
    assert w.grad is None
    assert not calls


def test_nothing_is_accumulated_when_a_pullback_fails():
    @mg.op
    def failing(x):
        def pullback(g):
            raise ZeroDivisionError("within the pullback")

        return x * 1.0, pullback

    x, w = leaf(2.0), leaf(3.0)
    with pytest.raises(ZeroDivisionError):
        (failing(x) + w * 2.0).backward()
    assert x.grad is None
    assert w.grad is None
    assert mg.is_grad_enabled()


def test_what_is_not_walked_is_not_freed():
    x, w = leaf(2.0), leaf(3.0)
    h = x * x
    y, z = h * w, w * 5.0
    assert mg.grad(y, h)[0].item() == 3
    h.backward()  # x * x was not walked for y's gradient by h
    z.backward()
    assert (x.grad.item(), w.grad.item()) == (4, 5)


# ---- memory ----------------------------------------------------------------------------------------------------------


def alive(tensors):
    return [weakref.ref(tensor.node) for tensor in tensors]


def losses():
    """A small network's intermediate values and its loss: plain, fused and multi-valued operations."""
    x, w = leaf(np.ones((3, 2))), leaf(np.ones((2, 2)))
    h = (x @ w).tanh()
    first, second = h.split(1, dim=1)
    attention = (first * second).softmax(dim=0)
    loss = (attention * h[:, [0, 0]].exp()).sum()
    return (x, w), [h, first, attention, loss]


@pytest.mark.usefixtures("no_collector")
def test_a_graph_is_gone_when_its_loss_is():
    leaves, values = losses()
    nodes = alive(values)
    assert all(node() is not None for node in nodes)
    del values
    assert all(node() is None for node in nodes)
    assert leaves[0].grad is None


@pytest.mark.usefixtures("no_collector")
def test_a_graph_is_gone_after_backward_and_with_its_loss():
    leaves, values = losses()
    nodes, arrays = alive(values), [weakref.ref(value.data) for value in values]
    values[-1].backward()
    del values
    assert all(node() is None for node in nodes)
    assert all(array() is None for array in arrays)
    assert leaves[0].grad is not None


@pytest.mark.usefixtures("no_collector")
def test_a_graph_and_the_graph_of_its_gradient_are_gone_with_them():
    leaves, values = losses()
    slopes = mg.grad(values[-1], leaves, create_graph=True)
    penalty = (slopes[0] ** 2).sum()
    nodes = alive([*values, *slopes, penalty])
    penalty.backward()
    del values, slopes, penalty
    assert all(node() is None for node in nodes)


@pytest.mark.usefixtures("no_collector")
def test_a_graph_is_gone_after_an_error():
    x = leaf(2.0)
    y = x * x
    node = weakref.ref(y.node)
    y.backward()
    with contextlib.suppress(RuntimeError):
        y.backward()
    del y
    assert node() is None


@pytest.mark.usefixtures("no_collector")
def test_memory_is_steady_over_iterations():
    x = leaf(np.ones((50, 50)))
    sizes = []
    tracemalloc.start()
    try:
        for _ in range(30):
            x.grad = None
            ((x @ x).tanh().softmax(dim=1) * x).sum().backward()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(sizes[10:]) - min(sizes[10:]) < x.data.nbytes


@pytest.mark.usefixtures("no_collector")
def test_intermediate_values_live_only_as_long_as_a_pullback_needs_them():
    x = leaf(np.ones(1000))
    a = x + 1.0  # its value is needed by no pullback
    b = a * 2.0  # neither is this one
    c = b.exp()  # this one is
    arrays = [weakref.ref(value.data) for value in (a, b, c)]
    y = c.sum()
    del a, b, c
    assert [array() is None for array in arrays] == [True, True, False]
    y.backward()
    assert arrays[2]() is None


@pytest.mark.usefixtures("no_collector")
def test_pullbacks_of_constants_are_dropped_with_what_they_hold():
    x, big = leaf(np.ones(10)), Tensor(np.ones(10))
    scaled = x * 2.0  # x * big keeps big for x's gradient, but not x's value for big's
    array = weakref.ref(scaled.data)
    y = scaled * big
    del scaled
    assert array() is None
    y.sum().backward()
    assert x.grad.tolist() == [2] * 10


@pytest.mark.usefixtures("no_collector")
def test_nothing_is_kept_for_results_that_require_no_gradient():
    x = Tensor(np.ones(10))
    y = x * 2.0
    array = weakref.ref(y.data)
    z = (y * y).sum()
    del y
    assert array() is None
    assert z.node is None
