"""The feed-forward network as one operation: the same bits as its composition, and when it is taken."""

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from nn import feed_forward as module
from nn.feed_forward import ACTIVATIONS
from nn.fused_feed_forward import fused_feed_forward
from tests.nn.comparison import draw

pytestmark = pytest.mark.cpu_only(reason="on a GPU it is a composition")


def inputs(shape=(2, 3, 4), inner=5, dtype=np.float64, biases=(True, True)):
    arrays = draw(shape, (inner, shape[-1]), (inner,), (shape[-1], inner), (shape[-1],))
    x, w1, b1, w2, b2 = [mg.Tensor(array, requires_grad=True, dtype=dtype) for array in arrays]
    return x, w1, b1 if biases[0] else None, w2, b2 if biases[1] else None


def one_after_the_other(x, w1, b1, w2, b2, *, activation):
    return F.linear(ACTIVATIONS[activation](F.linear(x, w1, b1)), w2, b2)


def value_and_gradients(function, inputs, activation):
    wanted = [x for x in inputs if x is not None]
    y = function(*inputs, activation=activation)
    return [y, *mg.grad(y, wanted, mg.Tensor(np.cos(np.arange(y.numel())).reshape(y.shape), dtype=y.dtype))]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("biases", [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize("shape, inner", [((4,), 5), ((2, 3, 4), 5), ((0, 4), 5), ((2, 4), 1), ((7, 600, 64), 256)])
def test_the_same_bits_as_the_composition(activation, dtype, biases, shape, inner):
    given = inputs(shape, inner, dtype, biases)
    fused, plain = [value_and_gradients(f, given, activation) for f in (fused_feed_forward, one_after_the_other)]
    for mine, its in zip(fused, plain, strict=True):
        assert mine.dtype == its.dtype
        np.testing.assert_array_equal(mine.numpy(), its.numpy())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_to_second_order(activation):
    def network(*given):
        return fused_feed_forward(*given, activation=activation)

    given = [mg.Tensor(x, requires_grad=True) for x in draw((2, 3), (4, 3), (4,), (3, 4), (3,))]
    assert mg.gradcheck(network, given, order=2)


def test_a_hidden_number_that_is_off_hides_what_is_not_finite_behind_it():
    layer = nn.FeedForward(1, 2)
    layer.load_state_dict(
        {"linear1.weight": [[1], [-1]], "linear1.bias": [0, 0], "linear2.weight": [[1, np.inf]], "linear2.bias": [0]}
    )
    x = mg.Tensor([[2.0]], requires_grad=True)
    layer(x).backward(mg.ones(1, 1))
    assert x.grad.tolist() == [[1.0]]


def test_inputs_stay_as_they_are():
    given = inputs()
    before = [x.numpy().copy() for x in given]
    value_and_gradients(fused_feed_forward, given, "relu")
    for x, former in zip(given, before, strict=True):
        np.testing.assert_array_equal(x.numpy(), former)


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def used(monkeypatch, layer, x):
    """Whether the one operation was; what the layer gives must be what its parts give one after the other."""
    calls = []

    def counted(*given, **options):
        calls.append(options)
        return fused_feed_forward(*given, **options)

    monkeypatch.setattr(module, "fused_feed_forward", counted)
    y = layer(x)
    with mg.no_grad():
        expected = layer.linear2(F.relu(layer.linear1(x)))
    np.testing.assert_array_equal(y.numpy(), expected.numpy())
    return len(calls) == 1


def test_it_is_taken_where_all_gradients_are_wanted(monkeypatch):
    layer, x = nn.FeedForward(3, 4, dropout=0.5).eval(), mg.randn(2, 3, requires_grad=True)
    assert used(monkeypatch, layer, x)
    assert used(monkeypatch, nn.FeedForward(3, 4), x)
    assert not used(monkeypatch, layer, x.detach())
    with mg.no_grad():
        assert not used(monkeypatch, layer, x)
    layer.linear1.weight.requires_grad = False
    assert not used(monkeypatch, layer, x)


def test_it_is_not_taken_of_layers_of_other_kinds(monkeypatch):
    layer, x = nn.FeedForward(3, 4), mg.randn(2, 3, requires_grad=True)
    layer.linear2 = Scaled(4, 3)
    assert not used(monkeypatch, layer, x)


def test_it_is_not_taken_of_other_dtypes(monkeypatch):
    layer = nn.FeedForward(3, 4)
    assert not used(monkeypatch, layer.to("float16"), mg.randn(2, 3, dtype="float16", requires_grad=True))
    assert not used(monkeypatch, nn.FeedForward(3, 4), mg.randn(2, 3, dtype="float64", requires_grad=True))


def test_who_watches_sees_the_layers(monkeypatch):
    layer, x = nn.FeedForward(3, 4), mg.randn(2, 3, requires_grad=True)
    with mg.tracing():
        assert not used(monkeypatch, layer, x)


def test_autocast_casts_the_layers_products():
    layer, x = nn.FeedForward(3, 4), mg.randn(2, 3, requires_grad=True)
    with mg.autocast():
        assert layer(x).dtype == np.float16


def test_what_does_not_fit_is_said_by_the_layer():
    layer, x = nn.FeedForward(3, 4), mg.randn(2, 5, requires_grad=True)
    with pytest.raises(ValueError, match=r"linear: x of shape \(2, 5\) and weight of shape \(4, 3\) do not fit"):
        layer(x)
