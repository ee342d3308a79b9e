"""Attention: its rooms against PyTorch and one another, every form of mask, and MultiHeadAttention."""

import math
import threading

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from nn.attention import causal_mask, padding_mask
from nn.rooms import ROOMS
from tests.minigrad.fake_cupy import installed
from tests.support import assert_close, torch_or_skip

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
NAN, INF = math.nan, math.inf


@pytest.fixture(params=ROOMS)
def room(request):
    with F.attention_room(request.param):
        yield request.param


def draw(*shapes, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def leaves(*arrays):
    return [mg.Tensor(array, requires_grad=True) for array in arrays]


def zeros_and(values):
    """Query and key of zeros, so that all keys weigh the same, for these values (N_k,), which come out averaged."""
    return mg.zeros(len(values), 1), mg.Tensor([[float(v)] for v in values])


# ---- against PyTorch -------------------------------------------------------------------------------------------------

# B = 2, H = 3, N_q = 5, N_k = 7
PLACES = np.random.default_rng(9).random((2, 3, 5, 7)) < 0.6
PLACES[..., 0] = True  # no empty row: what PyTorch gives for one depends on the path it takes
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


def with_gradients(function, inputs, weights):
    """The value of a function of Tensors, and its gradients."""
    value = function(*inputs)
    return value, mg.grad(value, inputs, weights.astype(value.dtype))


def assert_equals_pytorch(ours, theirs, arrays, dtype):
    torch = torch_or_skip()
    arrays = [array.astype(dtype) for array in arrays]
    their_inputs = [torch.tensor(array, requires_grad=True) for array in arrays]
    their_value = theirs(torch, *their_inputs)
    (weights,) = draw(tuple(their_value.shape), seed=1, dtype=dtype)
    value, gradients = with_gradients(ours, leaves(*arrays), weights)
    their_gradients = torch.autograd.grad(their_value, their_inputs, torch.tensor(weights))
    assert value.dtype == dtype
    assert_close(value, their_value, TOLERANCE[dtype])
    for place, (gradient, their_gradient) in enumerate(zip(gradients, their_gradients, strict=True)):
        assert_close(gradient, their_gradient, TOLERANCE[dtype], f"the gradient of input {place}")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", MASKS)
def test_boolean_masks_equal_pytorch(room, form, dtype):
    mask = MASKS[form]
    assert_equals_pytorch(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask),
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


# ---- against one another, and finite differences ---------------------------------------------------------------------

EMPTY_ROWS = PLACES & (np.arange(5) % 2 == 0)[:, None]
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "a mask with empty rows": {"attn_mask": EMPTY_ROWS},
    "a float mask with empty rows": {"attn_mask": np.where(EMPTY_ROWS, 0.5, -INF)},
    "lengths": {"key_lengths": np.array([3, 0])},
    "all at once": {
        "attn_mask": PLACES[:, :1],
        "is_causal": True,
        "causal_offset": 1,
        "key_lengths": np.array([6, 2]),
        "scale": 0.7,
    },
    "dropout": {"attn_mask": EMPTY_ROWS, "dropout_p": 0.4},
}


def attend(options):
    def attention(*inputs):
        mg.manual_seed(3)  # so that dropout drops the same at every call
        return F.scaled_dot_product_attention(*inputs, **options)

    return attention


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_rooms_give_the_same(case, dtype):
    arrays = draw((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6), dtype=dtype)
    (weights,) = draw((2, 3, 5, 6), seed=1)
    with F.attention_room("plain"):
        expected, expected_gradients = with_gradients(attend(CASES[case]), leaves(*arrays), weights)
    for name in ROOMS:
        with F.attention_room(name):
            value, gradients = with_gradients(attend(CASES[case]), leaves(*arrays), weights)
        assert_close(value, expected, TOLERANCE[dtype] / 10, name)
        for gradient, its in zip(gradients, expected_gradients, strict=True):
            assert_close(gradient, its, TOLERANCE[dtype] / 10, name)


@pytest.mark.parametrize("case", CASES)
def test_gradients_pass_gradcheck(room, case):
    assert mg.gradcheck(attend(CASES[case]), draw((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)), order=2)


