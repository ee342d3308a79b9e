"""Gradient clipping."""

import math

import numpy as np
import pytest

import minigrad as mg
from nn.module import Parameter
from nn.optim import clip_grad_norm_
from tests.cupy_standin import installed
from tests.support import assert_close, torch_or_skip


def with_gradients(*gradients, device="cpu"):
    parameters = []
    for gradient in gradients:
        parameters.append(Parameter(np.zeros(np.shape(gradient or 0.0), np.float32), device=device))
        parameters[-1].grad = None if gradient is None else mg.Tensor(gradient, device=device)
    return parameters


def test_all_gradients_together_get_the_allowed_norm():
    parameters = with_gradients([3.0], None, [[0.0, 4.0]])
    norm = clip_grad_norm_(iter(parameters), 1.0)
    assert isinstance(norm, mg.Tensor) and norm.shape == () and norm.dtype == np.float32 and norm.item() == 5
    assert_close(parameters[0].grad, [0.6], 1e-6)
    assert_close(parameters[2].grad, [[0, 0.8]], 1e-6)
    assert parameters[1].grad is None


@pytest.mark.parametrize("max_norm", [5.1, math.inf])
def test_short_gradients_stay_as_they_are(max_norm):
    parameters = with_gradients([3.0], [4.0])
    assert clip_grad_norm_(parameters, max_norm).item() == 5
    assert [parameter.grad.tolist() for parameter in parameters] == [[3], [4]]


def test_no_gradients():
    assert clip_grad_norm_(with_gradients(None), 1.0).item() == 0
    assert clip_grad_norm_([], 1.0).item() == 0
    zero = with_gradients([0.0])
    assert clip_grad_norm_(zero, 0.0).item() == 0 and zero[0].grad.tolist() == [0]


def test_one_tensor_and_0d_gradients():
    (parameter,) = with_gradients(8.0)
    assert clip_grad_norm_(parameter, 2).item() == 8
    assert (
        parameter.grad.shape == () and parameter.grad.item() == pytest.approx(2) and parameter.grad.dtype == np.float32
    )


@pytest.mark.parametrize("max_norm", [0.5, 2.0, 100.0, 0.0, math.inf, np.float64(0.5)])
@pytest.mark.parametrize("bad", [None, math.inf, math.nan])
def test_equals_pytorch(max_norm, bad):
    torch = torch_or_skip()
    gradients = [np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((3, 4), (5,), (), (0,))]
    if bad is not None:
        gradients[1][2] = bad
    ours, theirs = [Parameter(g) for g in gradients], [torch.tensor(g, requires_grad=True) for g in gradients]
    for parameter, their_parameter, gradient in zip(ours, theirs, gradients, strict=True):
        parameter.grad, their_parameter.grad = mg.Tensor(gradient), torch.tensor(gradient)
    assert_close(clip_grad_norm_(ours, max_norm), torch.nn.utils.clip_grad_norm_(theirs, float(max_norm)), 1e-6)
    for parameter, their_parameter in zip(ours, theirs, strict=True):
        assert_close(parameter.grad, their_parameter.grad, 1e-6)
        assert parameter.grad.dtype == np.float32


def test_clipping_is_noticed_by_a_graph_through_the_gradient():
    x = mg.Tensor([2.0], requires_grad=True)
    (x * x * x).sum().backward(create_graph=True)
    squared = (x.grad * x.grad).sum()
    clip_grad_norm_([x], 1.0)
    with pytest.raises(RuntimeError, match="changed in place"):
        squared.backward()


def test_on_a_gpu_nothing_leaves_it():
    with installed():
        parameters = with_gradients([3.0], [4.0], device="cuda")
        norm = clip_grad_norm_(parameters, 1.0)
        assert norm.device == parameters[0].grad.device == "cuda:0" and norm.item() == 5


@pytest.mark.parametrize("max_norm", [-1.0, math.nan])
def test_a_negative_norm_is_refused(max_norm):
    with pytest.raises(ValueError, match=f"clip_grad_norm_: max_norm must be 0 or more, got {max_norm}"):
        clip_grad_norm_(with_gradients([1.0]), max_norm)


def test_squares_of_float16_gradients_do_not_overflow():
    x = Parameter(np.ones(10, np.float16))
    x.grad = mg.Tensor(np.full(10, 1000, np.float16))
    assert clip_grad_norm_([x], 1.0).item() == pytest.approx(1000 * math.sqrt(10), rel=1e-3)
    np.testing.assert_allclose(x.grad.numpy(), 1 / math.sqrt(10), rtol=1e-2)
