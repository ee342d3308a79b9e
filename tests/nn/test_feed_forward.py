"""FeedForward."""

import numpy as np
import pytest

import minigrad as mg
import nn
from tests.support import assert_close, torch_or_skip


def test_value():
    layer = nn.FeedForward(1, 2)
    layer.load_state_dict(
        {
            "linear1.weight": [[1.0], [-1.0]],
            "linear1.bias": [0.0, 0.5],
            "linear2.weight": [[2.0, 3.0]],
            "linear2.bias": [1.0],
        }
    )
    assert layer(mg.Tensor([[[2.0], [-2.0]]])).tolist() == [[[5.0], [8.5]]]


def test_parameters_have_the_names_of_pytorchs_transformer_layers():
    names = ["linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"]
    assert list(nn.FeedForward(2, 3).state_dict()) == names


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_equals_pytorch(activation):
    torch = torch_or_skip()
    ours = nn.FeedForward(3, 5, activation=activation)
    function = {"relu": torch.nn.ReLU(), "gelu": torch.nn.GELU(), "gelu_tanh": torch.nn.GELU("tanh")}[activation]
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 5), function, torch.nn.Linear(5, 3))
    ours.load_state_dict({f"linear{1 + int(k[0]) // 2}{k[1:]}": v for k, v in theirs.state_dict().items()})
    values = np.random.default_rng(0).standard_normal((2, 4, 3), np.float32)
    y, their_y = ours(mg.Tensor(values)), theirs(torch.tensor(values))
    assert_close(y, their_y, 1e-5)
    (y * y).sum().backward()
    (their_y * their_y).sum().backward()
    for parameter, their_parameter in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(parameter.grad, their_parameter.grad, 1e-5)


def test_dropout_is_between_the_two_layers():
    layer = nn.FeedForward(2, 3, dropout=1.0)
    x = mg.randn(2, 2, requires_grad=True)
    assert (layer(x) == layer.linear2.bias).all()
    assert (layer.eval()(x) != layer.linear2.bias).any()


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="FeedForward: activation must be one of relu, gelu, gelu_tanh, got 'swish'"):
        nn.FeedForward(2, 3, activation="swish")
