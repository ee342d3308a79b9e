"""Losses, under PyTorch's names: `nn.functional` hands them on.

Options are given by name, since PyTorch's own order has two old ones in the middle. `reduction` is "mean", "sum" or
"none" for each element's loss. float16 is computed in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad import op, ops
from minigrad.backend import array_module
from minigrad.ops.elementwise import narrowed, widened
from minigrad.scalars import number
from nn.common import (
    array_of,
    as_dtype,
    as_integers,
    check_floating,
    floating_pair,
    probability,
)

REDUCTIONS = ("mean", "sum", "none")

# ---- of two tensors of one shape -------------------------------------------------------------------------------------


def mse_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """(input - target)², the squared error.

    Args:
        input, target: of one shape, one at least floating; gradients flow to both. They do not broadcast: a (B,) beside
            a (B, 1) would silently become (B, B).
        reduction: "mean" over all elements (NaN of none, as in PyTorch), "sum", or "none" for input's shape.

    Raises ValueError for shapes that differ or an unknown reduction, TypeError if neither tensor is floating.
    """
    x, y, dtype = _operands("mse_loss", input, target, reduction)
    return _reduced(ops.square(x - y), reduction, dtype)


def l1_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """|input - target|, the absolute error, with gradient 0 at 0. Arguments and errors as for `mse_loss`."""
    x, y, dtype = _operands("l1_loss", input, target, reduction)
    return _reduced(ops.abs(x - y), reduction, dtype)


def smooth_l1_loss(input: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0) -> Any:
    """With d = |input - target|: d² / 2β where d < β, else d - β/2; β = 0 is `l1_loss`.

    Girshick 2015, "Fast R-CNN", equation 3 (where β is 1). Arguments and errors as for `mse_loss`;
    ValueError for β < 0.
    """
    beta = float(number("smooth_l1_loss: beta", beta))
    if not beta >= 0:
        raise ValueError(f"smooth_l1_loss: beta must be 0 or more, got {beta}")
    x, y, dtype = _operands("smooth_l1_loss", input, target, reduction)
    distance = ops.abs(x - y)
    if beta > 0:
        near = ops.logical_not(distance >= beta)  # so that NaN is near, and its gradient NaN
        within = ops.where(near, x - y, 0.0)  # of an infinite distance the square's gradient would be 0 · ∞
        distance = ops.where(near, ops.square(within) * (0.5 / beta), distance - 0.5 * beta)
    return _reduced(distance, reduction, dtype)


def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """-w (p t log σ(x) + (1 - t) log (1 - σ(x))) of logits x and targets t, in nats; no overflow for large logits.

    Args:
        input, target: as for `mse_loss`; targets are probabilities from 0 to 1, or booleans.
        weight: w, which multiplies the losses; of a shape that broadcasts to input's, or None.
        reduction: as for `mse_loss`; the mean is over all elements, whatever their weights.
        pos_weight: p, which multiplies the part of what is there; of a shape as for `weight`.

    Raises as `mse_loss`; ValueError for weights that do not broadcast to input's shape.
    """
    name = "binary_cross_entropy_with_logits"
    x, t, dtype = _operands(name, input, target, reduction)
    weight, pos_weight = _weight(f"{name}: weight", weight, x), _weight(f"{name}: pos_weight", pos_weight, x)
    if_there, if_not = (ops.softplus(z, threshold=math.inf) for z in (-x, x))  # -log σ(x), -log (1 - σ(x))
    if pos_weight is not None:
        if_there = if_there * pos_weight
    losses = if_there * t + if_not * (1.0 - t)
    return _reduced(losses if weight is None else losses * weight, reduction, dtype)


def kl_div(input: Any, target: Any, *, reduction: str = "mean", log_target: bool = False) -> Any:
    """p (log p - input) of log-probabilities `input` and probabilities p = `target`: the divergence of p from input.

    Kullback & Leibler 1951, "On information and sufficiency", section 2. Where p is 0 loss and gradients are 0,
    whatever input holds there.

    Args:
        input, target: as for `mse_loss`.
        reduction: as for `mse_loss`, or "batchmean": the sum divided by the length of the first axis, which is the mean
            divergence of distributions along the others.
        log_target: whether `target` is log p instead of p.
    """
    x, t, dtype = _operands("kl_div", input, target, reduction, ("mean", "batchmean", "sum", "none"))
    p = ops.exp(t) if log_target else t
    absent = p == 0
    log_p = ops.where(absent, 0.0, t) if log_target else ops.log(ops.where(absent, 1.0, t))
    losses = p * (log_p - ops.where(absent, 0.0, x))
    if reduction != "batchmean":
        return _reduced(losses, reduction, dtype)
    count = input.shape[0] if input.ndim else 1
    return narrowed(ops.sum(losses) * (1.0 / (count or math.nan)), dtype)


def _operands(
    name: str, input: Any, target: Any, reduction: str, reductions: tuple[str, ...] = REDUCTIONS
) -> tuple[Any, Any, np.dtype]:
    """Both tensors in the dtype that is computed in, and the dtype of the loss; raises for what does not fit."""
    _check_reduction(name, reduction, reductions)
    x, y, dtype = floating_pair(name, input, target)
    if x.shape != y.shape:
        raise ValueError(
            f"{name}: input of shape {x.shape} and target of shape {y.shape} must have one shape; "
            "reshape or expand one of them"
        )
    return x, y, dtype


def _weight(name: str, weight: Any, x: Any) -> Any:
    """The weight in x's dtype, or None. Raises ValueError unless it broadcasts to x's shape."""
    if weight is None:
        return None
    if not hasattr(weight, "dtype"):
        raise TypeError(f"{name} must be a tensor, got {type(weight).__name__}: make one of it with mg.Tensor(...)")
    try:
        fits = np.broadcast_shapes(weight.shape, x.shape) == x.shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{name} of shape {weight.shape} does not broadcast to input's shape {x.shape}")
    return as_dtype(weight, x.dtype)


# ---- of classes ------------------------------------------------------------------------------------------------------


def nll_loss(input: Any, target: Any, *, ignore_index: int = -100, reduction: str = "mean") -> Any:
    """-input_t of log-probabilities for each target class t: `cross_entropy` after `log_softmax`.

    Arguments, reductions and errors as for `cross_entropy`, but for label_smoothing.
    """
    rows, ids, shape, counted = _rows("nll_loss", "input", input, target, ignore_index, reduction)
    losses = widened(_minus_log_p(rows, ids, ignore_index))
    return _reduced_rows(losses, shape, counted, reduction, input.dtype)


def _minus_log_p(log_p: Any, target: Any, ignore_index: int) -> Any:
    """Rows (M, C) and targets (M,) to -log p (M,) of the targets, 0 for ignored ones."""
    ignored = target == ignore_index
    places = ops.expand_dims(ops.where(ignored, 0, target), 1)
    return ops.where(ignored, 0.0, -ops.squeeze(ops.take_along_axis(log_p, places, axis=1), 1))


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
    option, TypeError for logits that are not floating, or a target that is not of integers.
    """
    label_smoothing = probability("cross_entropy: label_smoothing", label_smoothing)
    rows, ids, shape, counted = _rows("cross_entropy", "logits", logits, target, ignore_index, reduction)
    losses = fused_cross_entropy(widened(rows), ids, ignore_index=ignore_index, label_smoothing=float(label_smoothing))
    return _reduced_rows(losses, shape, counted, reduction, logits.dtype)


