"""Linear: the affine layer."""

from __future__ import annotations

from typing import Any

import nn.functional as F
from minigrad import Tensor, zeros
from nn import init
from nn.module import Module, Parameter


class Linear(Module):
    """y = x Wᵀ + b for x (..., in_features); y is (..., out_features).

    `weight` is (out_features, in_features), `bias` (out_features,) or None; both start uniform in ±1/√in_features, as
    in PyTorch. Raises ValueError for a size below 1.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        if in_features < 1 or out_features < 1:
            raise ValueError(
                f"Linear: in_features and out_features must be at least 1, got {in_features} and {out_features}"
            )
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(zeros(out_features, in_features))
        self.bias = Parameter(zeros(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias afresh."""
        bound = self.in_features**-0.5
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Any) -> Tensor:
        """(..., in_features) to (..., out_features). Raises ValueError that names the shapes if they do not fit."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
