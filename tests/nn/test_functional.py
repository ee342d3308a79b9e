"""The functions of nn.functional but for losses and attention: against PyTorch, corners, refusals."""

import math

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from nn.common import dropout_mask
from tests.cupy_standin import installed
from tests.nn.comparison import TOLERANCE, assert_equals_pytorch, draw
from tests.support import assert_close, torch_or_skip

# ---- activations and linear ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: f.softmax(x, dim=-1),
        lambda f, x: f.softmax(x, 0),
        lambda f, x: f.log_softmax(x, dim=1),
        lambda f, x: f.relu(x),
        lambda f, x: f.gelu(x),
        lambda f, x: f.gelu(x, approximate="tanh"),
    ],
    ids=["softmax", "softmax of columns", "log_softmax", "relu", "gelu", "gelu by tanh"],
)
def test_activations_equal_pytorch(call, dtype):
    assert_equals_pytorch(lambda x: call(F, x), lambda torch, x: call(torch.nn.functional, x), draw((3, 4, 5)), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shapes", [[(2, 3, 4), (5, 4), (5,)], [(4,), (5, 4)], [(0, 4), (5, 4), (5,)]])
def test_linear_equals_pytorch(shapes, dtype):
    assert_equals_pytorch(F.linear, lambda torch, *xs: torch.nn.functional.linear(*xs), draw(*shapes), dtype)


# ---- layer norm ------------------------------------------------------------------------------------------------------

LAYER_NORMS = [
    ((3, 5), (5,), "weight and bias"),
    ((2, 3, 5), (5,), "weight and bias"),
    ((2, 3, 5), (3, 5), "weight and bias"),
    ((2, 3, 5), (5,), "weight"),
    ((2, 3, 5), (5,), ""),
    ((5,), (5,), "weight and bias"),
    ((0, 5), (5,), "weight and bias"),
]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("shape", "normalized", "affine"), LAYER_NORMS)
def test_layer_norm_equals_pytorch(shape, normalized, affine, dtype):
    count = {"": 0, "weight": 1, "weight and bias": 2}[affine]
    assert_equals_pytorch(
        lambda x, *wb: F.layer_norm(x, normalized, *wb, eps=1e-3),
        lambda torch, x, *wb: torch.nn.functional.layer_norm(x, normalized, *wb, eps=1e-3),
        draw(shape, *[normalized] * count),
        dtype,
    )


@pytest.mark.parametrize(("shape", "normalized", "affine"), LAYER_NORMS[:-1])
def test_layer_norm_passes_gradcheck(shape, normalized, affine):
    count = {"": 0, "weight": 1, "weight and bias": 2}[affine]
    arrays = draw(shape, *[normalized] * count)
    assert mg.gradcheck(lambda x, *wb: F.layer_norm(x, normalized, *wb), arrays, order=2)


def test_layer_norm_takes_a_bias_alone_and_a_plain_length():
    x, bias = draw((3, 5), (5,))
    found = F.layer_norm(mg.Tensor(x), np.int64(5), bias=mg.Tensor(bias))
    assert_close(found, (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) + bias, 1e-12)


def test_layer_norm_of_equal_elements_is_the_bias_and_stays_finite():
    x = mg.Tensor(np.full((2, 4), 3.0, np.float32), requires_grad=True)
    y = F.layer_norm(x, 4, mg.ones(4), mg.Tensor([1.0, 2.0, 3.0, 4.0]))
    assert y.tolist() == [[1, 2, 3, 4]] * 2
    (y * y).sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_layer_norm_of_one_element_is_the_bias_with_gradient_0():
    x, weight = mg.Tensor([[0.1], [-7.0]], requires_grad=True), mg.Tensor([3.0], requires_grad=True)
    y = F.layer_norm(x, 1, weight, mg.Tensor([2.0]))
    y.backward([[1.0], [2.0]])
    assert y.tolist() == [[2], [2]] and x.grad.tolist() == [[0], [0]] and weight.grad.tolist() == [0]


