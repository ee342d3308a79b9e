"""Encoder and decoder stacks beside PyTorch's: the same parameters, outputs, attention and gradients."""

import itertools

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from models import Decoder, DecoderLayer, Encoder, EncoderDecoder, EncoderLayer
from tests.models.gradients import assert_same_gradients
from tests.support import assert_close, torch_or_skip

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # PyTorch, of a fast path that it does not take

D, H, D_FF, B, N_S, N_T, V = 16, 4, 32, 3, 7, 5, 11
SOURCE_LENGTHS, TARGET_LENGTHS = (7, 4, 1), (5, 3, 2)
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def torch_transformer(norm_first, final_norm, activation, dtype):
    """PyTorch's model with 2 + 2 layers and all parameters random: its own start has equal layers and zero biases."""
    torch = torch_or_skip()
    torch.manual_seed(0)
    options = {"dropout": 0.0, "activation": activation, "norm_first": norm_first, "batch_first": True}
    model = torch.nn.Transformer(D, H, 2, 2, D_FF, **options, dtype=getattr(torch, dtype))
    if not final_norm:
        model.encoder.norm = model.decoder.norm = None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def ours_from(model, norm_first, final_norm, activation, dtype):
    ours = EncoderDecoder(D, H, 2, 2, D_FF, 0.0, activation, norm_first, final_norm).to(dtype)
    ours.load_state_dict(model.state_dict())
    return ours


def inputs(dtype):
    """Source and target vectors, the places within each row's length, a projection to V classes, and the classes."""
    rng = np.random.default_rng(1)
    source, target = rng.standard_normal((B, N_S, D)).astype(dtype), rng.standard_normal((B, N_T, D)).astype(dtype)
    source_kept = np.arange(N_S) < np.array(SOURCE_LENGTHS)[:, None]
    target_kept = np.arange(N_T) < np.array(TARGET_LENGTHS)[:, None]
    projection = rng.standard_normal((D, V)).astype(dtype) / np.sqrt(D).astype(dtype)
    classes = np.where(target_kept, rng.integers(0, V, (B, N_T)), -100)
    return source, target, source_kept, target_kept, projection, classes


def torch_masks(torch, source_kept, target_kept):
    """PyTorch's masks, in which True is hidden."""
    return {
        "tgt_mask": torch.triu(torch.ones(N_T, N_T, dtype=torch.bool), 1),
        "src_key_padding_mask": torch.tensor(~source_kept),
        "tgt_key_padding_mask": torch.tensor(~target_kept),
        "memory_key_padding_mask": torch.tensor(~source_kept),
    }


def our_masks(source_kept, target_kept):
    source_mask, target_mask = mg.Tensor(source_kept[:, None, None]), mg.Tensor(target_kept[:, None, None])
    return {
        "source_mask": source_mask,
        "target_mask": target_mask,
        "memory_mask": source_mask,
        "target_is_causal": True,
    }


def torch_attention(torch, model, *args, **masks):
    """The weights of every head of every attention module of PyTorch's model, by module path."""
    weights = {}

    def ask(module, args, kwargs):
        return args, {**kwargs, "need_weights": True, "average_attn_weights": False}

    def keep(path):
        def hook(module, args, output):
            weights[path] = output[1]

        return hook

    hooks = []
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.MultiheadAttention):
            hooks += [module.register_forward_pre_hook(ask, with_kwargs=True), module.register_forward_hook(keep(path))]
    model(*args, **masks)
    for hook in hooks:
        hook.remove()
    return weights


CASES = list(itertools.product([False, True], [False, True], ["relu", "gelu"], ["float32", "float64"]))


