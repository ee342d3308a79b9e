"""Layers as functions of arrays, made once for many calls on few rows.

For models that write a sequence and read each symbol again (`models.cache`): a vector for each sequence is so little
work that each operation's price counts, and here are no Tensors, checks and records. Parameters are read when a
function is made, and gradients do not reach them; so it is for use inside `no_grad`. Autocast, whose casts of weights
would be made for every row, changes nothing. Attention is in `nn.cached_attention`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import nn.functional as F
from minigrad import Tensor
from minigrad.backend import array_module
from minigrad.dtypes import is_16_bit
from minigrad.ops.linalg import times
from minigrad.sums import row_dots
from nn.embedding import Embedding
from nn.linear import Linear
from nn.module import Module, is_plain
from nn.norm import LayerNorm

OnArrays = Callable[[Any], Any]
"""Takes an array of rows (B, D), which stays as it is, and returns a new one, in the same dtype; of ids (B,), rows."""


def on_arrays(layer: Module) -> OnArrays:
    """What the layer gives, for arrays; faster than the layer if there is something for its kind below."""
    if is_plain(layer, Linear):
        return CachedLinear(layer.weight.data, None if layer.bias is None else layer.bias.data)
    if is_plain(layer, Embedding):
        return functools.partial(F.embedding, weight=layer.weight.data)
    if is_plain(layer, LayerNorm) and layer.weight is not None and layer.bias is not None:
        weight, bias = layer.weight.data, layer.bias.data
        if CachedLayerNorm.is_for(weight):
            return CachedLayerNorm(weight, bias, layer.eps)
    return lambda x: layer(Tensor._of(x)).data


class CachedLinear:
    """x Wᵀ + b with a copy of W that lies in memory column by column; W (out, in) and b (out,) or None are arrays.

    NumPy's BLAS then multiplies 8 to 64 rows, a batch of single vectors, up to three times as fast.
    """

    def __init__(self, weight: Any, bias: Any) -> None:
        self._columns = array_module(weight).ascontiguousarray(weight.T)  # (in, out)
        self._bias = None if bias is None else bias[None]  # to a single row NumPy adds one as long in half of the time

    def __call__(self, x: Any) -> Any:
        """(B, in) to (B, out)."""
        y = times(x, self._columns)
        if self._bias is not None:
            y += self._bias
        return y


class CachedLayerNorm:
    """A LayerNorm of rows of n numbers: with c = x - mean, c / √(Σ c² + n eps) * (√n weight) + bias.

    weight and bias are arrays (n,) of NumPy's.
    """

    @staticmethod
    def is_for(weight: Any) -> bool:
        """Whether it is for such a weight, of 32 or 64 bits. On a GPU the layer is a single kernel."""
        return type(weight) is np.ndarray and weight.ndim == 1 and not is_16_bit(weight.dtype)

    def __init__(self, weight: np.ndarray, bias: np.ndarray, eps: float) -> None:
        n = len(weight)
        self._weight, self._bias = weight[None] * math.sqrt(n), bias[None]
        self._averaging = np.full((n, 1), 1.0 / n, weight.dtype)  # x times it: the means of rows
        self._n_eps = n * eps

    def __call__(self, x: Any) -> Any:
        """(B, n) to the same shape."""
        y = x - x.dot(self._averaging)
        inverse = row_dots(y, y)
        inverse += self._n_eps
        inverse **= -0.5
        y *= inverse[:, None].dot(self._weight)  # a matrix, by BLAS; two passes with a column and a row take longer
        y += self._bias
        return y
