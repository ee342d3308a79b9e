"""A function of nn beside PyTorch's: value and gradients."""

import numpy as np

import minigrad as mg
from tests.support import assert_close, torch_or_skip

TOLERANCE = {"float16": 2**-10, "float32": 1e-5, "float64": 1e-10}


def draw(*shapes, seed=0):
    """Normally distributed arrays of these shapes, in float64."""
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape)) for shape in shapes]


def assert_equals_pytorch(ours, theirs, arrays, dtype):
    """Value, and gradients under random weights, of two functions of the same floating arrays.

    PyTorch reckons with the same float16 numbers in float64: what it would round on the way is no measure.
    """
    torch = torch_or_skip()
    arrays = [array.astype(dtype) for array in arrays]
    exact = np.float64 if dtype == "float16" else dtype
    inputs = [mg.Tensor(array, requires_grad=True) for array in arrays]
    their_inputs = [torch.tensor(array.astype(exact), requires_grad=True) for array in arrays]
    value, their_value = ours(*inputs), theirs(torch, *their_inputs)
    assert value.dtype == dtype
    assert_close(value, their_value, TOLERANCE[dtype])
    weights = draw(value.shape, seed=1)[0].astype(dtype)
    gradients = mg.grad(value, inputs, weights)
    their_gradients = torch.autograd.grad(their_value, their_inputs, torch.tensor(weights.astype(exact)))
    for place, (gradient, their_gradient) in enumerate(zip(gradients, their_gradients, strict=True)):
        assert gradient.dtype == dtype
        assert_close(gradient, their_gradient, TOLERANCE[dtype], f"the gradient of input {place}")
