"""Running sums and products: one element for each of the input's, made of all that come up to it along `axis`."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from minigrad.autocast import in_float32
from minigrad.dtypes import is_16_bit
from minigrad.operation import namespace, op
from minigrad.ops.elementwise import narrowed, widened
from minigrad.ops.shape import concatenate, flip, reshape, swapaxes


@in_float32
@op(linear=True)
def cumsum(x: Any, *, axis: int) -> Any:
    """y_i = Σ_{j<=i} x_j along `axis`; ∂x_k = Σ_{i>=k} g_i. Of 16 bits in float32, as in PyTorch."""
    shape, row, axis = x.shape, _with_axis(x), operator.index(axis)
    if is_16_bit(x.dtype):
        value = namespace(x).cumsum(row, axis=axis, dtype=np.float32).astype(x.dtype)
    else:
        value = namespace(x).cumsum(row, axis=axis)
    return value.reshape(shape), lambda g: reshape(flip(cumsum(flip(_with_axis(g), axis), axis=axis), axis), shape)


@in_float32
@op
def cumprod(x: Any, *, axis: int) -> Any:
    """y_i = Π_{j<=i} x_j along `axis`; ∂x_k = Π_{j<k} x_j Σ_{i>=k} g_i Π_{k<j<=i} x_j: no division, so exact at 0.

    Of 16 bits in float32, as in PyTorch.
    """
    shape, dtype, row, axis = x.shape, x.dtype, _with_axis(widened(x)), operator.index(axis)
    y = namespace(x).cumprod(row, axis=axis)

    def pullback(g: Any) -> Any:
        before = swapaxes(y, axis, -1)[..., :-1]
        after = _weighted_tails(swapaxes(_with_axis(g), axis, -1), swapaxes(row, axis, -1))
        product = concatenate([after[..., :1], before * after[..., 1:]], -1)
        return reshape(swapaxes(product, axis, -1), shape)

    return narrowed(reshape(y, shape), dtype), pullback


def _weighted_tails(g: Any, x: Any) -> Any:
    """s_k = g_k + x_{k+1} s_{k+1} along the last axis, in log n steps, each of which doubles how far s_k reaches."""
    reach, product = 1, x[..., 1:]  # product_k = x_{k+1} ... x_{k+reach}
    while reach < g.shape[-1]:
        g = concatenate([g[..., :-reach] + product * g[..., reach:], g[..., -reach:]], -1)
        product = product[..., :-reach] * product[..., reach:]
        reach *= 2
    return g


def _with_axis(x: Any) -> Any:
    """x; of 0-d a row of one, as PyTorch takes it."""
    return reshape(x, x.shape or (1,))
