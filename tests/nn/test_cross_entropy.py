"""Losses of classes: values and gradients against PyTorch and finite differences, corners, refusals."""

import functools
import itertools
import math

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from tests.cupy_standin import installed
from tests.nn.comparison import TOLERANCE, assert_equals_pytorch, draw
from tests.nn.test_losses import OF_CLASSES, probabilities
from tests.support import assert_close, torch_or_skip


def test_cross_entropy_means_over_what_is_not_ignored():
    logits = mg.Tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    loss = F.cross_entropy(logits, [0, -100])
    loss.backward()
    total = math.exp(2) + 2
    assert_close(loss, math.log(total) - 2, 1e-6)
    assert_close(logits.grad, [[math.exp(2) / total - 1, 1 / total, 1 / total], [0, 0, 0]], 1e-6)
    assert loss.shape == () and logits.grad.tolist()[1] == [0, 0, 0]


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 0), ("sum", 0), ("none", [0, 0])])
@pytest.mark.parametrize("weight", [None, mg.full((200,), 2.0)])
@pytest.mark.parametrize(
    "function", [F.nll_loss, F.cross_entropy, functools.partial(F.cross_entropy, label_smoothing=0.1)]
)
@pytest.mark.filterwarnings("error")
def test_all_ignored_is_0_with_gradient_0(function, weight, reduction, expected):
    logits = mg.Tensor(np.ones((2, 200), np.float32), requires_grad=True)
    loss = function(logits, mg.Tensor([-100, -100]), weight, reduction=reduction)
    loss.backward(np.ones(loss.shape, np.float32))
    assert loss.tolist() == expected
    assert not logits.grad.numpy().any()


@pytest.mark.parametrize("weight", [None, mg.ones(3)])
@pytest.mark.parametrize(
    ("function", "target"),
    [(F.nll_loss, mg.arange(0)), (F.cross_entropy, mg.arange(0)), (F.cross_entropy, mg.zeros(0, 3))],
)
@pytest.mark.filterwarnings("error")
def test_no_targets_is_0_too(function, target, weight):
    logits = mg.zeros(0, 3, requires_grad=True)
    loss = function(logits, target, weight)
    loss.backward()
    assert loss.item() == 0 and logits.grad.shape == (0, 3)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("weight", [None, mg.Tensor([0.5, 0.0, 2.0])])
@pytest.mark.parametrize("function", [F.nll_loss, functools.partial(F.cross_entropy, label_smoothing=0.1)])
@pytest.mark.filterwarnings("error")
def test_what_an_ignored_row_holds_reaches_neither_loss_nor_gradient(function, weight, garbage):
    def loss_and_gradient(held):
        logits = mg.Tensor([[2.0, 0.0, 0.0], [held, 0.0, held]], requires_grad=True)
        loss = function(logits, [0, 1], weight, ignore_index=1)
        loss.backward()
        return loss.item(), logits.grad.tolist()

    assert loss_and_gradient(garbage) == loss_and_gradient(5.0)
    assert loss_and_gradient(garbage)[1][1] == [0, 0, 0]


FORMS = {
    "(N, C)": ((6, 5), (6,)),
    "(C,)": ((5,), ()),
    "(N, C, d1)": ((2, 5, 3), (2, 3)),
    "(N, C, d1, d2)": ((2, 5, 3, 2), (2, 3, 2)),
}


