"""Attention one query at a time, beside MultiHeadAttention on whole sequences."""

import numpy as np
import pytest

import minigrad as mg
import nn
from nn.cached_attention import CachedAttention, CachedSelfAttention
from tests.support import assert_close

B, N, N_K, D, H = 3, 6, 5, 16, 4


def layer_and_vectors(dtype, bias, scale):
    mg.manual_seed(0)
    layer = nn.MultiHeadAttention(D, H, bias=bias).to(dtype)
    for parameter in layer.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter)
    x, memory = mg.randn(B, N, D) * scale, mg.randn(B, N_K, D) * scale
    return layer, x.to(dtype), memory.to(dtype)


def visible(rng, *shape):
    """At random, but nothing for the last row of the batch."""
    mask = rng.random(shape) < 0.6
    mask[-1] = False
    return mask


CASES = [  # (dtype, bias, scale); 100 gives scores of thousands, which overflow unless a maximum is subtracted
    ("float64", True, 1.0),
    ("float64", False, 1.0),
    ("float32", True, 1.0),
    ("float64", True, 100.0),
]


@pytest.mark.parametrize(("dtype", "bias", "scale"), CASES)
@pytest.mark.parametrize("masked", [False, True])
def test_vectors_one_after_another_attend_as_the_whole_sequence_does(masked, dtype, bias, scale):
    layer, x, _ = layer_and_vectors(dtype, bias, scale)
    keep = visible(np.random.default_rng(0), B, 1, 1, N) if masked else np.ones((B, 1, 1, N), bool)
    with mg.no_grad():
        whole = layer(x, x, x, mg.Tensor(keep, device=x.device), is_causal=True)  # (B, N, D)
        one = CachedSelfAttention(layer, N)
        for place in range(N):
            seen = mg.Tensor(keep[:, 0, :, : place + 1], device=x.device).data if masked else None
            output = mg.Tensor(one(x[:, place].data, seen))
            assert output.dtype == dtype
            assert_close(output, whole[:, place], 1e-12 if dtype == "float64" else 1e-6)
        with pytest.raises(IndexError):
            one(x[:, 0].data)


@pytest.mark.parametrize(("dtype", "bias", "scale"), CASES)
def test_queries_attend_to_a_memory_as_in_the_layer(dtype, bias, scale):
    layer, x, memory = layer_and_vectors(dtype, bias, scale)
    mask = mg.Tensor(visible(np.random.default_rng(0), B, 1, 1, N_K), device=x.device)
    rows = np.array([2, 0, 0, 1])
    with mg.no_grad():
        expected = layer(x, memory, memory, mask)
        cached = CachedAttention(layer, memory, mask)
        tolerance = 1e-12 if dtype == "float64" else 1e-6
        assert_close(mg.Tensor(cached(x[:, 0].data)), expected[:, 0], tolerance)
        cached.take(rows)
        assert_close(mg.Tensor(cached(x[rows, 1].data)), expected[rows, 1], tolerance)


def test_what_is_hidden_and_other_rows_change_no_bit():
    layer, x, memory = layer_and_vectors("float32", True, 1.0)
    mask = np.ones((B, 1, 1, N_K), bool)
    mask[:, :, :, 1] = False
    mask = mg.Tensor(mask, device=x.device)
    with mg.no_grad():
        expected = mg.Tensor(CachedAttention(layer, memory, mask)(x[:, 0].data)).numpy()
        memory[0, 1] = memory[0, 1] * 1e4
        memory[2] = memory[2] * 1e4
        found = mg.Tensor(CachedAttention(layer, memory, mask)(x[:, 0].data)).numpy()
    np.testing.assert_array_equal(found[:2], expected[:2])


def test_what_is_hidden_may_be_much_larger():
    """So large that what is seen would vanish beside it."""
    layer, x, memory = layer_and_vectors("float64", True, 1.0)
    mask = np.ones((B, 1, 1, N_K), bool)
    mask[:, :, :, 1] = False
    mask = mg.Tensor(mask, device=x.device)
    with mg.no_grad():
        expected = mg.Tensor(CachedAttention(layer, memory, mask)(x[:, 0].data))
        memory[:, 1] = memory[:, 1] * 1e4
        assert_close(mg.Tensor(CachedAttention(layer, memory, mask)(x[:, 0].data)), expected, 1e-12)
