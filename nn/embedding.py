"""From ids and places to rows: Embedding, and the two kinds of positions, sinusoidal and learned."""

from __future__ import annotations

from typing import Any

import numpy as np

import nn.functional as F
from minigrad import Tensor, get_default_dtype, zeros
from nn import init
from nn.module import Module, Parameter


class Embedding(Module):
    """A learned row for each id.

    Args:
        num_embeddings: how many ids there are: 0 ... num_embeddings - 1.
        embedding_dim: the length D of a row.
        padding_idx: an id whose row starts at zero and gets no gradient from here, so that training leaves it at zero;
            so does `nn.init`. Where `weight` is used elsewhere too (a tied output projection), its padding row gets the
            gradient from there, as in PyTorch, and moves.

    `weight` is (num_embeddings, D), drawn from N(0, 1). Raises ValueError for a size below 1 or a padding_idx that is
    no id.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> None:
        super().__init__()
        if num_embeddings < 1 or embedding_dim < 1:
            raise ValueError(
                "Embedding: num_embeddings and embedding_dim must be at least 1, "
                f"got {num_embeddings} and {embedding_dim}"
            )
        if padding_idx is not None and not 0 <= padding_idx < num_embeddings:
            raise ValueError(f"Embedding: padding_idx must be from 0 to {num_embeddings - 1}, got {padding_idx}")
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.weight = Parameter(zeros(num_embeddings, embedding_dim))
        self.weight.zero_row = padding_idx
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows afresh."""
        init.normal_(self.weight)

    def forward(self, ids: Any) -> Tensor:
        """Integers (...) to rows (..., D). Raises IndexError for an id out of range, TypeError for other dtypes."""
        return F.embedding(ids, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class _Positions(Module):
    """Adds to each row of x what `table` (max_length, D) says of its place."""

    table: Tensor

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        if d_model < 1 or max_length < 1:
            raise ValueError(
                f"{type(self).__name__}: d_model and max_length must be at least 1, got {d_model} and {max_length}"
            )
        self.d_model, self.max_length = d_model, max_length

    def forward(self, x: Any, first: int = 0) -> Tensor:
        """x (..., N, D), whose places begin with `first`, to the same shape.

        Raises ValueError if x has another D, or places from max_length on.
        """
        name = type(self).__name__
        if x.ndim < 2 or x.shape[-1] != self.d_model:
            raise ValueError(f"{name}: x must have the shape (..., N, {self.d_model}), got {x.shape}")
        length = first + x.shape[-2]
        if length > self.max_length:
            raise ValueError(
                f"{name}: a sequence of length {length} was given, but max_length is {self.max_length}; "
                "make a longer table, or shorten the sequence"
            )
        is_all = first == 0 and length == self.table.shape[0]  # of a slice the gradient is written into zeros
        return x + (self.table if is_all else self.table[first:length])

    def extra_repr(self) -> str:
        return f"{self.d_model}, max_length={self.max_length}"


class PositionalEncoding(_Positions):
    """Adds sines and cosines of the place (Vaswani et al. 2017, section 3.5); nothing is learned.

    Column 2i is sin(place / 10000^(2i/D)), column 2i+1 the cosine of the same. An odd D ends in a sine.

    Args:
        d_model: the length D of a row, at least 1.
        max_length: how many places there are.

    `table` is (max_length, D), of the default dtype: a buffer, and no part of the state_dict, since it can always be
    computed.
    """

    def __init__(self, d_model: int, max_length: int = 512) -> None:
        super().__init__(d_model, max_length)
        column = np.arange(d_model)
        angle = np.arange(max_length)[:, None] * 10000.0 ** (-(column - column % 2) / d_model)  # (N, D)
        table = np.where(column % 2 == 0, np.sin(angle), np.cos(angle))
        self.register_buffer("table", Tensor(table, dtype=get_default_dtype()), persistent=False)


class LearnedPositionalEncoding(_Positions):
    """Adds a learned row for each place.

    Args:
        d_model: the length D of a row, at least 1.
        max_length: how many places there are.

    `table` is a Parameter (max_length, D), drawn from N(0, 0.02²).
    """

    def __init__(self, d_model: int, max_length: int = 512) -> None:
        super().__init__(d_model, max_length)
        self.table = Parameter(zeros(max_length, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows afresh."""
        init.normal_(self.table, std=0.02)
