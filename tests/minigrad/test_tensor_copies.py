"""Copies, pickles, `detach` and `clone` of tensors: what they share, and what has no history any more."""

import copy
import io
import pickle

import numpy as np
import pytest

import minigrad as mg
import nn
from minigrad import Tensor
from tests.support import leaf


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "deepcopy", "pickle"]
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_leaf_is_copied_with_its_values_and_requires_grad(duplicate, requires_grad):
    x = Tensor([[1.0, 2.0]], requires_grad=requires_grad, dtype=np.float64)
    y = duplicate(x)
    assert y is not x
    assert (y.tolist(), y.dtype, y.requires_grad, y.is_leaf) == ([[1, 2]], np.float64, requires_grad, True)
    assert not np.may_share_memory(x.data, y.data)
    with mg.no_grad():
        y += 1
    assert x.tolist() == [[1, 2]]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_result_with_history_is_not_copied(duplicate):
    with pytest.raises(
        RuntimeError,
        match=r"only leaves can be copied or pickled, this tensor was made by multiply; use \.detach\(\) first",
    ):
        duplicate(leaf([1.0]) * 2)
    duplicate((leaf([1.0]) * 2).detach())


def test_a_result_of_a_long_chain_is_refused_without_recursion():
    y = leaf(1.0)
    for _ in range(5000):
        y = y + 0.0
    with pytest.raises(RuntimeError, match="only leaves"):
        copy.deepcopy(y)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_has_a_gradient_of_its_own(duplicate):
    x = leaf([1.0, 2.0])
    (x * x).sum().backward(create_graph=True)  # the gradient has a graph
    y = duplicate(x)
    assert (y.grad.tolist(), y.grad.requires_grad) == ([2, 4], False)
    y.grad.zero_()
    (y * 3).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([2, 4], [3, 3])


class Tied(nn.Module):
    """A parameter under two names, a frozen one, a buffer, and a plain attribute."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(mg.ones(2), requires_grad=False)
        self.register_buffer("scale", mg.full((2,), 2.0))
        self.rows = [mg.ones(1)]

    def forward(self, x):
        return self.second(self.first(x)) * self.frozen * self.scale


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
)
def test_a_copied_module_is_independent_and_its_ties_stay(duplicate):
    model, x = Tied().eval(), mg.randn(3, 2)
    model(x).sum().backward()
    other = duplicate(model)
    assert other(x).tolist() == model(x).tolist()
    assert other.second.weight is other.first.weight
    assert [name for name, _ in other.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert {type(p) for p in other.parameters()} == {nn.Parameter}
    assert (other.frozen.requires_grad, other.training, type(other.scale)) == (False, False, Tensor)
    kept = duplicate is copy.deepcopy
    assert (other.first.weight.grad is not None) == (other.first.bias.grad is not None) == kept
    before = model(x).tolist()
    with mg.no_grad():
        for tensor in (*other.parameters(), *other.buffers(), *other.rows):
            tensor.zero_()
    assert model(x).tolist() == before
    assert model.rows[0].tolist() == [1]
    if kept:
        other.first.weight.grad.zero_()
        assert np.any(model.first.weight.grad.numpy() != 0)


def test_one_tensor_in_two_places_stays_one():
    x = leaf([1.0])
    for copied in (copy.deepcopy([x, x]), pickle.loads(pickle.dumps([x, x]))):
        assert copied[0] is copied[1]


def test_a_pickled_tensor_holds_no_graph_and_no_gradient():
    x = leaf(np.ones(1000))
    before = len(pickle.dumps(x))
    (x * x).sum().backward()
    y = x * 2
    assert len(pickle.dumps(x)) == before
    stream = io.BytesIO()
    pickle.dump({"weights": x, "values": y.detach()}, stream)
    stream.seek(0)
    assert pickle.load(stream)["weights"].grad is None


def test_subclasses_stay_what_they_are():
    class Special(Tensor):
        __slots__ = ()

    x = Special([1.0, 2.0], requires_grad=True)
    for copied in (copy.copy(x), copy.deepcopy(x), copy.deepcopy([x])[0]):
        assert type(copied) is Special
    assert type(x * 2) is Tensor


def test_detach_shares_values_and_clone_does_not():
    x = leaf([1.0, 2.0])
    detached, clone = x.detach(), x.clone()
    assert detached.data is x.data
    assert not np.may_share_memory(clone.data, x.data)
    clone.sum().backward()
    assert x.grad.tolist() == [1, 1]
    assert x.to("cpu").numpy() is x.to("cpu").data or x.device != "cpu"