@pytest.mark.parametrize(("norm_first", "final_norm", "activation", "dtype"), CASES)
def test_a_torch_transformer_loads_as_it_is_and_gives_its_numbers(norm_first, final_norm, activation, dtype):
    torch = torch_or_skip()
    theirs = torch_transformer(norm_first, final_norm, activation, dtype)
    ours = ours_from(theirs, norm_first, final_norm, activation, dtype)
    source, target, source_kept, target_kept, projection, classes = inputs(dtype)
    tolerance = TOLERANCE[dtype]

    torch_inputs = [torch.tensor(x, requires_grad=True) for x in (source, target)]
    masks = torch_masks(torch, source_kept, target_kept)
    torch_output = theirs(*torch_inputs, **masks)
    torch_logits = (torch_output @ torch.tensor(projection)).reshape(-1, V)
    torch_loss = torch.nn.functional.cross_entropy(torch_logits, torch.tensor(classes).reshape(-1))
    torch_loss.backward()
    torch_weights = torch_attention(torch, theirs, *torch_inputs, **masks)

    our_inputs = [mg.Tensor(x, requires_grad=True) for x in (source, target)]
    output = ours(*our_inputs, **our_masks(source_kept, target_kept))
    loss = F.cross_entropy((output @ mg.Tensor(projection)).reshape(-1, V), mg.Tensor(classes.reshape(-1)))
    loss.backward()
    output_again, weights = ours(*our_inputs, **our_masks(source_kept, target_kept), need_weights=True)

    assert output.dtype == np.dtype(dtype)
    assert_close(output, torch_output, tolerance, "the output")
    assert_close(output_again, torch_output, tolerance, "the output with weights")
    assert_close(loss, torch_loss, tolerance, "the loss")
    for name, x, x_expected in zip(("source", "target"), our_inputs, torch_inputs, strict=True):
        assert_close(x.grad, x_expected.grad, tolerance, f"the gradient of the {name}")
    assert_same_gradients(ours, theirs, tolerance)
    assert list(weights) == [
        "encoder.layers.0.self_attn",
        "encoder.layers.1.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
        "decoder.layers.1.self_attn",
        "decoder.layers.1.multihead_attn",
    ]
    for path, attention in torch_weights.items():
        assert_close(weights[path], attention, tolerance, path)


def test_without_masks_everything_is_attended_to_as_in_torch():
    torch = torch_or_skip()
    theirs = torch_transformer(False, True, "relu", "float64")
    ours = ours_from(theirs, False, True, "relu", "float64")
    source, target, *_ = inputs("float64")
    assert_close(ours(*map(mg.Tensor, (source, target))), theirs(torch.tensor(source), torch.tensor(target)), 1e-10)


