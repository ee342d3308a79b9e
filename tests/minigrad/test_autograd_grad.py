"""grad(): gradients by asking, without touching any `.grad`."""

import threading

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor
from tests.support import assert_close, leaf


def test_gradients_come_in_the_order_of_the_inputs_and_no_grad_is_touched():
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    x.grad = Tensor([9.0, 9.0], dtype=np.float64)
    z = (x * y).sum()
    by_y, by_x = mg.grad(z, [y, x])
    assert (by_x.tolist(), by_y.tolist()) == ([3, 4], [1, 2])
    assert x.grad.tolist() == [9, 9]
    assert y.grad is None
    assert not by_x.requires_grad


def test_one_input_may_stand_alone_or_twice_and_the_results_share_no_memory():
    x = leaf([1.0, 2.0])
    (alone,) = mg.grad((x * x).sum(), x)
    twice = mg.grad((x * x).sum(), [x, x])
    assert alone.tolist() == twice[0].tolist() == twice[1].tolist() == [2, 4]
    assert not np.may_share_memory(twice[0].data, twice[1].data)
    twice[0].data[...] = 0.0


def test_intermediate_values_are_inputs_too():
    x = leaf([1.0, 2.0])
    h = x * 3.0
    y = (h * h).sum()
    by_h, by_x = mg.grad(y, [h, x])
    assert by_h.tolist() == [6, 12]
    assert by_x.tolist() == [18, 36]


def test_an_intermediate_input_does_not_stop_the_way_through_it():
    x = leaf(2.0)
    h = x * 3.0
    k = h * h
    by_k, by_h, by_x = mg.grad(k * h, [k, h, x])
    assert (by_k.item(), by_h.item(), by_x.item()) == (6, 108, 324)


def test_parts_of_a_multi_valued_operation_are_inputs_too():
    x = leaf([1.0, 2.0, 3.0, 4.0])
    a, b = x.split(2)
    by_a, by_x = mg.grad((a * a * b).sum(), [a, x])
    assert by_a.tolist() == [2 * 1 * 3, 2 * 2 * 4]
    assert by_x.tolist() == [6, 16, 1, 4]


def test_an_output_is_an_input_of_itself():
    x = leaf(2.0)
    y = x * x
    assert mg.grad(y, y)[0].item() == 1
    assert mg.grad(x, x)[0].item() == 1
    assert [g.item() for g in mg.grad(y, [y, x])] == [1, 4]


def test_several_outputs_add_up():
    x = leaf([1.0, 2.0])
    y, z = x.sum(), (x * x).sum()
    assert mg.grad([y, z], x)[0].tolist() == [3, 5]
    h = x.sum()
    assert mg.grad([h, h], x)[0].tolist() == [2, 2]
    k = x * 2.0
    assert mg.grad([k.sum(), k], x, [None, np.ones(2)])[0].tolist() == [4, 4]


def test_weights_of_outputs():
    x = leaf([1.0, 2.0])
    assert mg.grad(x * 2, x, np.array([1.0, 10.0]))[0].tolist() == [2, 20]
    assert mg.grad(x * 2, x, [Tensor([1.0, 10.0])])[0].tolist() == [2, 20]
    assert mg.grad([x * 2, x.sum()], x, [Tensor([1.0, 10.0]), None])[0].tolist() == [3, 21]
    with pytest.raises(RuntimeError, match=r"grad: an output of shape \(2,\) needs a gradient"):
        mg.grad(x * 2, x)
    with pytest.raises(RuntimeError, match=r"grad: the gradient has shape \(3,\), the output \(2,\)"):
        mg.grad(x * 2, x, np.ones(3))
    with pytest.raises(ValueError, match="grad: 1 grad_outputs for 2 outputs; give one an output"):
        mg.grad([x * 2, x.sum()], x, [np.ones(2)])


def test_weights_are_left_as_they_were():
    x, weights = leaf([1.0, 2.0]), np.array([1.0, 10.0])
    (first,) = mg.grad(x, x, weights)
    first.data[...] = 0.0
    mg.grad([x * 1.0, x * 1.0], x, [weights, weights])
    assert weights.tolist() == [1, 10]


