"""What the tests of attention share: inputs, and comparison with PyTorch."""

import numpy as np

import minigrad as mg
from tests.support import assert_close, torch_or_skip

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}

# B = 2, H = 3, N_q = 5, N_k = 7
PLACES = np.random.default_rng(9).random((2, 3, 5, 7)) < 0.6
PLACES[..., 0] = True  # no empty row: what PyTorch gives for one depends on the path it takes


def draw(*shapes, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def leaves(*arrays):
    return [mg.Tensor(array, requires_grad=True) for array in arrays]


def zeros_and(values):
    """Query and key of zeros, so that all keys weigh the same, for these values (N_k,), which come out averaged."""
    return mg.zeros(len(values), 1), mg.Tensor([[float(v)] for v in values])


def with_gradients(function, inputs, weights):
    """The value of a function of Tensors, and its gradients."""
    value = function(*inputs)
    return value, mg.grad(value, inputs, weights.astype(value.dtype))


def assert_equals_pytorch(ours, theirs, arrays, dtype, least=0.0):
    """Value, and gradients under random weights, of two functions of the same floating arrays.

    `least` as `assert_close` has it.
    """
    torch = torch_or_skip()
    arrays = [array.astype(dtype) for array in arrays]
    their_inputs = [torch.tensor(array, requires_grad=True) for array in arrays]
    their_value = theirs(torch, *their_inputs)
    (weights,) = draw(tuple(their_value.shape), seed=1, dtype=dtype)
    value, gradients = with_gradients(ours, leaves(*arrays), weights)
    their_gradients = torch.autograd.grad(their_value, their_inputs, torch.tensor(weights))
    assert value.dtype == dtype
    assert_close(value, their_value, TOLERANCE[dtype])
    for place, (gradient, their_gradient) in enumerate(zip(gradients, their_gradients, strict=True)):
        assert_close(gradient, their_gradient, TOLERANCE[dtype], f"the gradient of input {place}", least)
