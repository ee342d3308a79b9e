"""What tests in several folders share: comparison of arrays, and PyTorch where it is installed."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from minigrad import Tensor

TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-11}
HALF = 8e-3  # of float16, whose numbers lie up to 1e-3 apart: a few roundings
NARROW = {np.dtype(np.float16): HALF, np.dtype(bfloat16): 8 * HALF}  # which has three bits less


def assert_close(found: Any, expected: Any, tolerance: float, what: str = "the value", least: float = 0.0) -> None:
    """‖found − expected‖ ≤ tolerance · ‖expected‖ over the finite elements; shapes, NaN and infinities are equal.

    `least`: what ‖expected‖ counts as if it is smaller, for what is left of cancellation: nothing but rounding.
    """
    found, expected = as_array(found), as_array(expected)
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite], err_msg=what)
    distance, size = np.linalg.norm(found[finite] - expected[finite]), max(np.linalg.norm(expected[finite]), least)
    assert distance <= tolerance * size, (
        f"{what}: off by {distance:.3g}, {tolerance:g} × {size:.3g} is allowed\nfound\n{found}\nexpected\n{expected}"
    )


def as_array(value: Any) -> np.ndarray:
    """The values of a Tensor, a PyTorch tensor, an array or a number, as float64."""
    if hasattr(value, "detach"):
        value = value.detach().double().numpy()  # PyTorch has no bfloat16 of NumPy's
    return np.asarray(value, np.float64)


def torch_or_skip() -> ModuleType:
    """PyTorch, on one thread; the calling test is skipped where it is not installed."""
    torch = pytest.importorskip("torch", reason="PyTorch, which results are compared with, is not installed")
    torch.set_num_threads(1)
    return torch


def to_torch(torch: ModuleType, array: np.ndarray) -> Any:
    """The array as a tensor of PyTorch, which does not read NumPy's bfloat16."""
    return torch.tensor(array.astype(np.float32)).bfloat16() if array.dtype == "bfloat16" else torch.tensor(array)


def leaf(values: Any, dtype: Any = np.float64) -> Tensor:
    """A tensor that gradients are asked for; float64, so that exact values can be expected."""
    return Tensor(values, requires_grad=True, dtype=dtype)


# Kinds of error: what PyTorch raises, and what says the same here. Its RuntimeError is for whatever has no better name.
ERROR_KINDS: dict[type[Exception], tuple[type[Exception], ...]] = {
    IndexError: (IndexError,),
    TypeError: (TypeError,),
    ValueError: (ValueError,),
    NotImplementedError: (TypeError, ValueError),
    RuntimeError: (ValueError, TypeError, IndexError, RuntimeError, ZeroDivisionError),
}


def check_kind(theirs: Callable[[], Any], ours: Callable[[], Any]) -> None:
    """Where PyTorch refuses a call, ours raises an error of the same kind."""
    error = _raised(theirs)
    assert error is not None, "PyTorch takes this call"
    kinds = ERROR_KINDS[type(error)]
    found = _raised(ours)
    assert isinstance(found, kinds), f"{found!r}, where PyTorch raises {error!r}"


def _raised(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None
