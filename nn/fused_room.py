"""The fused room of attention: one operation in few passes, with its gradients' formulas beside the code.

It takes the six inputs that `nn.rooms` lists. It is for short sequences: it keeps N_q N_k numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad import op
from minigrad.backend import array_module
from minigrad.dividing import divide
from minigrad.process import BLAS_TAKES_ONE_THREAD
from minigrad.sums import sum_of_rows
from nn.plain_room import plain_attention

# Nanoseconds that it takes forward, or backward, roughly; not divided where BLAS divides the products within.
NS_OF_A_SCORE = 5.0 if BLAS_TAKES_ONE_THREAD else 0.0
QUERIES = 64  # in a block; where a mask hides all of the last keys from one, they are left out
SMALL_SCORE = 30.0  # whose exponential, and any sum of such, is far from the ends of float32's range


@op(reference=plain_attention, exempt=["visible", "kept"], optional=["bias", "visible", "kept"])
def fused_attention(query: Any, key: Any, value: Any, bias: Any, visible: Any, kept: Any, *, scale: float) -> Any:
    """`plain_attention` as one operation; keeps an array of N_q N_k numbers at most, and makes one more going back.

    That array holds the weights P, transposed, (..., N_k, N_q), in blocks of queries: what each query subtracts and is
    divided by then lies along rows of memory, which is several times faster for short sequences. Going back, with dO
    the output's gradient,

        dV = Pᵀ dO,   dP = dO Vᵀ,   dS = P ∘ (dP − rowsum(dP ∘ P)),   dQ = scale dS K,   dK = scale dSᵀ Q.

    (rowsum(dO ∘ O) is the same in fewer steps, but where one weight is nearly 1 its rounding errors do not cancel.)
    Results have the inputs' order in memory: heads that were split off without a copy are joined again without one.
    """
    library, leading = array_module(query), query.shape[:-2]
    n_q, n_k = query.shape[-2], key.shape[-2]
    blocks = _blocks(visible, n_q, n_k)
    scaled = library.empty_like(query)  # (..., N_q, d)
    p = [library.empty((*leading, block.n_k, block.n_q), query.dtype) for block in blocks]
    output = library.empty_like(query, shape=(*query.shape[:-1], value.shape[-1]))  # (..., N_q, E)
    ceiling = None if visible is None else library.where(visible, query.dtype.type(math.inf), -math.inf)
    entries = max(leading, default=1)  # along one axis, the batch or the heads, the work is divided
    axis = leading.index(entries) if leading else 0
    scores_of_entry = math.prod((*leading[:axis], *leading[axis + 1 :])) * sum(
        [block.n_k * block.n_q for block in blocks]
    )

    def forward(start: int, stop: int) -> None:
        part = _Part(leading, axis, start, stop)
        library.multiply(part(query), scale, out=part(scaled))
        for block, its_p in zip(blocks, p, strict=True):
            keys, queries = block.keys, block.queries
            scores = library.matmul(part(key)[keys], _transposed(part(scaled)[queries]), out=part(its_p))
            its_bias, its_ceiling, its_kept = [block.of_scores(part(x)) for x in (bias, ceiling, kept)]
            if its_bias is not None:
                scores += _transposed(its_bias)
            small = are_small(scores)
            if its_ceiling is not None:
                library.fmin(scores, _transposed(its_ceiling), out=scores)  # -inf where hidden, over NaN too
            if not small:
                scores -= subtracted(_column_maximum(scores))
            weights = library.exp(scores, out=scores)
            total = sum_of_rows(weights)  # (..., N_q)
            total += total == 0  # nothing visible: 0 / 1
            weights /= total[..., None, :]
            library.matmul(_transposed(_dropped(weights, its_kept)), part(value)[keys], out=part(output)[queries])

    divide(query, entries, NS_OF_A_SCORE * scores_of_entry, forward)
    has_bias = bias is not None

    def pullback(g: Any) -> tuple[Any, ...]:
        d_query, d_key, d_value = [library.empty_like(x) for x in (scaled, key, value)]
        d_bias = library.zeros((*leading, n_q, n_k), g.dtype) if has_bias else None

        def backward(start: int, stop: int) -> None:
            part = _Part(leading, axis, start, stop)
            d_output = part(g)  # (..., N_q, E)
            d_k, d_v = [_Sum(library, part(x)) for x in (d_key, d_value)]
            for block, its_p in reversed(list(zip(blocks, p, strict=True))):
                keys, queries = block.keys, block.queries
                weights, its_kept = part(its_p), block.of_scores(part(kept))
                d_v.add(keys, _dropped(weights, its_kept), d_output[queries])
                d_scores = part(value)[keys] @ _transposed(d_output[queries])  # (..., N_k, N_q), dP
                if its_kept is not None:
                    d_scores *= _transposed(its_kept)
                d_scores -= sum_of_rows(d_scores * weights)[..., None, :]
                d_scores *= weights
                library.matmul(_transposed(d_scores), part(key)[keys], out=part(d_query)[queries])
                d_k.add(keys, d_scores, part(scaled)[queries])
                if has_bias:
                    part(d_bias)[(..., queries[1], keys[1])] = _transposed(d_scores)

        divide(query, entries, NS_OF_A_SCORE * scores_of_entry, backward)
        d_query *= scale
        return d_query, d_key, d_value, d_bias, None, None

    return output, pullback


# ---- parts and blocks ------------------------------------------------------------------------------------------------


class _Part:
    """Takes the entries from `start` to below `stop` along a leading axis, of arrays that have it."""

    def __init__(self, leading: tuple[int, ...], axis: int, start: int, stop: int) -> None:
        self._ndim, self._axis = len(leading) + 2 if leading else math.inf, axis
        self._key = (*[slice(None)] * axis, slice(start, stop))

    def __call__(self, x: Any) -> Any:
        return x if x is None or x.ndim < self._ndim or x.shape[self._axis] == 1 else x[self._key]


class _Block:
    """Some queries, and the keys up to the last one that any of them sees.

    Attributes:
        n_q, n_k: how many they are.
        queries, keys: where their rows are in arrays (..., N_q, d) and (..., N_k, d).
    """

    def __init__(self, start: int, stop: int, n_k: int) -> None:
        self.n_q, self.n_k = stop - start, n_k
        self.queries = ..., slice(start, stop), slice(None)
        self.keys = ..., slice(n_k), slice(None)

    def of_scores(self, x: Any) -> Any:
        """What belongs to the block of an array that broadcasts to (..., N_q, N_k); None of None."""
        if x is None:
            return None
        rows = slice(None) if x.shape[-2] == 1 else self.queries[1]
        return x[..., rows, :] if x.shape[-1] == 1 else x[..., rows, self.keys[1]]


def _blocks(visible: Any, n_q: int, n_k: int) -> Sequence[_Block]:
    """All queries in one block, or in several if the mask lets keys be left out."""
    if type(visible) is not np.ndarray or n_q < 2 * QUERIES or visible.shape[-2:] != (n_q, n_k) or n_k == 0:
        return [_Block(0, n_q, n_k)]
    blocks = []
    for start in range(0, n_q, QUERIES):
        stop = min(start + QUERIES, n_q)
        seen = visible[..., start:stop, :].any(axis=tuple(range(visible.ndim - 1)))  # (N_k,)
        places = np.flatnonzero(seen)
        blocks.append(_Block(start, stop, int(places[-1]) + 1 if places.size else 1))
    return blocks


class _Sum:
    """Products that are added up in an array (..., N_k, d)."""

    def __init__(self, library: Any, total: Any) -> None:
        self._library, self._total, self._is_empty = library, total, True

    def add(self, keys: tuple[Any, ...], x: Any, y: Any) -> None:
        """Adds x @ y to these rows."""
        rows = self._total[keys]
        if self._is_empty and rows.shape == self._total.shape:
            self._library.matmul(x, y, out=rows)
        else:
            if self._is_empty:
                self._total[...] = 0
            rows += x @ y
        self._is_empty = False


# ---- scores ----------------------------------------------------------------------------------------------------------


def _transposed(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _dropped(transposed: Any, kept: Any) -> Any:
    return transposed if kept is None else transposed * _transposed(kept)


def are_small(scores: Any) -> bool:
    """Whether all are, hidden ones included; a look at them takes less time than what it saves, but on a GPU."""
    if type(scores) is not np.ndarray:
        return False
    least, most = [extreme.reduce(scores, axis=None, initial=0.0) for extreme in (np.minimum, np.maximum)]
    return bool(least >= -SMALL_SCORE and most <= SMALL_SCORE)


def subtracted(largest: Any) -> Any:
    """What is subtracted from the scores of each query, given its largest visible one: 0 if that is small.

    So a query's result is the same to the bit whether or not all scores are small, of which some are hidden from it.
    """
    library = array_module(largest)
    largest = library.maximum(largest, np.finfo(largest.dtype).min)  # finite where nothing is visible
    return library.where(library.abs(largest) <= SMALL_SCORE, 0, largest)


def _column_maximum(x: Any) -> Any:
    """(..., n, m) to (..., 1, m), by halves: a few long passes, where NumPy's reduction goes row by row."""
    library = array_module(x)
    while x.shape[-2] > 1:
        half = (x.shape[-2] + 1) // 2  # the halves of an odd length share a row
        x = library.maximum(x[..., :half, :], x[..., -half:, :])
    return x
