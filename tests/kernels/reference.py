"""Attention and its gradients as the formulas have them, in N_q N_k memory: what kernels are held against, in float64,
and in their own precision, whose error says how exact they can be.

Dropout's mask is made by the second implementation of its generator, in NumPy.
"""

import math

import numpy as np

from kernels.dropout import dropout_factor


class Attention:
    """softmax(Q Kᵀ scale + bias) and what follows from it. Options as of `kernels.attention_forward`."""

    def __init__(
        self,
        query,
        key,
        value,
        *,
        bias=None,
        is_causal=False,
        causal_offset=0,
        key_lengths=None,
        scale=None,
        dropout_p=0.0,
        dropout_key=None,
    ):
        self.query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
        self.group = query.shape[1] // key.shape[1]
        self.key, self.value = (np.repeat(x, self.group, axis=1) for x in (key, value))
        self.scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        self.bias_shape = None if bias is None else bias.shape
        shape = (*query.shape[:3], key.shape[2])  # (B, H, N_q, N_k)
        scores = self.query @ self.key.swapaxes(-1, -2) * self.scale
        scores = np.where(visible(shape, bias, is_causal, causal_offset, key_lengths), scores, -np.inf)
        if bias is not None and bias.dtype != np.bool_:
            scores = scores + bias.astype(np.float64)
        largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        exponentials = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
        total = exponentials.sum(axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            self.lse = (largest + np.log(total))[..., 0]
        self.weights = exponentials / np.where(total == 0, 1, total)
        self.factor = dropout_factor(shape, dropout_p, dropout_key)
        self.output = (self.weights * self.factor) @ self.value

    def gradients(self, grad_output):
        """(d_query, d_key, d_value, the gradient of a bias or None)"""
        g = np.asarray(grad_output, np.float64)
        d_value = (self.weights * self.factor).swapaxes(-1, -2) @ g
        d_weights = (g @ self.value.swapaxes(-1, -2)) * self.factor
        d_scores = self.weights * (d_weights - (d_weights * self.weights).sum(axis=-1, keepdims=True))
        d_query = d_scores @ self.key * self.scale
        d_key = d_scores.swapaxes(-1, -2) @ self.query * self.scale
        d_bias = None if self.bias_shape is None else summed_to(d_scores, self.bias_shape)
        return d_query, self._of_group(d_key), self._of_group(d_value), d_bias

    def _of_group(self, x):
        """Summed over the heads that share one of key and value."""
        return x.reshape(x.shape[0], -1, self.group, *x.shape[2:]).sum(axis=2)


def plain_attention(grad_output, query, key, value, *, scale=None, bias=None, dropout_p=0.0, dropout_key=None, **masks):
    """The output and gradients of plain attention in the dtype of the query: products are summed in float32, what is
    stored between two products is rounded to that dtype.
    """
    dtype = query.dtype
    scale = np.float32(query.shape[-1] ** -0.5 if scale is None else scale)
    group = query.shape[1] // key.shape[1]
    q, g = query.astype(np.float32), grad_output.astype(np.float32)
    k, v = (np.repeat(x.astype(np.float32), group, axis=1) for x in (key, value))
    shape = (*q.shape[:3], k.shape[2])
    scores = q @ k.swapaxes(-1, -2) * scale
    if bias is not None and bias.dtype != np.bool_:
        scores = scores + bias.astype(np.float32)
    masks = {"is_causal": False, "causal_offset": 0, "key_lengths": None} | masks
    scores = np.where(visible(shape, bias, **masks), scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True, initial=np.finfo(np.float32).min)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    factor = dropout_factor(shape, dropout_p, dropout_key).astype(np.float32)

    def rounded(x):
        return x.astype(dtype).astype(np.float32)

    def of_group(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(axis=2).astype(dtype)

    kept = rounded(weights * factor)
    output = rounded(kept @ v)
    d_weights = (g @ v.swapaxes(-1, -2)) * factor
    d_scores = rounded(weights * (d_weights - (output * g).sum(axis=-1, keepdims=True)))
    d_bias = None if bias is None or bias.dtype == np.bool_ else summed_to(d_scores, bias.shape)
    d_query, d_key = rounded(d_scores @ k * scale), of_group(d_scores.swapaxes(-1, -2) @ q * scale)
    return output, d_query, d_key, of_group(kept.swapaxes(-1, -2) @ g), d_bias


def visible(shape, bias, is_causal, causal_offset, key_lengths):
    """(B, H, N_q, N_k): which keys a query sees, as far as no number is added to hide them."""
    query, key = np.ogrid[: shape[2], : shape[3]]
    seen = np.ones(shape, bool)
    if is_causal:
        seen &= key <= query + causal_offset
    if key_lengths is not None:
        seen &= key < np.asarray(key_lengths).reshape(-1, 1, 1, 1)
    if bias is not None and bias.dtype == np.bool_:
        seen &= bias
    return seen


def summed_to(x, shape):
    """x summed over all that an array of `shape` was broadcast to."""
    extra = x.ndim - len(shape)
    x = x.sum(axis=tuple(range(extra)))
    return x.sum(axis=tuple(axis for axis, size in enumerate(shape) if size == 1), keepdims=True).reshape(shape)
