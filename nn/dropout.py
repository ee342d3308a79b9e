"""Dropout."""

from __future__ import annotations

from typing import Any

import nn.functional as F
from minigrad import Tensor
from nn.common import probability
from nn.module import Module


class Dropout(Module):
    """In training, each element is 0 with probability p, else x / (1 - p); in evaluation, x itself.

    Srivastava et al. 2014, "Dropout"; scaled while training, so that evaluation has nothing to do. The mask comes from
    the thread's random stream (see `mg.manual_seed`). Raises ValueError for p outside 0 ... 1.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = probability("Dropout: p", p)

    def forward(self, x: Any) -> Tensor:
        """Any shape, to the same shape and dtype."""
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
