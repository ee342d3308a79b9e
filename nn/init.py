"""Starting values: each function writes over a tensor in place and returns it, with PyTorch's names and formulas.

Numbers are drawn on the CPU in float32, so that a seed gives the same ones on every device and in every dtype: from
`generator`, or else from the thread's random stream (see `mg.manual_seed`). A Parameter's `zero_row` stays zero.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np

from minigrad import Tensor, no_grad
from minigrad.backend import to_device
from minigrad.dtypes import is_floating
from minigrad.random import Generator, next_generator
from nn.module import Parameter

T = TypeVar("T", bound=Tensor)


def constant_(tensor: T, val: float) -> T:
    """`val` everywhere."""
    return _fill(tensor, val)


def zeros_(tensor: T) -> T:
    """0 everywhere."""
    return _fill(tensor, 0)


def ones_(tensor: T) -> T:
    """1 everywhere."""
    return _fill(tensor, 1)


def uniform_(tensor: T, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> T:
    """Uniform in [a, b). Raises ValueError unless a <= b."""
    if not a <= b:
        raise ValueError(f"uniform_: the lower bound must not be above the upper one, got {a} and {b}")
    _check_floating("uniform_", tensor)
    return _fill(tensor, next_generator(generator).random(tensor.shape, np.float32) * (b - a) + a)


def normal_(tensor: T, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> T:
    """Normal, with this mean and standard deviation. Raises ValueError for a negative std."""
    if not std >= 0:
        raise ValueError(f"normal_: std must be 0 or more, got {std}")
    _check_floating("normal_", tensor)
    return _fill(tensor, next_generator(generator).standard_normal(tensor.shape, np.float32) * std + mean)


def xavier_uniform_(tensor: T, gain: float = 1.0, generator: Generator | None = None) -> T:
    """Uniform in ±gain √(6 / (fan_in + fan_out)): Glorot & Bengio 2010, eq. 16."""
    bound = gain * math.sqrt(6 / sum(_fans("xavier_uniform_", tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: T, gain: float = 1.0, generator: Generator | None = None) -> T:
    """Normal with variance gain² 2 / (fan_in + fan_out): Glorot & Bengio 2010, eq. 12."""
    std = gain * math.sqrt(2 / sum(_fans("xavier_normal_", tensor)))
    return normal_(tensor, 0.0, std, generator)


def kaiming_uniform_(
    tensor: T,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> T:
    """Uniform in ±gain √(3 / fan): He et al. 2015, eq. 14, with the gain of the nonlinearity that follows.

    Args:
        a: negative slope of a leaky ReLU.
        mode: "fan_in" keeps the variance on the way forward, "fan_out" on the way back.
        nonlinearity: "linear", "sigmoid", "tanh", "relu" or "leaky_relu".
        generator: where the numbers come from.
    """
    bound = math.sqrt(3) * _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: T,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> T:
    """Normal with variance gain² / fan: He et al. 2015, eq. 14. Arguments as for `kaiming_uniform_`."""
    std = _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity)
    return normal_(tensor, 0.0, std, generator)


def _kaiming_std(name: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    gains = {
        "linear": 1.0,
        "sigmoid": 1.0,
        "tanh": 5 / 3,
        "relu": math.sqrt(2),
        "leaky_relu": math.sqrt(2 / (1 + a * a)),
    }
    if nonlinearity not in gains:
        raise ValueError(f"{name}: nonlinearity must be one of {', '.join(gains)}, got {nonlinearity!r}")
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f'{name}: mode must be "fan_in" or "fan_out", got {mode!r}')
    fan_in, fan_out = _fans(name, tensor)
    return gains[nonlinearity] / math.sqrt(fan_in if mode == "fan_in" else fan_out)


def _fans(name: str, tensor: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (out, in, ...): how many inputs an output has, and the reverse; at least 1."""
    if tensor.ndim < 2:
        raise ValueError(f"{name} needs a weight of two or more axes, (out, in, ...), got shape {tensor.shape}")
    field = math.prod(tensor.shape[2:])
    return max(1, tensor.shape[1] * field), max(1, tensor.shape[0] * field)


def _check_floating(name: str, tensor: Tensor) -> None:
    if not is_floating(tensor.dtype):
        raise TypeError(f"{name} draws fractions, which a tensor of {tensor.dtype} cannot hold; use a floating dtype")


def _fill(tensor: T, values: Any) -> T:
    with no_grad():
        tensor.copy_(to_device(values, tensor.device) if isinstance(values, np.ndarray) else values)
        if isinstance(tensor, Parameter) and tensor.zero_row is not None:
            tensor[tensor.zero_row] = 0
    return tensor
