"""The door of attention in every room: against PyTorch, its numbers, dropout, and what is refused."""

import math

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from tests.cupy_standin import installed
from tests.nn.attention import PLACES, TOLERANCE, assert_equals_pytorch, draw, leaves, with_gradients
from tests.support import assert_close

INF = math.inf


# ---- against PyTorch -------------------------------------------------------------------------------------------------

MASKS = {
    "none": None,
    "of one row": PLACES[0, 0, 0],
    "shared": PLACES[0, 0],
    "of padding": PLACES[:, :1, :1],
    "of each example": PLACES[:, :1],
    "of each head": PLACES[:1],
    "of all": PLACES,
    "of queries": np.ones((5, 1), bool),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", MASKS)
def test_boolean_masks_equal_pytorch(room, form, dtype):
    mask = MASKS[form]
    assert_equals_pytorch(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, None if mask is None else mg.Tensor(mask)),
        lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, None if mask is None else torch.tensor(np.broadcast_to(mask, (2, 3, 5, 7)))
        ),
        draw((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)),
        dtype,
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 1, 1, 7), (1, 3, 5, 7), (2, 3, 5, 7)])
def test_float_masks_and_their_gradients_equal_pytorch(room, shape, dtype):
    assert_equals_pytorch(
        F.scaled_dot_product_attention,
        lambda torch, *inputs: torch.nn.functional.scaled_dot_product_attention(
            *inputs[:3], inputs[3].expand(2, 3, 5, 7)
        ),
        draw((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6), shape),
        dtype,
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize(("n_q", "n_k"), [(5, 5), (2, 4), (1, 6), (5, 2)])
def test_causal_attention_equals_pytorch(room, leading, n_q, n_k, dtype):
    assert_equals_pytorch(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        draw((*leading, n_q, 4), (*leading, n_k, 4), (*leading, n_k, 3)),
        dtype,
        least=1.0 if room == "tiled" else 0.0,  # a query that sees one key has the gradient 0, there up to rounding
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "scale"), [((6, 3), None), ((6, 1), 0.3), ((2, 2), 2.0)])
def test_shared_heads_and_a_scale_equal_pytorch(room, heads, scale, dtype):
    options = {"scale": scale, "enable_gqa": True}
    assert_equals_pytorch(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options),
        lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options),
        draw((2, heads[0], 5, 4), (2, heads[1], 7, 4), (2, heads[1], 7, 4)),
        dtype,
    )


def test_leading_axes_broadcast(room):
    q, k, v = draw((2, 3, 5, 4), (3, 7, 4), (2, 1, 7, 4))
    full = [np.broadcast_to(x, (2, 3, *x.shape[-2:])) for x in (q, k, v)]
    weights = draw((2, 3, 5, 4), seed=1)[0]
    value, gradients = with_gradients(F.scaled_dot_product_attention, leaves(q, k, v), weights)
    expected, (d_q, d_k, d_v) = with_gradients(F.scaled_dot_product_attention, leaves(*full), weights)
    assert_close(value, expected, 1e-12)
    summed = [d_q.numpy(), d_k.numpy().sum(0), d_v.numpy().sum(1, keepdims=True)]
    for gradient, their in zip(gradients, summed, strict=True):
        assert_close(gradient, their, 1e-12)


# ---- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_huge_scores_and_stacked_masks(any_room):
    scores = mg.Tensor([[1e5, -1e5, 1e5, 3e5]])
    k = scores.transpose(0, 1)  # (4, 1), for a query of 1
    v = mg.Tensor([[1.0], [2.0], [4.0], [8.0]])
    lowest = np.full(4, np.finfo(np.float32).min) * np.array([0, 0, 0, 1])
    for mask in (np.array([True, True, True, False]), np.array([0, 0, 0, -INF]), lowest):
        options = {"is_causal": True, "causal_offset": 3, "scale": 1.0}
        output = F.scaled_dot_product_attention(mg.ones(1, 1), k, v, mg.Tensor(mask), **options)
        assert output.tolist() == [[2.5]]


def test_float16_is_computed_in_float32(room):
    arrays = draw((2, 3, 5, 64), (2, 3, 7, 64), (2, 3, 7, 6), dtype="float16")
    q, k, v = leaves(*arrays)
    output = F.scaled_dot_product_attention(q * 30, k * 30, v)  # scores beyond what float16 resolves
    exact = F.scaled_dot_product_attention(*[mg.Tensor(x, dtype=np.float64) for x in (q * 30, k * 30, v)])
    assert output.dtype == np.float16
    assert_close(output, exact, np.finfo(np.float16).eps)
    output.sum().backward()
    assert all(x.grad.dtype == np.float16 and np.isfinite(x.grad.numpy()).all() for x in (q, k, v))


