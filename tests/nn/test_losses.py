"""Losses of two tensors of one shape: values and gradients against PyTorch and finite differences, corners, refusals.

Those of classes are in test_cross_entropy.py.
"""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import minigrad as mg
import nn.functional as F
from tests.cupy_standin import installed
from tests.nn.comparison import TOLERANCE, assert_equals_pytorch, draw
from tests.support import assert_close, leaf

OF_PAIRS = [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits, F.kl_div]
OF_CLASSES = [F.nll_loss, F.cross_entropy]


def anything(rng, shape):
    return np.asarray(rng.standard_normal(shape))


def probabilities(rng, shape):
    return np.asarray(rng.uniform(0.1, 0.9, shape))


CALLS = {  # name of the function, its options, its targets
    "mse": ("mse_loss", {}, anything),
    "l1": ("l1_loss", {}, anything),
    "smooth l1": ("smooth_l1_loss", {}, anything),
    "smooth l1 of a small beta": ("smooth_l1_loss", {"beta": 0.25}, anything),
    "smooth l1 of beta 0": ("smooth_l1_loss", {"beta": 0}, anything),
    "bce": ("binary_cross_entropy_with_logits", {}, probabilities),
    "kl": ("kl_div", {}, probabilities),
    "kl of log targets": ("kl_div", {"log_target": True}, anything),
}
SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


WITH_REDUCTIONS = [
    *itertools.product(CALLS, ["mean", "sum", "none"]),
    ("kl", "batchmean"),
    ("kl of log targets", "batchmean"),
]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("call", "reduction"), WITH_REDUCTIONS)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # PyTorch, on kl_div
def test_losses_equal_pytorch(call, reduction, dtype):
    name, options, targets = CALLS[call]

    @settings(max_examples=6)
    @given(SHAPES, st.integers(0, 2**32 - 1))
    def on_drawn_shapes(shape, seed):
        rng = np.random.default_rng(seed)
        assert_equals_pytorch(
            lambda x, y: getattr(F, name)(x, y, reduction=reduction, **options),
            lambda torch, x, y: getattr(torch.nn.functional, name)(x, y, reduction=reduction, **options),
            [anything(rng, shape), targets(rng, shape)],
            dtype,
        )

    on_drawn_shapes()


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("call", CALLS)
def test_losses_pass_gradcheck(call, reduction):
    name, options, targets = CALLS[call]
    rng = np.random.default_rng(0)
    arrays = [anything(rng, (3, 4)), targets(rng, (3, 4))]
    assert mg.gradcheck(lambda x, y: getattr(F, name)(x, y, reduction=reduction, **options), arrays, order=2)


@pytest.mark.parametrize("function", OF_PAIRS)
@pytest.mark.parametrize(
    ("input_dtype", "target_dtype", "expected"),
    [
        ("float16", "float32", "float32"),
        ("float32", "float64", "float64"),
        ("float16", "float64", "float64"),
        ("float32", "int64", "float32"),
        ("float16", "bool", "float16"),
        ("int64", "float32", "float32"),
    ],
)
def test_two_dtypes_have_pytorchs_common_one(function, input_dtype, target_dtype, expected):
    x, y = mg.Tensor(np.ones(2, input_dtype)), mg.Tensor(np.ones(2, target_dtype))
    assert {function(x, y, reduction=r).dtype for r in ("mean", "sum", "none")} == {np.dtype(expected)}


def test_a_sum_beyond_float16_is_no_reason_for_an_infinite_mean():
    x = mg.Tensor(np.full(4, 200.0, np.float16), requires_grad=True)
    loss = F.mse_loss(x, x * 0, reduction="mean")
    loss.backward()
    assert loss.item() == 40000 and loss.dtype == np.float16 and x.grad.tolist() == [100] * 4


@pytest.mark.parametrize("function", OF_PAIRS)
@pytest.mark.filterwarnings("error")
def test_the_mean_of_no_losses_is_nan_and_their_sum_0(function):
    nothing = mg.zeros(0, 3, requires_grad=True)
    mean = function(nothing, nothing.detach())
    mean.backward()
    assert math.isnan(mean.item()) and nothing.grad.shape == (0, 3)
    assert function(nothing, nothing, reduction="sum").item() == 0
    assert function(nothing, nothing, reduction="none").shape == (0, 3)