def test_layer_norm_of_float16_is_computed_in_float32():
    x = (draw((2, 512))[0] * 100).astype(np.float16)  # the squares' sum is beyond float16
    y = F.layer_norm(mg.Tensor(x), 512, mg.ones(512).to(np.float16))
    wide = x.astype(np.float64)
    assert y.dtype == np.float16
    expected = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    assert_close(y, expected, np.finfo(np.float16).eps)


def test_layer_norm_refuses_shapes_that_do_not_fit():
    x = mg.zeros(2, 3)
    with pytest.raises(ValueError, match=r"x of shape \(2, 3\) does not end in normalized_shape \(4,\)"):
        F.layer_norm(x, 4)
    with pytest.raises(ValueError, match=r"x of shape \(2, 3\) does not end in normalized_shape \(1, 2, 3\)"):
        F.layer_norm(x, (1, 2, 3))
    with pytest.raises(ValueError, match=r"bias has the shape \(1,\), it must have normalized_shape \(3,\)"):
        F.layer_norm(x, 3, mg.ones(3), mg.ones(1))


# ---- root mean square norm -------------------------------------------------------------------------------------------

RMS_NORMS = [
    ((3, 5), (5,), True),
    ((2, 3, 5), (5,), False),
    ((2, 3, 5), (3, 5), True),
    ((2, 3, 5), (2, 3, 5), True),
    ((5,), (5,), True),
    ((0, 5), (5,), True),
    ((3, 0), (0,), True),
]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize(("shape", "normalized", "affine"), RMS_NORMS)
def test_rms_norm_equals_pytorch(shape, normalized, affine, eps, dtype):
    assert_equals_pytorch(
        lambda x, *weight: F.rms_norm(x, normalized, *weight, eps=eps),
        lambda torch, x, *weight: torch.nn.functional.rms_norm(x, normalized, *weight, eps=eps),
        draw(shape, *[normalized] * affine),
        dtype,
    )


@pytest.mark.parametrize(("shape", "normalized", "affine"), RMS_NORMS[:5])
def test_rms_norm_passes_gradcheck(shape, normalized, affine):
    arrays = draw(shape, *[normalized] * affine)
    assert mg.gradcheck(lambda x, *weight: F.rms_norm(x, normalized, *weight, eps=0.1), arrays, order=2)


@pytest.mark.parametrize(("dtype", "eps"), [("float16", 2**-23), ("float32", 2**-23), ("float64", 2**-52)])
def test_rms_norms_eps_is_that_of_the_dtype_that_is_computed_in(dtype, eps):
    """It is all that is seen of numbers much smaller than its root, as in PyTorch."""
    torch = torch_or_skip()
    x = np.array([1.0, 0.0], dtype) * np.array(math.sqrt(eps), dtype)
    found = F.rms_norm(mg.Tensor(x), 2)
    assert found.dtype == dtype
    assert_close(found, [math.sqrt(1 / 1.5), 0], {"float16": 1e-3, "float32": 1e-6, "float64": 1e-12}[dtype])
    assert_close(found, torch.nn.functional.rms_norm(torch.tensor(x), (2,)), TOLERANCE[dtype])


def test_rms_norm_of_zeros_is_0_with_a_finite_gradient():
    x = mg.zeros(2, 4, requires_grad=True)
    y = F.rms_norm(x, 4, mg.ones(4))
    y.sum().backward()
    assert y.tolist() == [[0] * 4] * 2
    assert_close(x.grad, np.full((2, 4), 2**11.5), 1e-6)  # 1 / √eps


def test_norms_keep_the_dtype_of_x_beside_wider_weights():
    x, weight = mg.ones(2, 3), mg.Tensor(np.full(3, 2.0), requires_grad=True)
    for y in (F.rms_norm(x, 3, weight), F.layer_norm(x, 3, weight, mg.zeros(3, dtype=np.float64))):
        y.sum().backward()
        assert y.dtype == np.float32 and weight.grad.dtype == np.float64


