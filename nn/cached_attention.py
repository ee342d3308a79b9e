"""Multi-head attention for one query after another: keys and values are made once, and kept.

For models that write a sequence and read each symbol again (`models.cache`). The classes give what `MultiHeadAttention`
gives in evaluation mode, on arrays, as the functions of `nn.cached_layers`: see there.
"""

from __future__ import annotations

import math
from typing import Any

import nn.functional as F
from minigrad import Tensor
from minigrad.backend import array_module, on_device_of
from minigrad.ops.elementwise import narrowed, widened
from minigrad.sums import ones_like_row
from nn.attention import MultiHeadAttention
from nn.cached_layers import CachedLinear, on_arrays
from nn.fused_room import are_small, subtracted
from nn.heads import split_heads


class CachedSelfAttention:
    """Attention of each vector of a sequence to itself and those before it; the vectors come one at a time.

    Args:
        attention: the layer; its keys and values are as long as its queries.
        max_length: how many vectors there will be at most; one more is an IndexError.
    """

    def __init__(self, attention: MultiHeadAttention, max_length: int) -> None:
        self._heads, self._max_length, self._length = attention.num_heads, max_length, 0
        bias = attention.in_proj_bias
        self._in_proj = CachedLinear(attention.in_proj_weight.data, None if bias is None else bias.data)
        self._out_proj = on_arrays(attention.out_proj)
        self._kept: Any = None  # keys and values in an array (2, B, H, max_length, d); `_length` places are written

    def __call__(self, x: Any, visible: Any = None) -> Any:
        """The next vector of each sequence (B, D) to the same shape.

        visible: which vectors up to this one may be attended to, an array (B, 1, length); None for all.
        """
        batch, width = x.shape
        packed = widened(self._in_proj(x)).reshape(batch, 3, self._heads, width // self._heads)
        if self._kept is None:
            shape = (2, batch, self._heads, self._max_length, width // self._heads)
            self._kept = array_module(packed).empty(shape, packed.dtype)
        self._kept[:, :, :, self._length] = packed[:, 1:].swapaxes(0, 1)
        self._length += 1
        keys, values = self._kept[:, :, :, : self._length]
        mixed = mixture_for_one_query(packed[:, 0], keys.swapaxes(-1, -2), values, visible)
        return self._out_proj(narrowed(mixed.reshape(batch, width), x.dtype))

    def take(self, rows: Any) -> None:
        """Goes on with these rows of the batch: (B',) integers, or (B,) booleans."""
        if self._kept is not None:
            with on_device_of(self._kept):
                self._kept = self._kept[:, rows]


class CachedAttention:
    """Attention to a memory that stays as it is.

    Args:
        attention: the layer; its keys and values are as long as its queries.
        memory: (B, N_k, D).
        mask: which of it may be attended to, (B, 1, 1, N_k).
    """

    def __init__(self, attention: MultiHeadAttention, memory: Tensor, mask: Tensor) -> None:
        self._heads = attention.num_heads
        weight, bias, width = attention.in_proj_weight, attention.in_proj_bias, attention.d_model
        self._query_proj = CachedLinear(weight.data[:width], None if bias is None else bias.data[:width])
        self._out_proj = on_arrays(attention.out_proj)
        packed = F.linear(memory, weight[width:], None if bias is None else bias[width:])  # (B, N_k, 2 D)
        keys, values = split_heads(packed, heads=self._heads, parts=2)
        copied = array_module(memory.data).ascontiguousarray  # in the order in which they are multiplied fastest
        self._keys = copied(widened(keys.data).swapaxes(-1, -2))  # (B, H, d, N_k)
        self._values = copied(widened(values.data))  # (B, H, N_k, d)
        self._visible = None if mask.data.all() and mask.data.size else mask.data[:, 0]  # (B, 1, N_k)

    def __call__(self, x: Any) -> Any:
        """A query for each row of the batch, (B, D) to the same shape."""
        batch, width = x.shape
        query = widened(self._query_proj(x)).reshape(batch, self._heads, width // self._heads)
        mixed = mixture_for_one_query(query, self._keys, self._values, self._visible)
        return self._out_proj(narrowed(mixed.reshape(batch, width), x.dtype))

    def take(self, rows: Any) -> None:
        """Goes on with these rows of the batch: (B',) integers, or (B,) booleans."""
        with on_device_of(self._keys):
            self._keys, self._values = self._keys[rows], self._values[rows]
            self._visible = None if self._visible is None else self._visible[rows]


def mixture_for_one_query(query: Any, keys: Any, values: Any, visible: Any) -> Any:
    """softmax(q K / √d) V on arrays: q (B, H, d), keys as columns of K (B, H, d, N), V (B, H, N, d), to (B, H, d).

    visible: (B, 1, N), True = may be attended to; None for all. A query that may attend to nothing gets 0.
    """
    library = array_module(query)
    scaled = query * (1.0 / math.sqrt(query.shape[-1]))
    weights = library.matmul(scaled[:, :, None], keys)[:, :, 0]  # (B, H, N), the scores at first
    if weights.size and not are_small(weights):
        if visible is not None:
            weights = library.where(visible, weights, -math.inf)
        weights -= subtracted(weights.max(axis=-1, keepdims=True))
    library.exp(weights, out=weights)
    if visible is not None:
        weights *= visible
    total = weights @ ones_like_row(weights, weights.shape[-1])  # (B, H)
    if visible is not None:
        total += total == 0
    mixed = library.matmul(weights[:, :, None], values)[:, :, 0]  # (B, H, d)
    mixed /= total[..., None]
    return mixed
