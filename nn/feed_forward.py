"""The position-wise feed-forward network of a Transformer layer: as a module, and as a function of its parts.

The layers of `models.stack` hold the parts themselves, under PyTorch's names, and call the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import nn.functional as F
from minigrad import Tensor
from nn.dropout import Dropout
from nn.linear import Linear
from nn.module import Module

Layer = Callable[[Any], Tensor]

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": functools.partial(F.gelu, approximate="tanh")}


def check_activation(name: str, activation: str) -> None:
    """Raises ValueError that names an unknown activation, and the thing it was given to."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"{name}: activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")


def feed_forward(x: Any, linear1: Layer, linear2: Layer, dropout: Dropout, activation: str) -> Tensor:
    """linear2(dropout(activation(linear1(x)))), (..., D) to (..., D): Vaswani et al. 2017, eq. 2, with dropout."""
    hidden = ACTIVATIONS[activation](linear1(x))  # (..., d_ff)
    return linear2(dropout(hidden))


class FeedForward(Module):
    """Two linear layers with an activation between them, at each position alone (Vaswani et al. 2017, eq. 2).

    Args:
        d_model: length of the rows in and out.
        d_ff: length of the rows between the two layers.
        dropout: probability that an element between the two layers is dropped.
        activation: "relu", "gelu" (exact) or "gelu_tanh" (nearly that, and faster). ValueError for another.
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0, activation: str = "relu") -> None:
        super().__init__()
        check_activation("FeedForward", activation)
        self.activation = activation
        self.linear1 = Linear(d_model, d_ff)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(d_ff, d_model)

    def forward(self, x: Any) -> Tensor:
        """(..., D) to (..., D)."""
        return feed_forward(x, self.linear1, self.linear2, self.dropout, self.activation)

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"
