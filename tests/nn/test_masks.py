"""Masks: the two helpers, what each form of mask lets a query attend to, and what is refused."""

import math

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from nn.masks import causal_mask, padding_mask
from tests.nn.attention import draw, leaves, zeros_and

INF = math.inf


# ---- mask helpers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.array, mg.Tensor])
def test_padding_mask(form):
    mask = padding_mask(form([[5, 0, 7], [0, 0, 2]]), 0)
    assert mask.shape == (2, 1, 1, 3) and mask.dtype == np.bool_
    assert mask.tolist() == [[[[True, False, True]]], [[[False, False, True]]]]


def test_causal_mask():
    mask = causal_mask(2, 3)
    assert mask.tolist() == [[True, False, False], [True, True, False]] and mask.dtype == np.bool_
    assert causal_mask(1, 3, offset=1).tolist() == [[True, True, False]]
    assert causal_mask(0, 3).shape == (0, 3) and not causal_mask(2, 2, offset=-5).any()


@pytest.mark.cpu_only(reason="on a GPU kernels read the option")
def test_a_small_causal_mask_is_made_once_for_all_calls():
    x = mg.Tensor(draw((2, 3, 4))[0], requires_grad=True)

    def mask_of(**options):
        with F.attention_room("fused"):
            return F.scaled_dot_product_attention(x, x, x, is_causal=True, **options).node.options["how"].visible

    kept = mask_of()
    assert kept is mask_of() and kept is not mask_of(causal_offset=1)
    assert kept.array.tolist() == np.tri(3, dtype=bool).tolist()
    ceiling = kept.ceiling(np.dtype(np.float32))
    assert ceiling.dtype == np.float32 and ceiling is kept.ceiling(ceiling.dtype)
    assert ceiling.tolist() == np.where(np.tri(3, dtype=bool), INF, -INF).tolist()
    with pytest.raises(ValueError, match="read-only"):
        kept.array[0, 1] = True
    large = mg.zeros(1, 300, 4, requires_grad=True)
    outputs = [F.scaled_dot_product_attention(large, large, large, is_causal=True) for _ in "ab"]
    assert outputs[0].node.options["how"].visible is not outputs[1].node.options["how"].visible


def test_padding_mask_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"padding_mask: ids must have the shape \(B, N\), got \(3,\)"):
        padding_mask(np.array([1, 2, 0]), 0)


# ---- which keys ------------------------------------------------------------------------------------------------------


def test_true_means_may_be_attended_to(room):
    k, v = zeros_and([10, 20])
    assert F.scaled_dot_product_attention(mg.zeros(1, 1), k, v, mg.Tensor([True, False])).tolist() == [[10]]
    layer = nn.MultiHeadAttention(2, 1)
    layer.load_state_dict(
        {
            "in_proj_weight": [[0, 0]] * 4 + [[1, 0], [0, 1]],  # values as they are
            "in_proj_bias": [0] * 6,
            "out_proj.weight": [[1, 0], [0, 1]],
            "out_proj.bias": [0, 0],
        }
    )
    x = mg.Tensor([[[10.0, 10.0], [20.0, 20.0]]])
    assert layer(x, x, x, mask=mg.Tensor([True, False])).tolist() == [[[10, 10]] * 2]


@pytest.mark.parametrize(
    ("n_q", "offset", "expected"), [(2, 0, [0, 0.5]), (2, 2, [1, 1.5]), (1, 3, [1.5]), (2, -1, [0, 0])]
)
def test_causal_attention_starts_at_the_top_left_and_an_offset_shifts_it(room, n_q, offset, expected):
    k, v = zeros_and([0, 1, 2, 3])
    output = F.scaled_dot_product_attention(mg.zeros(n_q, 1), k, v, is_causal=True, causal_offset=offset)
    assert output.numpy().ravel().tolist() == expected
    masked = F.scaled_dot_product_attention(mg.zeros(n_q, 1), k, v, causal_mask(n_q, 4, offset))
    assert masked.tolist() == output.tolist()


def test_masks_lengths_and_causality_must_all_allow(room):
    k, v = zeros_and([1, 2, 4, 8])
    mask = np.array([False, True, True, True])
    q = mg.zeros(1, 4, 1)
    output = F.scaled_dot_product_attention(q, k, v, mg.Tensor(mask), is_causal=True, key_lengths=mg.Tensor([3]))
    assert output.numpy().ravel().tolist() == [0, 2, 3, 3]
    floating = mg.Tensor(np.where(mask, 0, -INF))
    output = F.scaled_dot_product_attention(q, k, v, floating, is_causal=True, key_lengths=mg.Tensor([3]))
    assert output.numpy().ravel().tolist() == [0, 2, 3, 3]


