"""The fused room of attention, what it alone does: which keys it leaves out, and what it makes of memory."""

import tracemalloc

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from nn import fused_room
from nn.masks import Visible, causal_mask
from nn.scaled_dot_product import multi_head_attention
from tests.nn.attention import draw, leaves, with_gradients
from tests.support import assert_close


@pytest.mark.cpu_only(reason="queries are in one block there")
def test_keys_that_a_block_of_queries_does_not_see_are_left_out(monkeypatch):
    monkeypatch.setattr(fused_room, "QUERIES", 2)
    visible = np.zeros((2, 3, 5, 7), bool)
    visible[0, 0, 0, 2] = visible[1, 2, 1, 4] = visible[0, 1, 4, 1] = (
        True  # which of the batch and the heads, is all one
    )
    blocks = fused_room._blocks(Visible(visible), 5, 7)
    assert blocks == [(slice(0, 2), 5), (slice(2, 4), 1), (slice(4, 5), 2)]

    arrays, (weights,) = draw((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)), draw((2, 3, 5, 6), seed=1)

    def attention(*inputs):
        return F.scaled_dot_product_attention(*inputs, mg.Tensor(visible))

    value, gradients = with_gradients(attention, leaves(*arrays), weights)
    with F.attention_room("plain"):
        expected, expected_gradients = with_gradients(attention, leaves(*arrays), weights)
    assert_close(value, expected, 1e-14)
    for gradient, its in zip(gradients, expected_gradients, strict=True):
        assert_close(gradient, its, 1e-14)


def of_heads(mask, is_causal):
    x = leaves(*draw(*[(4, 2, 96, 8)] * 3, dtype="float32"))
    return F.scaled_dot_product_attention(*x, mask, is_causal=is_causal)


def of_projections(mask, is_causal):
    (x,) = leaves(*draw((4, 96, 48), dtype="float32"))
    return multi_head_attention(x, None, None, 2, mask, is_causal=is_causal)


def scores_taken(attention, mask, is_causal):
    """The most memory that a step of attention takes, forward and backward, in arrays of all scores."""
    tracemalloc.start()
    try:
        attention(mask, is_causal).sum().backward()
        return tracemalloc.get_traced_memory()[1] / (4 * 2 * 96 * 96 * 4)
    finally:
        tracemalloc.stop()


@pytest.mark.cpu_only(reason="it looks at the memory of NumPy arrays")
@pytest.mark.parametrize("attention", [of_heads, of_projections])
@pytest.mark.parametrize("shape", [(2, 96, 96), (1, 96), (4, 2, 96, 96)])
def test_a_float_mask_without_gradient_takes_no_memory_of_scores(shape, attention):
    mask = mg.Tensor(draw((1,) * (4 - len(shape)) + shape, dtype="float32")[0])
    for is_causal in (False, True):
        scores_taken(attention, mask, is_causal)  # what is made once and kept
        least = scores_taken(attention, None, is_causal)
        assert least > 2  # the weights, and their gradient
        assert scores_taken(attention, mask, is_causal) < least + 0.1
        assert scores_taken(attention, mask.detach().requires_grad_(), is_causal) > least + 0.9


@pytest.mark.parametrize("name", ["plain", "fused"])  # others refuse to go back then
def test_a_mask_may_be_written_over_before_gradients_are_taken(name):
    (x,) = leaves(*draw((2, 3, 5, 4)))
    (seed,) = draw((2, 3, 5, 4), seed=1)

    def second_gradient(overwrites):
        mask = causal_mask(5, 5)
        with F.attention_room(name):
            output = F.scaled_dot_product_attention(x, x, x, mask)
        if overwrites:
            mask[...] = True
        (first,) = mg.grad(output, x, mg.Tensor(seed), create_graph=True)
        return mg.grad(first.square().sum(), x)[0].numpy()

    np.testing.assert_array_equal(second_gradient(True), second_gradient(False))
