"""Fused operations equal the compositions that are their references; how exact these are is tested where they are."""

import tracemalloc

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from minigrad import ops
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


@pytest.mark.cpu_only(reason="it looks at the memory of NumPy arrays")
@pytest.mark.parametrize("approximate", FORMS)
def test_gelu_keeps_one_array_and_without_a_graph_none(approximate):
    x = mg.zeros(1 << 16, requires_grad=True)

    def kept():
        tracemalloc.start()
        try:
            y = F.gelu(x, approximate=approximate)
            return (tracemalloc.get_traced_memory()[0] - y.numpy().nbytes) / x.numpy().nbytes
        finally:
            tracemalloc.stop()

    assert 0.9 < kept() < 1.1
    with mg.no_grad():
        assert kept() < 0.1
