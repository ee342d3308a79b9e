"""The kernel room of attention, run by the emulator: what the plain room computes in float64, whatever the options."""

import math

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from kernels.dropout import dropout_factor
from models import Transformer
from nn import kernel_room
from nn.optim import SGD
from tests.kernels.emulator.compiled import needs_compiler
from tests.nn.attention import PLACES, draw, leaves, with_gradients
from tests.support import as_array, assert_close

pytestmark = needs_compiler

INF = math.inf
EMPTY_ROWS = PLACES & (np.arange(5) % 2 == 0)[:, None]
KERNEL_TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 16e-3}  # beside float64: a few roundings


@pytest.fixture(autouse=True)
def in_the_kernel_room():
    with F.attention_room("kernel"):
        yield


def attend(*inputs, **options):
    return F.scaled_dot_product_attention(*inputs, **options)


def in_float64(arrays, options, weights, floating_mask=None):
    """The plain room's value and gradients."""
    wide = leaves(*[x.astype(np.float64) for x in (*arrays, *([] if floating_mask is None else [floating_mask]))])
    with F.attention_room("plain"):
        return with_gradients(lambda *inputs: attend(*inputs, **options), wide, weights.astype(np.float64))


def assert_equals_plain(shapes, dtype="float32", mask=None, **options):
    """Value and gradients, a floating mask's too, equal the plain room's of the same numbers in float64."""
    arrays = draw(*shapes, dtype=dtype)
    inputs = leaves(*arrays, *([] if mask is None else [mask]))
    value = attend(*inputs, **options)
    (weights,) = draw(value.shape, seed=1, dtype=dtype)
    gradients = mg.grad(value, inputs, weights)
    expected, expected_gradients = in_float64(arrays, options, weights, mask)
    assert value.node is not None and value.dtype == dtype
    assert_close(value, expected, KERNEL_TOLERANCE[dtype])
    for place, (found, its) in enumerate(zip(gradients, expected_gradients, strict=True)):
        assert found.dtype == inputs[place].dtype
        what = f"the gradient of input {place}"
        assert_close(found, its, KERNEL_TOLERANCE[dtype], what, least=1e-6)  # of a mask the same for all keys it is 0


# ---- beside the plain room -------------------------------------------------------------------------------------------

CASES = {
    "no options": {},
    "causal": {"is_causal": True},
    "causal after a cache": {"is_causal": True, "causal_offset": 2},
    "causal with empty rows": {"is_causal": True, "causal_offset": -2},
    "a mask with empty rows": {"attn_mask": mg.Tensor(EMPTY_ROWS)},
    "a mask of one row": {"attn_mask": mg.Tensor(PLACES[0, 0, 0])},
    "a constant float mask": {"attn_mask": mg.Tensor(np.where(EMPTY_ROWS, 0.5, -INF).astype("f"))},
    "lengths": {"key_lengths": mg.Tensor([3, 0])},
    "a scale": {"scale": 0.3},
    "all at once": {
        "attn_mask": mg.Tensor(PLACES[:, :1]),
        "is_causal": True,
        "causal_offset": 1,
        "key_lengths": mg.Tensor([6, 2]),
        "scale": 0.7,
    },
}
SHAPES = [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)]


@pytest.mark.parametrize("dtype", KERNEL_TOLERANCE)
@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_plain_room(case, dtype):
    assert_equals_plain(SHAPES, dtype, **CASES[case])


@pytest.mark.parametrize("shape", [(), (7,), (5, 1), (2, 1, 1, 7), (1, 3, 5, 7), (2, 3, 5, 7)])
def test_a_float_mask_and_its_gradient(shape):
    mask = np.asarray(draw(shape, seed=2, dtype="float32")[0])
    mask[(0,) * mask.ndim] = -INF if mask.size > 5 else 0.5
    assert_equals_plain(SHAPES, mask=mask, is_causal=True, causal_offset=1)


