"""LayerNorm and RMSNorm."""

import numpy as np
import pytest

import minigrad as mg
import nn
from tests.support import assert_close, torch_or_skip


def test_rows_come_out_with_mean_0_and_variance_1():
    y = nn.LayerNorm(4)(mg.Tensor([[1.0, 2.0, 3.0, 6.0]]))
    assert_close(y, np.array([[-2.0, -1.0, 0.0, 3.0]]) / np.sqrt(3.5 + 1e-5), 1e-6)
    assert y.dtype == np.float32


@pytest.mark.parametrize("n", [64, 257, 4096])
@pytest.mark.parametrize("middle", [7.3, 1000.0])
def test_rows_far_from_0(n, middle):
    """The mean of a long row, added up in float32, is off by more than what is left of rows that hardly vary.

    On a CPU that is subtracted too; else 1000 is known to 6e-5 only, and the norm multiplies what is off by up to 300.
    """
    constant = np.full((3, n), middle, np.float32)
    exact = n > 256 and mg.Tensor(constant).device == "cpu"
    size = np.sqrt(3 * n)
    assert_close(nn.LayerNorm(n)(mg.Tensor(constant)), np.zeros((3, n)), 1e-5 if exact else 2e-2, least=size)
    x = constant + np.random.default_rng(0).standard_normal((3, n)).astype(np.float32)
    away = x.astype(np.float64) - x.mean(axis=1, keepdims=True, dtype=np.float64)
    expected = away / np.sqrt((away**2).mean(axis=1, keepdims=True) + 1e-5)
    assert_close(nn.LayerNorm(n)(mg.Tensor(x)), expected, 1e-6 if exact else 3e-4)


def test_root_mean_squares_come_out_as_1():
    y = nn.RMSNorm(4, eps=0.5)(mg.Tensor([[1.0, -2.0, 3.0, 6.0]]))
    assert_close(y, np.array([[1.0, -2.0, 3.0, 6.0]]) / np.sqrt(12.5 + 0.5), 1e-6)
    assert y.dtype == np.float32


def test_weight_and_bias_start_at_1_and_0():
    norm = nn.LayerNorm((2, 3))
    assert norm.weight.tolist() == [[1] * 3] * 2 and norm.bias.tolist() == [[0] * 3] * 2
    assert [n for n, _ in nn.LayerNorm(3, bias=False).named_parameters()] == ["weight"]
    assert list(nn.LayerNorm(3, elementwise_affine=False).parameters()) == []
    assert nn.RMSNorm((2, 3)).weight.tolist() == [[1] * 3] * 2
    assert [n for n, _ in nn.RMSNorm(3).named_parameters()] == ["weight"]
    assert list(nn.RMSNorm(3, elementwise_affine=False).parameters()) == []


OPTIONS = [
    *[("LayerNorm", options) for options in ({}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1})],
    *[("RMSNorm", options) for options in ({}, {"elementwise_affine": False}, {"eps": 0.1})],
]


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
@pytest.mark.parametrize("shape", [(5,), 5, (3, 5)])
def test_equals_pytorch(shape, kind, options):
    torch = torch_or_skip()
    rng = np.random.default_rng(0)
    theirs, ours = (getattr(layers, kind)(shape, **options) for layers in (torch.nn, nn))
    theirs, ours = theirs.double(), ours.to(np.float64)
    ours.load_state_dict({name: rng.standard_normal(value.shape) for name, value in ours.state_dict().items()})
    theirs.load_state_dict({name: torch.tensor(value) for name, value in ours.state_dict().items()})
    values, weights = rng.standard_normal((2, 2, 3, 5))
    x, their_x = mg.Tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    y, their_y = ours(x), theirs(their_x)
    assert_close(y, their_y, 1e-10)
    (y * mg.Tensor(weights)).sum().backward()
    (their_y * torch.tensor(weights)).sum().backward()
    assert_close(x.grad, their_x.grad, 1e-10)
    for parameter, their_parameter in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(parameter.grad, their_parameter.grad, 1e-10)


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_a_state_of_pytorch_loads(kind):
    torch = torch_or_skip()
    theirs = getattr(torch.nn, kind)(3)
    torch.nn.init.uniform_(theirs.weight)
    ours = getattr(nn, kind)(3)
    ours.load_state_dict(theirs.state_dict())
    x = np.array([[1.0, -2.0, 4.0]], np.float32)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert_close(ours(mg.Tensor(x)), theirs(torch.tensor(x)), 1e-6)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("shape", [(), 0, (3, 0)])
def test_an_empty_shape_is_refused(shape, kind):
    message = f"{kind.__name__}: normalized_shape must be one or more lengths of at least 1"
    with pytest.raises(ValueError, match=message):
        kind(shape)


def test_a_length_may_be_any_integer_but_no_fraction():
    assert nn.LayerNorm(np.int64(3)).normalized_shape == (3,)
    with pytest.raises(TypeError, match="float"):
        nn.LayerNorm(3.0)


def test_repr():
    assert repr(nn.LayerNorm(4)) == "LayerNorm(4, eps=1e-05, elementwise_affine=True, bias=True)"
    assert repr(nn.RMSNorm((2, 3), elementwise_affine=False)) == "RMSNorm((2, 3), eps=None, elementwise_affine=False)"
