"""The plain room of attention: the definition, as a composition of operations.

It takes what `nn.rooms` lists, and is the reference of the other rooms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.ops import constant, exp, matmul, max, maximum, sum, swapaxes, where


def attention_weights(query: Any, key: Any, bias: Any, visible: Any, *, scale: float) -> Any:
    """softmax(Q Kᵀ scale + bias) over the visible keys (..., N_q, N_k): Vaswani et al. 2017, equation 1."""
    scores = matmul(query, swapaxes(key, -1, -2)) * scale  # (..., N_q, N_k)
    scores = scores if bias is None else scores + bias
    scores = scores if visible is None else where(visible.array, scores, -math.inf)
    exponentials = exp(scores - _row_maximum(scores))  # 0 where hidden
    total = sum(exponentials, axis=-1, keepdims=True)  # (..., N_q, 1), 0 if nothing is visible
    return exponentials / where(total == 0, 1.0, total)


def plain_attention(query: Any, key: Any, value: Any, bias: Any, visible: Any, kept: Any, *, scale: float) -> Any:
    """The definition, as a composition of operations."""
    weights = attention_weights(query, key, bias, visible, scale=scale)
    return mixture(weights, value, kept)


def mixture(weights: Any, value: Any, kept: Any) -> Any:
    """The values (..., N_k, E) mixed by the weights (..., N_q, N_k) that dropout leaves: (..., N_q, E)."""
    return matmul(weights if kept is None else weights * kept, value)


def _row_maximum(scores: Any) -> Any:
    """(..., N_q, 1), finite even for a row of -inf alone; a constant: softmax does not depend on what is subtracted."""
    lowest = float(np.finfo(scores.dtype).min)
    if scores.shape[-1] == 0:
        return lowest
    return maximum(max(constant(scores), axis=-1, keepdims=True), lowest)
