"""Fused operations equal the compositions that are their references; how exact these are is tested where they are."""

import tracemalloc
import warnings

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from minigrad import autograd, dividing, ops
from nn import fused
from nn.fused import fused_gelu
from tests.nn.comparison import draw
from tests.support import assert_close

FORMS = ["none", "tanh"]


def value_and_slope(gelu, x, approximate):
    x = mg.Tensor(x, requires_grad=True)
    y = gelu(x, approximate=approximate)
    y.backward(mg.ones_like(y))
    return y.numpy(), x.grad.numpy()


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float64", 1e-14)])
def test_gelu_and_its_slope(approximate, dtype, tolerance):
    x = np.concatenate([np.linspace(-12, 12, 2001), [-1e10, -50, 50, 1e10, 1e15, 0.0, -0.0]]).astype(dtype)
    found = value_and_slope(fused_gelu, x, approximate)
    exact = value_and_slope(ops.gelu, x.astype(np.float64), approximate)
    for part, mine, its in zip(("value", "slope"), found, exact, strict=True):
        assert mine.dtype == dtype
        np.testing.assert_allclose(mine, its, rtol=tolerance, atol=10 * tolerance, err_msg=part)


@pytest.mark.parametrize("approximate", FORMS)
def test_gelu_of_what_is_not_finite(approximate):
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    with np.errstate(invalid="ignore"):
        for mine, its in zip(
            value_and_slope(fused_gelu, x, approximate), value_and_slope(ops.gelu, x, approximate), strict=True
        ):
            np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("approximate", FORMS)
def test_gelu_of_any_shape_and_strides(approximate, monkeypatch):
    monkeypatch.setattr(fused, "AT_ONCE", 5)
    (x,) = draw((4, 3, 2))
    expected = ops.gelu(x, approximate=approximate)
    assert_close(fused_gelu(x.T, approximate=approximate).T, expected, 1e-14)
    assert_close(fused_gelu(x[::2, :, ::-1], approximate=approximate), expected[::2, :, ::-1], 1e-14)
    assert_close(F.gelu(mg.Tensor(x[0, 0, 0]), approximate=approximate), expected[0, 0, 0], 1e-14)
    assert F.gelu(mg.zeros(0, 3), approximate=approximate).shape == (0, 3)


@pytest.mark.parametrize("approximate", FORMS)
def test_gelu_to_second_order(approximate):
    (x,) = draw((2, 5))
    assert mg.gradcheck(lambda x: F.gelu(x, approximate=approximate), [mg.Tensor(x, requires_grad=True)], order=2)


@pytest.mark.parametrize("approximate", FORMS)
def test_gelu_gives_the_same_bits_without_a_graph(approximate):
    """So does what is computed once more from a checkpoint."""
    x = mg.Tensor(draw((40, 50))[0].astype(np.float32), requires_grad=True)
    value = fused_gelu(x, approximate=approximate)
    with mg.no_grad():
        assert (fused_gelu(x, approximate=approximate).numpy() == value.numpy()).all()