@pytest.mark.parametrize("kind", ["none", "boolean", "float"])
@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (2, 1, 3), (2, 2, 3)])
def test_any_leading_axes(leading, kind):
    shapes = [(*leading, 5, 8), (*leading, 7, 8), (*leading, 7, 8)]
    options = {"key_lengths": mg.Tensor([7, 4])} if leading else {}
    for own in {leading, leading[:1] + (1,) * len(leading[1:]), (1,) * len(leading), leading[-1:]}:
        if len(own) == 1 and len(leading) > 1:  # three axes would mean two things
            own = (1,) * (len(leading) - 1) + own
        mask = draw((*own, 5, 7), seed=3, dtype="float32")[0]
        if kind == "boolean":
            options["attn_mask"] = mg.Tensor(mask > -0.5)
        assert_equals_plain(shapes, mask=mask if kind == "float" else None, **options)


def test_leading_axes_broadcast():
    assert_equals_plain([(2, 3, 5, 8), (3, 7, 8), (2, 1, 7, 8)])
    assert_equals_plain([(5, 8), (2, 3, 7, 8), (7, 8)])


@pytest.mark.parametrize(
    "heads",
    [(6, 3, 3), (6, 1, 1), (2, 2, 2), (6, 3, 2)],
    ids=["three", "one", "each its own", "of the key and value"],
)
def test_shared_heads(heads):
    lengths = [5, 7, 7]
    assert_equals_plain([(2, h, n, 8) for h, n in zip(heads, lengths, strict=True)], enable_gqa=True)
    assert_equals_plain([(h, n, 8) for h, n in zip(heads, lengths, strict=True)], enable_gqa=True)


@pytest.mark.parametrize("widths", [(8, 3), (3, 8), (5, 5), (0, 8), (8, 0), (0, 0)])
def test_any_number_of_features(widths):
    d, value_width = widths
    assert_equals_plain([(2, 5, d), (2, 7, d), (2, 7, value_width)])


@pytest.mark.parametrize(
    ("query", "key"), [((2, 3, 0, 8), (2, 3, 7, 8)), ((2, 3, 5, 8), (2, 3, 0, 8)), ((0, 3, 5, 8), (0, 3, 7, 8)),
                       ((2, 0, 5, 8), (2, 0, 7, 8)), ((0, 5, 8), (0, 7, 8))],
)  # fmt: skip
def test_axes_of_length_0(query, key):
    assert_equals_plain([query, key, key], is_causal=True)
    mask = draw((query[-2], key[-2]), seed=4, dtype="float32")[0]
    assert_equals_plain([query, key, key], mask=mask)


def test_heads_that_were_split_off_are_joined_without_a_copy():
    x = mg.Tensor(draw((2, 5, 24), dtype="float32")[0], requires_grad=True)
    q, k, v = [part.reshape(2, 5, 2, 4).transpose(1, 2) for part in x.split(8, -1)]
    output = attend(q, k, v)
    assert output.node.inputs[0] is q.node  # as it is, strided
    assert output.transpose(1, 2).reshape(2, 5, 8).data.base is not None


def test_inputs_of_two_dtypes_and_one_tensor_as_all_three():
    q, k = draw((5, 8), dtype="float32")[0], draw((7, 8), dtype="float16", seed=1)[0]
    output = attend(mg.Tensor(q), mg.Tensor(k), mg.Tensor(k))
    assert output.dtype == np.float32
    x = mg.Tensor(q, requires_grad=True)
    wide = mg.Tensor(q.astype(np.float64), requires_grad=True)
    (gradient,) = mg.grad(attend(x, x, x).sum(), x)
    with F.attention_room("plain"):
        (expected,) = mg.grad(attend(wide, wide, wide).sum(), wide)
    assert_close(gradient, expected, 1e-5)


def test_a_mask_is_not_expanded_to_scores():
    """What a node keeps beside the inputs: the output, and a number for each query."""
    inputs = leaves(*draw(*SHAPES, dtype="float32"))
    mask = mg.Tensor(PLACES[:, :1, :1])
    node = attend(*inputs, mask, is_causal=True, key_lengths=mg.Tensor([3, 7])).node
    assert [getattr(x, "shape", None) for x in node.inputs] == [*SHAPES, (2, 1, 1, 7), (2,)]