@pytest.mark.parametrize("shape", [(7,), (2, 1, 5, 1), (2, 3, 5, 7)])
def test_gradients_with_a_float_mask_pass_gradcheck(room, shape):
    arrays = draw((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6), shape)
    arrays[3].flat[0] = -INF
    assert mg.gradcheck(lambda *inputs: F.scaled_dot_product_attention(*inputs, is_causal=True), arrays, order=2)


def test_one_tensor_may_be_query_key_and_value(room):
    assert mg.gradcheck(lambda x: F.scaled_dot_product_attention(x, x, x), draw((3, 4)), order=2)
    assert mg.gradcheck(lambda x: F.scaled_dot_product_attention(x, x * x, x * x), draw((3, 4)), order=2)


# ---- rows with nothing to attend to ----------------------------------------------------------------------------------


@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.filterwarnings("error")
def test_a_row_with_nothing_to_attend_to_gives_0_and_gradient_0(room, floating):
    q, k = mg.zeros(2, 1, requires_grad=True), mg.zeros(3, 1, requires_grad=True)
    v = mg.Tensor([[1.0], [2.0], [6.0]], requires_grad=True)
    mask = np.array([[True, False, True], [False, False, False]])
    output = F.scaled_dot_product_attention(q, k, v, np.where(mask, 0.0, -INF) if floating else mask)
    output.sum().backward()
    assert output.tolist() == [[3.5], [0]]
    assert v.grad.tolist() == [[0.5], [0], [0.5]]
    assert q.grad.tolist() == [[0], [0]] and k.grad.tolist() == [[0], [0], [0]]


def test_a_row_of_the_lowest_finite_numbers_is_not_empty(room):
    k, v = zeros_and([1, 2, 6])
    mask = np.full((1, 3), np.finfo(np.float32).min)
    assert F.scaled_dot_product_attention(mg.zeros(1, 1), k, v, mask).tolist() == [[3]]


SIZES = [((2, 0, 4), (2, 3, 4)), ((2, 5, 4), (2, 0, 4)), ((0, 5, 4), (0, 3, 4)), ((2, 5, 0), (2, 3, 0))]


@pytest.mark.parametrize(("query_shape", "key_shape"), SIZES)
@pytest.mark.filterwarnings("error")
def test_axes_of_length_0(room, query_shape, key_shape):
    q, k, v = leaves(*draw(query_shape, key_shape, (*key_shape[:-1], 6), dtype="float32"))
    output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    output.sum().backward()
    assert output.shape == (*query_shape[:-1], 6) and output.dtype == np.float32
    if key_shape[1] == 0:
        assert not output.numpy().any()
    for tensor in (q, k, v):
        assert tensor.grad.shape == tensor.shape and np.isfinite(tensor.grad.numpy()).all()


# ---- which keys ------------------------------------------------------------------------------------------------------


def test_true_means_may_be_attended_to(room):
    k, v = zeros_and([10, 20])
    assert F.scaled_dot_product_attention(mg.zeros(1, 1), k, v, np.array([True, False])).tolist() == [[10]]
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
    assert layer(x, x, x, mask=np.array([True, False])).tolist() == [[[10, 10]] * 2]


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
    output = F.scaled_dot_product_attention(q, k, v, mask, is_causal=True, key_lengths=np.array([3]))
    assert output.numpy().ravel().tolist() == [0, 2, 3, 3]
    floating = np.where(mask, 0, -INF)
    output = F.scaled_dot_product_attention(q, k, v, floating, is_causal=True, key_lengths=mg.Tensor([3]))
    assert output.numpy().ravel().tolist() == [0, 2, 3, 3]


def test_a_float_mask_of_0_and_1_is_added_so_it_hides_nothing(room):
    q, k, v = draw((4, 8), (4, 8), (4, 8))
    changed = v.copy()
    changed[3] += 1
    leaks = []
    for mask in (np.tril(np.ones((4, 4))), np.tril(np.ones((4, 4))) != 0):
        outputs = [F.scaled_dot_product_attention(*map(mg.Tensor, (q, k, x)), mask).numpy()[:3] for x in (v, changed)]
        leaks.append((outputs[0] != outputs[1]).any())
    assert leaks == [True, False]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", [5, 33, 64, 130])
