"""The layers' mathematics as functions, under PyTorch's names: no parameters, no modes, nothing remembered.

What is fused (works in place, in few passes) is in `nn.fused`, losses are in `nn.losses`, attention is in
`nn.scaled_dot_product`; activations and softmax come from `minigrad`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels.elements import are_taken
from kernels.fused import GELU_FORMS, apply_dropout
from minigrad import log_softmax, op, ops, softmax
from minigrad.autocast import in_float32
from minigrad.backend import array_module, is_array, numbers_of
from minigrad.bfloat import takes_bfloat16
from minigrad.ops import elu, leaky_relu, one_hot, relu, silu, softplus
from minigrad.ops.elementwise import narrowed, widened
from minigrad.random import next_key
from minigrad.scalars import number
from minigrad.sums import ones_like_row
from nn.common import (
    array_of,
    as_dtype,
    as_integers,
    check_floating,
    dropout_mask,
    floating_pair,
    lengths,
    on_its_device,
    probability,
    wide,
)
from nn.fused import fused_gelu, fused_layer_norm, fused_rms_norm, kernel_gelu, kernel_layer_norm
from nn.losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from nn.rooms import attention_room
from nn.scaled_dot_product import attention_with_weights, scaled_dot_product_attention

__all__ = [
    "attention_room",
    "attention_with_weights",
    "binary_cross_entropy_with_logits",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "mse_loss",
    "nll_loss",
    "one_hot",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softplus",
]

# ---- linear ----------------------------------------------------------------------------------------------------------


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """x Wᵀ + b: x (..., in), weight (out, in) and bias (out,) or None, to (..., out). ValueError if they do not fit."""
    return ops.linear(x, weight, bias)


# ---- similarity ------------------------------------------------------------------------------------------------------


@in_float32
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """x1 · x2 / (max(‖x1‖, eps) max(‖x2‖, eps)) along `dim`, the cosine of the angle; 0 for vectors of zeros.

    Args:
        x1, x2: of shapes that broadcast, one at least floating; 16 bits are computed in float32.
        dim: of the shape that they broadcast to; it goes away.
        eps: what a vector shorter than it is divided by.

    Raises ValueError for shapes that do not broadcast, IndexError for a dim that is not there, TypeError if neither is
    floating.
    """
    x1, x2, dtype = floating_pair("cosine_similarity", x1, x2)
    try:
        shape = np.broadcast_shapes(x1.shape, x2.shape)
    except ValueError as error:
        raise ValueError(f"cosine_similarity: shapes {x1.shape} and {x2.shape} do not broadcast") from error
    if not -max(1, len(shape)) <= dim < max(1, len(shape)):
        raise IndexError(f"cosine_similarity: dim {dim} of tensors that broadcast to the shape {shape}")

    eps = float(number("cosine_similarity: eps", eps))

    def directions(x: Any) -> Any:
        """Dividing first keeps the product between -1 and 1, however long the vectors are."""
        x = ops.broadcast_to(x, shape)
        return x / ops.maximum(ops.vector_norm(x, axis=dim, keepdims=True), eps)

    return narrowed(ops.sum(directions(x1) * directions(x2), axis=dim), dtype)


# ---- gelu ------------------------------------------------------------------------------------------------------------


def gelu(x: Any, approximate: str = "none") -> Any:
    """x Φ(x), with Φ the normal distribution's share below x; approximate="tanh": nearly that.

    As `minigrad.ops.gelu`, but on a GPU computed by one kernel, unless x is float64. Raises ValueError for another
    `approximate`.
    """
    data = array_of(x)
    if approximate in GELU_FORMS:
        if are_taken(data):
            return kernel_gelu(x, approximate=approximate)
        if is_array(data) and data.dtype.char in "fd":
            return fused_gelu(x, approximate=approximate)
    return ops.gelu(x, approximate=approximate)


# ---- layer norm ------------------------------------------------------------------------------------------------------


@in_float32
def layer_norm(
    x: Any, normalized_shape: int | Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """(x - mean) / √(variance + eps) * weight + bias, with mean and variance over the last axes.

    Ba et al. 2016, "Layer normalization", equations 3 and 4, for each position alone; the variance is the biased one.

    Args:
        x: (..., *normalized_shape), floating; 16 bits are computed in float32.
        normalized_shape: the lengths of the last axes, or the length of the last one.
        weight, bias: of the shape `normalized_shape`, or None.

    Returns x's shape and dtype. On a GPU it is computed by kernels if all have one dtype, of 16 or 32 bits. Raises
    ValueError that names the shapes if they do not fit.
    """
    array = array_of(x)
    axes = _normalized_axes("layer_norm", array, normalized_shape, weight, bias)
    eps = float(number("layer_norm: eps", eps))
    if type(array) is not np.ndarray and are_taken(array, array_of(weight), array_of(bias)):
        return kernel_layer_norm(x, weight, bias, axes=axes, eps=eps)
    dtype = wide(array.dtype)
    x, weight, bias = as_dtype(x, dtype), as_dtype(weight, dtype), as_dtype(bias, dtype)
    return as_dtype(fused_layer_norm(x, weight, bias, axes=axes, eps=eps), array.dtype)


def _normalized_axes(name: str, x: Any, normalized_shape: int | Sequence[int], weight: Any, bias: Any = None) -> int:
    """How many last axes are normalized. Raises TypeError if x is not floating, ValueError if the shapes do not fit."""
    if x.dtype.kind != "f":
        check_floating(f"{name}: x", x.dtype)
    shape = normalized_shape if type(normalized_shape) is tuple else lengths(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        raise ValueError(f"{name}: x of shape {x.shape} does not end in normalized_shape {shape}")
    for which, values in (("weight", weight), ("bias", bias)):
        if values is not None and values.shape != shape:
            raise ValueError(f"{name}: {which} has the shape {values.shape}, it must have normalized_shape {shape}")
    return len(shape)


# ---- root mean square norm -------------------------------------------------------------------------------------------


@in_float32
def rms_norm(input: Any, normalized_shape: int | Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    """x / √(mean x² + eps) * weight, with the mean over the last axes: `layer_norm` without mean and bias.

    Zhang & Sennrich 2019, "Root mean square layer normalization", equation 4.

    Args:
        input: x (..., *normalized_shape), floating; 16 bits are computed in float32.
        normalized_shape: the lengths of the last axes, or the length of the last one.
        weight: of the shape `normalized_shape`, or None.
        eps: None for the distance from 1 to the next number of the dtype that is computed in.

    Returns input's shape and dtype. Raises as `layer_norm`.
    """
    array = array_of(input)
    axes = _normalized_axes("rms_norm", array, normalized_shape, weight)
    dtype = wide(array.dtype)
    eps = float(np.finfo(dtype).eps if eps is None else number("rms_norm: eps", eps))
    x, weight = as_dtype(input, dtype), as_dtype(weight, dtype)
    return as_dtype(fused_rms_norm(x, weight, axes=axes, eps=eps), array.dtype)


# ---- dropout ---------------------------------------------------------------------------------------------------------


def dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
    """In training, each element is 0 with probability p, else x / (1 - p); otherwise x itself.

    Srivastava et al. 2014, "Dropout". What is dropped comes from this thread's random stream: see `mg.manual_seed`. On
    a GPU a kernel draws it, and other elements are dropped than on a CPU, unless x is float64. Raises ValueError for p
    outside 0 ... 1, TypeError for x that is not floating.
    """
    p = probability("dropout: p", p)
    if not training or p == 0:
        return x
    check_floating("dropout: x", x.dtype)
    if are_taken(array_of(x)):
        return kernel_dropout(x, p=p, key=next_key())
    return ops.multiply(x, dropout_mask(x, x.shape, p))


@takes_bfloat16
@op(linear=True)
def kernel_dropout(x: Any, *, p: float, key: tuple[int, int, int]) -> Any:
    """The same by a kernel, for arrays on a GPU: what is dropped follows from the key, so no mask has to be kept."""
    return apply_dropout(x, p, key), lambda g: kernel_dropout(g, p=p, key=key)


# ---- embedding -------------------------------------------------------------------------------------------------------


@on_its_device
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
    ids = as_integers("embedding: ids", ids, weight)
    data = array_of(ids)
    if data.size:
        least, most = numbers_of(data.min(), data.max())
        if not 0 <= least <= most < count:
            wrong = least if least < 0 else most
            raise IndexError(f"embedding: id {wrong} is out of range for a weight of {count} rows (0 to {count - 1})")
    return take_rows(weight, ids, padding=None if padding_idx is None else padding_idx % count)


@takes_bfloat16
@op(linear=True, exempt=["ids"])
def take_rows(weight: Any, ids: Any, *, padding: int | None) -> Any:
    """weight[ids]."""
    count = weight.shape[0]
    return weight.take(ids, axis=0), (
        lambda g: add_rows(g, ids, count=count, padding=padding),
        None,
    )


SMALL_PRODUCT = 1 << 20  # multiplications: of more, sorting is faster
LONG_RUN = 4  # rows: shorter ones are summed faster by `reduceat`


@op(linear=True, exempt=["ids"])
def add_rows(g: Any, ids: Any, *, count: int, padding: int | None) -> Any:
    """Zeros (V, D) with each row of g added at its id, the padding row left out: the opposite of `take_rows`.

    Either way is many times faster than `add.at`. 16 bits are added up in float32.
    """
    rows, flat = widened(g).reshape(ids.size, g.shape[-1]), ids.reshape(-1)
    is_small = type(rows) is np.ndarray and 0 < ids.size * count * max(1, rows.shape[1]) <= SMALL_PRODUCT
    value = _added_by_product(rows, flat, count) if is_small else None
    if value is None:
        value = _added_by_sorting(rows, flat, count)
    if padding is not None:
        value[padding] = 0

    def pullback(h: Any) -> Any:
        rows = take_rows(h, ids, padding=None)
        return rows if padding is None else ops.where((ids == padding)[..., None], 0.0, rows)

    return narrowed(value, g.dtype), (pullback, None)


def _added_by_product(rows: np.ndarray, ids: np.ndarray, count: int) -> np.ndarray | None:
    """The rows (n, D) added at their ids (n,), as [id = v] (V, n) times rows; None if the sums are not all finite.

    0 · ∞ is NaN: an infinite row would be in those of other ids too.
    """
    chosen = np.zeros((len(ids), count), rows.dtype)
    chosen.reshape(-1)[np.arange(0, chosen.size, count) + ids.astype(np.intp, copy=False)] = 1.0
    with np.errstate(all="ignore"):
        value = chosen.T.dot(rows)
        return value if math.isfinite(np.vdot(value, value)) else None


def _added_by_sorting(rows: Any, ids: Any, count: int) -> Any:
    """The same by bringing equal ids together: their rows are summed run by run."""
    library = array_module(rows)
    value = library.zeros((count, rows.shape[1]), rows.dtype)
    if not ids.size:
        return value
    order = library.argsort(ids, kind="stable")
    ids, rows = ids[order], rows.take(order, axis=0)
    starts = library.flatnonzero(ids[1:] != ids[:-1]) + 1
    starts = library.concatenate([library.zeros(1, starts.dtype), starts])
    if type(rows) is np.ndarray and len(ids) >= LONG_RUN * len(starts):
        ones, edges = ones_like_row(rows, len(ids)), [*starts.tolist(), len(ids)]
        for place, start, stop in zip(ids[starts].tolist(), edges, edges[1:], strict=False):
            ones[start:stop].dot(rows[start:stop], value[place])
    else:
        value[ids[starts]] = library.add.reduceat(rows, starts, axis=0)
    return value
