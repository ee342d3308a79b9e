"""Dropout."""

import math

import numpy as np
import pytest

import minigrad as mg
import nn


def test_training_drops_a_share_and_scales_the_rest():
    mg.manual_seed(0)
    x = mg.ones(200, 200, requires_grad=True)
    y = nn.Dropout(0.25)(x)
    assert set(np.unique(y.numpy())) == {np.float32(0), np.float32(1 / 0.75)} and y.dtype == np.float32
    assert abs((y.numpy() == 0).mean() - 0.25) < 0.01 and abs(y.mean().item() - 1) < 0.02
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())  # x is 1: the mask itself


def test_evaluation_is_the_identity():
    x = mg.randn(3, 4)
    for p in (0.0, 0.3, 1.0):
        assert (nn.Dropout(p).eval()(x) == x).all()
    assert (nn.Dropout(0.0)(x) == x).all()


def test_p_of_1_gives_zeros_and_zero_gradients():
    x = mg.Tensor([1.0, -2.0, 1e38], requires_grad=True)
    y = nn.Dropout(1.0)(x)
    y.sum().backward()
    assert y.tolist() == [0, 0, 0] and x.grad.tolist() == [0, 0, 0]


def test_a_seed_and_step_give_the_same_mask_and_another_step_another():
    layer, x = nn.Dropout(0.5), mg.ones(100)
    masks = []
    for step in (1, 1, 2):
        mg.manual_seed(7, step)
        masks.append(layer(x).tolist())
    assert masks[0] == masks[1] != masks[2]
    assert layer(x).tolist() != masks[2]  # the next call draws afresh


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan, math.inf])
def test_p_outside_0_to_1_is_refused(p):
    with pytest.raises(ValueError, match=f"Dropout: p is a probability, from 0 to 1, got {p}"):
        nn.Dropout(p)
