"""The layers' mathematics as functions, under PyTorch's names: no parameters, no modes, nothing remembered.

What is fused (works in place, in few passes) stands after the plain composition that it equals. Activations come from
`minigrad.ops`, attention from `nn.scaled_dot_product`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad import op, ops
from minigrad.backend import array_module, is_floating
from minigrad.ops import elu, leaky_relu, relu, silu, softplus
from nn.common import array_of, check_probability, dropout_mask, narrowed, widened
from nn.rooms import attention_room
from nn.scaled_dot_product import attention_with_weights, scaled_dot_product_attention

__all__ = [
    "attention_room",
    "attention_with_weights",
    "cross_entropy",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "relu",
    "scaled_dot_product_attention",
    "silu",
    "softmax",
    "softplus",
]

# ---- activations -----------------------------------------------------------------------------------------------------


def softmax(x: Any, dim: int) -> Any:
    """e^x / Σ e^x along `dim`; no overflow for large x. A row of -inf alone is NaN, as in PyTorch."""
    return ops.softmax(x, axis=dim)


def log_softmax(x: Any, dim: int) -> Any:
    """x - log Σ e^x along `dim`."""
    return ops.log_softmax(x, axis=dim)


def gelu(x: Any, approximate: str = "none") -> Any:
    """x Φ(x): see `minigrad.ops.gelu`; of float16 in float32, whose range x² does not leave."""
    return narrowed(ops.gelu(widened(x), approximate=approximate), x.dtype)


# ---- linear ----------------------------------------------------------------------------------------------------------


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """x Wᵀ + b: x (..., in), weight (out, in) and bias (out,) or None, to (..., out). ValueError if they do not fit."""
    return ops.linear(x, weight, bias)


# ---- layer norm ------------------------------------------------------------------------------------------------------


def layer_norm(
    x: Any, normalized_shape: int | Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """(x - mean) / √(variance + eps) * weight + bias, with mean and variance over the last axes.

    Ba et al. 2016, "Layer normalization", equations 3 and 4, for each position alone; the variance is the biased one.

    Args:
        x: (..., *normalized_shape), floating; float16 is computed in float32.
        normalized_shape: the lengths of the last axes, or the length of the last one.
        weight, bias: of the shape `normalized_shape`, or None.

    Returns x's shape and dtype. Raises ValueError that names the shapes if they do not fit.
    """
    shape = lengths(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        raise ValueError(f"layer_norm: x of shape {x.shape} does not end in normalized_shape {shape}")
    for name, affine in (("weight", weight), ("bias", bias)):
        if affine is not None and affine.shape != shape:
            raise ValueError(f"layer_norm: {name} has the shape {affine.shape}, it must have normalized_shape {shape}")
    y = fused_layer_norm(widened(x), weight, bias, axes=len(shape), eps=float(eps))
    return narrowed(y, x.dtype)


def lengths(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    """The lengths of the last axes; one integer is the length of the last one."""
    given = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    return tuple(map(operator.index, given))


def plain_layer_norm(x: Any, weight: Any, bias: Any, *, axes: int, eps: float) -> Any:
    """The definition, as a composition of operations: (x - mean) / √(variance + eps) * weight + bias."""
    axis = tuple(range(-axes, 0))
    away = x - ops.mean(x, axis=axis, keepdims=True)
    variance = ops.mean(away * away, axis=axis, keepdims=True)
    y = away / ops.sqrt(variance + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@op(reference=plain_layer_norm, floating=True)
def fused_layer_norm(x: Any, weight: Any, bias: Any, *, axes: int, eps: float) -> Any:
    """With x̂ the normalized rows, s their standard deviation and ĝ = g weight: ∂x = (ĝ - mean ĝ - x̂ mean(ĝ x̂)) / s.

    Sums along rows and columns are products with a vector of ones, the fastest way that NumPy has.
    """
    library = array_module(x)
    n = math.prod(x.shape[x.ndim - axes :])
    rows = (math.prod(x.shape[: x.ndim - axes]), n)  # (M, n)
    factor = 1.0 / n if n else 1.0
    normalized = library.reshape(x, rows)
    normalized = normalized - (normalized @ library.ones(n, x.dtype) * factor)[:, None]
    variance = library.einsum("mn,mn->m", normalized, normalized) * factor
    inverse = (1.0 / library.sqrt(variance + eps))[:, None]  # (M, 1)
    normalized *= inverse
    w = library.ones(n, x.dtype) if weight is None else library.reshape(weight, (n,))
    y = normalized * w
    if bias is not None:
        y += library.reshape(bias, (n,))
    shape, shape_of_weight, has_bias = x.shape, None if weight is None else weight.shape, bias is not None

    def pullback(g: Any) -> tuple[Any, Any, Any]:
        g = library.reshape(g, rows)
        product = g * normalized
        ones = library.ones(rows[0], g.dtype)
        d_weight = None if shape_of_weight is None else library.reshape(ones @ product, shape_of_weight)
        d_bias = library.reshape(ones @ g, shape[-axes:]) if has_bias else None
        mean, mean_of_product = (g @ w * factor)[:, None], (product @ w * factor)[:, None]
        d_x = g * w
        d_x -= mean
        d_x -= library.multiply(normalized, mean_of_product, out=product)
        d_x *= inverse
        return library.reshape(d_x, shape), d_weight, d_bias

    return library.reshape(y, shape), pullback


# ---- dropout ---------------------------------------------------------------------------------------------------------


def dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
    """In training, each element is 0 with probability p, else x / (1 - p); otherwise x itself.

    Srivastava et al. 2014, "Dropout". What is dropped comes from this thread's random stream: see `mg.manual_seed`.
    Raises ValueError for p outside 0 ... 1, TypeError for x that is not floating.
    """
    check_probability("dropout: p", p)
    if not training or p == 0:
        return x
    if not is_floating(x.dtype):
        raise TypeError(f"dropout: x must be floating, got {x.dtype}; write .float()")
    return ops.multiply(x, dropout_mask(x, x.shape, p))


# ---- embedding -------------------------------------------------------------------------------------------------------


def embedding(ids: Any, weight: Any, padding_idx: int | None = None) -> Any:
    """The row of weight (V, D) for each id: ids (...), integers, to (..., D).

    Args:
        padding_idx: a row that gets no gradient; a negative one counts from the end.

    Raises IndexError that names an id outside 0 ... V - 1, TypeError for ids that are no integers.
    """
    if weight.ndim != 2:
        raise ValueError(f"embedding: weight must have the shape (V, D), got {weight.shape}")
    count = weight.shape[0]
    if padding_idx is not None and not -count <= padding_idx < count:
        raise ValueError(f"embedding: padding_idx {padding_idx} is out of range for a weight of {count} rows")
    ids = _integers("embedding: ids", ids)
    data = array_of(ids)
    if data.size and not 0 <= data.min() <= data.max() < count:
        wrong = data.min() if data.min() < 0 else data.max()
        raise IndexError(f"embedding: id {wrong} is out of range for a weight of {count} rows (0 to {count - 1})")
    return take_rows(weight, ids, padding=None if padding_idx is None else padding_idx % count)


@op(linear=True, exempt=["ids"])
def take_rows(weight: Any, ids: Any, *, padding: int | None) -> Any:
    """weight[ids]."""
    count = weight.shape[0]
    return array_module(weight).take(weight, ids, axis=0), (
        lambda g: add_rows(g, ids, count=count, padding=padding),
        None,
    )


@op(linear=True, exempt=["ids"])
def add_rows(g: Any, ids: Any, *, count: int, padding: int | None) -> Any:
    """Zeros (V, D) with each row of g added at its id, the padding row left out: the opposite of `take_rows`.

    Equal ids are brought together by sorting and summed run by run, many times faster than `add.at`.
    """
    library = array_module(g)
    value = library.zeros((count, g.shape[-1]), g.dtype)
    if ids.size:
        flat = ids.reshape(-1)
        order = library.argsort(flat, kind="stable")
        flat = flat[order]
        starts = library.flatnonzero(flat[1:] != flat[:-1]) + 1
        starts = library.concatenate([library.zeros(1, starts.dtype), starts])
        value[flat[starts]] = library.add.reduceat(g.reshape(ids.size, g.shape[-1])[order], starts, axis=0)
    if padding is not None:
        value[padding] = 0

    def pullback(h: Any) -> Any:
        rows = take_rows(h, ids, padding=None)
        return rows if padding is None else ops.where((ids == padding)[..., None], 0.0, rows)

    return value, (pullback, None)


# ---- cross entropy ---------------------------------------------------------------------------------------------------


def cross_entropy(
    logits: Any, target: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Any:
    """-Σ_c q_c log softmax(logits)_c for each target class t, with q_c = (1 - ε) [c = t] + ε / C.

    Szegedy et al. 2016, "Rethinking the inception architecture", section 7; ε = 0 is plain cross entropy, in nats.

    Args:
        logits: (N, C), (C,) or (N, C, d1, ...), floating; float16 is computed in float32.
        target: integers, of the shape of logits without the class axis.
        ignore_index: a target that counts for nothing: its loss and its row's gradient are 0, whatever the row holds.
        label_smoothing: ε, from 0 to 1.
        reduction: "mean" over the targets that are not ignored, "sum", or "none" for target's shape. The mean of no
            targets is 0, with gradient 0 (in PyTorch it is NaN).

    Raises IndexError that names a target outside 0 ... C - 1, ValueError for shapes that do not fit or an unknown
    option, TypeError for a target that is not of integers.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"cross_entropy: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    check_probability("cross_entropy: label_smoothing", label_smoothing)
    target = _integers("cross_entropy: target", target)
    axis = 0 if logits.ndim == 1 else 1
    shape = logits.shape[:axis] + logits.shape[axis + 1 :]
    if logits.ndim == 0 or target.shape != shape:
        raise ValueError(
            f"cross_entropy: logits of shape {logits.shape} and target of shape {target.shape} do not fit; logits "
            "are (N, C), (C,) or (N, C, d1, ...), target has that shape without C"
        )
    classes = logits.shape[axis]
    data = array_of(target)
    ignored = data == ignore_index
    wrong = ~ignored & ((data < 0) | (data >= classes))
    if wrong.any():
        raise IndexError(
            f"cross_entropy: target {data[wrong][0]} is out of range for {classes} classes (0 to {classes - 1}; "
            f"ignore_index is {ignore_index})"
        )
    if logits.ndim > 2:
        logits = ops.transpose(logits, (0, *range(2, logits.ndim), 1))  # (N, d1, ..., C)
    rows = ops.reshape(logits, (math.prod(shape), classes))
    losses = fused_cross_entropy(
        widened(rows), ops.reshape(target, (-1,)), ignore_index=ignore_index, label_smoothing=float(label_smoothing)
    )
    if reduction == "none":
        losses = ops.reshape(losses, shape)
    else:
        losses = ops.sum(losses)
        if reduction == "mean":
            losses = losses * (1.0 / max(1, data.size - int(ignored.sum())))
    return narrowed(losses, logits.dtype)


