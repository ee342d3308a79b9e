"""FeedForward: the position-wise network of a Transformer layer."""

from __future__ import annotations

from typing import Any

import nn.functional as F
from minigrad import Tensor
from nn.dropout import Dropout
from nn.linear import Linear
from nn.module import Module

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}


class FeedForward(Module):
    """Two linear layers with an activation between them, at each position alone (Vaswani et al. 2017, eq. 2).

    A Transformer layer is a subclass, with attention before this network: so `linear1` and `linear2` are parts of the
    layer itself, under PyTorch's names, and the layer calls `feed_forward`.

    Args:
        d_model: length of the rows in and out.
        d_ff: length of the rows between the two layers.
        dropout: probability that an element between the two layers is dropped.
        activation: "relu" or "gelu" (exact). ValueError for another.
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0, activation: str = "relu") -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"FeedForward: activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        self.activation = activation
        self.linear1 = Linear(d_model, d_ff)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(d_ff, d_model)

    def feed_forward(self, x: Any) -> Tensor:
        """(..., D) to (..., D)."""
        hidden = ACTIVATIONS[self.activation](self.linear1(x))  # (..., d_ff)
        return self.linear2(self.dropout(hidden))

    def forward(self, x: Any) -> Tensor:
        """(..., D) to (..., D)."""
        return self.feed_forward(x)

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"