@pytest.mark.parametrize("form", ["is_causal", "boolean", "float"])
def test_what_is_hidden_changes_no_bit(room, form, length, dtype):
    q, k, v = draw((2, 3, length, 8), (2, 3, length, 8), (2, 3, length, 8), dtype=dtype)
    visible = np.tril(np.ones((length, length), bool))
    mask = {"is_causal": None, "boolean": visible, "float": np.where(visible, 0, -INF)}[form]
    early = length // 2

    def first_outputs_and_gradients(late):
        inputs = leaves(*[np.concatenate([x[:, :, :early], x[:, :, early:] * late + late], 2) for x in (q, k, v)])
        output = F.scaled_dot_product_attention(*inputs, mask, is_causal=form == "is_causal")[:, :, :early]
        gradients = mg.grad(output, inputs, q[:, :, :early])
        return [output.numpy(), *[gradient.numpy() for gradient in gradients]]

    for found, expected in zip(first_outputs_and_gradients(-300.0), first_outputs_and_gradients(1.0), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_longer_padding_and_other_batch_mates_change_nothing(room):
    q, k, v = draw((2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 8), dtype="float32")
    found = F.scaled_dot_product_attention(*map(mg.Tensor, (q, k, v)), key_lengths=np.array([6, 9])).numpy()[0]
    alone = F.scaled_dot_product_attention(*[mg.Tensor(x) for x in (q[0], k[0, :, :6], v[0, :, :6])])
    assert_close(found, alone, 1e-6)


# ---- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_huge_scores_and_stacked_masks(room):
    scores = mg.Tensor([[1e5, -1e5, 1e5, 3e5]])
    k = scores.transpose(0, 1)  # (4, 1), for a query of 1
    v = mg.Tensor([[1.0], [2.0], [4.0], [8.0]])
    lowest = np.full(4, np.finfo(np.float32).min) * np.array([0, 0, 0, 1])
    for mask in (np.array([True, True, True, False]), np.array([0, 0, 0, -INF]), lowest):
        output = F.scaled_dot_product_attention(mg.ones(1, 1), k, v, mask, is_causal=True, causal_offset=3, scale=1.0)
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


def test_float16_is_no_bound_on_the_number_of_keys(room):
    k, v = mg.zeros(70000, 1, dtype=np.float16), mg.ones(70000, 1, dtype=np.float16)  # float16 ends at 65504
    assert F.scaled_dot_product_attention(k[:1], k, v).tolist() == [[1]]


def test_masks_do_not_change_the_dtype(room):
    q, k, v = draw((2, 4), (3, 4), (3, 4), dtype="float32")
    for mask in (np.zeros((2, 3)), np.zeros((2, 3), np.float16), np.ones((2, 3), bool)):
        assert F.scaled_dot_product_attention(*map(mg.Tensor, (q, k, v)), mask).dtype == np.float32
    bias = mg.zeros(2, 3, dtype=np.float64, requires_grad=True)
    F.scaled_dot_product_attention(*map(mg.Tensor, (q, k, v)), bias).sum().backward()
    assert bias.grad.dtype == np.float64


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_gradient_flows_to_each_input_alone(room, place):
    inputs = [mg.Tensor(x, requires_grad=i == place) for i, x in enumerate(draw((2, 4), (3, 4), (3, 4), (2, 3)))]
    output = F.scaled_dot_product_attention(*inputs)
    assert output.requires_grad
    (output * output).sum().backward()
    assert [x.grad is not None and x.grad.numpy().any() for x in inputs] == [i == place for i in range(4)]


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


# ---- dropout ---------------------------------------------------------------------------------------------------------


def test_dropout_drops_weights_and_scales_the_rest(room):
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
    mask = np.ones((2, 5, 7), bool)
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


# ---- rooms -----------------------------------------------------------------------------------------------------------


def made_by():
    q, k, v = leaves(*draw((2, 4), (3, 4), (3, 4)))
    return F.scaled_dot_product_attention(q, k, v).node.operation.name


def test_a_room_is_pinned_in_this_block_and_thread_only():
    inside = []
    with F.attention_room("plain"):
        assert made_by() == "matmul"
        with F.attention_room("fused"):
            assert made_by() == "fused_attention"
        assert made_by() == "matmul"
        thread = threading.Thread(target=lambda: inside.append(made_by()))
        thread.start()
        thread.join()
    assert inside == ["fused_attention"] and made_by() == "fused_attention"
    with pytest.raises(KeyError), F.attention_room("plain"):
        raise KeyError
    assert made_by() == "fused_attention"


def test_an_unknown_room_is_refused():
    with (
        pytest.raises(ValueError, match="there is no room 'fast'; the rooms are plain, fused"),
        F.attention_room("fast"),
    ):
        pass


def test_joining_the_heads_copies_nothing():
    x = mg.Tensor(draw((2, 5, 12), dtype="float32")[0], requires_grad=True)
    heads = x.reshape(2, 5, 3, 4).transpose(1, 2)
    output = F.scaled_dot_product_attention(heads, heads, heads)
    assert np.shares_memory(output.transpose(1, 2).reshape(2, 5, 12).numpy(), output.numpy())


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


def test_padding_mask_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"padding_mask: ids must have the shape \(B, N\), got \(3,\)"):
        padding_mask(np.array([1, 2, 0]), 0)


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


