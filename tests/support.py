"""What tests in several folders share: comparison of arrays, and PyTorch where it is installed."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor

TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-11}


def assert_close(found: Any, expected: Any, tolerance: float, what: str = "the value") -> None:
    """‖found − expected‖ ≤ tolerance · ‖expected‖ over the finite elements; shapes, NaN and infinities are equal."""
    found, expected = as_array(found), as_array(expected)
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite], err_msg=what)
    distance, size = np.linalg.norm(found[finite] - expected[finite]), np.linalg.norm(expected[finite])
    assert distance <= tolerance * size, (
        f"{what}: off by {distance:.3g}, {tolerance:g} × {size:.3g} is allowed\nfound\n{found}\nexpected\n{expected}"
    )


def as_array(value: Any) -> np.ndarray:
    """The values of a Tensor, a PyTorch tensor, an array or a number, as float64."""
    if hasattr(value, "detach"):
        value = value.detach().numpy()
    return np.asarray(value, np.float64)


def torch_or_skip() -> ModuleType:
    """PyTorch, on one thread; the calling test is skipped where it is not installed."""
    torch = pytest.importorskip("torch", reason="PyTorch, which results are compared with, is not installed")
    torch.set_num_threads(1)
    return torch


def leaf(values: Any, dtype: Any = np.float64) -> Tensor:
    """A tensor that gradients are asked for; float64, so that exact values can be expected."""
    return Tensor(values, requires_grad=True, dtype=dtype)