def plain_cross_entropy(logits: Any, target: Any, *, ignore_index: int, label_smoothing: float) -> Any:
    """The definition, as a composition of operations: rows (M, C) and targets (M,) to losses (M,)."""
    ignored = target == ignore_index  # (M,)
    logits = ops.where(ops.expand_dims(ignored, 1), 0.0, logits)  # (M, C)
    log_p = ops.log_softmax(logits, axis=1)
    losses = (1.0 - label_smoothing) * _minus_log_p(log_p, target, ignore_index)
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


def _rows(
    name: str, what: str, scores: Any, target: Any, ignore_index: int, reduction: str
) -> tuple[Any, Any, tuple[int, ...], int]:
    """(scores as (M, C), target as (M,), target's shape, how many are not ignored); raises for what does not fit."""
    _check_reduction(name, reduction, REDUCTIONS)
    check_floating(f"{name}: {what}", scores.dtype)
    target = as_integers(f"{name}: target", target)
    axis = 0 if scores.ndim == 1 else 1
    shape = scores.shape[:axis] + scores.shape[axis + 1 :]
    if scores.ndim == 0 or target.shape != shape:
        raise ValueError(
            f"{name}: {what} of shape {scores.shape} and target of shape {target.shape} do not fit; "
            f"{what} must be (N, C), (C,) or (N, C, d1, ...), target of that shape without C"
        )
    classes = scores.shape[axis]
    data = array_of(target)
    ignored = data == ignore_index
    wrong = ~ignored & ((data < 0) | (data >= classes))
    if wrong.any():
        raise IndexError(
            f"{name}: target {data[wrong][0]} is out of range for {classes} classes (0 to {classes - 1}; "
            f"ignore_index is {ignore_index})"
        )
    if scores.ndim > 2:
        scores = ops.transpose(scores, (0, *range(2, scores.ndim), 1))  # (N, d1, ..., C)
    rows = ops.reshape(scores, (math.prod(shape), classes))
    return rows, ops.reshape(target, (-1,)), shape, data.size - int(ignored.sum())


def _reduced_rows(losses: Any, shape: tuple[int, ...], counted: int, reduction: str, dtype: np.dtype) -> Any:
    """Of losses (M,): their sum, the mean of those that count, or each in target's shape."""
    if reduction == "none":
        return narrowed(ops.reshape(losses, shape), dtype)
    total = ops.sum(losses)
    return narrowed(total * (1.0 / max(1, counted)) if reduction == "mean" else total, dtype)


# ---- reductions ------------------------------------------------------------------------------------------------------


def _check_reduction(name: str, reduction: str, reductions: tuple[str, ...]) -> None:
    if reduction not in reductions:
        *most, last = map(repr, reductions)
        raise ValueError(f"{name}: reduction must be {', '.join(most)} or {last}, got {reduction!r}")


def _reduced(losses: Any, reduction: str, dtype: np.dtype) -> Any:
    """The losses' mean or sum, or the losses themselves."""
    if reduction != "none":
        losses = ops.mean(losses) if reduction == "mean" else ops.sum(losses)
    return narrowed(losses, dtype)