def test_float16_is_no_bound_on_the_number_of_keys(any_room):
    k, v = mg.zeros(70000, 1, dtype=np.float16), mg.ones(70000, 1, dtype=np.float16)  # float16 ends at 65504
    assert F.scaled_dot_product_attention(k[:1], k, v).tolist() == [[1]]


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_gradient_flows_to_each_input_alone(room, place):
    inputs = [mg.Tensor(x, requires_grad=i == place) for i, x in enumerate(draw((2, 4), (3, 4), (3, 4), (2, 3)))]
    output = F.scaled_dot_product_attention(*inputs)
    assert output.requires_grad
    (output * output).sum().backward()
    assert [x.grad is not None and x.grad.numpy().any() for x in inputs] == [i == place for i in range(4)]


# ---- dropout ---------------------------------------------------------------------------------------------------------


def test_dropout_drops_weights_and_scales_the_rest(any_room):
    mg.manual_seed(0)
    k, v = mg.zeros(4, 1), mg.Tensor(np.eye(4, dtype=np.float32))
    weights = F.scaled_dot_product_attention(mg.zeros(2000, 1), k, v, dropout_p=0.25).numpy()
    assert set(weights.ravel().tolist()) == {0, np.float32(0.25 / 0.75)} and weights.dtype == np.float32
    assert abs((weights == 0).mean() - 0.25) < 0.02


def test_dropout_of_everything_gives_zeros_and_zero_gradients(room):
    inputs = leaves(*draw((2, 4), (3, 4), (3, 4)))
    output = F.scaled_dot_product_attention(*inputs, dropout_p=1.0)
    output.sum().backward()
    assert not output.numpy().any() and not any(x.grad.numpy().any() for x in inputs)


# ---- what is refused -------------------------------------------------------------------------------------------------

QUERY, KEY = mg.zeros(2, 3, 5, 4), mg.zeros(2, 3, 7, 4)


def test_other_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"key_lengths must have the shape \(B,\), for queries with a batch axis"):
        F.scaled_dot_product_attention(QUERY[0, 0], KEY[0, 0], KEY[0, 0], key_lengths=np.array([3]))
    with pytest.raises(
        ValueError, match=r"query \(2, 3, 5, 4\), key \(2, 3, 7, 3\) and value \(2, 3, 7, 4\) do not fit"
    ):
        F.scaled_dot_product_attention(QUERY, KEY[..., :3], KEY)
    with pytest.raises(ValueError, match=r"key \(2, 3, 7, 4\) and value \(2, 3, 6, 4\) do not fit"):
        F.scaled_dot_product_attention(QUERY, KEY, KEY[:, :, :6])
    with pytest.raises(ValueError, match=r"query \(4,\), key \(7, 4\)"):
        F.scaled_dot_product_attention(mg.zeros(4), mg.zeros(7, 4), mg.zeros(7, 4))
    with pytest.raises(ValueError, match=r"leading axes of query \(2, 3, 5, 4\), key \(2, 2, 7, 4\).*enable_gqa=True"):
        F.scaled_dot_product_attention(QUERY, mg.zeros(2, 2, 7, 4), mg.zeros(2, 2, 7, 4))
    with pytest.raises(ValueError, match=r"enable_gqa needs heads .* a multiple .* key \(2, 2, 7, 4\)"):
        F.scaled_dot_product_attention(QUERY, mg.zeros(2, 2, 7, 4), mg.zeros(2, 2, 7, 4), enable_gqa=True)
    with pytest.raises(TypeError, match=r"must be floating, got int64, float32, float32; write \.float\(\)"):
        F.scaled_dot_product_attention(QUERY.long(), KEY, KEY)
    with pytest.raises(ValueError, match=r"dropout_p is a probability, from 0 to 1, got 1\.5"):
        F.scaled_dot_product_attention(QUERY, KEY, KEY, dropout_p=1.5)
    with pytest.raises(ValueError, match="causal_offset=2 only has a meaning together with is_causal=True"):
        F.scaled_dot_product_attention(QUERY, KEY, KEY, causal_offset=2)


# ---- on a GPU, pretended ---------------------------------------------------------------------------------------------


def test_attention_stays_on_its_device_and_refuses_masks_from_another(room):
    with installed():
        inputs = [
            mg.Tensor(x, requires_grad=True, device="cuda") for x in draw((2, 5, 4), (2, 7, 4), (2, 7, 4), (5, 7))
        ]
        lengths = mg.Tensor([3, 0], device="cuda")
        output = F.scaled_dot_product_attention(*inputs, dropout_p=0.5, is_causal=True, key_lengths=lengths)
        output.sum().backward()
        assert {x.grad.device for x in inputs} == {output.device} == {"cuda:0"}
        message = "attn_mask is on cpu, the queries are on cuda:0; move it"
        with pytest.raises(mg.DeviceError, match=message):
            F.scaled_dot_product_attention(*inputs[:3], np.ones((5, 7), bool))