@pytest.mark.filterwarnings("error")
def test_batchmean_divides_by_the_length_of_the_first_axis():
    x, p = mg.zeros(2, 3), mg.full((2, 3), 0.5)
    assert F.kl_div(x, p, reduction="batchmean").item() == pytest.approx(3 * 0.5 * math.log(0.5))
    assert math.isnan(F.kl_div(mg.zeros(0, 3), mg.zeros(0, 3), reduction="batchmean").item())
    with pytest.raises(ValueError, match="mse_loss: reduction must be 'mean', 'sum' or 'none', got 'batchmean'"):
        F.mse_loss(x, p, reduction="batchmean")
    with pytest.raises(ValueError, match="kl_div: reduction must be 'mean', 'batchmean', 'sum' or 'none', got 'avg'"):
        F.kl_div(x, p, reduction="avg")


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.filterwarnings("error")
def test_what_has_no_probability_counts_for_nothing(log_target, reduction):
    """0 log 0 is 0: neither an input of -inf nor NaN reaches the loss or a gradient there."""
    x = leaf([-math.inf, math.nan, -1.0, math.log(0.25)])
    p = leaf([-math.inf, -math.inf, -math.inf, 0.0] if log_target else [0.0, 0.0, 0.0, 1.0])
    loss = F.kl_div(x, p, log_target=log_target, reduction=reduction)
    loss.sum().backward()
    parts = 4 if reduction == "mean" else 1
    expected = [0, 0, 0, math.log(4)] if reduction == "none" else math.log(4) / parts
    assert_close(loss, expected, 1e-14)
    assert_close(x.grad, [0, 0, 0, -1 / parts], 1e-14)
    assert_close(p.grad, [0, 0, 0, (math.log(4) + 1) / parts], 1e-14)


def test_kl_div_of_what_should_be_there_and_is_not_is_infinite():
    assert F.kl_div(mg.Tensor([-math.inf]), mg.Tensor([1.0])).item() == math.inf


