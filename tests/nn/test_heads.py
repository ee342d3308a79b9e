"""Heads split off and joined again, and attention of projections with all of their heads."""

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from nn.heads import heads_of_projections, join_heads, split_heads
from nn.scaled_dot_product import multi_head_attention
from tests.nn.attention import TOLERANCE, draw, leaves, with_gradients
from tests.support import assert_close

# ---- heads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", mg.bfloat16])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_heads_are_split_off_and_joined_again(parts, dtype):
    x = mg.Tensor(np.arange(2 * 5 * parts * 12).reshape(2, 5, parts * 12) % 64, dtype=dtype)
    heads = split_heads(x, heads=3, parts=parts)
    assert [part.shape for part in heads] == [(2, 3, 5, 4)] * parts and heads[0].dtype == x.dtype
    for number, part in enumerate(heads):
        of_part = x[..., number * 12 : (number + 1) * 12]  # (B, N, D)
        assert (part == of_part.reshape(2, 5, 3, 4).transpose(1, 2)).all().item()
    assert (join_heads(list(heads)) == x).all().item()


def test_gradients_of_heads_pass_gradcheck():
    (x,) = draw((2, 5, 24))

    def products(x):
        q, k = split_heads(x, heads=3, parts=2)
        return join_heads([q * k, k * k]) * x, join_heads([q])

    assert mg.gradcheck(products, [x], order=2)


def test_heads_that_are_not_used_have_the_gradient_0():
    x = mg.ones(1, 2, 12, requires_grad=True)
    _, second, _ = split_heads(x, heads=2, parts=3)
    second.sum().backward()
    assert x.grad.tolist() == [[[0] * 4 + [1] * 4 + [0] * 4] * 2]


@pytest.mark.cpu_only(reason="it looks at the memory of NumPy arrays")
def test_heads_are_views_and_notice_a_write():
    x = mg.ones(1, 2, 4)
    (head,) = split_heads(x, heads=2, parts=1)
    assert np.shares_memory(head.data, x.data)
    product = head * mg.ones(1, 2, 2, 2, requires_grad=True)
    x[0, 0, 0] = 5.0
    with pytest.raises(RuntimeError, match="changed in place"):
        product.sum().backward()


# ---- attention of projections ----------------------------------------------------------------------------------------

H = 3
PROJECTIONS = {
    "in one": [(2, 5, 36)],
    "key and value in one": [(2, 5, 12), (2, 7, 24)],
    "apart": [(2, 5, 12), (2, 7, 12), (2, 7, 12)],
}
OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "a mask": {"attn_mask": mg.Tensor(np.arange(10).reshape(2, 1, 5, 1) % 3 > 0)},
    "a float mask": {"attn_mask": mg.Tensor(np.linspace(-1, 1, 15).reshape(3, 5, 1)[None]), "is_causal": True},
    "dropout": {"dropout_p": 0.4},
}


def of_projections(options):
    def attention(*projections):
        mg.manual_seed(3)  # so that dropout drops the same at every call
        return multi_head_attention(*projections, *[None] * (3 - len(projections)), H, **options)

    return attention


def of_heads(options):
    def attention(*projections):
        mg.manual_seed(3)
        heads = heads_of_projections(*projections, *[None] * (3 - len(projections)), heads=H, split=split_heads)
        return join_heads([F.scaled_dot_product_attention(*heads, **options)])

    return attention


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("form", PROJECTIONS)
def test_attention_of_projections_is_that_of_their_heads(form, case, dtype, room):
    arrays, (weights,) = draw(*PROJECTIONS[form], dtype=dtype), draw((2, 5, 12), seed=1)
    value, gradients = with_gradients(of_projections(OPTIONS[case]), leaves(*arrays), weights)
    expected, expected_gradients = with_gradients(of_heads(OPTIONS[case]), leaves(*arrays), weights)
    assert value.dtype == dtype
    assert_close(value, expected, TOLERANCE[dtype] / 10)
    for gradient, its in zip(gradients, expected_gradients, strict=True):
        assert_close(gradient, its, TOLERANCE[dtype] / 10)


@pytest.mark.parametrize("case", ["causal", "a float mask", "dropout"])
@pytest.mark.parametrize("form", PROJECTIONS)
def test_gradients_of_projections_pass_gradcheck(form, case):
    assert mg.gradcheck(of_projections(OPTIONS[case]), draw(*PROJECTIONS[form]), order=2)


def test_the_gradient_of_a_float_mask_passes_gradcheck():
    arrays = draw((2, 5, 36), (3, 1, 5))
    assert mg.gradcheck(lambda x, mask: multi_head_attention(x, None, None, H, mask[None]), arrays, order=2)


@pytest.mark.parametrize("dtype", ["float16", mg.bfloat16])
def test_the_fused_room_computes_16_bits_in_float32(dtype):
    x = mg.Tensor(draw((2, 5, 36))[0], dtype=dtype)
    with F.attention_room("fused"):
        output = of_projections({"is_causal": True})(x)
        expected = of_projections({"is_causal": True})(x.float()).to(x.dtype)
    assert output.dtype == x.dtype and (output == expected).all().item()


def test_within_autocast_it_is_computed_and_given_in_16_bits():
    x = mg.Tensor(draw((2, 5, 36))[0], dtype="float32")
    with mg.autocast("float16"):
        output = of_projections({})(x)
    assert output.dtype == np.float16 and (output == of_projections({})(x.half())).all().item()


def test_projections_of_several_dtypes_give_the_widest():
    arrays = draw(*PROJECTIONS["apart"])
    mixed = [arrays[0].astype(np.float32).astype(np.float64), *arrays[1:]]
    expected = of_projections({})(*map(mg.Tensor, mixed))
    output = of_projections({})(mg.Tensor(arrays[0].astype(np.float32)), *map(mg.Tensor, arrays[1:]))
    assert output.dtype == np.float64
    assert_close(output, expected, 1e-14)


def test_in_the_fused_room_it_is_one_operation(any_room):
    x = mg.Tensor(draw((2, 5, 36), dtype="float32")[0], requires_grad=True)
    node = of_projections({})(x).node
    one = node.operation.name == "fused_multi_head_attention" and node.inputs[0] is x
    assert one if any_room == "fused" else node.operation.name == "join_heads"


@pytest.mark.cpu_only(reason="on a GPU the kernels' room is taken")
def test_a_projection_that_was_written_over_gives_no_gradient():
    x, memory = mg.ones(1, 2, 12, requires_grad=True), mg.ones(1, 2, 24)
    output = of_projections({})(x, memory)
    memory[0, 0, 0] = 5.0
    with pytest.raises(RuntimeError, match=r"^fused_multi_head_attention: its input 1 .* changed in place"):
        output.sum().backward()


def test_what_a_mask_must_be_is_said_as_of_heads():
    with pytest.raises(ValueError, match=r"attn_mask of shape \(4, 5\) does not broadcast to the scores"):
        of_projections({"attn_mask": mg.ones(4, 5)})(mg.ones(2, 5, 36))