# ---- MultiHeadAttention ----------------------------------------------------------------------------------------------

KEEP = np.array([[True, True, True, False, True], [True, False, True, True, False]])  # (B, N_k)
# who attends to what: the names of query, key and value; inputs of the same name are the same tensor
WHO = {"itself": "xxx", "the memory": "xyy", "three things": "xyz"}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 6, "vdim": 4}, {"vdim": 4}], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_attention_equals_pytorch(who, options, masked, dtype):
    torch = torch_or_skip()
    names = "xyz" if options.get("vdim") else WHO[who]
    width = {"x": 8, "y": options.get("kdim", 8), "z": options.get("vdim", 8)}
    arrays = {name: draw((2, 5, width[name]), seed=ord(name), dtype=dtype)[0] for name in sorted(set(names))}
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=getattr(torch, dtype), **options)
    ours = nn.MultiHeadAttention(8, 2, **options).to(np.dtype(dtype))
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())

    inputs = {name: mg.Tensor(array, requires_grad=True) for name, array in arrays.items()}
    their_inputs = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    mask = KEEP[:, None, None, :] if masked else None
    output, weights = ours(*[inputs[n] for n in names], mask=mask, is_causal=masked, need_weights=True)
    again = ours(*[inputs[n] for n in names], mask=mask, is_causal=masked)
    hidden = (
        {"attn_mask": ~torch.ones(5, 5, dtype=bool).tril(), "key_padding_mask": ~torch.tensor(KEEP)} if masked else {}
    )
    their_output, their_weights = theirs(*[their_inputs[n] for n in names], **hidden, average_attn_weights=False)
    assert_close(output, their_output, TOLERANCE[dtype], "the output")
    assert_close(again, their_output, TOLERANCE[dtype], "the output, without weights")
    assert_close(weights, their_weights, TOLERANCE[dtype], "the weights")

    upstream, of_weights = draw(output.shape, weights.shape, seed=1, dtype=dtype)
    for value, their_value, seeds in (
        ([output, weights], [their_output, their_weights], [upstream, of_weights]),
        ([again], [their_output], [upstream]),
    ):
        leaves_of_ours = [*inputs.values(), *ours.parameters()]
        leaves_of_theirs = [*their_inputs.values(), *theirs.parameters()]
        found = mg.grad(value, leaves_of_ours, [mg.Tensor(seed) for seed in seeds])
        expected = torch.autograd.grad(
            their_value, leaves_of_theirs, [torch.tensor(seed) for seed in seeds], retain_graph=True
        )
        labels = [*inputs, *[name for name, _ in ours.named_parameters()]]
        for label, gradient, their_gradient in zip(labels, found, expected, strict=True):
            assert_close(gradient, their_gradient, TOLERANCE[dtype], f"the gradient of {label}")


