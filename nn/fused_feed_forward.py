"""The feed-forward network of a Transformer's layer as one operation, which writes over arrays that nobody else has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad import Tensor, op, ops, watchers
from minigrad.grad_mode import is_grad_enabled
from minigrad.ops.elementwise import cleared
from minigrad.ops.linalg import affine, as_rows, times
from minigrad.sums import sum_of_rows, zeros_like_row
from nn.fused import gelu_and_slope, times_slope

GELU_FORMS = {"gelu": "none", "gelu_tanh": "tanh"}  # as `F.gelu` calls them


def plain_feed_forward(x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any, *, activation: str) -> Any:
    """The definition, as a composition of operations; activation: "relu", "gelu" or "gelu_tanh"."""
    hidden = ops.linear(x, weight1, bias1)
    hidden = ops.relu(hidden) if activation == "relu" else ops.gelu(hidden, approximate=GELU_FORMS[activation])
    return ops.linear(hidden, weight2, bias2)


@op(reference=plain_feed_forward, optional=["bias1", "bias2"])
def fused_feed_forward(x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any, *, activation: str) -> Any:
    """The same bits, of what `is_fused` says.

    With the hidden rows H = activation(X W₁ᵀ + b₁), its slope S, and dH = (g W₂) ∘ S:

        dX = dH W₁,   dW₁ = dHᵀ X,   db₁ = Σ dH,   dW₂ = gᵀ H,   db₂ = Σ g, over the rows.
    """
    hidden, times_its_slope = _activated(affine(as_rows(x), weight1, bias1), activation)

    def pullback(g: Any) -> tuple[Any, ...]:
        rows = as_rows(g)
        d_hidden = times_its_slope(times(rows, weight2))
        d_bias1 = None if bias1 is None else sum_of_rows(d_hidden)
        d_bias2 = None if bias2 is None else sum_of_rows(rows)
        d_weight1, d_weight2 = times(d_hidden.T, as_rows(x)), times(rows.T, hidden)
        return times(d_hidden, weight1).reshape(x.shape), d_weight1, d_bias1, d_weight2, d_bias2

    return affine(hidden, weight2, bias2).reshape(*x.shape[:-1], len(weight2)), pullback


def _activated(x: Any, activation: str) -> tuple[Any, Callable[[Any], Any]]:
    """The activation of x, and what multiplies by its slope; both may write over what they are given."""
    if activation == "relu":
        y = np.maximum(x, zeros_like_row(x, x.shape[-1]), out=x)
        return y, lambda g: cleared(g, y <= 0)
    value, slope = gelu_and_slope(x, GELU_FORMS[activation], with_slope=True)
    return value, lambda g: times_slope(g, slope, out=g)


def is_fused(x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any) -> bool:
    """Whether one operation may do it: for NumPy's arrays that fit, of one dtype of BLAS, all gradients are wanted.

    And nobody watches, who would look for the two layers, or casts.
    """
    if watchers.active or not is_grad_enabled():
        return False
    tensors = [x, weight1, weight2, *[bias for bias in (bias1, bias2) if bias is not None]]
    if not all([isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors]):
        return False
    arrays = [tensor.data for tensor in tensors]
    dtype, width, inner = x.dtype, x.shape[-1:], weight1.shape[:1]
    return (
        dtype.char in "fd"
        and all([type(array) is np.ndarray and array.dtype is dtype for array in arrays])
        and weight1.shape == (*inner, *width)
        and weight2.shape == (*weight2.shape[:1], *inner)
        and (bias1 is None or bias1.shape == inner)
        and (bias2 is None or bias2.shape == weight2.shape[:1])
    )
