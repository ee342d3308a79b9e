"""A Transformer's sub-layers as one operation each: with what they compute, the norm, and the residual connection.

A step of a small model is mostly the price of operations, of which each of these saves four: the same work is done on
arrays, in the same order. So values have the same bits, and gradients too, unless x is used elsewhere as well: three
gradients are then added up in another order. They are for arrays on a CPU, with nothing dropped, in the usual case that
all gradients are wanted. For anything else the doors give None, and `models.stack` calls its layers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigrad import Tensor, op, ops, watchers
from minigrad.grad_mode import is_grad_enabled
from minigrad.ops.elementwise import cleared
from minigrad.ops.linalg import as_rows, multiplied
from minigrad.sums import sum_of_rows, zeros_like_row
from nn.attention import MultiHeadAttention
from nn.feed_forward import ACTIVATIONS
from nn.fused import fused_layer_norm, gelu_and_slope, normed_rows, times_slope
from nn.fused_room import How, fused_multi_head_attention
from nn.linear import Linear
from nn.masks import check_masks, read_masks
from nn.module import is_plain
from nn.norm import LayerNorm
from nn.projections import packed_projections
from nn.rooms import chosen_room

Pullback = Callable[[Any], Any]
Shape = tuple[int, ...]
"""Of x, before its leading axes were joined: sub-layers get rows (n, D), and attention splits them again."""

# ---- the doors -------------------------------------------------------------------------------------------------------


def feed_forward_sublayer(
    x: Any, norm: Any, linear1: Any, linear2: Any, activation: str, norm_first: bool
) -> Tensor | None:
    """The feed-forward network of x (..., D) as one operation; None where the layers are to do it."""
    if activation not in ON_ARRAYS or not _are_plain(norm, linear1, linear2):
        return None
    inputs = x, norm.weight, norm.bias, linear1.weight, linear1.bias, linear2.weight, linear2.bias
    shapes = _shapes_if_alike(inputs)
    if shapes is None:
        return None
    width, inner = shapes[0][-1:], shapes[4]  # (D,), (d_ff,)
    fit = [width, width, inner + width, inner, width + inner, width]
    if shapes[1:] != fit or not len(width) == len(inner) == 1 or norm.normalized_shape != width:
        return None
    return fused_feed_forward_sublayer(
        inputs, sublayer=FeedForwardPasses(activation), norm_first=norm_first, eps=norm.eps
    )


def attention_sublayer(
    x: Any, memory: Any, norm: Any, attention: Any, mask: Any, is_causal: bool, norm_first: bool
) -> Tensor | None:
    """Attention of x to the memory, or to x if that is None, as one operation; None where the layers are to do it.

    Raises what attention says of the mask.
    """
    if not is_plain(attention, MultiHeadAttention) or not _are_plain(norm, attention.out_proj):
        return None
    width, heads = attention.d_model, attention.num_heads
    if not attention.kdim == attention.vdim == width or (attention.training and attention.dropout):
        return None
    memories = [] if memory is None else [memory]
    projections = attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias
    inputs = (x, norm.weight, norm.bias, *memories, *projections)
    shapes = _shapes_if_alike(inputs)
    if shapes is None:
        return None
    source = shapes[0] if memory is None else shapes[3]
    if not len(shapes[0]) == len(source) == 3:
        return None
    (batch, n_q, _), n_k = shapes[0], source[1]
    fit = [(batch, n_q, width), (width,), (width,), *[(batch, n_k, width)] * len(memories)]
    fit += [(3 * width, width), (3 * width,), (width, width), (width,)]
    if shapes != fit or norm.normalized_shape != (width,) or width % heads:
        return None
    if chosen_room(x.dtype, width // heads, "cpu", n_q * n_k) != "fused":
        return None
    shape = (batch, heads, n_q, n_k)  # of the scores
    masks = mask, is_causal, 0, None  # no offset, no lengths
    check_masks(x, shape, *masks)
    visible, bias = read_masks(x, shape, *masks)
    if bias is not None:
        return None
    sublayer = AttentionPasses(heads, How(visible, 1.0 / math.sqrt(width // heads)))
    return fused_attention_sublayer(inputs, sublayer=sublayer, norm_first=norm_first, eps=norm.eps)


def _are_plain(norm: Any, *layers: Any) -> bool:
    return is_plain(norm, LayerNorm) and type(norm.eps) is float and all([is_plain(layer, Linear) for layer in layers])


def _shapes_if_alike(inputs: Sequence[Any]) -> list[Shape] | None:
    """The shapes of Tensors of NumPy's arrays, of one dtype that BLAS multiplies, that all want gradients; else None.

    And None if somebody watches, who would look for the operations within, or casts.
    """
    if watchers.active or not is_grad_enabled():
        return None
    if not all([isinstance(x, Tensor) and x._requires_grad and type(x._data) is np.ndarray for x in inputs]):
        return None
    dtypes = {x._data.dtype for x in inputs}
    if len(dtypes) > 1 or dtypes.pop().char not in "fd":
        return None
    return [x._data.shape for x in inputs]


# ---- what sub-layers compute -----------------------------------------------------------------------------------------


class FeedForwardPasses(NamedTuple):
    """linear2(activation(linear1(x))), of x (..., D), and both layers' weights and biases."""

    activation: str

    def composed(self, x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any) -> Any:
        """The definition, as a composition of operations."""
        hidden = ACTIVATIONS[self.activation](ops.linear(x, weight1, bias1))  # (..., d_ff)
        return ops.linear(hidden, weight2, bias2)

    def on_rows(self, x: Any, shape: Shape, weight1: Any, bias1: Any, weight2: Any, bias2: Any) -> tuple[Any, Pullback]:
        """The same of x as rows, and the function that takes its gradient to those of all that is given."""
        hidden, back1 = _linear(x, weight1, bias1)
        hidden, times_its_slope = ON_ARRAYS[self.activation](hidden)
        y, back2 = _linear(hidden, weight2, bias2)

        def pullback(g: Any) -> tuple[Any, ...]:
            d_hidden, *d_layer2 = back2(g)
            return *back1(times_its_slope(d_hidden)), *d_layer2

        return y, pullback