def test_parameters_start_as_in_pytorch_and_differ_between_layers():
    mg.manual_seed(0)
    layer, other = nn.MultiHeadAttention(64, 4), nn.MultiHeadAttention(64, 4)
    weight = layer.in_proj_weight.numpy()
    bound = math.sqrt(6 / (64 + 3 * 64))
    assert bound * 0.99 < np.abs(weight).max() <= bound and abs(weight.std() - bound / math.sqrt(3)) < 0.01 * bound
    assert not layer.in_proj_bias.numpy().any() and not layer.out_proj.bias.numpy().any()
    assert 0.99 / 8 < np.abs(layer.out_proj.weight.numpy()).max() <= 1 / 8
    assert (weight != other.in_proj_weight.numpy()).any()
    assert {name: value.shape for name, value in nn.MultiHeadAttention(8, 2, kdim=6, vdim=4).state_dict().items()} == {
        "q_proj_weight": (8, 8),
        "k_proj_weight": (8, 6),
        "v_proj_weight": (8, 4),
        "in_proj_bias": (24,),
        "out_proj.weight": (8, 8),
        "out_proj.bias": (8,),
    }


def test_every_parameter_gets_a_gradient():
    for options in ({}, {"kdim": 6, "vdim": 4}):
        layer = nn.MultiHeadAttention(8, 2, **options)
        x, y, z = (mg.randn(2, 5, n) for n in (8, layer.kdim, layer.vdim))
        (layer(x, y, z) ** 2).sum().backward()
        for name, parameter in layer.named_parameters():
            assert parameter.grad.numpy().any(), name
            assert np.isfinite(parameter.grad.numpy()).all() and parameter.grad.dtype == np.float32


def test_dropout_is_for_training_only_and_the_weights_are_those_before_it():
    layer = nn.MultiHeadAttention(8, 2, dropout=0.5)
    x = mg.randn(2, 5, 8)
    dropped, weights = layer(x, x, x, need_weights=True)
    assert_close(weights.sum(-1), np.ones((2, 2, 5)), 1e-6)
    assert (dropped.numpy() != layer(x, x, x, need_weights=True)[0].numpy()).any()
    layer.eval()
    assert (layer(x, x, x) == layer(x, x, x)).all()
    assert (layer(x, x, x, need_weights=True)[1] == weights).all()


@pytest.mark.filterwarnings("error")
def test_an_example_of_padding_alone_gives_the_bias_and_no_gradient_that_is_not_finite():
    layer = nn.MultiHeadAttention(8, 2)
    nn.init.normal_(layer.out_proj.bias)
    x = mg.randn(2, 5, 8, requires_grad=True)
    for need_weights in (False, True):
        output = layer(x, x, x, padding_mask(np.array([[1, 2, 0, 0, 0], [0] * 5]), 0), need_weights=need_weights)
        output = output[0] if need_weights else output
        assert output.tolist()[1] == [layer.out_proj.bias.tolist()] * 5
        output.sum().backward()
        assert all(np.isfinite(p.grad.numpy()).all() for p in (x, *layer.parameters()))


@pytest.mark.parametrize(("d_model", "num_heads"), [(8, 3), (8, 0), (0, 1), (8, -2)])
def test_heads_that_do_not_divide_the_features_are_refused(d_model, num_heads):
    with pytest.raises(ValueError, match=f"d_model must be a multiple of num_heads, got {d_model} and {num_heads}"):
        nn.MultiHeadAttention(d_model, num_heads)


def test_multi_head_attention_names_what_does_not_fit():
    layer = nn.MultiHeadAttention(8, 2, kdim=6)
    x, y = mg.zeros(2, 5, 8), mg.zeros(2, 7, 6)
    message = (
        r"query \(2, 5, 8\), key \(2, 5, 8\) and value \(2, 5, 8\) do not fit; they are \(B, N_q, 8\), \(B, N_k, 6\)"
    )
    with pytest.raises(ValueError, match=message):
        layer(x, x, x)
    for query, key, value in [(x[0], y[0], x[0]), (x[:1], y, x), (x, y, x)]:
        with pytest.raises(ValueError, match="do not fit"):
            layer(query, key, value)
    with pytest.raises(ValueError, match=r"attn_mask of shape \(2, 5\) does not broadcast .* \(2, 2, 5, 5\)"):
        layer(x, y[:, :5], x, mask=np.ones((2, 5), bool))
    with pytest.raises(ValueError, match="dropout is a probability, from 0 to 1, got 2"):
        nn.MultiHeadAttention(8, 2, dropout=2)


def test_repr_shows_sizes_and_options():
    assert repr(nn.MultiHeadAttention(8, 2, 0.1, bias=False)).startswith(
        "MultiHeadAttention(\n  8, num_heads=2, dropout=0.1, bias=False\n  (out_proj): Linear("
    )