def test_a_float_mask_of_0_and_1_is_added_so_it_hides_nothing(room):
    q, k, v = draw((4, 8), (4, 8), (4, 8))
    changed = v.copy()
    changed[3] += 1
    leaks = []
    for mask in (mg.ones(4, 4).tril(), mg.ones(4, 4).tril() != 0):
        outputs = [F.scaled_dot_product_attention(*map(mg.Tensor, (q, k, x)), mask).numpy()[:3] for x in (v, changed)]
        leaks.append((outputs[0] != outputs[1]).any())
    assert leaks == [True, False]


def test_masks_do_not_change_the_dtype(room):
    q, k, v = draw((2, 4), (3, 4), (3, 4), dtype="float32")
    for mask in (mg.zeros(2, 3), mg.zeros(2, 3, dtype="float16"), mg.ones(2, 3, dtype=bool)):
        assert F.scaled_dot_product_attention(*map(mg.Tensor, (q, k, v)), mask).dtype == np.float32
    bias = mg.zeros(2, 3, dtype=np.float64, requires_grad=True)
    F.scaled_dot_product_attention(*map(mg.Tensor, (q, k, v)), bias).sum().backward()
    assert bias.grad.dtype == np.float64


@pytest.mark.cpu_only(reason="the mask is an array of NumPy that its owner changes")
def test_a_mask_changed_afterwards_changes_no_gradient(room):
    q, k, v = draw((2, 4), (3, 4), (3, 4))
    gradients = []
    for overwrite in (False, True):
        mask = np.array([[True, False, True], [True, True, False]])
        inputs = leaves(q, k, v)
        output = F.scaled_dot_product_attention(*inputs, mask)
        mask[:] = mask ^ overwrite
        gradients.append([g.numpy() for g in mg.grad(output, inputs, q)])
    for first, second in zip(*gradients, strict=True):
        np.testing.assert_array_equal(first, second)


# ---- what is refused -------------------------------------------------------------------------------------------------

QUERY, KEY = mg.zeros(2, 3, 5, 4), mg.zeros(2, 3, 7, 4)


@pytest.mark.parametrize("kind", [np.int64, np.uint8])
def test_a_mask_of_integers_is_refused_with_the_ways_to_write_it(kind):
    with pytest.raises(
        TypeError, match=rf"attn_mask has the dtype {np.dtype(kind)}.*mask != 0 .*True = may .*floating"
    ):
        F.scaled_dot_product_attention(QUERY, KEY, KEY, np.ones((5, 7), kind))
    with pytest.raises(TypeError, match="attn_mask must be a Tensor or an array, got list"):
        F.scaled_dot_product_attention(QUERY, KEY, KEY, [[True] * 7] * 5)


@pytest.mark.parametrize("shape", [(2, 5, 7), (3, 5, 7), (1, 5, 7)])
def test_a_mask_of_three_axes_is_refused_with_the_ways_to_write_it(shape):
    message = (
        r"may mean two things: write mask\[:, None\] if it is \(B, N_q, N_k\), mask\[None\] if it is \(H, N_q, N_k\)"
    )
    with pytest.raises(ValueError, match=message):
        F.scaled_dot_product_attention(QUERY, KEY, KEY, np.ones(shape, bool))


def test_a_mask_of_three_axes_means_one_thing_beside_a_query_of_three():
    mask = mg.ones(2, 5, 7, dtype=bool)
    assert F.scaled_dot_product_attention(QUERY[:, 0], KEY[:, 0], KEY[:, 0], mask).shape == (2, 5, 4)


@pytest.mark.parametrize("shape", [(2, 7), (5, 6), (2, 2, 5, 7), (1, 1, 1, 5, 7), (2, 0, 5, 7)])
@pytest.mark.parametrize("dtype", [bool, np.float32])
def test_a_mask_that_does_not_broadcast_is_refused_by_shape(shape, dtype):
    numbers = ", ".join(map(str, shape))
    message = rf"attn_mask of shape \({numbers}\) does not broadcast to .* \(2, 3, 5, 7\).*mask\[:, None, None, :\]"
    with pytest.raises(ValueError, match=message):
        F.scaled_dot_product_attention(QUERY, KEY, KEY, np.ones(shape, dtype))


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        (np.array([3, 4, 5]), ValueError, r"key_lengths must have the shape \(2,\), got \(3,\)"),
        (np.array(3), ValueError, r"key_lengths must have the shape \(2,\), got \(\)"),
        (np.array([3, 8]), ValueError, r"key_lengths must be from 0 to 7 \(the keys\), got 3 to 8"),
        (np.array([-1, 3]), ValueError, r"key_lengths must be from 0 to 7 \(the keys\), got -1 to 3"),
        (np.array([3.0, 4.0]), TypeError, "key_lengths must be a Tensor or an array of integers, got float64"),
        ([3, 4], TypeError, "key_lengths must be a Tensor or an array of integers, got list"),
    ],
)
def test_wrong_lengths_are_refused(lengths, error, message):
    with pytest.raises(error, match=message):
        F.scaled_dot_product_attention(QUERY, KEY, KEY, key_lengths=lengths)
