"""The doors of attention: they check what they are given, read the masks, and call a room.

The rooms, which compute, are in `nn.rooms`; the forms of masks in `nn.masks`. `nn.functional` exports the doors of
heads; `nn.attention` takes that of projections.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad import ops
from minigrad.autocast import in_16_bits
from minigrad.backend import device_of
from minigrad.dtypes import is_floating
from minigrad.ops.elementwise import narrowed
from minigrad.promotion import result_type
from minigrad.random import next_key
from minigrad.scalars import number
from nn.common import FLOAT32, array_of, as_dtype, dropout_mask, on_its_device, probability, repeated_heads, wide
from nn.fused_room import How, fused_attention, fused_multi_head_attention
from nn.heads import heads_of_projections, join_heads, split_heads
from nn.kernel_room import attention_by_kernels
from nn.masks import check_masks, read_masks, wants_gradient
from nn.plain_room import attention_weights, mixture, plain_attention
from nn.rooms import TileOptions, chosen_room
from nn.tiled_room import attention_by_tiles


@in_16_bits(exempt=["attn_mask"])
@on_its_device
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    causal_offset: int = 0,
    key_lengths: Any = None,
) -> Any:
    """softmax(Q Kᵀ scale + mask) V: Vaswani et al. 2017, equation 1.

    Masks combine: a query attends to a key if all of them allow it. A query that may attend to nothing gets 0, and the
    gradient 0; the others do not depend on what they may not attend to, as long as it is finite (0 · NaN is NaN).

    Args:
        query, key, value: (..., N_q, d), (..., N_k, d), (..., N_k, E) with leading axes, such as B and H, that
            broadcast; floating, of which 16 bits are computed in float32 (by kernels: multiplied as they are, added up
            in float32, and weights are off by up to 2⁻²³ times the largest score).
        attn_mask: broadcasts to the scores (..., N_q, N_k) by NumPy's rule. Boolean: True = may be attended to.
            Floating: added to the scores, -inf for what may not be attended to; differentiable. A row of the lowest
            finite number hides nothing: it gives the mean of the values. Padding (B, N_k) is written
            mask[:, None, None, :].
        dropout_p: probability that a weight is dropped. There is no mode here: pass 0 in evaluation.
        is_causal: query i attends to key j only if j <= i + causal_offset: aligned at the top left, as in PyTorch.
        scale: 1 / √d by default.
        enable_gqa: query may have a multiple of the heads (axis -3) of key and value: as many of its heads, side by
            side, share each of theirs (Ainslie et al. 2023, "GQA").
        causal_offset: how many keys come before the first query, as in a cache.
        key_lengths: (B,), integers: only so many of the first keys may be attended to.

    Returns (..., N_q, E). Raises ValueError that names shapes which do not fit, and for a mask of three axes beside a
    query of four, which may mean two things; TypeError for a mask of integers, which may too, and for a query, key or
    value that is not floating.
    """
    leading, dtype = _leading_and_dtype(query, key, value, enable_gqa)
    dropout_p, scale = probability("attention: dropout_p", dropout_p), _scale(scale, query.shape[-1])
    shape = (*leading, query.shape[-2], key.shape[-2])  # of the scores
    masks = {
        "attn_mask": attn_mask,
        "is_causal": is_causal,
        "causal_offset": causal_offset,
        "key_lengths": key_lengths,
    }
    check_masks(query, shape, **masks)
    width = max(query.shape[-1], value.shape[-1])
    room = chosen_room(dtype, width, device_of(array_of(query)), shape[-2] * shape[-1])
    if room in ("tiled", "kernel"):
        dropout_key = next_key() if dropout_p > 0 else None
        options = TileOptions(is_causal, causal_offset, scale, dropout_p, dropout_key)
        if room == "kernel":
            inputs = query, key, value, attn_mask, key_lengths
            return attention_by_kernels(*inputs, leading=leading, dtype=dtype, options=options, enable_gqa=enable_gqa)
        query, key, value = _alike(query, key, value, leading, dtype)
        return narrowed(attention_by_tiles(query, key, value, attn_mask, key_lengths, options=options), dtype)
    query, key, value = _alike(query, key, value, leading, dtype)
    visible, bias, kept = _read(query, shape, dropout_p, **masks)
    if room == "plain":
        return narrowed(plain_attention(query, key, value, bias, visible, kept, scale=scale), dtype)
    how = How(visible, scale, wants_gradient(bias))
    return narrowed(fused_attention(query, key, value, bias, kept, how=how), dtype)


@in_16_bits(exempt=["attn_mask"])
@on_its_device
def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    heads: int,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Any:
    """`scaled_dot_product_attention` of the heads of projections, which are joined again: (B, N_q, D).

    The projections are as `nn.heads.heads_of_projections` has them: three, two (`value` is None), or one. In the fused
    room it is one operation.
    """
    projections = [x for x in (query, key, value) if x is not None]
    (batch, n_q, width), n_k, dtype = query.shape, projections[-1].shape[1], query.dtype
    features = width // (heads if key is not None else 3 * heads)
    room = chosen_room(dtype, features, device_of(array_of(query)), n_q * n_k)
    if room != "fused" or any([x.dtype != dtype for x in projections]):
        q, k, v = heads_of_projections(query, key, value, heads=heads, split=split_heads)
        return join_heads([scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal)])
    dropout_p, shape = probability("attention: dropout_p", dropout_p), (batch, heads, n_q, n_k)
    masks = {"attn_mask": attn_mask, "is_causal": is_causal, "causal_offset": 0, "key_lengths": None}
    check_masks(query, shape, **masks)
    query, key, value = [as_dtype(x, wide(dtype)) for x in (query, key, value)]
    visible, bias, kept = _read(query, shape, dropout_p, **masks)
    how = How(visible, _scale(None, features), wants_gradient(bias))
    return narrowed(fused_multi_head_attention(query, key, value, bias, kept, heads=heads, how=how), dtype)


@in_16_bits(exempt=["attn_mask"])
@on_its_device
def attention_with_weights(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False
) -> tuple[Any, Any]:
    """As `scaled_dot_product_attention`, in the plain room: (output, weights (..., N_q, N_k)).

    The weights are the softmax's, before dropout: rows add up to 1, or to 0 where nothing may be attended to.
    """
    leading, dtype = _leading_and_dtype(query, key, value, grouped=False)
    dropout_p, scale = probability("attention: dropout_p", dropout_p), _scale(None, query.shape[-1])
    shape = (*leading, query.shape[-2], key.shape[-2])  # of the scores
    masks = {"attn_mask": attn_mask, "is_causal": is_causal, "causal_offset": 0, "key_lengths": None}
    check_masks(query, shape, **masks)
    query, key, value = _alike(query, key, value, leading, dtype)
    visible, bias, kept = _read(query, shape, dropout_p, **masks)
    weights = attention_weights(query, key, bias, visible, scale=scale)
    return narrowed(mixture(weights, value, kept), dtype), narrowed(weights, dtype)


def _leading_and_dtype(query: Any, key: Any, value: Any, grouped: bool) -> tuple[tuple[int, ...], np.dtype]:
    """The leading axes and the dtype of the output. Raises for inputs that do not fit."""
    of_query, of_key, of_value, dtype = query.shape, key.shape, value.shape, query.dtype
    if (  # the usual case
        not grouped
        and len(of_query) == len(of_key) == len(of_value) >= 2
        and of_query[:-2] == of_key[:-2] == of_value[:-2]
        and of_query[-1] == of_key[-1]
        and of_key[-2] == of_value[-2]
        and dtype is key.dtype is value.dtype is FLOAT32
    ):
        return of_query[:-2], dtype
    shapes = f"query {query.shape}, key {key.shape} and value {value.shape}"
    dtypes = [x.dtype for x in (query, key, value)]
    if not all(is_floating(dtype) for dtype in dtypes):
        found = ", ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"attention: query, key and value must be floating, got {found}; write .float()")
    if (
        min(query.ndim, key.ndim, value.ndim) < 2
        or query.shape[-1] != key.shape[-1]
        or key.shape[-2] != value.shape[-2]
    ):
        raise ValueError(f"attention: {shapes} do not fit; they are (..., N_q, d), (..., N_k, d) and (..., N_k, E)")
    leading = [x.shape[:-2] for x in (query, key, value)]
    if grouped:
        if not (_shares_heads(query, key) and _shares_heads(query, value)):
            raise ValueError(
                f"attention: enable_gqa needs heads on axis -3, the query's a multiple of the others'; got {shapes}"
            )
        leading = [(*axes[:-1], query.shape[-3]) for axes in leading]
    try:
        return np.broadcast_shapes(*leading), result_type([query, key, value])
    except ValueError:
        raise ValueError(
            f"attention: the leading axes of {shapes} do not broadcast; enable_gqa=True lets heads of the query share "
            "those of key and value"
        ) from None


def _shares_heads(query: Any, x: Any) -> bool:
    return query.ndim >= 3 and x.ndim >= 3 and x.shape[-3] != 0 and query.shape[-3] % x.shape[-3] == 0


def _scale(scale: Any, features: int) -> float:
    return 1.0 / math.sqrt(max(1, features)) if scale is None else float(number("attention: scale", scale))


def _read(query: Any, shape: tuple[int, ...], dropout_p: float, **masks: Any) -> tuple[Any, Any, Any]:
    """(visible, bias, kept) as the rooms take them, of what was given and checked; shape: of the scores.

    What they drop is drawn on the CPU, also for a GPU; the kernel room, which is taken there, draws for itself.
    """
    visible, bias = read_masks(query, shape, **masks)
    kept = dropout_mask(query, shape, dropout_p) if dropout_p > 0 else None
    return visible, as_dtype(bias, query.dtype), kept


def _alike(query: Any, key: Any, value: Any, leading: tuple[int, ...], dtype: np.dtype) -> tuple[Any, ...]:
    """The three with these leading axes, in `dtype` but at least float32."""
    computed_in, given = wide(dtype), (query, key, value)
    if all([x.dtype is computed_in and x.shape[:-2] == leading for x in given]):  # the usual case
        return given
    return tuple([as_dtype(_expanded(x, leading), computed_in) for x in given])


def _expanded(x: Any, leading: tuple[int, ...]) -> Any:
    """x with these leading axes, of which the last, of heads, may be a multiple of its own."""
    if x.ndim >= 3 and 1 < x.shape[-3] < leading[-1]:
        x = repeated_heads(x, leading[-1])
    return x if x.shape[:-2] == leading else ops.broadcast_to(x, (*leading, *x.shape[-2:]))