def test_rms_norm_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"rms_norm: x of shape \(2, 3\) does not end in normalized_shape \(4,\)"):
        F.rms_norm(mg.zeros(2, 3), 4)
    with pytest.raises(ValueError, match=r"rms_norm: x of shape \(2, 3\) does not end in normalized_shape \(\)"):
        F.rms_norm(mg.zeros(2, 3), ())
    with pytest.raises(
        ValueError, match=r"rms_norm: weight has the shape \(1,\), it must have normalized_shape \(3,\)"
    ):
        F.rms_norm(mg.zeros(2, 3), 3, mg.ones(1))
    for norm in (F.rms_norm, F.layer_norm):
        with pytest.raises(TypeError, match=r"_norm: x must be floating, got int64; write \.float\(\)"):
            norm(mg.Tensor([1, 2]), 2)


# ---- similarity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("shapes", "dim"),
    [
        (((3, 4), (3, 4)), 1),
        (((3, 4), (3, 4)), 0),
        (((5,), (5,)), -1),
        (((2, 3, 4), (2, 3, 4)), 1),
        (((3, 1, 4), (2, 4)), -1),
        (((3, 1), (2, 3, 4)), 1),
        (((0, 3), (0, 3)), 1),
        (((3, 0), (3, 0)), 1),
    ],
)
def test_cosine_similarity_equals_pytorch(shapes, dim, dtype):
    assert_equals_pytorch(
        lambda x1, x2: F.cosine_similarity(x1, x2, dim),
        lambda torch, x1, x2: torch.nn.functional.cosine_similarity(x1, x2, dim),
        draw(*shapes),
        dtype,
    )


