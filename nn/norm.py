"""LayerNorm and RMSNorm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nn.functional as F
from minigrad import Tensor, ones, zeros
from nn.common import lengths
from nn.module import Module, Parameter


class LayerNorm(Module):
    """(x - mean) / √(variance + eps) * weight + bias over the last axes (Ba et al. 2016, "Layer normalization").

    Args:
        normalized_shape: the lengths of the last axes, or the length of the last one.
        eps: added to the variance, which is the biased one.
        elementwise_affine: False for neither weight nor bias.
        bias: False for no bias.

    `weight` (ones at first) and `bias` (zeros) have the shape `normalized_shape`, or are None. Raises ValueError for an
    empty shape, or a length below 1.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        shape = _checked_shape("LayerNorm", normalized_shape)
        self.normalized_shape, self.eps = shape, eps
        self.weight = Parameter(ones(shape)) if elementwise_affine else None
        self.bias = Parameter(zeros(shape)) if elementwise_affine and bias else None

    def forward(self, x: Any) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        affine = f"elementwise_affine={self.weight is not None}, bias={self.bias is not None}"
        return f"{_in_short(self.normalized_shape)}, eps={self.eps}, {affine}"


class RMSNorm(Module):
    """x / √(mean x² + eps) * weight over the last axes (Zhang & Sennrich 2019, "Root mean square layer normalization").

    Args:
        normalized_shape: the lengths of the last axes, or the length of the last one.
        eps: None for the distance from 1 to the next number of the dtype that is computed in.
        elementwise_affine: False for no weight.

    `weight` (ones at first) has the shape `normalized_shape`, or is None. Raises ValueError for an empty shape, or a
    length below 1.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = _checked_shape("RMSNorm", normalized_shape), eps
        self.weight = Parameter(ones(self.normalized_shape)) if elementwise_affine else None

    def forward(self, x: Any) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{_in_short(self.normalized_shape)}, eps={self.eps}, elementwise_affine={self.weight is not None}"


def _checked_shape(layer: str, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    """The lengths of the last axes. Raises ValueError that names the layer if there is none, or one below 1."""
    shape = lengths(normalized_shape)
    if not shape or min(shape) < 1:
        raise ValueError(f"{layer}: normalized_shape must be one or more lengths of at least 1, got {shape}")
    return shape


def _in_short(shape: tuple[int, ...]) -> int | tuple[int, ...]:
    """One length as the number that it is."""
    return shape[0] if len(shape) == 1 else shape
