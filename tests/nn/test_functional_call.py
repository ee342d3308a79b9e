"""functional_call: other tensors in a module's places, for one call."""

import numpy as np
import pytest

import minigrad as mg
import nn
from minigrad import Tensor
from models import Transformer
from tests.support import assert_close, leaf, torch_or_skip


def test_value_and_gradients_are_pytorchs():
    torch = torch_or_skip()
    module, other = nn.Linear(3, 2).to(np.float64), torch.nn.Linear(3, 2).double()
    rng = np.random.default_rng(0)
    x, weight, bias = (np.asarray(rng.standard_normal(shape)) for shape in ((4, 3), (2, 3), (2,)))
    ours = {"weight": leaf(weight), "bias": leaf(bias)}
    theirs = {"weight": torch.tensor(weight, requires_grad=True), "bias": torch.tensor(bias, requires_grad=True)}
    found = nn.functional_call(module, ours, (Tensor(x),))
    wanted = torch.func.functional_call(other, theirs, (torch.tensor(x),))
    assert_close(found, wanted, 1e-12)
    (found**2).sum().backward()
    (wanted**2).sum().backward()
    for name, tensor in ours.items():
        assert_close(tensor.grad, theirs[name].grad, 1e-12, name)
    assert module.weight.grad is None and module.bias.grad is None


def test_what_is_not_named_stays_and_one_argument_needs_no_tuple():
    module = nn.Linear(2, 2)
    x = Tensor([1.0, 2.0])
    found = nn.functional_call(module, {"bias": Tensor([10.0, 20.0])}, x)
    assert_close(found, module(x).numpy() - module.bias.numpy() + [10, 20], 1e-6)


def test_keyword_arguments_names_within_and_buffers():
    mg.manual_seed(0)
    module = Transformer(7, 7, 8, 2, 1, 1, 16, dropout=0.0, max_length=6)
    other = Transformer(7, 7, 8, 2, 1, 1, 16, dropout=0.0, max_length=6)
    ids = np.array([[1, 2, 3]])
    parts = {name: tensor.detach() for name, tensor in (*other.named_parameters(), *other.named_buffers())}
    found = nn.functional_call(module, parts, (ids,), {"target_ids": ids})
    assert found.tolist() == other(ids, ids).tolist() != module(ids, ids).tolist()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


@pytest.mark.parametrize("name", ["first.weight", "second.weight"])
def test_a_tied_weight_is_replaced_under_all_its_names(name):
    module, weight = Tied(), leaf([[2.0, 0.0], [0.0, 3.0]])
    assert nn.functional_call(module, {name: weight}, Tensor([1.0, 1.0], dtype=np.float64)).tolist() == [4, 9]
    same = {"first.weight": weight, "second.weight": weight}
    assert nn.functional_call(module, same, Tensor([1.0, 1.0], dtype=np.float64)).tolist() == [4, 9]
    assert module.first.weight is module.second.weight is not weight


def test_the_parameters_are_back_after_an_exception():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    before = dict(module.named_parameters())
    with pytest.raises(ValueError, match="linear"):
        nn.functional_call(module, {name: Tensor(p) for name, p in before.items()}, Tensor([1.0, 2.0, 3.0]))
    after = dict(module.named_parameters())
    assert list(after) == list(before) and all(after[name] is p for name, p in before.items())


ERRORS = [
    ({"wieght": Tensor(np.zeros((2, 2)))}, RuntimeError, "functional_call: Linear has no parameter or buffer 'wieght'"),
    ({"weight": np.zeros((2, 2))}, TypeError, "functional_call: weight must be a Tensor, got ndarray"),
    ({"bias": Tensor([1.0])}, RuntimeError, r"bias has shape \(1,\), the module's \(2,\); they must be equal"),
]


@pytest.mark.parametrize("parameters, kind, text", ERRORS)
def test_errors_say_what_is_wrong_and_replace_nothing(parameters, kind, text):
    module = nn.Linear(2, 2)
    weight, bias = module.weight, module.bias
    with pytest.raises(kind, match=text):
        nn.functional_call(module, {"weight": leaf(np.eye(2)), **parameters}, Tensor([1.0, 2.0]))
    assert module.weight is weight and module.bias is bias


def test_two_tensors_for_one_tied_weight_are_refused():
    with pytest.raises(RuntimeError, match=r"second\.weight is tied to another weight, for which another tensor was"):
        nn.functional_call(Tied(), {"first.weight": leaf(np.eye(2)), "second.weight": leaf(np.eye(2))}, Tensor([1.0]))
