"""The projections of attention to a memory: two linear layers by parts of one weight."""

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from nn.projections import packed_projections
from tests.nn.comparison import draw


def inputs(dtype=np.float64, bias=True):
    arrays = draw((2, 3, 4), (2, 5, 4), (12, 4), (12,))
    query, memory, weight, b = [mg.Tensor(array, requires_grad=True, dtype=dtype) for array in arrays]
    return [query, memory, weight, *[b] * bias]


def by_views(query, memory, weight, bias=None):
    of_query, of_memory = (None, None) if bias is None else bias.split([4, 8])
    w_query, w_memory = weight.split([4, 8])
    return F.linear(query, w_query, of_query), F.linear(memory, w_memory, of_memory)


def packed(query, memory, weight, bias=None):
    return packed_projections(query, memory, weight, bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_same_bits_as_by_views(dtype, bias):
    given = inputs(dtype, bias)
    results = [function(*given) for function in (packed, by_views)]
    for mine, its in zip(*results, strict=True):
        assert mine.dtype == dtype
        np.testing.assert_array_equal(mine.numpy(), its.numpy())
    gradients = [mg.grad([q.sum(), (kv * kv).sum()], given) for q, kv in results]
    for mine, its in zip(*gradients, strict=True):
        np.testing.assert_array_equal(mine.numpy(), its.numpy())


@pytest.mark.parametrize("bias", [True, False])
def test_to_second_order(bias):
    assert mg.gradcheck(packed, inputs(bias=bias), order=2)


def test_one_of_the_two_alone_is_differentiated():
    query, memory, weight, bias = inputs()
    q, _ = packed_projections(query, memory, weight, bias)
    d_memory, d_weight, d_bias = mg.grad(q.sum(), [memory, weight, bias])
    assert not d_memory.numpy().any() and not d_weight.numpy()[4:].any()
    assert d_weight.numpy()[:4].all() and d_bias.tolist() == [6.0] * 4 + [0.0] * 8


def test_autocast_casts_it():
    with mg.autocast():
        assert [x.dtype for x in packed_projections(*inputs(np.float32))] == [np.float16] * 2
