"""LayerNorm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nn.functional as F
from minigrad import Tensor, ones, zeros
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
        shape = F.lengths(normalized_shape)
        if not shape or min(shape) < 1:
            raise ValueError(f"LayerNorm: normalized_shape must be one or more lengths of at least 1, got {shape}")
        self.normalized_shape, self.eps = shape, eps
        self.weight = Parameter(ones(shape)) if elementwise_affine else None
        self.bias = Parameter(zeros(shape)) if elementwise_affine and bias else None

    def forward(self, x: Any) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        shape = self.normalized_shape[0] if len(self.normalized_shape) == 1 else self.normalized_shape
        return f"{shape}, eps={self.eps}, elementwise_affine={self.weight is not None}, bias={self.bias is not None}"
