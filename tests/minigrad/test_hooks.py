"""Hooks and retained gradients: what they see, what they may change, and when they run, beside PyTorch's."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor
from tests.cupy_standin import installed
from tests.support import leaf, torch_or_skip


def test_a_hook_sees_the_whole_gradient_of_a_value_used_twice_and_once_a_walk():
    x, seen = leaf([1.0, 2.0]), []
    y = x * 3
    y.register_hook(lambda g: seen.append(g.tolist()))
    (y * 2 + y * y).sum().backward()
    assert seen == [[8.0, 14.0]]
    assert x.grad.tolist() == [24.0, 42.0]


def test_what_a_hook_returns_takes_the_gradients_place():
    x = leaf([1.0, 2.0])
    y = x * 3
    y.register_hook(lambda g: g * 10)
    y.register_hook(lambda g: g + 1)  # after the first
    y.sum().backward()
    assert x.grad.tolist() == [33.0, 33.0]


def test_hooks_of_leaves_run_before_the_gradient_is_added_to_what_is_there():
    x = leaf([1.0, 2.0])
    x.register_hook(lambda g: g * 2)
    for _ in range(2):
        (x * 3).sum().backward()
    assert x.grad.tolist() == [12.0, 12.0]
    (g,) = mg.grad((x * 3).sum(), x)
    assert g.tolist() == [6.0, 6.0]


def test_a_handle_takes_its_hook_away():
    x, seen = leaf(1.0), []
    first = x.register_hook(lambda g: seen.append("first"))
    with x.register_hook(lambda g: seen.append("second")):
        (x * 2).backward()
    first.remove()
    first.remove()
    (x * 2).backward()
    assert seen == ["first", "second"]


def test_a_hook_may_be_removed_by_itself():
    x, seen = leaf(1.0), []

    def once(g):
        seen.append(g.item())
        handle.remove()

    handle = x.register_hook(once)
    for _ in range(2):
        (x * 2).backward()
    assert seen == [2.0]


def test_writing_into_what_a_hook_is_given_changes_nothing():
    x = leaf([1.0, 2.0])
    y = x + 0.0

    def spoil(g):
        g.zero_()

    for tensor in (x, y):
        tensor.register_hook(spoil)
    (y * 2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_gradient_that_a_hook_keeps_or_returns_is_not_written_over_later():
    x, kept = leaf([1.0, 2.0]), []
    given = Tensor([5.0, 5.0], dtype=np.float64)
    x.register_hook(lambda g: kept.append(g) or given)
    (x * 2 + x * 3).sum().backward()
    x.grad.zero_()
    (x * 2).sum().backward()
    assert given.tolist() == [5.0, 5.0] and kept[0].tolist() == [5.0, 5.0] and kept[1].tolist() == [2.0, 2.0]


def test_retained_gradients_are_those_after_hooks_whichever_came_first():
    x = leaf([1.0, 2.0])
    y = x * 3
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    z = y * y
    z.backward(Tensor([1.0, 1.0], dtype=np.float64), retain_graph=True)
    assert y.grad.tolist() == [12.0, 24.0] and z.grad is None
    z.sum().backward()
    assert y.grad.tolist() == [24.0, 48.0]


def test_retain_grad_of_a_leaf_changes_nothing():
    x = leaf(3.0)
    x.retain_grad()
    (x * x).backward()
    assert x.grad.item() == 6.0


def test_hooks_and_retained_gradients_are_pytorchs():
    torch = torch_or_skip()

    def run(x, grad):
        seen = []
        y = x.exp()
        y.retain_grad()
        y.register_hook(lambda g: g * 2)
        x.register_hook(lambda g: seen.append(g.tolist()))
        a, b = y[0], y * y
        b.register_hook(lambda g: seen.append(g.tolist()))
        (a * 3 + b.sum()).backward()
        (g,) = grad((x.exp() * 2).sum(), x)
        return seen, y.grad.tolist(), x.grad.tolist(), g.tolist()

    ours = run(Tensor([0.5, 1.0], requires_grad=True, dtype=np.float64), lambda y, x: mg.grad(y, x))
    theirs = run(torch.tensor([0.5, 1.0], requires_grad=True, dtype=torch.float64), torch.autograd.grad)
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.hstack(found), np.hstack(expected), rtol=1e-12)


def test_a_hook_is_part_of_the_graph_of_a_gradient():
    x = leaf(2.0)
    y = x * x
    y.register_hook(lambda g: g * x)
    (g,) = mg.grad(y * 3, x, create_graph=True)  # 3 x · 2x
    assert g.item() == 24.0
    assert mg.grad(g, x)[0].item() == 24.0  # 12 x


def test_hooks_of_wanted_values_and_of_one_of_several_values():
    x = leaf([1.0, 5.0, 3.0])
    y = x * 2
    y.register_hook(lambda g: g * 10)
    values, _ = y.max(dim=0, keepdim=True)
    values.register_hook(lambda g: g + 1)
    found = mg.grad(values.sum(), [y, x])
    assert [g.tolist() for g in found] == [[0.0, 20.0, 0.0], [0.0, 40.0, 0.0]]


def test_hooks_see_gradients_in_no_grad_mode_unless_a_graph_is_made():
    x, modes = leaf(2.0), []
    x.register_hook(lambda g: modes.append(mg.is_grad_enabled()))
    (x * 2).backward()
    mg.grad(x * x, x, create_graph=True)
    assert modes == [False, True]


def test_the_hooks_of_a_wanted_value_run_whatever_else_is_wanted():
    x = leaf(2.0)
    y = x * 2
    y.register_hook(lambda g: g * 100)
    y.retain_grad()
    for wanted in ([y], [y, x]):
        assert mg.grad(y * 3, wanted, retain_graph=True)[0].item() == 300.0
    assert mg.grad(y, y)[0].item() == 100.0
    assert y.grad.item() == 700.0


def test_grad_leaves_the_hooks_of_leaves_that_it_was_not_asked_for_alone():
    x, y, seen = leaf(2.0), leaf(3.0), []
    y.register_hook(seen.append)
    mg.grad(x * y + y * 10, x)  # on the way a part of y's gradient is known
    assert seen == []


def test_an_error_in_a_hook_leaves_no_grad_half_added():
    x, y = leaf(1.0), leaf(2.0)
    y.register_hook(lambda g: 1 / 0)
    for first, second in ((x, y), (y, x)):
        with pytest.raises(ZeroDivisionError):
            (first * second).backward()
        assert x.grad is None and y.grad is None


@pytest.mark.parametrize(
    ("returned", "error", "text"),
    [
        (np.ones(2), TypeError, "a hook must return a Tensor or None, it returned ndarray"),
        (
            Tensor([1.0], dtype=np.float64),
            RuntimeError,
            r"a gradient of shape \(1,\), float64 on .*; it must be \(2,\)",
        ),
        (Tensor([1.0, 1.0]), RuntimeError, r"of shape \(2,\), float32 on .*; it must be \(2,\), float64"),
    ],
)
def test_a_hook_that_returns_what_is_no_gradient(returned, error, text):
    x = leaf([1.0, 2.0])
    x.register_hook(lambda g: returned)
    with pytest.raises(error, match=text):
        (x * 2).sum().backward()
    assert x.grad is None


def test_an_error_in_a_hook_says_that_it_is_in_one():
    x = leaf([1.0, 2.0])
    y = x.exp()
    x.register_hook(lambda g: g.nothing)
    with pytest.raises(AttributeError) as error:
        y.sum().backward(retain_graph=True)
    assert error.value.__notes__ == ["in a hook of a leaf, of shape (2,)"]
    y.register_hook(lambda: None)
    with pytest.raises(TypeError) as error:
        y.sum().backward()
    assert error.value.__notes__ == ["in a hook of the value of exp, of shape (2,)"]


def test_hooks_need_a_gradient_and_a_function():
    for name in ("register_hook", "retain_grad"):
        with pytest.raises(RuntimeError, match=rf"{name}: this tensor of shape \(1,\) requires no grad"):
            getattr(Tensor([1.0]), name)(*[print] * (name == "register_hook"))
    with pytest.raises(TypeError, match="register_hook takes a function of the gradient, not int"):
        leaf(1.0).register_hook(3)


def test_hooks_are_neither_copied_nor_pickled():
    x = leaf(1.0)
    x.register_hook(lambda g: g * 100)
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        (other * 2).backward()
        assert other.grad.item() == 2.0


def test_hooks_keep_no_tensor_alive():
    gc.disable()
    try:
        x = leaf([1.0])
        y = x * 2
        y.retain_grad()
        handle = y.register_hook(lambda g: None)
        gone = weakref.ref(y)
        y.sum().backward()
        del y
        assert gone() is None
        handle.remove()
    finally:
        gc.enable()


def test_hooks_on_a_gpu():
    with installed():
        x = Tensor([1.0, 2.0], requires_grad=True, device="cuda")
        y, seen = x * 2, []
        y.retain_grad()
        y.register_hook(lambda g: seen.append(g.device))
        x.register_hook(lambda g: g * 2)
        y.sum().backward()
        assert seen == ["cuda:0"] and y.grad.device == "cuda:0" and x.grad.tolist() == [4.0, 4.0]
        x.register_hook(lambda g: Tensor([1.0, 1.0], device="cpu"))
        with pytest.raises(RuntimeError, match=r"float32 on cpu; it must be .* on cuda:0"):
            (x * 2).sum().backward()


def test_hooks_of_leaves_in_grad_record_nothing_unless_a_graph_is_made():
    x, modes = leaf(2.0), []
    x.register_hook(lambda g: modes.append(mg.is_grad_enabled()))
    mg.grad(x * x, x)
    mg.grad(x * x, x, create_graph=True)
    assert modes == [False, True]


def test_a_handle_keeps_no_hooks_alive():
    x = leaf(2.0)
    handle, seen = x.register_hook(print), weakref.ref(x.hooks)
    del x
    gc.collect()
    assert seen() is None
    handle.remove()
