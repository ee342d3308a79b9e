"""The rooms of attention: each gives the same, exactly nothing of what is hidden, and finite gradients."""

import math
import threading

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from nn import fused_room, tiled_room
from nn.rooms import NAMES
from tests.cupy_standin import installed
from tests.kernels.emulator.compiled import needs_compiler
from tests.nn.attention import PLACES, TOLERANCE, draw, leaves, with_gradients, zeros_and
from tests.support import assert_close

INF = math.inf
ROOMS = [name for name in NAMES if name != "kernel"]


# ---- against one another, and finite differences ---------------------------------------------------------------------

EMPTY_ROWS = PLACES & (np.arange(5) % 2 == 0)[:, None]
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "a mask with empty rows": {"attn_mask": mg.Tensor(EMPTY_ROWS)},
    "a float mask with empty rows": {"attn_mask": mg.Tensor(np.where(EMPTY_ROWS, 0.5, -INF))},
    "lengths": {"key_lengths": mg.Tensor([3, 0])},
    "all at once": {
        "attn_mask": mg.Tensor(PLACES[:, :1]),
        "is_causal": True,
        "causal_offset": 1,
        "key_lengths": mg.Tensor([6, 2]),
        "scale": 0.7,
    },
    "dropout": {"attn_mask": mg.Tensor(EMPTY_ROWS), "dropout_p": 0.4},
}


def attend(options):
    def attention(*inputs):
        mg.manual_seed(3)  # so that dropout drops the same at every call
        return F.scaled_dot_product_attention(*inputs, **options)

    return attention


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("queries", [64, 2])  # in a block: all of them in one, and few
def test_rooms_give_the_same(case, dtype, queries, monkeypatch):
    for module in (fused_room, tiled_room):
        monkeypatch.setattr(module, "QUERIES", queries)
    arrays = draw((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6), dtype=dtype)
    (weights,) = draw((2, 3, 5, 6), seed=1)
    with F.attention_room("plain"):
        expected, expected_gradients = with_gradients(attend(CASES[case]), leaves(*arrays), weights)
    for name in ROOMS if case != "dropout" else ["fused"]:  # the tiled room drops others
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
def test_a_row_with_nothing_to_attend_to_gives_0_and_gradient_0(any_room, floating):
    q, k = mg.zeros(2, 4, requires_grad=True), mg.zeros(3, 4, requires_grad=True)
    v = mg.Tensor([[1.0], [2.0], [6.0]], requires_grad=True)
    mask = np.array([[True, False, True], [False, False, False]])
    output = F.scaled_dot_product_attention(q, k, v, mg.Tensor(np.where(mask, 0.0, -INF) if floating else mask))
    output.sum().backward()
    assert output.tolist() == [[3.5], [0]]
    assert v.grad.tolist() == [[0.5], [0], [0.5]]
    assert not q.grad.numpy().any() and not k.grad.numpy().any()


def test_a_row_of_the_lowest_finite_numbers_is_not_empty(any_room):
    k, v = zeros_and([1, 2, 6])
    mask = mg.full((1, 3), float(np.finfo(np.float32).min))
    assert F.scaled_dot_product_attention(mg.zeros(1, 1), k, v, mask).tolist() == [[3]]


SIZES = [((2, 0, 4), (2, 3, 4)), ((2, 5, 4), (2, 0, 4)), ((0, 5, 4), (0, 3, 4)), ((2, 5, 0), (2, 3, 0))]


@pytest.mark.parametrize(("query_shape", "key_shape"), SIZES)
@pytest.mark.filterwarnings("error")
def test_axes_of_length_0(any_room, query_shape, key_shape):
    q, k, v = leaves(*draw(query_shape, key_shape, (*key_shape[:-1], 6), dtype="float32"))
    output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    output.sum().backward()
    assert output.shape == (*query_shape[:-1], 6) and output.dtype == np.float32
    if key_shape[1] == 0:
        assert not output.numpy().any()
    for tensor in (q, k, v):
        assert tensor.grad.shape == tensor.shape and np.isfinite(tensor.grad.numpy()).all()


# ---- what is hidden --------------------------------------------------------------------------------------------------