def test_masks_of_one_query_or_head_reach_attention():
    """A mask of the full shape (B, H, N_q, N_k), different for each head and query, in each of the three places."""
    mg.manual_seed(0)
    rng = np.random.default_rng(0)
    model = EncoderDecoder(D, H, 1, 1, D_FF, dropout=0.0)
    source, target, *_ = inputs("float32")
    shapes = {"source_mask": (N_S, N_S), "target_mask": (N_T, N_T), "memory_mask": (N_T, N_S)}
    masks = {name: mg.Tensor(rng.random((B, H, *shape)) < 0.7) for name, shape in shapes.items()}
    _, weights = model(*map(mg.Tensor, (source, target)), **masks, need_weights=True)
    places = ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"]
    for path, mask in zip(places, masks.values(), strict=True):
        np.testing.assert_array_equal(weights[path].numpy() > 0, mask.numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_state_made_with_the_length_first_loads_too(dtype):
    """batch_first changes how PyTorch's model is called, not its parameters."""
    torch = torch_or_skip()
    theirs = torch.nn.Transformer(D, H, 2, 2, D_FF, dropout=0.0, dtype=getattr(torch, dtype))
    ours = ours_from(theirs, False, True, "relu", dtype)
    source, target, *_ = inputs(dtype)
    expected = theirs(torch.tensor(source).transpose(0, 1), torch.tensor(target).transpose(0, 1)).transpose(0, 1)
    assert_close(ours(*map(mg.Tensor, (source, target))), expected, TOLERANCE[dtype])


@pytest.mark.parametrize("norm_first", [False, True])
def test_layers_alone_have_torchs_parameters_and_numbers(norm_first):
    torch = torch_or_skip()
    torch.manual_seed(0)
    sizes = {"d_model": D, "nhead": H, "dim_feedforward": D_FF, "dropout": 0.0, "batch_first": True}
    source, target, *_ = inputs("float64")
    their_encoder = torch.nn.TransformerEncoderLayer(**sizes, norm_first=norm_first, dtype=torch.float64)
    their_decoder = torch.nn.TransformerDecoderLayer(**sizes, norm_first=norm_first, dtype=torch.float64)
    encoder = EncoderLayer(D, H, D_FF, 0.0, norm_first=norm_first).to("float64")
    decoder = DecoderLayer(D, H, D_FF, 0.0, norm_first=norm_first).to("float64")
    encoder.load_state_dict(their_encoder.state_dict())
    decoder.load_state_dict(their_decoder.state_dict())
    assert_close(encoder(mg.Tensor(source)), their_encoder(torch.tensor(source)), 1e-10)
    assert_close(
        decoder(*map(mg.Tensor, (target, source))), their_decoder(torch.tensor(target), torch.tensor(source)), 1e-10
    )


def test_final_norms_are_off_for_post_norm_and_on_for_pre_norm_unless_chosen():
    def final_norms(**options):
        model = EncoderDecoder(D, H, 1, 1, D_FF, **options)
        return model.encoder.norm is not None, model.decoder.norm is not None

    assert final_norms() == (False, False)
    assert final_norms(norm_first=True) == (True, True)
    assert final_norms(final_norm=True) == (True, True)
    assert final_norms(norm_first=True, final_norm=False) == (False, False)


def test_a_state_with_final_norms_is_refused_by_a_stack_without():
    state = EncoderDecoder(D, H, 1, 1, D_FF, final_norm=True).state_dict()
    with pytest.raises(RuntimeError, match=r"unexpected: encoder\.norm\.weight\n(.*\n)*.*: decoder\.norm\.bias"):
        EncoderDecoder(D, H, 1, 1, D_FF).load_state_dict(state)


def test_encoder_and_decoder_take_layers_of_any_number_and_a_norm_on_request():
    source, target, *_ = inputs("float32")
    encoder = Encoder([EncoderLayer(D, H, D_FF) for _ in range(3)])
    decoder = Decoder([DecoderLayer(D, H, D_FF)], norm=nn.LayerNorm(D))
    memory = encoder(mg.Tensor(source))
    assert memory.shape == (B, N_S, D)
    assert decoder(mg.Tensor(target), memory).shape == (B, N_T, D)
    names = [name for name, _ in decoder.named_parameters()]
    assert "norm.weight" in names and "layers.0.multihead_attn.in_proj_weight" in names
    assert not any(name.startswith("norm.") for name, _ in encoder.named_parameters())


def test_every_layer_starts_with_values_of_its_own():
    model = EncoderDecoder(D, H, 3, 3, D_FF)
    for stack in (model.encoder, model.decoder):
        for first, second in itertools.combinations(stack.layers, 2):
            pairs = zip(first.named_parameters(), second.named_parameters(), strict=True)
            for (name, one), (_, other) in pairs:
                assert one is not other
                if one.ndim > 1:
                    assert (one.numpy() != other.numpy()).mean() > 0.99, name


def test_matrices_start_xavier_uniform():
    mg.manual_seed(0)
    for name, parameter in EncoderDecoder(64, 4, 1, 1, 256).named_parameters():
        if parameter.ndim == 2:
            bound = np.sqrt(6 / sum(parameter.shape))
            values = parameter.numpy()
            assert 0.97 * bound < np.abs(values).max() <= bound, name
            assert abs(values.std() / (bound / np.sqrt(3)) - 1) < 0.05, name


def test_the_same_seed_draws_the_same_parameters():
    states = []
    for seed in (1, 1, 2):
        mg.manual_seed(seed)
        states.append(EncoderDecoder(D, H, 1, 1, D_FF).state_dict())
    assert all((states[0][name] == states[1][name]).all() for name in states[0])
    assert any((states[0][name] != states[2][name]).any() for name in states[0])


@pytest.mark.parametrize("norm_first", [False, True])
def test_dropout_reaches_every_sub_layer_in_training_only(norm_first):
    """With p = 1 all that sub-layers add is dropped: post-norm only normalizes, pre-norm does nothing at all."""
    source, target, *_ = inputs("float32")
    options = {"norm_first": norm_first, "final_norm": False}
    model = EncoderDecoder(D, H, 2, 2, D_FF, dropout=1.0, **options)
    expected = target if norm_first else F.layer_norm(mg.Tensor(target), (D,))
    assert_close(model(*map(mg.Tensor, (source, target))), expected, 1e-4)
    undropped = EncoderDecoder(D, H, 2, 2, D_FF, dropout=0.0, **options)
    undropped.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(
        model.eval()(*map(mg.Tensor, (source, target))).numpy(), undropped(*map(mg.Tensor, (source, target))).numpy()
    )


def test_bad_sizes_and_names_are_told():
    with pytest.raises(ValueError, match="d_model must be a multiple of num_heads, got 16 and 3"):
        EncoderDecoder(16, 3)
    with pytest.raises(ValueError, match="EncoderLayer: activation must be one of relu, gelu, gelu_tanh, got 'swish'"):
        EncoderDecoder(activation="swish")
    with pytest.raises(ValueError, match=r"query \(3, 7, 8\), key \(3, 7, 8\) and value \(3, 7, 8\) do not fit"):
        EncoderDecoder(D, H)(mg.zeros(B, N_S, 8), mg.zeros(B, N_T, D))
    with pytest.raises(ValueError, match=r"query \(3, 5, 16\), key \(2, 7, 16\) and value \(2, 7, 16\) do not fit"):
        EncoderDecoder(D, H)(mg.zeros(2, N_S, D), mg.zeros(B, N_T, D))


def test_sublayers_are_one_operation_on_a_cpu_alone():
    x = mg.randn(B, N_S, D, requires_grad=True)
    y = EncoderLayer(D, H, D_FF, dropout=0.0)(x)
    assert (y.node.operation.name == "fused_feed_forward_sublayer") == (x.device == "cpu")
