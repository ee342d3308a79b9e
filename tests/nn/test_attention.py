"""MultiHeadAttention."""

import math

import numpy as np
import pytest

import minigrad as mg
import nn
from nn.masks import padding_mask
from tests.nn.attention import TOLERANCE, draw
from tests.support import assert_close, torch_or_skip

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
    mask = mg.Tensor(KEEP[:, None, None, :]) if masked else None
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