def test_an_unused_input_is_an_error_or_none():
    x, unused = leaf([1.0, 2.0]), leaf([3.0])
    with pytest.raises(
        RuntimeError, match=r"the outputs do not depend on input 1 of shape \(1,\); allow_unused=True gives None"
    ):
        mg.grad(x.sum(), [x, unused])
    found = mg.grad(x.sum(), [x, unused], allow_unused=True)
    assert found[0].tolist() == [1, 1]
    assert found[1] is None
    later = x * 2.0
    assert mg.grad(x.sum(), later, allow_unused=True) == (None,)


def test_an_input_that_requires_no_gradient_is_an_error():
    x, constant = leaf(1.0), Tensor([1.0, 2.0])
    with pytest.raises(RuntimeError, match=r"grad: input 1 of shape \(2,\) does not require grad"):
        mg.grad(x * 1.0, [x, constant])
    with pytest.raises(RuntimeError, match=r"grad: input 0 of shape \(\) does not require grad"):
        mg.grad(x * 1.0, x.detach())
    with pytest.raises(RuntimeError, match=r"grad: the output of shape \(2,\) does not require grad"):
        mg.grad(constant, x)


def test_the_graph_is_freed_unless_kept():
    x = leaf(2.0)
    y = x * x
    mg.grad(y, x, retain_graph=True)
    mg.grad(y, x, create_graph=True)
    mg.grad(y, x)
    with pytest.raises(RuntimeError, match="multiply: this part of the graph was freed"):
        mg.grad(y, x)


def noted(calls, name):
    @mg.op
    def note(x):
        return x * 1.0, lambda g: calls.append(name) or g * 1.0

    return note


@pytest.mark.parametrize("create_graph", [False, True])
def test_only_the_way_to_the_inputs_is_walked(create_graph):
    calls = []
    x, w = leaf(2.0), leaf(3.0)
    h = noted(calls, "before")(x)
    y = noted(calls, "after")(h) * noted(calls, "aside")(w)
    (by_h,) = mg.grad(y, h, create_graph=create_graph)
    assert by_h.item() == 3
    assert calls == ["after"]


def test_grad_within_no_grad_and_backward_within_no_grad():
    x = leaf(2.0)
    y = x * x
    with mg.no_grad():
        (plain,) = mg.grad(y, x, retain_graph=True)
        (slope,) = mg.grad(y, x, create_graph=True)
        y.backward()
        assert not mg.is_grad_enabled()
    assert not plain.requires_grad
    assert slope.requires_grad
    assert x.grad.item() == 4


def test_threads_that_differentiate_shared_parameters_do_not_meet():
    """Each thread's gradients are those it would get alone, whatever modes the others are in."""
    rng = np.random.default_rng(0)
    w = leaf(rng.standard_normal((8, 8)))
    inputs = [rng.standard_normal((4, 8)) for _ in range(4)]

    def slope_and_curvature(x):
        y = ((Tensor(x) @ w).tanh().softmax(dim=1) ** 2).sum()
        (slope,) = mg.grad(y, w, create_graph=True)
        return slope, mg.grad((slope * slope).sum(), w)[0]

    expected = [slope_and_curvature(x) for x in inputs]
    found, barrier = {}, threading.Barrier(len(inputs))

    def work(place):
        barrier.wait()
        for _ in range(10):
            with mg.no_grad():
                assert not (w * 1.0).requires_grad
            found.setdefault(place, []).append(slope_and_curvature(inputs[place]))

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, wanted in enumerate(expected):
        assert len(found[place]) == 10
        for result in found[place]:
            for one, other in zip(result, wanted, strict=True):
                assert_close(one, other, 0)
    assert w.grad is None


@pytest.mark.parametrize(
    ("outputs", "inputs", "text"),
    [
        (3.0, leaf(1.0), "grad: output 0 must be a Tensor, not float"),
        ([leaf(1.0), "y"], leaf(1.0), "grad: output 1 must be a Tensor, not str"),
        (leaf(1.0), None, "grad: input 0 must be a Tensor, not NoneType"),
    ],
)
def test_what_is_no_tensor_is_named(outputs, inputs, text):
    with pytest.raises(TypeError, match=text):
        mg.grad(outputs, inputs)


def test_inputs_may_come_from_an_iterator():
    x, y = leaf(2.0), leaf(3.0)
    assert [g.item() for g in mg.grad(x * y, iter([x, y]))] == [3.0, 2.0]
