"""Sub-layers as one operation: the same bits as layer after layer, and when they are taken."""

import itertools

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from minigrad import dividing
from models import DecoderLayer, EncoderLayer, stack
from nn.feed_forward import ACTIVATIONS
from nn.fused_sublayers import FeedForwardPasses, attention_sublayer, feed_forward_sublayer, fused_feed_forward_sublayer
from tests.nn.comparison import draw
from tests.support import assert_close

pytestmark = pytest.mark.cpu_only(reason="on a GPU sub-layers are compositions")

B, N, N_K, D, H, D_FF = 2, 5, 7, 8, 2, 12
ALL = ["attention", "attention", "feed_forward"]


@pytest.fixture
def taken(monkeypatch):
    """A function that says which sub-layers were taken as one operation since it was called last."""
    calls = []
    for door in (attention_sublayer, feed_forward_sublayer):

        def seen(*given, door=door):
            y = door(*given)
            calls.extend([door.__name__.removesuffix("_sublayer")] * (y is not None))
            return y

        monkeypatch.setattr(stack, door.__name__, seen)

    def since():
        found = calls.copy()
        calls.clear()
        return found

    return since


@pytest.fixture
def never(monkeypatch):
    """A function after which no sub-layer is taken as one operation."""

    def forbid():
        for door in (attention_sublayer, feed_forward_sublayer):
            monkeypatch.setattr(stack, door.__name__, lambda *given: None)

    return forbid


def decoder_layer(dtype="float32", **options):
    mg.manual_seed(0)
    layer = DecoderLayer(D, H, D_FF, **{"dropout": 0.0, **options})
    for p in layer.parameters():
        nn.init.normal_(p)
    return layer.to(dtype)


def vectors(dtype="float32", length=N, memory_length=N_K, batch=B):
    arrays = draw((batch, length, D), (batch, memory_length, D))
    return [mg.Tensor(x, dtype=dtype, requires_grad=True) for x in arrays]


def value_and_gradients(layer, inputs, **masks):
    y = layer(*inputs, **masks)
    seed = mg.Tensor(np.cos(np.arange(y.numel())).reshape(y.shape), dtype=y.dtype)
    return [y, *mg.grad(y, [*inputs, *layer.parameters()], seed)]


def assert_same_bits(found, expected):
    for mine, its in zip(found, expected, strict=True):
        assert mine.dtype == its.dtype
        np.testing.assert_array_equal(mine.numpy(), its.numpy())


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "padding": {"mask": mg.Tensor(np.arange(N) < np.array([[[[3]]], [[[5]]]])), "is_causal": True},
    "full": {"memory_mask": mg.Tensor(np.random.default_rng(0).random((B, H, N, N_K)) < 0.6)},
    "nothing": {"memory_mask": mg.Tensor(np.zeros((N, N_K), bool))},
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("norm_first", "activation", "masks"), list(itertools.product([False, True], ACTIVATIONS, MASKS)), ids=str
)
def test_the_same_bits_as_layer_after_layer(norm_first, activation, masks, dtype, taken, never):
    layer = decoder_layer(dtype, norm_first=norm_first, activation=activation)
    inputs = vectors(dtype)
    fused = value_and_gradients(layer, inputs, **MASKS[masks])
    assert taken() == ["attention", "attention", "feed_forward"]
    never()
    assert_same_bits(fused, value_and_gradients(layer, inputs, **MASKS[masks]))


@pytest.mark.parametrize("sizes", [(0, 7, 2), (5, 7, 0), (1, 1, 1), (150, 200, 40)])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_bits_at_any_size_and_number_of_threads(sizes, threads, taken, never, monkeypatch):
    monkeypatch.setattr(dividing, "_count", threads)
    layer, inputs = decoder_layer(norm_first=True, activation="gelu"), vectors("float32", *sizes)
    fused = value_and_gradients(layer, inputs, is_causal=True)
    assert taken() == ALL
    never()
    assert_same_bits(fused, value_and_gradients(layer, inputs, is_causal=True))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