def plain_cross_entropy(logits: Any, target: Any, *, ignore_index: int, label_smoothing: float) -> Any:
    """The definition, as a composition of operations: rows (M, C) and targets (M,) to losses (M,)."""
    ignored = target == ignore_index  # (M,)
    logits = ops.where(ops.expand_dims(ignored, 1), 0.0, logits)  # (M, C)
    log_p = ops.log_softmax(logits, axis=1)
    places = ops.expand_dims(ops.where(ignored, 0, target), 1)
    losses = -(1.0 - label_smoothing) * ops.squeeze(ops.take_along_axis(log_p, places, axis=1), 1)
    if label_smoothing:
        losses = losses - label_smoothing * ops.mean(log_p, axis=1)
    return ops.where(ignored, 0.0, losses)


@op(reference=plain_cross_entropy, floating=True, exempt=["target"])
def fused_cross_entropy(logits: Any, target: Any, *, ignore_index: int, label_smoothing: float) -> Any:
    """Of rows (M, C), losses (M,). With p = softmax(logits), ∂logits = g (p - q)."""
    library = array_module(logits)
    ignored = target == ignore_index
    classes = logits.shape[1]
    places = (library.arange(len(target)), library.where(ignored, 0, target))
    ones = library.ones(classes, logits.dtype)  # products with it are the fastest sums
    e = logits.copy()
    e[ignored] = 0.0  # what stands in an ignored row, NaN included, goes no further
    e -= e.max(axis=1, keepdims=True)
    losses = (label_smoothing - 1.0) * e[places]
    if label_smoothing:
        losses -= label_smoothing / classes * (e @ ones)
    library.exp(e, out=e)
    total = e @ ones
    losses += library.log(total)
    losses[ignored] = 0.0

    def pullback(g: Any) -> tuple[Any, None]:
        g = library.where(ignored, 0.0, g)  # (M,)
        d_logits = e * (g / total)[:, None]
        if label_smoothing:
            d_logits -= (g * (label_smoothing / classes))[:, None]
        d_logits[places] -= (1.0 - label_smoothing) * g
        return d_logits, None

    return losses, pullback


def _integers(name: str, values: Any) -> Any:
    values = values if hasattr(values, "dtype") else np.asarray(values)
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {values.dtype}")
    return values