ROOMS_AND_DTYPES = [
    *[(name, dtype) for name in ROOMS for dtype in ("float32", "float64")],
    *[pytest.param("kernel", dtype, marks=needs_compiler) for dtype in ("float16", "float32")],
]


@pytest.mark.parametrize(("name", "dtype"), ROOMS_AND_DTYPES)
@pytest.mark.parametrize("length", [5, 33, 64, 130])
@pytest.mark.parametrize("form", ["is_causal", "boolean", "float"])
def test_what_is_hidden_changes_no_bit(name, dtype, form, length):
    q, k, v = draw((2, 3, length, 8), (2, 3, length, 8), (2, 3, length, 8), dtype=dtype)
    visible = np.tril(np.ones((length, length), bool))
    mask = {"is_causal": None, "boolean": visible, "float": np.where(visible, 0, -INF)}[form]
    mask = mask if mask is None else mg.Tensor(mask)
    early = length // 2

    def first_outputs_and_gradients(late):
        inputs = leaves(*[np.concatenate([x[:, :, :early], x[:, :, early:] * late + late], 2) for x in (q, k, v)])
        with F.attention_room(name):
            output = F.scaled_dot_product_attention(*inputs, mask, is_causal=form == "is_causal")[:, :, :early]
        gradients = mg.grad(output, inputs, q[:, :, :early])
        return [output.numpy(), *[gradient.numpy() for gradient in gradients]]

    for found, expected in zip(first_outputs_and_gradients(-300.0), first_outputs_and_gradients(1.0), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_longer_padding_and_other_batch_mates_change_nothing(any_room):
    q, k, v = draw((2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 8), dtype="float32")
    found = F.scaled_dot_product_attention(*map(mg.Tensor, (q, k, v)), key_lengths=mg.Tensor([6, 9])).numpy()[0]
    alone = F.scaled_dot_product_attention(*[mg.Tensor(x) for x in (q[0], k[0, :, :6], v[0, :, :6])])
    assert_close(found, alone, 1e-6)


# ---- which room ------------------------------------------------------------------------------------------------------


def made_by(n_q=2, n_k=3):
    q, k, v = leaves(*draw((n_q, 4), (n_k, 4), (n_k, 4)))
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


@pytest.mark.cpu_only(reason="on a GPU tiles are the kernels' work")
@pytest.mark.parametrize(
    ("n_q", "n_k", "expected"),
    [(2048, 2048, "tiled"), (1024, 4096, "tiled"), (2047, 2048, "fused"), (1, 4096, "fused")],
)
def test_the_room_of_many_scores(n_q, n_k, expected):
    assert made_by(n_q, n_k) == f"{expected}_attention"
    with F.attention_room("fused"):
        assert made_by(n_q, n_k) == "fused_attention"


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "width", "expected"),
    [("float32", 8, "kernel"), ("float16", 8, "kernel"), ("float64", 8, "fused"), ("float32", 257, "fused")],
)
def test_the_room_of_a_gpu(dtype, width, expected):
    with installed():
        x = mg.Tensor(np.ones((2, 1, 3, width), dtype), requires_grad=True, device="cuda")
        output = F.scaled_dot_product_attention(x, x, x)
        assert output.node.operation.name == f"{expected}_attention"
        output.sum().backward()
        assert output.device == x.grad.device == "cuda:0"


def test_tensor_cores_are_of_the_kernel_room_alone():
    refused = pytest.raises(ValueError, match="tensor_cores=True is for the room \"kernel\", got 'fused'")
    with refused, F.attention_room("fused", tensor_cores=True):
        pass


def test_an_unknown_room_is_refused():
    with (
        pytest.raises(ValueError, match="there is no room 'fast'; the rooms are plain, fused, tiled, kernel"),
        F.attention_room("fast"),
    ):
        pass


@pytest.mark.cpu_only(reason="it looks at the memory of NumPy arrays")
def test_joining_the_heads_copies_nothing():
    x = mg.Tensor(draw((2, 5, 12), dtype="float32")[0], requires_grad=True)
    heads = x.reshape(2, 5, 3, 4).transpose(1, 2)
    output = F.scaled_dot_product_attention(heads, heads, heads)
    assert np.shares_memory(output.transpose(1, 2).reshape(2, 5, 12).numpy(), output.numpy())