def test_to_second_order(norm_first, activation, taken):
    layer = decoder_layer("float64", norm_first=norm_first, activation=activation)

    def of(x, memory):
        return layer(x, memory, is_causal=True)

    assert mg.gradcheck(of, vectors("float64", 2, 3, 1), order=2)
    assert taken()


def test_an_encoder_layer_that_is_causal_sees_nothing_after_itself(taken):
    layer = EncoderLayer(D, H, D_FF, dropout=0.0)
    (x, _), later = vectors(), np.zeros((B, N, D), np.float32)
    later[:, 3:] = 1
    assert (layer(x, is_causal=True)[:, :3] == layer(x + later, is_causal=True)[:, :3]).all()
    assert not (layer(x)[:, :3] == layer(x + later)[:, :3]).all()
    assert taken() == ["attention", "feed_forward"] * 4


def test_inputs_stay_as_they_are(taken):
    for norm_first in (False, True):
        layer, inputs = decoder_layer(norm_first=norm_first), vectors()
        everything = [*inputs, *layer.parameters()]
        before = [x.numpy().copy() for x in everything]
        value_and_gradients(layer, inputs)
        assert taken() == ALL
        for x, former in zip(everything, before, strict=True):
            np.testing.assert_array_equal(x.numpy(), former)


def test_a_hidden_number_that_is_off_hides_what_is_not_finite_behind_it(taken):
    layer, (x, _) = EncoderLayer(D, H, D_FF, dropout=0.0, norm_first=True), vectors()
    with mg.no_grad():
        layer.linear1.bias[0], layer.linear1.weight[0] = -1.0, 0.0
        layer.linear2.weight[:, 0] = np.finfo(np.float32).max
    with np.errstate(over="ignore", invalid="ignore"):
        y = layer(x)
        y.backward(mg.full_like(y, 1e10))
    assert taken() == ALL[1:] and np.isfinite(x.grad.numpy()).all()


def test_a_write_to_what_was_read_is_noticed():
    layer, (x, memory) = decoder_layer(), vectors()
    loss = layer(x, memory).sum()
    with mg.no_grad():
        layer.linear2.weight.mul_(2)
    with pytest.raises(RuntimeError, match=r"^fused_feed_forward_sublayer: its input 5 \(of shape \(8, 12\)\)"):
        loss.backward()


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Doubling(DecoderLayer):
    def _residual(self, x, sublayer, norm):
        return 2 * super()._residual(x, sublayer, norm)


def exchanged(path, part):
    def change(layer):
        parent, _, name = path.rpartition(".")
        setattr(getattr(layer, parent) if parent else layer, name, part)

    return change


def without_axes_of_linear1(layer):
    """Shapes that would fit one another if a matrix were not asked for."""
    layer.linear1.weight, layer.linear1.bias = nn.Parameter(mg.ones(D)), nn.Parameter(mg.ones(()))
    layer.linear2.weight = nn.Parameter(mg.ones(D))


def own_forward(path):
    def change(layer):
        part = layer
        for name in path.split("."):
            part = getattr(part, name)
        part.forward = lambda *args, forward=part.forward: 2 * forward(*args)

    return change


def evaluated(layer):
    layer.self_attn.dropout = layer.dropout.p = 0.5
    layer.eval()


def frozen(layer):
    layer.requires_grad_(False)