class AttentionPasses(NamedTuple):
    """Multi-head attention of x (B, N_q, D) to itself, or to a memory (B, N_k, D) if that is the first of `others`.

    Then come the packed weight (3 D, D) and bias (3 D,), and those of the output projection.
    """

    heads: int
    how: How

    def composed(self, x: Any, *others: Any) -> Any:
        """The definition, as a composition of operations."""
        *memory, weight, bias, out_weight, out_bias = others
        projections = packed_projections(x, *memory, weight, bias) if memory else (ops.linear(x, weight, bias), None)
        mixed = fused_multi_head_attention(*projections, None, None, None, heads=self.heads, how=self.how)
        return ops.linear(mixed, out_weight, out_bias)

    def on_rows(self, x: Any, shape: Shape, *others: Any) -> tuple[Any, Pullback]:
        """The same of x as rows, and the function that takes its gradient to those of all that is given."""
        *memory, weight, bias, out_weight, out_bias = others
        projections, back_to_inputs = _projections(x, shape, memory, weight, bias)
        mixed, back_to_projections = _attend(*projections, None, None, None, heads=self.heads, how=self.how)
        y, back_to_mixed = _linear(as_rows(mixed), out_weight, out_bias)

        def pullback(g: Any) -> tuple[Any, ...]:
            d_mixed, *d_out = back_to_mixed(g)
            d_projections = back_to_projections(d_mixed.reshape(shape))[:2]
            return *back_to_inputs(d_projections), *d_out

        return y, pullback


_attend = fused_multi_head_attention.operation.body


def _projections(x: Any, shape: Shape, memory: list[Any], weight: Any, bias: Any) -> tuple[tuple[Any, Any], Pullback]:
    """What attention reads, of x alone (the second is None then), or of x and a memory."""
    if not memory:
        packed, back = _linear(x, weight, bias)
        packed = packed.reshape(*shape[:-1], 3 * shape[-1])  # (B, N, 3 D)
        return (packed, None), lambda gradients: back(as_rows(gradients[0]))
    projections, pullbacks = packed_projections.operation.body(x.reshape(shape), *memory, weight, bias)

    def pullback(gradients: Any) -> list[Any]:
        d_x, *others = [back(gradients) for back in pullbacks]
        return [as_rows(d_x), *others]

    return projections, pullback  # (B, N_q, D), (B, N_k, 2 D)