@pytest.mark.parametrize("eps", [1e-8, 1.5])  # vectors shorter than 1.5 are divided by it
@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 1), (2, 3, 4))])
def test_cosine_similarity_passes_gradcheck(shapes, eps):
    assert mg.gradcheck(lambda x1, x2: F.cosine_similarity(x1, x2, eps=eps), draw(*shapes), order=2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cosine_similarity_of_zeros_is_0_with_pytorchs_finite_gradients(dtype):
    torch = torch_or_skip()
    arrays = [np.array([[0, 0], [0, 0], [3, 4]], dtype), np.array([[3, 4], [0, 0], [0, 0]], dtype)]
    ours = [mg.Tensor(array, requires_grad=True) for array in arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in arrays]
    similarity = F.cosine_similarity(*ours)
    similarity.sum().backward()
    torch.nn.functional.cosine_similarity(*theirs).sum().backward()
    assert similarity.tolist() == [0, 0, 0]
    for x, y in zip(ours, theirs, strict=True):
        assert np.isfinite(x.grad.numpy()).all()
        assert_close(x.grad, y.grad, 1e-6)


def test_cosine_similarity_of_numbers_is_their_sign():
    x = mg.Tensor(2.0, requires_grad=True)
    similarity = F.cosine_similarity(x, mg.Tensor(-3.0), dim=0)
    similarity.backward()
    assert similarity.item() == -1 and x.grad.item() == pytest.approx(0, abs=1e-6)


def test_cosine_similarity_of_float16_is_computed_in_float32():
    x = mg.Tensor(np.full((1, 1000), 100, np.float16))  # whose squares' sum is beyond float16
    assert F.cosine_similarity(x, -x).tolist() == [-1]
    assert F.cosine_similarity(x * 0, x).tolist() == [0]  # 1e-8 is 0 in float16
    assert F.cosine_similarity(x, x).dtype == np.float16 and F.cosine_similarity(x, x.float()).dtype == np.float32


def test_cosine_similarity_refuses_what_does_not_fit():
    with pytest.raises(IndexError, match=r"dim 1 of tensors that broadcast to the shape \(3,\)"):
        F.cosine_similarity(mg.ones(3), mg.ones(3))
    with pytest.raises(ValueError, match=r"cosine_similarity: shapes \(2, 3\) and \(2, 4\) do not broadcast"):
        F.cosine_similarity(mg.ones(2, 3), mg.ones(2, 4))
    with pytest.raises(TypeError, match="cosine_similarity: one of its tensors must be floating, got int64"):
        F.cosine_similarity(mg.Tensor([[1]]), mg.Tensor([[1]]))
    with pytest.raises(TypeError, match="cosine_similarity takes tensors, got list"):
        F.cosine_similarity(mg.Tensor([[1.0]]), [[1.0]])


# ---- dropout ---------------------------------------------------------------------------------------------------------


def test_dropout_drops_a_share_and_scales_the_rest():
    x = mg.ones(300, 100, requires_grad=True)
    y = F.dropout(x, 0.25)
    assert sorted(set(y.numpy().ravel().tolist())) == [0, np.float32(1 / 0.75)]
    assert abs((y.numpy() == 0).mean() - 0.25) < 0.01 and y.dtype == np.float32
    y.sum().backward()
    assert (x.grad.numpy() == y.numpy()).all()  # forward and backward drop the same


def test_dropout_in_evaluation_and_of_nothing_is_the_identity():
    x = mg.randn(3)
    assert F.dropout(x, 0.5, training=False) is x
    assert F.dropout(x, 0.0) is x


def test_dropout_of_everything_gives_zeros_and_zero_gradients():
    x = mg.ones(4, requires_grad=True)
    y = F.dropout(x, 1.0)
    y.sum().backward()
    assert y.tolist() == [0] * 4 and x.grad.tolist() == [0] * 4


def test_dropout_draws_from_the_seeded_stream():
    def drawn(seed, step):
        mg.manual_seed(seed, step)
        return F.dropout(mg.ones(50)).tolist(), F.dropout(mg.ones(50)).tolist()

    assert drawn(1, 2) == drawn(1, 2)
    assert drawn(1, 2)[0] != drawn(1, 2)[1] and drawn(1, 2) != drawn(1, 3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dropout_keeps_the_dtype_and_its_precision(dtype):
    y = F.dropout(mg.ones(100).to(dtype), 0.1).numpy()
    assert y.dtype == dtype and (y[y != 0] == np.array(1 / 0.9, dtype)).all()


@pytest.mark.parametrize("p", [-0.1, 1.5, math.nan])
@pytest.mark.parametrize("training", [True, False])
def test_dropout_refuses_what_is_no_probability(p, training):
    with pytest.raises(ValueError, match=f"dropout: p is a probability, from 0 to 1, got {p}"):
        F.dropout(mg.ones(3), p, training)


def test_the_graph_keeps_dropouts_mask_as_it_was_made():
    x = mg.ones(3, 4, dtype=np.float64, requires_grad=True)  # of other dtypes a GPU's kernel keeps none
    kept = dropout_mask(x, x.shape, 0.5)
    assert isinstance(kept, mg.Tensor) and (x * kept).node.inputs[1] is kept
    assert isinstance(F.dropout(x).node.inputs[1], mg.Tensor)  # an array would have been copied
    assert isinstance(F.dropout(np.ones(3, np.float32)), np.ndarray)


def test_dropout_refuses_integers():
    with pytest.raises(TypeError, match=r"dropout: x must be floating, got int64; write \.float\(\)"):
        F.dropout(mg.Tensor([1, 2]))


# ---- embedding -------------------------------------------------------------------------------------------------------


def test_rows_of_equal_ids_add_up_in_the_gradient():
    weight = mg.Tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
    y = F.embedding(mg.Tensor([1, 1, 0]), weight)
    assert y.tolist() == [[3, 4], [3, 4], [1, 2]]
    (y * mg.Tensor([[1.0], [10.0], [100.0]])).sum().backward()
    assert weight.grad.tolist() == [[100, 100], [11, 11], [0, 0]]


def test_the_padding_row_gets_no_gradient():
    weight = mg.ones(4, 1, requires_grad=True)
    F.embedding(mg.Tensor([0, 1, 1, 3]), weight, padding_idx=0).sum().backward()
    assert weight.grad.tolist() == [[0], [2], [0], [1]]
    (gradient,) = mg.grad(F.embedding([3, 1], weight, padding_idx=-1).sum(), weight)
    assert gradient.tolist() == [[0], [1], [0], [0]]


def test_nan_at_padding_does_not_reach_the_gradient():
    weight = mg.ones(2, 1, requires_grad=True)
    F.embedding([0, 1], weight, padding_idx=0).backward([[math.nan], [1.0]])
    assert weight.grad.tolist() == [[0], [1]]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3), (40, 50)])