# ---- dropout ---------------------------------------------------------------------------------------------------------


def dropped(q, k, v, factor):
    """Attention whose dropout is known, as a composition."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return (scores.softmax(-1) * mg.Tensor(factor)) @ v


@pytest.mark.parametrize("p", [0.4, 1.0])
def test_dropout_drops_the_same_in_all_derivatives(p):
    arrays = draw(*SHAPES, dtype="float32")
    (weights,) = draw(SHAPES[0], seed=1)
    factor = dropout_factor((2, 3, 5, 7), p, (3, 0, 1))

    def first_and_second(function, inputs, weights):
        mg.manual_seed(3)
        value = function(*inputs)
        weights = weights.astype(value.dtype)
        plain = mg.grad(value, inputs, weights, retain_graph=True)  # by the kernels
        gradients = mg.grad(value, inputs, weights, create_graph=True)  # by the reference
        second = mg.grad(sum((g * g).sum() for g in gradients), inputs)
        return value, *plain, *gradients, *second

    found = first_and_second(lambda *inputs: attend(*inputs, dropout_p=p), leaves(*arrays), weights)
    wide = leaves(*[x.astype(np.float64) for x in arrays])
    expected = first_and_second(lambda *inputs: dropped(*inputs, factor), wide, weights)
    for place, (mine, its) in enumerate(zip(found, expected, strict=True)):
        assert_close(mine, its, 1e-5, f"result {place}")


def test_each_call_drops_others_and_a_seed_the_same():
    q, k, v = [mg.Tensor(x) for x in draw(*SHAPES, dtype="float32")]
    mg.manual_seed(5)
    first, second = attend(q, k, v, dropout_p=0.5).numpy(), attend(q, k, v, dropout_p=0.5).numpy()
    mg.manual_seed(5)
    assert (first != second).any() and (attend(q, k, v, dropout_p=0.5).numpy() == first).all()


# ---- finite differences ----------------------------------------------------------------------------------------------


def checked(**options):
    """gradcheck of attention by float32 kernels: wide steps, so that their differences outweigh its rounding."""

    def single(*inputs):
        return attend(*[x.float() for x in inputs], **options).double()

    return mg.gradcheck(single, draw((2, 2, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8), (5, 7)), eps=1e-2, tolerance=1e-3)


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True, "causal_offset": 2}, {"key_lengths": mg.Tensor([7, 4])}, {"scale": 0.2}],
    ids=["no options", "causal", "key lengths", "scale"],
)
def test_gradcheck_passes(options):
    assert checked(enable_gqa=True, **options)


@pytest.mark.parametrize("place", range(4))
def test_gradcheck_finds_a_gradient_that_is_off_by_a_hundredth(monkeypatch, place):
    backward = kernel_room.attention_backward

    def wrong(*arguments, **options):
        return [g * 1.01 if i == place else g for i, g in enumerate(backward(*arguments, **options))]

    monkeypatch.setattr(kernel_room, "attention_backward", wrong)
    with pytest.raises(AssertionError, match="gradcheck"):
        checked(enable_gqa=True)


# ---- gradients of gradients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", KERNEL_TOLERANCE)
def test_second_derivatives(dtype):
    arrays = draw((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), (5, 7), dtype=dtype)
    arrays[3][0, :2] = -INF
    options = {"is_causal": True, "causal_offset": 1, "enable_gqa": True, "key_lengths": mg.Tensor([7, 4])}

    def second(inputs):
        gradients = mg.grad((attend(*inputs, **options) ** 2).sum(), inputs, create_graph=True)
        return mg.grad(sum((g * g).sum() for g in gradients), inputs)

    found = second(leaves(*arrays))
    with F.attention_room("plain"):
        plain = second(leaves(*arrays))
        expected = second(leaves(*[x.astype(np.float64) for x in arrays]))
    for place, (mine, its, exact) in enumerate(zip(found, plain, expected, strict=True)):
        errors = [np.linalg.norm(as_array(x) - as_array(exact)) / np.linalg.norm(as_array(exact)) for x in (mine, its)]
        assert errors[0] <= 3 * max(errors[1], 1e-6), f"input {place}: error {errors[0]}, the plain room's {errors[1]}"


def test_a_masks_gradient_is_computed_only_if_it_is_wanted(monkeypatch):
    wanted, backward = [], kernel_room.attention_backward

    def noting(*arguments, bias_gradient, **options):
        wanted.append(bias_gradient)
        return backward(*arguments, bias_gradient=bias_gradient, **options)

    monkeypatch.setattr(kernel_room, "attention_backward", noting)
    inputs = leaves(*draw(*SHAPES, dtype="float32"))
    for mask in (mg.zeros(5, 7), mg.zeros(5, 7, requires_grad=True), mg.Tensor(PLACES)):
        attend(*inputs, mask).sum().backward()
    assert wanted == [False, True, False]


@pytest.mark.parametrize("dtype", KERNEL_TOLERANCE)
def test_on_tensor_cores_where_the_room_says_so(dtype, monkeypatch):
    asked = []

    def noting(function):
        def called(*arguments, tensor_cores, **options):
            asked.append(tensor_cores)
            return function(*arguments, tensor_cores=tensor_cores, **options)

        return called

    for name in ("attention_forward", "attention_backward"):
        monkeypatch.setattr(kernel_room, name, noting(getattr(kernel_room, name)))
    with F.attention_room("kernel", tensor_cores=True):
        value = attend(*leaves(*draw(*SHAPES, dtype=dtype))).sum()
    value.backward()  # outside the block, as its forward was
    assert asked == [True, True]
    assert_equals_plain(SHAPES, dtype, is_causal=True)
    assert asked == [True, True, False, False]
    with F.attention_room("kernel", tensor_cores=True):
        assert_equals_plain(SHAPES, dtype, is_causal=True)


# ---- training --------------------------------------------------------------------------------------------------------


def trained(room):
    """The losses of 20 steps of a small Transformer with padding, and its parameters afterwards."""
    rng = np.random.default_rng(0)
    source, target = rng.integers(3, 11, (3, 7)), rng.integers(3, 9, (3, 6))
    source[1, 4:] = source[2, 2:] = target[1, 3:] = 0  # padding
    mg.manual_seed(0)
    model = Transformer(
        11, 9, d_model=16, num_heads=2, d_ff=16, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0
    )
    # Not Adam: a bias of the keys changes no weight, so its gradient is only rounding, of which Adam makes full steps.
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    with F.attention_room(room):
        for _ in range(20):
            optimizer.zero_grad()
            logits = model(source, target[:, :-1])  # (B, N, V)
            loss = F.cross_entropy(logits.reshape(-1, 9), mg.Tensor(target[:, 1:].reshape(-1)), ignore_index=0)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return np.array(losses), model.state_dict()


def test_a_transformer_learns_as_in_the_plain_room():
    losses, parameters = trained("kernel")
    expected_losses, expected = trained("plain")
    assert losses[-1] < 0.8 * losses[0]
    assert_close(losses, expected_losses, 1e-5)
    for name, parameter in parameters.items():
        assert_close(parameter, expected[name], 1e-4, name)


# ---- what it refuses -------------------------------------------------------------------------------------------------


def test_what_it_does_not_compute_is_refused():
    x = mg.zeros(2, 3, 8, dtype=np.float64)
    with pytest.raises(
        TypeError, match="kernel room computes in float32, float16 and bfloat16, got float64; the rooms plain and"
    ):
        attend(x, x, x)
    x = mg.zeros(2, 3, 257)
    with pytest.raises(ValueError, match="kernel room takes heads of up to 256 features, got 257; the rooms plain and"):
        attend(x, x, x)
    with pytest.raises(ValueError, match="enable_gqa needs heads"):
        attend(mg.zeros(2, 3, 8), mg.zeros(3, 8), mg.zeros(3, 8), enable_gqa=True)
    with pytest.raises(TypeError, match="attn_mask has the dtype int64"):
        attend(x[..., :8], x[..., :8], x[..., :8], mg.zeros(3, 3).long())