@pytest.mark.parametrize("shape", [(), (3,), (2, 1), (2, 3)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("which", ["weight", "pos_weight"])
def test_weights_of_bce_equal_pytorchs(which, dtype, reduction, shape):
    rng = np.random.default_rng(0)
    weight = np.asarray(rng.uniform(0.5, 3, shape)).astype(dtype)
    assert_equals_pytorch(
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, **{which: mg.Tensor(weight)}, reduction=reduction),
        lambda torch, x, t: torch.nn.functional.binary_cross_entropy_with_logits(
            x, t, **{which: torch.tensor(weight).to(x.dtype)}, reduction=reduction
        ),
        [anything(rng, (2, 3)), probabilities(rng, (2, 3))],
        dtype,
    )


def test_weights_of_bce_may_be_learned_and_widen_nothing():
    x, t, weight, pos_weight = (leaf(array) for array in np.random.default_rng(0).uniform(0.1, 0.9, (4, 2, 3)))
    assert mg.gradcheck(
        lambda *xs: F.binary_cross_entropy_with_logits(*xs[:3], pos_weight=xs[3]), [x, t, weight, pos_weight], order=2
    )
    loss = F.binary_cross_entropy_with_logits(x.float(), t.float(), mg.ones(3, dtype=np.float64), pos_weight=pos_weight)
    assert loss.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("error")
def test_bce_of_large_logits_neither_overflows_nor_loses_its_small_values(dtype):
    x = mg.Tensor(np.array([1e4, -1e4, 1e4, -1e4, 0, -30, 30, 25], dtype), requires_grad=True)
    t = mg.Tensor(np.array([1, 1, 0, 0, 0.5, 0, 1, 0], dtype))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        losses = F.binary_cross_entropy_with_logits(x, t, reduction="none")
        losses.sum().backward()
    small, tail, rtol = math.log1p(math.exp(-30)), math.log1p(math.exp(-25)), 4 * np.finfo(dtype).eps
    np.testing.assert_allclose(losses.numpy(), [0, 1e4, 1e4, 0, math.log(2), small, small, 25 + tail], rtol=rtol)
    small, large = 1 / (1 + math.exp(30)), 1 / (1 + math.exp(-25))
    np.testing.assert_allclose(x.grad.numpy(), [0, -1, 1, 0, 0, small, -small, large], rtol=rtol)


def test_bce_refuses_weights_that_do_not_fit():
    x = mg.zeros(2, 3)
    with pytest.raises(ValueError, match=r"weight of shape \(4,\) does not broadcast to input's shape \(2, 3\)"):
        F.binary_cross_entropy_with_logits(x, x, mg.ones(4))
    with pytest.raises(
        ValueError, match=r"pos_weight of shape \(4, 2, 3\) does not broadcast to input's shape \(2, 3\)"
    ):
        F.binary_cross_entropy_with_logits(x, x, pos_weight=mg.ones(4, 2, 3))
    with pytest.raises(TypeError, match=r"pos_weight must be a tensor, got float: .* mg\.Tensor"):
        F.binary_cross_entropy_with_logits(x, x, pos_weight=2.0)


@pytest.mark.parametrize("function", [F.l1_loss, F.smooth_l1_loss, functools.partial(F.smooth_l1_loss, beta=0)])
@pytest.mark.filterwarnings("error")
def test_distances_of_0_and_infinity(function):
    x = leaf([0.0, math.inf, -math.inf])
    losses = function(x, mg.zeros(3), reduction="none")
    losses.sum().backward()
    assert losses.tolist() == [0, math.inf, math.inf] and x.grad.tolist() == [0, 1, -1]


def test_the_smooth_l1_gradient_of_nan_is_nan():
    x = leaf([np.nan, 1.0])
    F.smooth_l1_loss(x, mg.zeros(2, dtype=np.float64)).backward()
    assert np.isnan(x.grad[0].item()) and x.grad[1].item() == 0.5


def test_smooth_l1_is_smooth_where_its_parts_meet():
    x = leaf([0.5, -0.5, 0.0])
    losses = F.smooth_l1_loss(x, mg.zeros(3), reduction="none", beta=0.5)
    (gradient,) = mg.grad(losses.sum(), x, create_graph=True)
    assert losses.tolist() == [0.25, 0.25, 0] and gradient.tolist() == [1, -1, 0]
    assert mg.grad(gradient.sum(), x)[0].tolist()[2] == 2  # 1 / β
    for beta in (-1, math.nan):
        with pytest.raises(ValueError, match=f"smooth_l1_loss: beta must be 0 or more, got {beta}"):
            F.smooth_l1_loss(x, x, beta=beta)


@pytest.mark.parametrize("function", OF_PAIRS)
def test_losses_of_pairs_refuse_what_they_cannot_take(function):
    x, name = mg.zeros(2, 1), function.__name__
    with pytest.raises(ValueError, match=rf"{name}: input of shape \(2, 1\) and target of shape \(2,\) must have one"):
        function(x, mg.zeros(2))
    with pytest.raises(TypeError, match=f"{name}: one of its tensors must be floating, got int64"):
        function(x.long(), x.long())
    with pytest.raises(TypeError, match=f"{name} takes tensors, got float"):
        function(x, 0.0)


@pytest.mark.parametrize("function", [*OF_PAIRS, *OF_CLASSES])
def test_options_have_names_and_a_reduction_is_one_that_there_is(function):
    """PyTorch's third argument, and its fourth, are others."""
    x, y = mg.zeros(2, 3), mg.Tensor([0, 1]) if function in OF_CLASSES else mg.ones(2, 3)
    with pytest.raises(TypeError, match="positional argument"):
        function(x, y, None, "sum")
    for wrong in ("avg", None, True):
        with pytest.raises(
            ValueError, match=f"{function.__name__}: reduction must be 'mean', .* or 'none', got {wrong!r}"
        ):
            function(x, y, reduction=wrong)


@pytest.mark.parametrize("function", OF_PAIRS)
def test_losses_of_arrays_are_arrays(function):
    x, y = draw((3, 4))[0], np.full((3, 4), 0.5, np.float32)
    losses = function(x, y, reduction="none")
    assert isinstance(losses, np.ndarray)
    assert_close(losses, function(mg.Tensor(x), mg.Tensor(y), reduction="none"), 1e-14)


def test_losses_stay_on_their_device():
    with installed():
        for function in OF_PAIRS:
            x = mg.Tensor(draw((3, 4))[0], requires_grad=True, device="cuda")
            loss = function(x, mg.full((3, 4), 0.5, device="cuda"))
            loss.backward()
            assert {loss.device, x.grad.device} == {"cuda:0"}
            with pytest.raises(mg.DeviceError, match="operands on different devices"):
                function(x, mg.full((3, 4), 0.5, device="cpu"))
        loss = F.nll_loss(x, mg.Tensor([1, -100, 3], device="cuda"))
        loss.backward()
        assert {loss.device, x.grad.device} == {"cuda:0"}
