"""Losses, under PyTorch's names: `nn.functional` hands them on.

Options are given by name, since PyTorch's own order has two old ones in the middle. `reduction` is "mean", "sum" or
"none" for each element's loss. 16 bits are computed in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernels.elements import are_taken
from kernels.fused import cross_entropy_backward, cross_entropy_forward
from minigrad import op, ops
from minigrad.autocast import in_float32
from minigrad.backend import array_module, numbers_of
from minigrad.bfloat import takes_bfloat16
from minigrad.dtypes import is_floating
from minigrad.grad_mode import is_grad_enabled
from minigrad.ops.elementwise import narrowed, widened
from minigrad.promotion import result_type
from minigrad.scalars import number
from minigrad.sums import ones_like_row
from nn.common import (
    array_of,
    as_dtype,
    as_integers,
    check_floating,
    floating_pair,
    on_its_device,
    probability,
)

REDUCTIONS = ("mean", "sum", "none")

# ---- of two tensors of one shape -------------------------------------------------------------------------------------


@in_float32
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


@in_float32
def l1_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """|input - target|, the absolute error, with gradient 0 at 0. Arguments and errors as for `mse_loss`."""
    x, y, dtype = _operands("l1_loss", input, target, reduction)
    return _reduced(ops.abs(x - y), reduction, dtype)


@in_float32
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


@in_float32
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


@in_float32
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


@in_float32
@on_its_device
def nll_loss(input: Any, target: Any, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean") -> Any:
    """-w_t input_t of log-probabilities for each target class t: `cross_entropy` after `log_softmax`.

    Arguments, reductions and errors as for `cross_entropy` of class ids, but for label_smoothing.
    """
    rows, ids, shape, total = _rows_and_ids("nll_loss", "input", input, target, ignore_index, reduction)
    losses = 0.0 - widened(_at(ids, rows, ignore_index))  # so that what is ignored is 0, not -0
    if weight is not None:
        weights = _at(ids, _weight_row("nll_loss", weight, rows), ignore_index)
        losses, total = losses * weights, ops.sum(weights)
    return _reduced_rows(losses, shape, total, reduction, input.dtype)


@in_float32
@on_its_device
def cross_entropy(
    logits: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Any:
    """-Σ_c w_c q_c log softmax(logits)_c, in nats, of logits and the probability q_c that each class should have.

    Of a class id t it is [c = t]. Label smoothing makes (1 - ε) q_c + ε / C of it: Szegedy et al. 2016, "Rethinking the
    inception architecture", section 7.

    Args:
        logits: (N, C), (C,) or (N, C, d1, ...), floating; 16 bits are computed in float32.
        target: t, integers of the shape of logits without the class axis; or q, floating, of the shape of logits, to
            which a gradient flows. Nobody checks that q adds up to 1.
        weight: w (C,), or None for ones. Beside class ids it has logits' dtype and gets no gradient.
        ignore_index: a class id that counts for nothing: its loss and its row's gradient are 0, whatever the row holds.
        label_smoothing: ε, from 0 to 1.
        reduction: "mean", "sum", or "none" for the shape of logits without the class axis. The mean divides by the sum
            of w_t over the ids that are not ignored; of probabilities by how many rows there are, whatever w. If that
            is 0, so are the mean and its gradients (in PyTorch it is NaN or infinite).

    On a GPU kernels compute the losses of class ids without weight, of logits of 16 or 32 bits; else array operations.
    Raises IndexError that names a target outside 0 ... C - 1; ValueError for shapes that do not fit, an unknown option,
    or an ignore_index of 0 or more beside probabilities; TypeError for logits that are not floating, or a weight that
    is not as said above.
    """
    label_smoothing = probability("cross_entropy: label_smoothing", label_smoothing)
    if hasattr(target, "dtype") and is_floating(target.dtype):
        return _cross_entropy_of_probabilities(logits, target, weight, ignore_index, label_smoothing, reduction)
    rows, ids, shape, total = _rows_and_ids("cross_entropy", "logits", logits, target, ignore_index, reduction)
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    if weight is not None:
        weight = _weight_row("cross_entropy", weight, rows)
        total = ops.sum(_at(ids, weight, ignore_index))
    if not rows.shape[1]:
        losses = _without_classes(rows)
    elif weight is not None:
        losses = plain_cross_entropy(widened(rows), ids, weight, **options)
    elif are_taken(array_of(rows)):
        losses = kernel_cross_entropy(rows, ids, **options)
    elif reduction == "none":
        losses = fused_cross_entropy(widened(rows), ids, **options)
    else:
        options["divisor"] = float(total or math.inf) if reduction == "mean" else 1.0
        return narrowed(fused_cross_entropy(widened(rows), ids, **options), logits.dtype)
    return _reduced_rows(losses, shape, total, reduction, logits.dtype)


def _cross_entropy_of_probabilities(
    logits: Any, target: Any, weight: Any, ignore_index: int, label_smoothing: float, reduction: str
) -> Any:
    if ignore_index >= 0:
        raise ValueError(
            f"cross_entropy: ignore_index is a class id, and target holds probabilities; got {ignore_index}"
        )
    check_floating("cross_entropy: logits", logits.dtype)
    if target.shape != logits.shape:
        raise ValueError(
            f"cross_entropy: logits of shape {logits.shape} and target of shape {target.shape} do not fit; a floating "
            "target holds probabilities, in the shape of logits; class ids are integers"
        )
    x, q, dtype = _operands("cross_entropy", logits, target, reduction)
    rows, shape = _rows("cross_entropy: logits", x)  # (M, C)
    log_p = ops.log_softmax(rows, axis=1)
    terms = _rows("cross_entropy: target", q)[0] * log_p
    if weight is not None:
        weight = _class_weight("cross_entropy", weight, rows)
        dtype, terms = result_type([logits, target, weight]), terms * weight
    losses = -_smoothed(ops.sum(terms, axis=1), log_p, weight, label_smoothing)
    return _reduced_rows(losses, shape, rows.shape[0], reduction, dtype)


def plain_cross_entropy(
    logits: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int,
    label_smoothing: float,
    divisor: float | None = None,
) -> Any:
    """The definition, as a composition: rows (M, C), targets (M,) and weight (1, C) or None to losses (M,).

    With a divisor: their sum, divided by it.
    """
    ignored = target == ignore_index  # (M,)
    log_p = ops.log_softmax(ops.where(ops.expand_dims(ignored, 1), 0.0, logits), axis=1)  # (M, C)
    at_target = _at(target, log_p, ignore_index)
    if weight is not None:
        at_target = at_target * _at(target, weight, ignore_index)
    losses = ops.where(ignored, 0.0, -_smoothed(at_target, log_p, weight, label_smoothing))
    return losses if divisor is None else ops.sum(losses) / divisor


def _smoothed(at_target: Any, log_p: Any, weight: Any, label_smoothing: float) -> Any:
    """(1 - ε) of w log p at the targets (M,), and ε of its mean over all classes; log_p is (M, C)."""
    if not label_smoothing:
        return at_target
    everywhere = log_p if weight is None else log_p * weight
    return (1.0 - label_smoothing) * at_target + label_smoothing * ops.mean(everywhere, axis=1)


def _at(target: Any, rows: Any, ignore_index: int) -> Any:
    """Of rows (M, C), or one for all (1, C), the element at each target (M,); 0 for ignored ones."""
    if not rows.shape[1]:
        return _without_classes(rows)
    ignored = target == ignore_index
    places = ops.expand_dims(ops.where(ignored, 0, target), 1)
    return ops.where(ignored, 0.0, ops.squeeze(ops.take_along_axis(rows, places, axis=1), 1))


def _without_classes(rows: Any) -> Any:
    """0 for each of rows (M, 0), whose targets are all ignored: no other is in range."""
    return ops.sum(widened(rows), axis=1)


@op(reference=plain_cross_entropy, floating=True, exempt=["target"])
def fused_cross_entropy(
    logits: Any, target: Any, *, ignore_index: int, label_smoothing: float, divisor: float | None = None
) -> Any:
    """As `plain_cross_entropy`, without weight. With p = softmax(logits), ∂logits = g (p - q) of each row."""
    library = array_module(logits)
    rows, classes = logits.shape
    ignored = target == ignore_index
    if type(ignored) is np.ndarray and not ignored.any():  # the usual case is the fastest
        ignored = None
    starts = library.arange(0, rows * classes, classes)  # of the rows, among all numbers
    ids = target if ignored is None else library.where(ignored, 0, target)
    places = starts + ids.astype(starts.dtype, copy=False)  # of the targets
    e = logits.copy(order="C")
    numbers = e.reshape(-1)
    if ignored is not None:
        e[ignored] = 0.0  # what stands in an ignored row, NaN included, goes no further
    e -= numbers[starts + e.argmax(axis=1)][:, None]  # NumPy finds where a row's maximum is in half the time of `max`
    losses = (label_smoothing - 1.0) * numbers[places]
    if label_smoothing:
        losses -= label_smoothing / classes * (e @ ones_like_row(e, classes))
    library.exp(e, out=e)
    total = e.dot(ones_like_row(e, classes))  # (M,)
    losses += library.log(total)
    if ignored is not None:
        losses[ignored] = 0.0

    def pullback(g: Any) -> tuple[Any, None]:
        """Of g (M,), or () for the divided sum."""
        g = g if divisor is None else g / divisor
        g = g if ignored is None else library.where(ignored, 0.0, g)
        d_logits = e * (g / total)[:, None]
        if label_smoothing:
            d_logits -= (g * (label_smoothing / classes))[..., None]
        d_logits.reshape(-1)[places] -= (1.0 - label_smoothing) * g
        return d_logits, None

    return (losses if divisor is None else losses.sum() / divisor), pullback


def composed_cross_entropy(logits: Any, target: Any, *, ignore_index: int, label_smoothing: float) -> Any:
    """`plain_cross_entropy` of logits that may have 16 bits: losses in float32."""
    return plain_cross_entropy(widened(logits), target, ignore_index=ignore_index, label_smoothing=label_smoothing)


@takes_bfloat16
@op(reference=composed_cross_entropy, exempt=["target"])
def kernel_cross_entropy(logits: Any, target: Any, *, ignore_index: int, label_smoothing: float) -> Any:
    """The same by kernels, for arrays on a GPU: losses (M,) in float32."""
    target = target.astype(np.int64, copy=False)
    classes = logits.shape[1]
    ignored = ignore_index if 0 <= ignore_index < classes else -1  # what is no class counts for nothing in any case
    options: dict[str, Any] = {"ignored": ignored, "label_smoothing": label_smoothing}
    losses, peak, total = cross_entropy_forward(logits, target, **options)

    def pullback(g: Any) -> tuple[Any, None]:
        return cross_entropy_backward(g, logits, target, peak, total, **options), None

    return losses, pullback


def _rows(what: str, scores: Any) -> tuple[Any, tuple[int, ...]]:
    """(scores as (M, C), their shape without the class axis). ValueError if there is no such axis."""
    if scores.ndim == 0:
        raise ValueError(f"{what} must be (N, C), (C,) or (N, C, d1, ...), got shape ()")
    axis = 0 if scores.ndim == 1 else 1
    classes, shape = scores.shape[axis], scores.shape[:axis] + scores.shape[axis + 1 :]
    if scores.ndim > 2:
        scores = ops.transpose(scores, (0, *range(2, scores.ndim), 1))  # (N, d1, ..., C)
    return (scores if scores.ndim == 2 else ops.reshape(scores, (math.prod(shape), classes))), shape


def _rows_and_ids(
    name: str, what: str, scores: Any, target: Any, ignore_index: int, reduction: str
) -> tuple[Any, Any, tuple[int, ...], int]:
    """(scores as (M, C), target as (M,), target's shape, how many are not ignored); raises for what does not fit."""
    _check_reduction(name, reduction, REDUCTIONS)
    check_floating(f"{name}: {what}", scores.dtype)
    target = as_integers(f"{name}: target", target, scores)
    rows, shape = _rows(f"{name}: {what}", scores)
    if target.shape != shape:
        raise ValueError(
            f"{name}: {what} of shape {scores.shape} and target of shape {target.shape} do not fit; "
            f"class ids have the shape of {what} without C, which is axis 1, here {shape}; for {what} (..., C) write "
            f"{what}.reshape(-1, C) and target.reshape(-1)"
        )
    total = _counted(name, array_of(target), rows.shape[1], ignore_index)
    return rows, (target if target.ndim == 1 else ops.reshape(target, shape=(-1,))), shape, total


def _counted(name: str, ids: Any, classes: int, ignore_index: int) -> int:
    """How many of the ids are not ignored. IndexError that names one that is out of range."""
    if type(ids) is np.ndarray and ids.size:  # what is usual is found fastest so; on a GPU it would be one wait more
        least, most = ids.min(), ids.max()
        if least >= 0 and most < classes:
            return ids.size - (int(np.count_nonzero(ids == ignore_index)) if least <= ignore_index <= most else 0)
    ignored = ids == ignore_index
    wrong = ~ignored & ((ids < 0) | (ids >= classes))
    wrong_ones, ignored_ones = numbers_of(wrong.sum(), ignored.sum())
    if wrong_ones:
        raise IndexError(
            f"{name}: target {ids[wrong][0]} is out of range for {classes} classes (0 to {classes - 1}; "
            f"ignore_index is {ignore_index})"
        )
    return ids.size - ignored_ones


def _class_weight(name: str, weight: Any, rows: Any) -> Any:
    """The weight, which must be a tensor (C,) for rows (M, C)."""
    if not hasattr(weight, "dtype"):
        raise TypeError(f"{name}: weight must be a tensor, got {type(weight).__name__}")
    if weight.shape != rows.shape[1:]:
        raise ValueError(f"{name}: weight of shape {weight.shape} must be {rows.shape[1:]}, a number for each class")
    return weight


def _weight_row(name: str, weight: Any, rows: Any) -> Any:
    """The weight as a row (1, C), float16 as float32, for class ids: of the rows' dtype, and without gradient."""
    weight = _class_weight(name, weight, rows)
    if weight.dtype != rows.dtype:
        raise TypeError(f"{name}: weight must have the dtype of the scores, {rows.dtype}, got {weight.dtype}")
    if is_grad_enabled() and getattr(weight, "requires_grad", False):
        raise TypeError(f"{name}: no gradient flows to weight beside class ids; give its .detach()")
    return widened(ops.expand_dims(weight, 0))


def _reduced_rows(losses: Any, shape: tuple[int, ...], total: Any, reduction: str, dtype: np.dtype) -> Any:
    """Of losses (M,): their sum, that divided by what they weigh in `total`, 0 if it is 0; or each in this shape."""
    if reduction == "none":
        return narrowed(ops.reshape(losses, shape), dtype)
    loss = ops.sum(losses)
    return narrowed(loss / (total or math.inf) if reduction == "mean" else loss, dtype)


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
