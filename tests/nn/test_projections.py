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
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
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


@pytest.mark.parametrize(("weight", "bias"), [((12, 5), None), ((8, 4), None), ((12, 4), (5,)), ((12, 4), ())])
def test_a_weight_or_bias_that_does_not_fit(weight, bias):
    query, memory, *_ = inputs()
    with pytest.raises(ValueError, match=r"do not fit queries of length 4; they are \(.*, 4\), \(12, 4\) and \(12,\)"):
        packed_projections(query, memory, mg.zeros(weight), None if bias is None else mg.zeros(bias))


def test_a_memory_that_does_not_fit():
    query, _, weight, bias = inputs()
    with pytest.raises(ValueError, match=r"memory \(2, 5, 6\), .* do not fit queries of length 4"):
        packed_projections(query, mg.zeros(2, 5, 6), weight, bias)


def test_gradients_of_gradients_beside_arrays_that_are_no_tensors():
    query, _, weight, bias = inputs()
    memory = mg.ones(2, 5, 4, dtype="float64", requires_grad=True)
    q, kv = packed_projections(query.data, memory, weight, bias)
    (gradient,) = mg.grad((q.sum() * kv).sum(), memory, create_graph=True)
    assert mg.grad(gradient.sum(), weight)[0].numpy().any()