def _linear(x: Any, weight: Any, bias: Any) -> tuple[Any, Pullback]:
    """`minigrad.ops.linear` of rows that fit, as the doors have seen, with one function for all three gradients."""

    def pullback(g: Any) -> tuple[Any, ...]:
        return multiplied(g, weight), multiplied(g.T, x), sum_of_rows(g)

    return multiplied(x, weight.T, bias), pullback


def _relu(x: Any) -> tuple[Any, Pullback]:
    """Written over x."""
    y = np.maximum(x, zeros_like_row(x, x.shape[-1]), out=x)
    return y, lambda g: cleared(g, y <= 0)


def _gelu(x: Any, approximate: str) -> tuple[Any, Pullback]:
    """Its gradient is written over the one that is given."""
    value, slope = gelu_and_slope(x, approximate, with_slope=True)
    return value, lambda g: times_slope(g, slope, out=g)


ON_ARRAYS: dict[str, Callable[[Any], tuple[Any, Pullback]]] = {
    "relu": _relu,
    "gelu": functools.partial(_gelu, approximate="none"),
    "gelu_tanh": functools.partial(_gelu, approximate="tanh"),
}


# ---- the norm and the residual connection around them ----------------------------------------------------------------


def composed(*inputs: Any, sublayer: Any, norm_first: bool, eps: float) -> Any:
    """The definition, as a composition of operations."""
    x, weight, bias, *others = inputs

    def norm(x: Any) -> Any:
        return fused_layer_norm(x, weight, bias, axes=1, eps=eps)

    return x + sublayer.composed(norm(x), *others) if norm_first else norm(x + sublayer.composed(x, *others))


@op(reference=composed)
def fused_feed_forward_sublayer(*inputs: Any, sublayer: FeedForwardPasses, norm_first: bool, eps: float) -> Any:
    """See `_with_residual`. The inputs are x, the norm's weight and bias, and those of both layers."""
    return _with_residual(inputs, sublayer, norm_first, eps)


@op(reference=composed)
def fused_attention_sublayer(*inputs: Any, sublayer: AttentionPasses, norm_first: bool, eps: float) -> Any:
    """See `_with_residual`. The inputs are x, the norm's weight and bias, the memory if there is one, then the packed
    weight and bias, and the output projection's.
    """
    return _with_residual(inputs, sublayer, norm_first, eps)


def _with_residual(inputs: Sequence[Any], sublayer: Any, norm_first: bool, eps: float) -> tuple[Any, Pullback]:
    """Pre-norm x + sublayer(norm(x), ...), or post-norm norm(x + sublayer(x, ...)): see `models.stack`.

    inputs: x (..., D); the norm's weight and bias (D,); and what the sub-layer, one of those above, takes besides x.
    """
    x, weight, bias, *others = inputs
    shape, rows = x.shape, as_rows(x)
    if norm_first:
        h, back_to_rows = normed_rows(rows, weight, bias, eps, centred=True)
        y, back_to_h = sublayer.on_rows(h, shape, *others)
        y += rows

        def pullback(g: Any) -> tuple[Any, ...]:
            g = as_rows(g)
            d_h, *d_others = back_to_h(g)
            d_rows, d_weight, d_bias = back_to_rows(d_h)
            d_rows += g
            return d_rows.reshape(shape), d_weight, d_bias, *d_others

        return y.reshape(shape), pullback

    total, back_to_inputs = sublayer.on_rows(rows, shape, *others)
    total += rows
    y, back_to_total = normed_rows(total, weight, bias, eps, centred=True)

    def pullback_of_norm(g: Any) -> tuple[Any, ...]:
        d_total, d_weight, d_bias = back_to_total(as_rows(g))
        d_rows, *d_others = back_to_inputs(d_total)
        d_rows += d_total
        return d_rows.reshape(shape), d_weight, d_bias, *d_others

    return y.reshape(shape), pullback_of_norm