@pytest.mark.parametrize("approximate", FORMS)
def test_gelu_of_more_numbers_than_are_taken_at_once(approximate):
    x = np.linspace(-4, 4, fused.AT_ONCE + 3, dtype=np.float32)
    found = value_and_slope(fused_gelu, x, approximate)
    exact = value_and_slope(ops.gelu, x.astype(np.float64), approximate)
    for mine, its in zip(found, exact, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_norms_of_any_shape_and_strides(name):
    x, weight = draw((4, 3, 2), (2,))
    norm = getattr(F, name)
    for part in (x[::2], x[:, ::-1], x[1:, :1], np.broadcast_to(x[:1], (5, 3, 2))):
        y = mg.Tensor(part, requires_grad=True)
        gradient = mg.grad(norm(y, 2, mg.Tensor(weight)), y, np.broadcast_to(weight, part.shape))[0]
        twin = mg.Tensor(part.copy(), requires_grad=True)
        assert_close(norm(part, 2, weight), norm(twin, 2, mg.Tensor(weight)), 1e-14)
        assert_close(gradient, mg.grad(norm(twin, 2, mg.Tensor(weight)), twin, weight + np.zeros(part.shape))[0], 1e-14)


# ---- divided over threads --------------------------------------------------------------------------------------------

NORMS = {"layer_norm": [(9, 5), (5,), (5,)], "rms_norm": [(9, 5), (5,)]}


@pytest.fixture
def in_three_parts(monkeypatch):
    """However little the work is."""
    former = mg.get_num_threads()
    mg.set_num_threads(3)
    monkeypatch.setattr(dividing, "LEAST_WORK", 1e-9)
    yield
    mg.set_num_threads(former)


def norm_and_gradients(name, arrays, weights):
    inputs = [mg.Tensor(array, requires_grad=True) for array in arrays]
    y = getattr(F, name)(inputs[0], inputs[0].shape[-1], *inputs[1:])
    return [array.numpy() for array in (y, *mg.grad(y, inputs, weights))]


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(
    ("shape", "normalized"), [((3, 0), (0,)), ((2, 0, 3), (0, 3)), ((2, 0, 3), (3,)), ((0, 2), (2,))]
)
def test_nothing_is_divided_where_there_are_no_numbers(name, shape, normalized):
    x = mg.zeros(*shape, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(F, name)(x, normalized, eps=0.0).sum().backward()
    assert x.grad.shape == shape


@pytest.mark.cpu_only(reason="on a GPU kernels make them")
@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_rows_are_the_arrays_that_were_made(name, monkeypatch):
    kept, own = [], autograd._own
    monkeypatch.setattr(autograd, "_own", lambda gradient, owned: kept.append(owned) or own(gradient, owned))
    inputs = [mg.Tensor(array, requires_grad=True) for array in draw(*NORMS[name])]
    getattr(F, name)(inputs[0], 5, *inputs[1:]).sum().backward()
    assert kept == [True] * len(inputs)


@pytest.mark.cpu_only(reason="what is on a GPU is not divided")
@pytest.mark.parametrize("name", NORMS)
def test_norms_in_parts(name, in_three_parts, monkeypatch):
    arrays, (weights,) = draw(*NORMS[name]), draw((9, 5), seed=1)
    with dividing.undivided():
        whole = norm_and_gradients(name, arrays, weights)
    counts = []
    run_at_once = dividing.run_at_once
    monkeypatch.setattr(dividing, "run_at_once", lambda calls: counts.append(len(calls)) or run_at_once(calls))
    for mine, its in zip(norm_and_gradients(name, arrays, weights), whole, strict=True):
        assert_close(mine, its, 1e-14)
    assert counts == [3, 3]  # forward and backward


@pytest.mark.cpu_only(reason="what is on a GPU is not divided")
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_the_sums_of_parts_are_added_in_the_order_of_the_rows(name, order, in_three_parts, monkeypatch):
    """Whichever was ready first: so the same number of threads gives the same bits."""
    monkeypatch.setattr(dividing, "run_at_once", lambda calls: [calls[place]() for place in order])
    x = np.array([[-1, 1]] * 3, np.float32)
    affine = [np.ones(2, np.float32)] * (len(NORMS[name]) - 1)
    weights = np.array([[1e9], [-1e9], [1]], np.float32) * np.ones(2, np.float32)
    _, _, d_weight, *d_bias = norm_and_gradients(name, [x, *affine], weights)
    assert_close(d_weight, [-1, 1], 1e-4)  # (1e9 - 1e9) + 1, where 1e9 + 1 is 1e9
    assert [d.tolist() for d in d_bias] == [[1, 1]] * len(d_bias)


# ---- what is kept ----------------------------------------------------------------------------------------------------


def memory(function, *inputs):
    """What a call keeps, and the most that it has at a time: in arrays of the input, and without that of the value."""
    size = inputs[0].numpy().nbytes
    tracemalloc.start()
    try:
        y = function(*inputs)
        return [(taken - y.numpy().nbytes) / size for taken in tracemalloc.get_traced_memory()]
    finally:
        tracemalloc.stop()


@pytest.mark.cpu_only(reason="it looks at the memory of NumPy arrays")
@pytest.mark.parametrize("approximate", FORMS)
def test_gelu_keeps_one_array_and_without_a_graph_makes_none(approximate):
    x = mg.zeros(1 << 16, requires_grad=True)

    def gelu(x):
        return F.gelu(x, approximate=approximate)

    kept, peak = memory(gelu, x)
    assert 0.9 < kept < 1.1
    with mg.no_grad():
        kept, peak_without = memory(gelu, x)
    assert kept < 0.1 and peak_without < peak - 0.9
    assert peak_without < {"none": 8.1, "tanh": 0.1}[approximate]


@pytest.mark.cpu_only(reason="it looks at the memory of NumPy arrays")
def test_layer_norm_keeps_one_array_and_rms_norm_none():
    x, weight = mg.randn(1 << 8, 1 << 8), mg.ones(1 << 8, requires_grad=True)
    assert 0.9 < memory(lambda x: F.layer_norm(x, 1 << 8, weight, weight), x)[0] < 1.1
    assert memory(lambda x: F.rms_norm(x, 1 << 8, weight), x)[0] < 0.1
