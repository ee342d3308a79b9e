"""FeedForward."""

import numpy as np
import pytest

import minigrad as mg
import nn
from tests.support import torch_or_skip


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


def test_parameters_have_pytorchs_names_in_a_layer_that_is_one():
    class Layer(nn.FeedForward):
        def __init__(self):
            super().__init__(2, 3)
            self.norm1 = nn.LayerNorm(2)

        def forward(self, x):
            return self.norm1(x + self.feed_forward(x))

    layer = Layer()
    assert list(layer.state_dict()) == [
        "linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias", "norm1.weight", "norm1.bias",
    ]  # fmt: skip
    assert layer(mg.ones(4, 2)).shape == (4, 2)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_equals_pytorch(activation):
    torch = torch_or_skip()
    ours = nn.FeedForward(3, 5, activation=activation)
    function = {"relu": torch.nn.ReLU(), "gelu": torch.nn.GELU()}[activation]
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 5), function, torch.nn.Linear(5, 3))
    ours.load_state_dict({f"linear{1 + int(k[0]) // 2}{k[1:]}": v for k, v in theirs.state_dict().items()})
    values = np.random.default_rng(0).standard_normal((2, 4, 3), np.float32)
    y, their_y = ours(mg.Tensor(values)), theirs(torch.tensor(values))
    np.testing.assert_allclose(y.numpy(), their_y.detach().numpy(), rtol=1e-5, atol=1e-6)
    (y * y).sum().backward()
    (their_y * their_y).sum().backward()
    for parameter, their_parameter in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(parameter.grad.numpy(), their_parameter.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_dropout_is_between_the_two_layers():
    layer = nn.FeedForward(2, 3, dropout=1.0)
    x = mg.randn(2, 2)
    assert (layer(x) == layer.linear2.bias).all()
    assert (layer.eval()(x) != layer.linear2.bias).any()


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="FeedForward: activation must be one of relu, gelu, got 'swish'"):
        nn.FeedForward(2, 3, activation="swish")