CHANGES = {
    "nothing": (lambda layer: None, ALL),
    "evaluation": (evaluated, ALL),
    "frozen": (frozen, []),
    "a frozen bias": (lambda layer: setattr(layer.linear1.bias, "requires_grad", False), ALL[:2]),
    "an eps that is no float": (exchanged("norm1.eps", 1), ALL[1:]),
    "first layer": (exchanged("linear1", Scaled(D, D_FF)), ALL[:2]),
    "last layer": (exchanged("linear2", Scaled(D_FF, D)), ALL[:2]),
    "output projection": (exchanged("self_attn.out_proj", Scaled(D, D)), ALL[1:]),
    "norm": (exchanged("norm2", nn.RMSNorm(D)), ["attention", "feed_forward"]),
    "norm without bias": (exchanged("norm3", nn.LayerNorm(D, bias=False)), ALL[:2]),
    "attention without bias": (exchanged("self_attn", nn.MultiHeadAttention(D, H, bias=False)), ALL[1:]),
    "attention that drops": (exchanged("multihead_attn.dropout", 0.5), ["attention", "feed_forward"]),
    "dropout": (exchanged("dropout", nn.Dropout(0.5)), []),
    "dropout of another kind": (exchanged("dropout", nn.Sequential()), []),
    "an own forward": (own_forward("linear2"), ALL[:2]),
    "an own forward of attention": (own_forward("self_attn"), ALL[1:]),
    "an own forward of a norm": (own_forward("norm2"), ["attention", "feed_forward"]),
    "float64 norm": (exchanged("norm1", nn.LayerNorm(D).to("float64")), ["attention", "feed_forward"]),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_they_are_taken_of_plain_parts_that_all_want_gradients(change, expected, taken):
    layer = decoder_layer()
    change(layer)
    layer(*vectors())
    assert taken() == expected


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            exchanged("linear1", nn.Linear(7, D_FF)),
            r"linear: x of shape .*8\) and weight of shape \(12, 7\) do not fit",
        ),
        (exchanged("linear2", nn.Linear(7, D)), r"linear: x of shape .*12\) and weight of shape \(8, 7\) do not fit"),
        (exchanged("norm2.weight", nn.Parameter(mg.ones(4))), r"layer_norm: weight has the shape \(4,\)"),
        (exchanged("norm3.bias", nn.Parameter(mg.ones(2, 4))), r"layer_norm: bias has the shape \(2, 4\)"),
        (exchanged("norm2", nn.LayerNorm(7)), r"layer_norm: x of shape .*8\) does not end in normalized_shape \(7,\)"),
        (
            exchanged("norm3.normalized_shape", (7,)),
            r"layer_norm: x of shape .*8\) does not end in normalized_shape \(7,\)",
        ),
        (without_axes_of_linear1, r"linear: x of shape .*8\) and weight of shape \(8,\) do not fit"),
        (exchanged("self_attn.num_heads", 3), r"reshape"),
    ],
)
def test_parts_that_do_not_fit_say_so(norm_first, change, text):
    layer = decoder_layer(norm_first=norm_first)
    change(layer)
    with pytest.raises(ValueError, match=text):
        layer(*vectors())


@pytest.mark.parametrize("path", ["self_attn.in_proj_bias", "linear1.bias"])
def test_a_bias_that_is_one_number_is_added_to_all(path, taken, never):
    layer, inputs = decoder_layer(), vectors()
    exchanged(path, nn.Parameter(mg.ones(1)))(layer)
    found = value_and_gradients(layer, inputs)
    assert len(taken()) == 2
    never()
    assert_same_bits(found, value_and_gradients(layer, inputs))


@pytest.mark.parametrize("path", ["linear2", "self_attn.out_proj"])
def test_a_single_output_is_added_to_all(path, taken, never):
    layer, inputs = decoder_layer(), vectors()
    exchanged(path, nn.Linear(D_FF if path == "linear2" else D, 1))(layer)
    found = value_and_gradients(layer, inputs)
    assert len(taken()) == 2
    never()
    assert_same_bits(found, value_and_gradients(layer, inputs))


def test_an_activation_that_is_added(monkeypatch, taken, never):
    monkeypatch.setitem(ACTIVATIONS, "silu", F.silu)
    layer, inputs = decoder_layer(activation="silu"), vectors()
    found = value_and_gradients(layer, inputs)
    assert taken() == ALL[:2]
    never()
    assert_same_bits(found, value_and_gradients(layer, inputs))


