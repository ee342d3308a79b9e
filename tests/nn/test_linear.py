"""Linear."""

import re

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from tests.support import assert_close, torch_or_skip


def test_value_and_gradients():
    layer = nn.Linear(2, 3)
    layer.load_state_dict({"weight": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "bias": [0.5, -0.5, 0.0]})
    x = mg.Tensor([[1.0, 10.0]], requires_grad=True)
    y = layer(x)
    assert y.tolist() == [[21.5, 42.5, 65.0]]
    (y * mg.Tensor([[1.0, 0.0, 2.0]])).sum().backward()
    assert layer.weight.grad.tolist() == [[1, 10], [0, 0], [2, 20]]
    assert layer.bias.grad.tolist() == [1, 0, 2] and x.grad.tolist() == [[11, 14]]


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5), (2, 3, 4, 5), (0, 5), (2, 0, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_pytorch(shape, bias):
    torch = torch_or_skip()
    theirs, ours = torch.nn.Linear(5, 7, bias=bias), nn.Linear(5, 7, bias=bias)
    ours.load_state_dict(theirs.state_dict())
    values, weights = np.random.default_rng(0).standard_normal((2, *shape), np.float32), None
    x, their_x = mg.Tensor(values[0], requires_grad=True), torch.tensor(values[0], requires_grad=True)
    y, their_y = ours(x), theirs(their_x)
    weights = np.random.default_rng(1).standard_normal(y.shape, np.float32)
    assert_close(y, their_y, 1e-5)
    (y * mg.Tensor(weights)).sum().backward()
    (their_y * torch.tensor(weights)).sum().backward()
    assert_close(x.grad, their_x.grad, 1e-5)
    for parameter, theirs_parameter in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(parameter.grad, theirs_parameter.grad, 1e-5)


def test_starts_uniform_within_one_over_root_of_in():
    mg.manual_seed(3)
    layer = nn.Linear(16, 4000)
    for values in (layer.weight.numpy(), layer.bias.numpy()):
        assert values.dtype == np.float32
        assert -0.25 <= values.min() < -0.249 and 0.249 < values.max() <= 0.25
        assert abs(values.std() - 0.25 / 3**0.5) < 0.005


def test_a_seed_gives_the_same_layer():
    pairs = []
    for _ in range(2):
        mg.manual_seed(5)
        pairs.append(nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 4)))
    first, second = pairs
    assert all((a == b).all() for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert (first[0].weight != first[1].weight).any()


def test_a_wrong_input_names_both_shapes():
    with pytest.raises(ValueError, match=r"linear: x of shape \(2, 4\) and weight of shape \(3, 5\) do not fit"):
        nn.Linear(5, 3)(mg.ones(2, 4))
    for shape in [(2, 3), (4,), (1, 3)]:
        with pytest.raises(ValueError, match=rf"linear: bias of shape {re.escape(str(shape))} does not fit weight"):
            F.linear(mg.ones(2, 5), mg.ones(3, 5), mg.ones(*shape))


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (-1, 3)])
def test_sizes_are_checked(sizes):
    with pytest.raises(
        ValueError, match=rf"in_features and out_features must be at least 1, got {sizes[0]} and {sizes[1]}"
    ):
        nn.Linear(*sizes)