@pytest.mark.parametrize("padding_idx", [None, 0, -2])
def test_embedding_equals_pytorch(shape, padding_idx, dtype):
    ids = np.random.default_rng(0).integers(0, 6, shape)
    assert_equals_pytorch(
        lambda weight: F.embedding(mg.Tensor(ids), weight, padding_idx),
        lambda torch, weight: torch.nn.functional.embedding(torch.tensor(ids), weight, padding_idx),
        draw((6, 4)),
        dtype,
    )


def test_embedding_passes_gradcheck_and_its_gradient_does():
    ids = mg.Tensor([[0, 1, 1], [3, 2, 0]])
    (weight,) = draw((5, 3))
    assert mg.gradcheck(lambda w: F.embedding(ids, w), [weight], order=2)
    # a gradient that a padding row does not get is not the derivative, so only rows that are not padding are looked at
    assert mg.gradcheck(lambda w: F.embedding(ids, w * w, padding_idx=0)[:, 1:2], [weight], order=2)


def test_the_gradients_gradient_passes_padding_over():
    weight, upstream = mg.ones(3, 1, requires_grad=True), mg.ones(2, 1, requires_grad=True)
    (gradient,) = mg.grad(F.embedding([0, 2], weight, padding_idx=0), weight, upstream, create_graph=True)
    (gradient * mg.Tensor([[5.0], [6.0], [7.0]])).sum().backward()
    assert upstream.grad.tolist() == [[0], [7]]


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64])
def test_embedding_takes_integers_of_any_kind(kind):
    weight = mg.Tensor([[1.0], [2.0]], requires_grad=True)
    F.embedding(mg.Tensor(np.array([1, 0, 1], kind)), weight).sum().backward()
    assert weight.grad.tolist() == [[1], [2]]


@pytest.mark.parametrize("bad", [-1, 5, -6, 1000])
@pytest.mark.parametrize("form", [int, lambda i: [1, i], lambda i: np.array([[i]]), lambda i: mg.Tensor([0, i])])
def test_embedding_refuses_ids_out_of_range(bad, form):
    with pytest.raises(IndexError, match=rf"embedding: id {bad} is out of range for a weight of 5 rows \(0 to 4\)"):
        F.embedding(form(bad), mg.ones(5, 2))


def test_embedding_refuses_what_it_cannot_take():
    with pytest.raises(TypeError, match="ids must be integers, got float32"):
        F.embedding(mg.Tensor([1.0]), mg.ones(5, 2))
    with pytest.raises(TypeError, match="ids must be integers, got bool"):
        F.embedding(np.array([True]), mg.ones(5, 2))
    with pytest.raises(ValueError, match=r"weight must have the shape \(V, D\), got \(5,\)"):
        F.embedding([1], mg.ones(5))
    with pytest.raises(ValueError, match="padding_idx 5 is out of range for a weight of 5 rows"):
        F.embedding([1], mg.ones(5, 2), padding_idx=5)


# ---- numbers of NumPy ------------------------------------------------------------------------------------------------


