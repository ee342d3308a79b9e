"""Comparison and logic: against NumPy and PyTorch."""

import math

from tests.minigrad.ops.factory import binary, booleans, integers, make_tests, normal, unary


def not_finite(rng, shape):
    return rng.choice([-math.inf, -1.0, 0.0, 2.0, math.inf, math.nan], shape)


CASES = [
    binary("equal", values=integers, torch=lambda t, x, y: x == y, differentiable=False),
    binary("not_equal", differentiable=False),
    binary("less", differentiable=False),
    binary("less_equal", differentiable=False),
    binary("greater", differentiable=False),
    binary("greater_equal", differentiable=False),
    binary("bitwise_and", values=integers, differentiable=False),
    binary("bitwise_and", values=booleans, differentiable=False),
    binary("bitwise_or", values=integers, differentiable=False),
    binary("bitwise_or", values=booleans, differentiable=False),
    binary("bitwise_xor", values=integers, differentiable=False),
    binary("bitwise_xor", values=booleans, differentiable=False),
    unary("invert", values=integers, torch=lambda t, x: ~x, differentiable=False),
    unary("invert", values=booleans, torch=lambda t, x: ~x, differentiable=False),
    *[
        binary(f"logical_{name}", values=values, differentiable=False)
        for name in ("and", "or", "xor")
        for values in (booleans, integers, (integers, normal))
    ],
    unary("logical_not", values=booleans, differentiable=False),
    unary("logical_not", values=integers, differentiable=False),
    *[unary(name, values=not_finite, differentiable=False) for name in ("isnan", "isinf", "isfinite")],
]


test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)