WEIGHT = np.array([0.5, 2.0, 7.0, 0.0, 1.25])  # of each class, exact in float16


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nll_loss", {}),
        ("cross_entropy", {}),
        ("cross_entropy", {"label_smoothing": 0.1}),
        ("cross_entropy", {"label_smoothing": 1.0}),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_losses_of_class_ids_equal_pytorch(form, name, options, weighted, reduction, dtype):
    shape, target_shape = FORMS[form]
    target = np.random.default_rng(0).integers(0, 5, target_shape)  # class 2 counts for nothing
    target = np.array(1) if form == "(C,)" else target
    options = {**options, "ignore_index": 2, "reduction": reduction}
    weight = WEIGHT if weighted else None

    def ours(x):
        return getattr(F, name)(
            x, mg.Tensor(target), weight if weight is None else mg.Tensor(weight.astype(dtype)), **options
        )

    def theirs(torch, x):
        their_weight = weight if weight is None else torch.tensor(weight).to(x.dtype)
        return getattr(torch.nn.functional, name)(x, torch.tensor(target), their_weight, **options)

    assert_equals_pytorch(ours, theirs, draw(shape), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("form", FORMS)
def test_cross_entropy_of_probabilities_equals_pytorch(form, smoothing, weighted, reduction, dtype):
    """Beside them the weight may be learned."""
    shape, _ = FORMS[form]
    options = {"label_smoothing": smoothing, "reduction": reduction}
    assert_equals_pytorch(
        lambda *tensors: F.cross_entropy(*tensors, **options),
        lambda torch, *tensors: torch.nn.functional.cross_entropy(*tensors, **options),
        [draw(shape)[0], probabilities(np.random.default_rng(1), shape), *([WEIGHT] if weighted else [])],
        dtype,
    )


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("form", FORMS)
def test_cross_entropy_of_probabilities_passes_gradcheck(form, smoothing, reduction):
    shape, _ = FORMS[form]
    arrays = [draw(shape)[0], probabilities(np.random.default_rng(1), shape), WEIGHT]
    assert mg.gradcheck(
        lambda *tensors: F.cross_entropy(*tensors, label_smoothing=smoothing, reduction=reduction), arrays, order=2
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_nll_loss_passes_gradcheck(form, weighted):
    shape, target_shape = FORMS[form]
    target = mg.Tensor(np.random.default_rng(1).integers(0, 5, target_shape))
    weight = mg.Tensor(WEIGHT) if weighted else None

    def losses(x):
        return F.nll_loss(x * x, target, weight, ignore_index=2, reduction="none")  # of x alone the second order is 0

    assert mg.gradcheck(losses, draw(shape), order=2)


def test_cross_entropy_is_nll_loss_after_log_softmax():
    logits, target = draw((6, 5))[0], [0, 4, 1, -100, 2, 3]
    x = mg.Tensor(logits)
    assert_close(F.cross_entropy(x, target), F.nll_loss(F.log_softmax(x, 1), target), 1e-14)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("form", FORMS)
def test_cross_entropy_passes_gradcheck(form, smoothing, weighted, reduction):
    shape, target_shape = FORMS[form]
    target = mg.Tensor(np.random.default_rng(1).integers(0, 5, target_shape))
    weight = mg.Tensor(WEIGHT) if weighted else None

    def losses(logits):
        return F.cross_entropy(logits, target, weight, ignore_index=2, label_smoothing=smoothing, reduction=reduction)

    assert mg.gradcheck(losses, draw(shape), order=2)


def test_class_ids_are_probabilities_of_1():
    logits, ids = mg.Tensor(draw((6, 5))[0], requires_grad=True), mg.Tensor([0, 4, 1, 3, 2, 3])
    one_hot = (ids[:, None] == mg.arange(5)).double()
    for weight, reduction in itertools.product((None, mg.Tensor(WEIGHT)), ("sum", "none")):
        options = {"label_smoothing": 0.1, "reduction": reduction}
        loss, other = [F.cross_entropy(logits, target, weight, **options) for target in (ids, one_hot)]
        assert_close(loss, other, 1e-14)
        assert_close(mg.grad(loss.sum(), logits)[0], mg.grad(other.sum(), logits)[0], 1e-14)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "dtypes",
    [
        ("float32", "float64"),
        ("float32", "float16"),
        ("float16", "float32"),
        ("float16", "float16", "float32"),
        ("float32", "float32", "float64"),
        ("float32", "float32", "int64"),
        ("float16", "float16", "bool"),
    ],
)
def test_logits_probabilities_and_weight_have_pytorchs_common_dtype(dtypes, reduction):
    torch = torch_or_skip()
    arrays = [np.ones(shape, dtype) for shape, dtype in zip([(2, 3), (2, 3), (3,)], dtypes, strict=False)]
    loss = F.cross_entropy(*map(mg.Tensor, arrays), reduction=reduction)
    expected = torch.nn.functional.cross_entropy(*map(torch.tensor, arrays), reduction=reduction)
    assert str(expected.dtype) == f"torch.{loss.dtype}"
    assert_close(loss, expected, TOLERANCE[dtypes[0]])  # PyTorch rounds log softmax to the logits' dtype


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint64"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_neither_strides_nor_the_dtype_of_targets_matter(smoothing, dtype):
    values, ids = draw((6, 5))[0], np.array([0, 4, 1, 3, 2, 3], dtype)
    found = []
    for array, target in ((values, ids.astype(np.int64)), (np.asfortranarray(values), ids)):
        logits = mg.Tensor(array, requires_grad=True)
        loss = F.cross_entropy(logits, mg.Tensor(target), label_smoothing=smoothing)
        loss.backward()
        found.append((loss.item(), logits.grad.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("weight", [[0.0, 0.0, 5.0], [1.0, -1.0, 5.0]])
@pytest.mark.parametrize(
    "function", [F.nll_loss, F.cross_entropy, functools.partial(F.cross_entropy, label_smoothing=0.1)]
)
@pytest.mark.filterwarnings("error")
def test_the_mean_of_targets_that_weigh_0_in_all_is_0_with_gradient_0(function, weight):
    scores = mg.Tensor(draw((2, 3))[0], requires_grad=True)
    loss = function(scores, [0, 1], mg.Tensor(weight).double())
    loss.backward()
    assert loss.item() == 0 and not scores.grad.numpy().any()


@pytest.mark.parametrize("shape", [(2, 0), (0,), (0, 0)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "function", [F.nll_loss, F.cross_entropy, functools.partial(F.cross_entropy, label_smoothing=0.1)]
)
@pytest.mark.filterwarnings("error")
def test_without_classes_all_are_ignored_and_the_loss_is_0(function, weighted, shape):
    scores, weight = mg.zeros(shape, requires_grad=True), mg.zeros(0) if weighted else None
    for reduction in ("mean", "sum", "none"):
        losses = function(scores, mg.full(shape[:-1], -100), weight, reduction=reduction)
        assert losses.shape == (shape[:-1] if reduction == "none" else ()) and not losses.numpy().any()
        losses.sum().backward()
    assert scores.grad.shape == shape
    with pytest.raises(IndexError, match="target 0 is out of range for 0 classes"):
        function(mg.zeros(1, 0), [0])


@pytest.mark.filterwarnings("error")
def test_a_class_that_cannot_be_and_weighs_nothing_is_left_out():
    logits = mg.Tensor([[2.0, -math.inf, 0.0]], requires_grad=True)
    loss = F.cross_entropy(logits, [2], mg.Tensor([1.0, 0.0, 3.0]), reduction="sum")
    loss.backward()
    p = 1 / (1 + math.exp(-2))
    assert_close(loss, -3 * math.log(1 - p), 1e-6)
    assert_close(logits.grad, [[3 * p, 0, -3 * p]], 1e-6)


@pytest.mark.parametrize("function", OF_CLASSES)
def test_weights_beyond_float16_in_all_are_no_reason_for_a_mean_of_0(function):
    scores = mg.Tensor(np.log([[0.5, 0.5]] * 4).astype(np.float16))
    loss = function(scores, [0, 0, 1, 1], mg.full((2,), 30000.0, dtype="float16"))
    assert loss.dtype == np.float16 and loss.item() == pytest.approx(math.log(2), rel=1e-3)


@pytest.mark.filterwarnings("error")
def test_cross_entropy_of_extreme_logits():
    logits = mg.Tensor([[1e4, -1e4, 0.0], [-math.inf, 0.0, 0.0]], requires_grad=True)
    loss = F.cross_entropy(logits, [1, 2], reduction="none")
    loss.backward([1.0, 1.0])
    for found, expected in zip(loss, [2e4, math.log(2)], strict=True):
        assert_close(found, expected, 1e-6)
    assert_close(logits.grad, [[1, -1, 0], [0, 0.5, -0.5]], 1e-7)


def test_cross_entropy_of_float16_is_computed_in_float32():
    logits = np.zeros((70000, 2), np.float16)
    loss = F.cross_entropy(mg.Tensor(logits), mg.zeros(70000, dtype=np.int64))
    assert loss.dtype == np.float16 and loss.item() == pytest.approx(math.log(2), rel=1e-3)


@pytest.mark.parametrize("bad", [-1, 3, -101])
@pytest.mark.parametrize("function", OF_CLASSES)
def test_targets_out_of_range_are_refused(function, bad):
    message = rf"{function.__name__}: target {bad} is out of range for 3 classes \(0 to 2; ignore_index is -100\)"
    with pytest.raises(IndexError, match=message):
        function(mg.zeros(2, 3), [0, bad])
    with pytest.raises(IndexError, match=message):
        function(mg.zeros(3), mg.Tensor(bad))


@pytest.mark.parametrize("function", OF_CLASSES)
def test_losses_of_classes_refuse_what_they_cannot_take(function):
    scores = mg.zeros(2, 3)
    with pytest.raises(ValueError, match=r"of shape \(2, 3\) and target of shape \(3,\) do not fit"):
        function(scores, [0, 1, 2])
    with pytest.raises(
        ValueError, match=r"\(2, 3\) and target of shape \(2, 3\) .* without C, which is axis 1, here \(2,\)"
    ):
        function(scores, mg.zeros(2, 3).long())
    with pytest.raises(ValueError, match=r"must be \(N, C\), \(C,\) or \(N, C, d1, ...\), got shape \(\)"):
        function(mg.Tensor(1.0), 0)
    with pytest.raises(TypeError, match=f"{function.__name__}: target must be integers, got float64"):
        function(scores, [0.0, 1.0])
    with pytest.raises(TypeError, match=f"{function.__name__}: (input|logits) must be floating, got int64"):
        function(scores.long(), [0, 1])


def test_label_smoothing_is_a_share():
    logits = mg.zeros(2, 3)
    with pytest.raises(ValueError, match=r"label_smoothing is a probability, from 0 to 1, got 1\.5"):
        F.cross_entropy(logits, [0, 1], label_smoothing=1.5)


def test_nll_loss_refuses_probabilities():
    with pytest.raises(TypeError, match="nll_loss: target must be integers, got float32"):
        F.nll_loss(mg.zeros(2, 3), mg.zeros(2, 3))


def test_cross_entropy_of_probabilities_refuses_what_it_cannot_take():
    logits, q = mg.zeros(2, 3), mg.full((2, 3), 0.5)
    with pytest.raises(
        ValueError, match=r"logits of shape \(2, 3\) and target of shape \(2,\) .*; class ids are integers"
    ):
        F.cross_entropy(logits, q[:, 0])
    with pytest.raises(ValueError, match=r"must be \(N, C\), \(C,\) or \(N, C, d1, ...\), got shape \(\)"):
        F.cross_entropy(logits[0, 0], q[0, 0])
    with pytest.raises(ValueError, match="ignore_index is a class id, and target holds probabilities; got 0"):
        F.cross_entropy(logits, q, ignore_index=0)
    with pytest.raises(TypeError, match="logits must be floating, got int64"):
        F.cross_entropy(logits.long(), q)
    with pytest.raises(ValueError, match="reduction must be 'mean', 'sum' or 'none', got 'batchmean'"):
        F.cross_entropy(logits, q, reduction="batchmean")


@pytest.mark.parametrize(
    ("function", "target"),
    [(F.nll_loss, mg.arange(2)), (F.cross_entropy, mg.arange(2)), (F.cross_entropy, mg.ones(2, 3))],
)
def test_a_weight_is_a_tensor_with_a_number_for_each_class(function, target):
    scores = mg.zeros(2, 3)
    for wrong in (mg.ones(2), mg.ones(3, 1), mg.ones(1), mg.Tensor(1.0)):
        with pytest.raises(ValueError, match=rf"{function.__name__}: weight of shape \(.*\) must be \(3,\)"):
            function(scores, target, wrong)
    with pytest.raises(TypeError, match=f"{function.__name__}: weight must be a tensor, got list"):
        function(scores, target, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("function", OF_CLASSES)
def test_a_weight_beside_class_ids_has_the_scores_dtype_and_no_gradient(function):
    scores, weight = mg.zeros(2, 3), mg.ones(3, requires_grad=True)
    for dtype in ("int64", "bool", "float16", "float64"):
        with pytest.raises(TypeError, match=f"weight must have the dtype of the scores, float32, got {dtype}"):
            function(scores, [0, 1], mg.ones(3, dtype=dtype))
    with pytest.raises(TypeError, match=r"no gradient flows to weight beside class ids; give its \.detach\(\)"):
        function(scores, [0, 1], weight)
    with mg.no_grad():
        assert function(scores, [0, 1], weight).item() == function(scores, [0, 1], weight.detach()).item()


@pytest.mark.cpu_only(reason="it is about arrays of NumPy")
def test_losses_of_classes_of_arrays_are_arrays():
    scores, q, weight = draw((2, 3))[0], np.full((2, 3), 0.5), np.array([1.0, 2.0, 3.0])
    for function, target in ((F.nll_loss, [0, 2]), (F.cross_entropy, [0, 2]), (F.cross_entropy, q)):
        losses = function(scores, np.array(target), weight, reduction="none")
        assert isinstance(losses, np.ndarray)
        assert_close(losses, function(mg.Tensor(scores), target, mg.Tensor(weight), reduction="none"), 1e-14)


def test_losses_of_classes_stay_on_their_device():
    with installed():
        weight = mg.Tensor([1.0, 2.0, 3.0], device="cuda")
        for target in (mg.Tensor([1, -100], device="cuda"), mg.full((2, 3), 0.5, device="cuda")):
            logits = mg.ones(2, 3, requires_grad=True, device="cuda")
            loss = F.cross_entropy(logits, target, weight, label_smoothing=0.1)
            loss.backward()
            assert {loss.device, logits.grad.device} == {"cuda:0"}
            with pytest.raises(mg.DeviceError, match="on cpu"):
                F.cross_entropy(logits, target, weight.to("cpu"))
