"""Attention and its gradients as the formulas have them, on NumPy's or CuPy's arrays, in memory for any N.

In float64 it is what kernels are held against; rounded to a smaller dtype it shows how exact plain attention in that
dtype is, by which a kernel's error is judged.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.backend import Array, array_module

NAMES = ("output", "d_query", "d_key", "d_value", "d_bias")
SCORES = 2**25  # how many are held at a time


def attention_by_rows(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    *,
    bias: Array | None = None,
    is_causal: bool = False,
    causal_offset: int = 0,
    key_lengths: Array | None = None,
    kept: Array | None = None,
    dtype: Any = None,
) -> tuple[Array | None, ...]:
    """The arrays of NAMES, a few rows of scores at a time: P = softmax(Q Kᵀ / √d + bias), O = (P ∘ kept) V, and

    dV = (P ∘ kept)ᵀ dO,  dS = P ∘ (dO Vᵀ ∘ kept − rowsum(O ∘ dO)),  dQ = dS K / √d,  dK = dSᵀ Q / √d,  dbias = dS.

    Args:
        grad_output, query, key, value: (B, H, N_q, d) twice, (B, H_kv, N_k, d) twice.
        bias: boolean (True = may be attended to) or floating, (B or 1, H or 1, N_q, N_k).
        is_causal, causal_offset, key_lengths: as of `kernels.attention_forward`.
        kept: (B, H, N_q, N_k), what dropout multiplies the weights by.
        dtype: what plain attention of this dtype stores between two products is rounded to it; products are added up
            in float32, or float64 by default.
    """
    library = array_module(query)
    wide = np.float64 if dtype is None else np.float32

    def stored(x: Array) -> Array:
        return x if dtype is None else x.astype(dtype).astype(wide)

    group, scale = query.shape[1] // key.shape[1], query.shape[-1] ** -0.5
    g, q = grad_output.astype(wide), query.astype(wide)
    k, v = (library.repeat(x.astype(wide), group, axis=1) for x in (key, value))
    batches, heads, queries, _ = q.shape
    keys = library.arange(k.shape[2])
    output, d_query, d_key, d_value = (library.zeros_like(x) for x in (q, q, k, v))
    d_bias = None if bias is None or bias.dtype == np.bool_ else library.zeros(bias.shape, wide)
    step = max(1, SCORES // (batches * heads * k.shape[2]))
    for start in range(0, queries, step):
        rows = np.s_[:, :, start : start + step]
        scores = q[rows] @ k.swapaxes(-1, -2) * scale  # (B, H, step, N_k)
        if bias is not None:
            part = bias[rows]
            scores = library.where(part, scores, -math.inf) if d_bias is None else scores + part.astype(wide)
        if is_causal:
            query_rows = library.arange(start, start + scores.shape[2])[:, None]
            scores = library.where(keys <= query_rows + causal_offset, scores, -math.inf)
        if key_lengths is not None:
            scores = library.where(keys < key_lengths[:, None, None, None], scores, -math.inf)
        largest = library.maximum(scores.max(axis=-1, keepdims=True), np.finfo(wide).min)
        weights = library.exp(scores - largest)
        total = weights.sum(axis=-1, keepdims=True)
        weights = weights / (total + (total == 0))  # nothing visible: 0
        factor = 1.0 if kept is None else kept[rows].astype(wide)
        dropped = stored(weights * factor)
        output[rows] = stored(dropped @ v)
        mean = (output[rows] * g[rows]).sum(axis=-1, keepdims=True)
        d_scores = stored(weights * ((g[rows] @ v.swapaxes(-1, -2)) * factor - mean))
        d_query[rows] = stored(d_scores @ k * scale)
        d_key += d_scores.swapaxes(-1, -2) @ q[rows] * scale
        d_value += dropped.swapaxes(-1, -2) @ g[rows]
        if d_bias is not None:
            d_bias[rows] = _summed_to(d_scores, d_bias[rows].shape)
    return output, d_query, stored(_of_group(d_key, group)), stored(_of_group(d_value, group)), d_bias


def relative_error(found: Array, exact: Array) -> float:
    """‖found − exact‖ / ‖exact‖, infinite if it is not a number."""
    found = found.astype(np.float64)
    error = float(((found - exact) ** 2).sum() ** 0.5 / ((exact**2).sum() ** 0.5 + 1e-300))
    return error if math.isfinite(error) else math.inf


def _of_group(x: Array, group: int) -> Array:
    """Summed over the heads that share one of key and value."""
    batches, heads, *rest = x.shape
    return x.reshape(batches, heads // group, group, *rest).sum(axis=2)


def _summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    return x.sum(axis=tuple(axis for axis in (0, 1) if shape[axis] == 1), keepdims=True)