def test_no_kernel_is_asked_for_a_number_of_numpy(monkeypatch):
    """It has no device."""
    for name in ("kernel_gelu", "kernel_dropout"):
        monkeypatch.setattr(F, name, lambda *inputs, name=name, **options: pytest.fail(f"{name} was asked"))
    assert_close(F.gelu(np.float32(1)), 0.8413447, 1e-6)
    assert F.dropout(np.float32(3), 0.5) in (0, 6)


# ---- on a GPU, pretended ---------------------------------------------------------------------------------------------


def test_everything_stays_on_its_device():
    with installed():
        x = mg.Tensor(draw((3, 4))[0], requires_grad=True, device="cuda")
        weight = mg.ones(4, requires_grad=True, device="cuda")
        target = mg.Tensor([1, -100, 3], device="cuda")
        y = F.dropout(F.layer_norm(x, 4, weight, weight), 0.5)
        loss = F.cross_entropy(y, target, label_smoothing=0.1)
        loss.backward()
        assert {y.device, loss.device, x.grad.device, weight.grad.device} == {"cuda:0"}
        with pytest.raises(mg.DeviceError, match=r"fused_cross_entropy: .* \(3, 4\) on cuda:0 and \(3,\) on cpu"):
            F.cross_entropy(x, np.array([1, -100, 3]))


def test_numpy_scalars_as_options_do_not_widen():
    loss = F.cross_entropy(mg.ones(1, 3), mg.Tensor([0]), label_smoothing=np.float64(0.1))
    assert loss.dtype == F.layer_norm(mg.ones(2, 3), 3, eps=np.float64(1e-5)).dtype == np.float32
    assert mg.full((2,), np.float64(8)).dtype == np.float32


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("attention: scale", lambda x, n: F.scaled_dot_product_attention(x, x, x, scale=n)),
        (
            "attention: dropout_p",
            lambda x, n: (mg.manual_seed(0), F.scaled_dot_product_attention(x, x, x, dropout_p=n))[1],
        ),
        ("layer_norm: eps", lambda x, n: F.layer_norm(x, 2, eps=n)),
        ("rms_norm: eps", lambda x, n: F.rms_norm(x, 2, eps=n)),
        ("cosine_similarity: eps", lambda x, n: F.cosine_similarity(x, x, eps=n)),
        ("smooth_l1_loss: beta", lambda x, n: F.smooth_l1_loss(x, x * 2, beta=n)),
        ("cross_entropy: label_smoothing", lambda x, n: F.cross_entropy(x, mg.Tensor([0]), label_smoothing=n)),
        ("vector_norm: ord", lambda x, n: x.norm(n)),
        ("dropout: p", lambda x, n: (mg.manual_seed(0), F.dropout(x, n))[1]),
        ("Dropout: p", lambda x, n: (mg.manual_seed(0), nn.Dropout(n)(x))[1]),
        ("MultiHeadAttention: dropout", lambda x, n: mg.Tensor(nn.MultiHeadAttention(2, 1, n).dropout)),
    ],
)
def test_options_that_are_tensors(name, call):
    """No gradient would flow to one; else a 0-d tensor is a number."""
    x = mg.Tensor([[0.5, 2.0]])
    with pytest.raises(TypeError, match=f"{name} must be a number, got a tensor that requires grad"):
        call(x, mg.Tensor(0.5, requires_grad=True))
    with pytest.raises(TypeError, match=f"{name} must be a number, got Tensor"):
        call(x, mg.Tensor([0.5]))
    assert_close(call(x, mg.Tensor(0.5)), call(x, 0.5), 0)


@pytest.mark.parametrize(
    ("name", "options"),
    [("silu", {}), ("leaky_relu", {"negative_slope": 0.2}), ("elu", {"alpha": 0.5}), ("softplus", {"beta": 2.0})],
)
def test_activations_have_pytorchs_signatures(name, options):
    torch = torch_or_skip()
    values = np.linspace(-3, 3, 7, dtype=np.float32)
    theirs = getattr(torch.nn.functional, name)(torch.tensor(values), **options)
    assert_close(getattr(F, name)(mg.Tensor(values), **options), theirs, 1e-6)
