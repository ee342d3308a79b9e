"""Watchers: told of what their own thread does, in order, and of nothing once their block is left."""

import threading

import numpy as np
import pytest

import minigrad as mg
from minigrad import ops
from minigrad.watchers import Watcher, is_watched, watching
from tests.support import leaf


class Notes(Watcher):
    """Writes down what it is told."""

    def __init__(self):
        self.events = []

    def calling(self, operation):
        self.events.append(("calling", operation.name))

    def made(self, operation, inputs, options, values, node):
        recorded = None if node is None else node.operation.name
        self.events.append(("made", operation.name, [v.shape for v in values], recorded))

    def walking(self, node):
        self.events.append(("walking", node.operation.name))

    def walked(self, node, gradient, results):
        shapes = None if results is None else [None if r is None else r.shape for r in results]
        self.events.append(("walked", node.operation.name, shapes))


def test_what_a_watcher_is_told():
    x, notes = leaf([1.0, 2.0]), Notes()
    with watching(notes):
        y = (x * mg.Tensor([3.0, 4.0], dtype=np.float64)).sum()
        y.backward()
        ops.max(x.detach(), axis=0)
    assert notes.events == [
        ("calling", "multiply"),
        ("made", "multiply", [(2,)], "multiply"),
        ("calling", "sum"),
        ("made", "sum", [()], "sum"),
        ("walking", "sum"),
        ("walked", "sum", [(2,)]),
        ("walking", "multiply"),
        ("walked", "multiply", [(2,), None]),
        ("calling", "max"),
        ("made", "max", [()], None),
    ]


def test_several_values_are_told_with_the_node_of_all():
    notes = Notes()
    with watching(notes):
        ops.split(leaf([1.0, 2.0, 3.0]), (1,), 0)
    assert notes.events[-1] == ("made", "split", [(1,), (2,)], "split")


def test_what_is_made_for_gradients_of_gradients_is_told_while_its_node_is_walked():
    x, notes = leaf(2.0), Notes()
    y = x * x
    with watching(notes):
        mg.grad(y, x, create_graph=True)
    kinds = [event[0] for event in notes.events]
    assert kinds[0] == "walking" and "made" in kinds[1 : kinds.index("walked")]


def test_a_pullback_that_fails_is_told_as_walked_without_results():
    @mg.op
    def broken(x):
        return x * 1.0, lambda g: 1 / 0

    notes = Notes()
    with watching(notes), pytest.raises(ZeroDivisionError):
        broken(leaf(1.0)).backward()
    assert notes.events[-2:] == [("walking", "broken"), ("walked", "broken", None)]


def test_blocks_may_be_nested_and_end_with_an_exception():
    outer, inner = Notes(), Notes()
    with watching(outer):
        with pytest.raises(KeyError), watching(inner):
            leaf(1.0).exp()
            raise KeyError
        leaf(1.0).sin()
    leaf(1.0).cos()
    assert not is_watched()
    assert [e[1] for e in outer.events] == ["exp", "exp", "sin", "sin"]
    assert [e[1] for e in inner.events] == ["exp", "exp"]


def test_threads_watch_apart():
    notes, watched = Notes(), []

    def other():
        watched.append(is_watched())
        leaf(1.0).exp()
        (leaf(2.0) * leaf(3.0)).backward()

    with watching(notes):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert watched == [False] and notes.events == []


def test_all_watchers_are_told_though_one_raises_an_error():
    class Refusing(Watcher):
        def walked(self, node, gradient, results):
            raise KeyError(node.operation.name)

    before, after = Notes(), Notes()
    with watching(before), watching(Refusing()), watching(Refusing()), watching(after), pytest.raises(KeyError):
        leaf(1.0).exp().backward()
    assert before.events == after.events and before.events[-1] == ("walked", "exp", [()])


def test_blocks_that_end_in_another_order_than_they_began():
    def in_a_block_of_its_own(notes):
        with watching(notes):
            yield

    first, second = Notes(), Notes()
    step = in_a_block_of_its_own(first)
    next(step)
    with watching(second):
        step.close()
        leaf(1.0).exp()
    assert not is_watched()
    assert first.events == [] and [event[1] for event in second.events] == ["exp", "exp"]