def test_gradients_of_what_is_used_elsewhere_too_are_the_same_but_for_rounding(taken, never):
    layer, (x, memory) = decoder_layer(), vectors()

    def gradients():
        return mg.grad((layer(x, memory) * (x + 1)).sum(), [x, memory])

    fused = gradients()
    assert taken() == ALL
    never()
    for mine, its in zip(fused, gradients(), strict=True):
        assert_close(mine, its, 1e-6)


def test_a_memory_of_another_length(taken):
    layer, (x, memory) = decoder_layer(), vectors()
    layer.multihead_attn = nn.MultiHeadAttention(D, H, kdim=6, vdim=6)
    assert layer(x, memory[..., :6]).shape == x.shape
    assert taken() == ["attention", "feed_forward"]


def test_a_subclass_does_as_it_says(taken):
    mg.manual_seed(0)
    layer = Doubling(D, H, D_FF, dropout=0.0, norm_first=True)
    plain = DecoderLayer(D, H, D_FF, dropout=0.0, norm_first=True)
    plain.load_state_dict(layer.state_dict())
    x, memory = vectors()
    assert (layer(x, memory) != plain(x, memory)).all()
    assert taken() == ALL


def test_they_are_not_taken_of_16_bits(taken):
    assert decoder_layer("float16")(*vectors("float16")).dtype == np.float16
    assert taken() == []


def test_they_are_not_taken_where_no_gradient_goes(taken):
    layer, (x, memory) = decoder_layer(), vectors()
    with mg.no_grad():
        layer(x, memory)
    assert taken() == []
    layer(x.detach(), memory)
    assert taken() == ["attention", "feed_forward"]


def test_who_watches_sees_the_layers(taken):
    layer, inputs = decoder_layer(), vectors()
    with mg.profile() as profile:
        layer(*inputs)
    assert taken() == [] and "linear" in str(profile)


def test_autocast_casts_the_products(taken):
    layer, inputs = decoder_layer(norm_first=True), vectors()
    with mg.autocast():
        layer(*inputs)
    assert taken() == []


@pytest.mark.parametrize("room", ["plain", "tiled"])
def test_another_room_of_attention_computes_as_ever(room, taken):
    layer, inputs = decoder_layer(), vectors()
    with F.attention_room(room):
        layer(*inputs)
    assert taken() == ["feed_forward"]


def test_a_float_mask_is_added_as_ever(taken):
    layer, inputs = decoder_layer(), vectors()
    layer(*inputs, mask=mg.zeros(N, N))
    assert taken() == ["attention", "feed_forward"]


def test_what_does_not_fit_is_said_by_the_layers():
    layer, (x, memory) = decoder_layer(), vectors()
    with pytest.raises(ValueError, match=r"MultiHeadAttention: query \(2, 5, 7\)"):
        layer(x[..., :7], memory)
    with pytest.raises(ValueError, match=r"MultiHeadAttention: query \(2, 5, 8\), key \(1, 7, 8\)"):
        layer(x, memory[:1])
    with pytest.raises(ValueError, match=r"attn_mask of shape \(3, 3\) does not broadcast"):
        layer(x, memory, mg.ones(3, 3) > 0)


def test_called_with_arrays_it_is_the_value():
    layer, (x, _) = EncoderLayer(D, H, D_FF, dropout=0.0), vectors()
    inputs = [x, *layer.norm2.parameters(), *layer.linear1.parameters(), *layer.linear2.parameters()]
    how = {"sublayer": FeedForwardPasses("relu"), "norm_first": False, "eps": 1e-5}
    value = fused_feed_forward_sublayer([x.numpy() for x in inputs], **how)
    np.testing.assert_array_equal(value, fused_feed_forward_sublayer(inputs, **how).numpy())
