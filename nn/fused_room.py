"""The fused room of attention: one operation in few passes, with its gradients' formulas beside the code.

There are two operations of one pair of passes: for heads that were split off, and for projections with all of their
heads, which are split and joined within. It is for short sequences: it keeps N_q N_k numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigrad import op
from minigrad.backend import array_module
from minigrad.dividing import divide, is_worth_dividing
from minigrad.process import BLAS_TAKES_ONE_THREAD
from minigrad.sums import sum_of_rows
from nn.heads import heads_of_projections, join_heads, split_heads, views_of_heads
from nn.masks import Visible
from nn.plain_room import plain_attention

# Nanoseconds that it takes forward, or backward, roughly; not divided where BLAS divides the products within.
NS_OF_A_SCORE = 5.0 if BLAS_TAKES_ONE_THREAD else 0.0
QUERIES = 64  # in a block; where a mask hides all of the last keys from one, they are left out
SMALL_SCORE = 30.0  # whose exponential, and any sum of such, is far from the ends of float32's range
LEAST_TOTAL = 1e-30  # of a query's exponentials: less than any that sees a key

# ---- the operations --------------------------------------------------------------------------------------------------


class How(NamedTuple):
    """How heads attend.

    Attributes:
        visible: which keys each query may attend to; None for all.
        scale: what scores are multiplied by.
        bias_gradient: whether the bias's gradient is wanted.
    """

    visible: Visible | None
    scale: float
    bias_gradient: bool = False


def composed_attention(query: Any, key: Any, value: Any, bias: Any, kept: Any, *, how: How) -> Any:
    """The same in the plain room: from it come gradients of gradients."""
    return plain_attention(query, key, value, bias, how.visible, kept, scale=how.scale)


@op(reference=composed_attention, exempt=["kept"], optional=["bias", "kept"])
def fused_attention(query: Any, key: Any, value: Any, bias: Any, kept: Any, *, how: How) -> Any:
    """`plain_attention` as one operation, by the passes of `attend`.

    Results have the inputs' order in memory: heads that were split off without a copy are joined again without one.
    """
    library = array_module(query)
    output = library.empty_like(query, shape=(*query.shape[:-1], value.shape[-1]))  # (..., N_q, E)
    go_back = attend(query, key, value, bias, kept, output, how)

    def pullback(g: Any) -> tuple[Any, ...]:
        gradients = [library.empty_like(x) for x in (query, key, value)]
        d_bias = _array_of_scores(query, key) if how.bias_gradient else None
        go_back(g, *gradients, d_bias)
        return *gradients, d_bias, None

    return output, pullback


def composed_multi_head_attention(
    query: Any, key: Any, value: Any, bias: Any, kept: Any, *, heads: int, how: How
) -> Any:
    """The same with an operation for each step: from it come gradients of gradients."""
    q, k, v = heads_of_projections(query, key, value, heads=heads, split=split_heads)
    return join_heads([plain_attention(q, k, v, bias, how.visible, kept, scale=how.scale)])


@op(reference=composed_multi_head_attention, exempt=["kept"], optional=["key", "value", "bias", "kept"])
def fused_multi_head_attention(query: Any, key: Any, value: Any, bias: Any, kept: Any, *, heads: int, how: How) -> Any:
    """`fused_attention` of the heads of projections, as `heads_of_projections` has them, joined again: (B, N_q, D).

    The gradients of heads are written to their places in those of the projections.
    """
    library = array_module(query)
    q, k, v = heads_of_projections(query, key, value, heads=heads, split=views_of_heads)
    output = library.empty((*query.shape[:2], heads * v.shape[-1]), query.dtype)
    (mixed,) = views_of_heads(output, heads=heads)
    go_back = attend(q, k, v, bias, kept, mixed, how)

    def pullback(g: Any) -> tuple[Any, ...]:
        gradients = [None if x is None else library.empty(x.shape, x.dtype) for x in (query, key, value)]
        d_heads = heads_of_projections(*gradients, heads=heads, split=views_of_heads)
        d_bias = _array_of_scores(q, k) if how.bias_gradient else None
        go_back(*views_of_heads(g, heads=heads), *d_heads, d_bias)
        return *gradients, d_bias, None

    return output, pullback


def _array_of_scores(query: Any, key: Any) -> Any:
    """(..., N_q, N_k) zeros."""
    return array_module(query).zeros((*query.shape[:-1], key.shape[-2]), query.dtype)


# ---- its passes ------------------------------------------------------------------------------------------------------


def attend(query: Any, key: Any, value: Any, bias: Any, kept: Any, output: Any, how: How) -> Callable[..., None]:
    """Writes what `plain_attention` gives to `output` (..., N_q, E), and returns the function for the way back.

    It keeps its inputs and the weights P, transposed, (..., N_k, N_q), in blocks of queries: what each query subtracts
    and is divided by then lies along rows of memory, which is several times faster for short sequences. The function
    makes one more array as large. It takes the output's gradient dO and arrays for those of query, key and value and,
    or None, of the scores, (..., N_q, N_k) zeros:

        dV = Pᵀ dO,   dP = dO Vᵀ,   dS = P ∘ (dP − rowsum(dP ∘ P)),   dQ = scale dS K,   dK = scale dSᵀ Q.

    (rowsum(dO ∘ O) is the same in fewer steps, but where one weight is nearly 1 its rounding errors do not cancel.)
    """
    library, leading, visible, scale = array_module(query), query.shape[:-2], how.visible, how.scale
    n_q, n_k = query.shape[-2], key.shape[-2]
    blocks = _blocks(visible, n_q, n_k)
    sizes = [(end, queries.stop - queries.start) for queries, end in blocks]
    p = [library.empty((*leading, *size), query.dtype) for size in sizes]
    ceiling = None if visible is None else visible.ceiling(query.dtype)
    nanoseconds = NS_OF_A_SCORE * math.prod(leading) * sum([keys * queries for keys, queries in sizes])
    in_one_piece = len(blocks) == 1 and not is_worth_dividing(nanoseconds)
    entries = max(leading, default=1)  # along one axis, the batch or the heads, the work is divided
    axis = leading.index(entries) if leading else 0

    def pieces(start: int, stop: int) -> list[tuple[_Piece, Any]]:
        """The blocks of these entries, and their weights; the last ones, of which causal masks hide least, first."""
        pairs = zip(reversed(blocks), reversed(p), strict=True)
        return [(_Piece(len(leading), axis, slice(start, stop), *block), its_p) for block, its_p in pairs]

    def forward(start: int, stop: int) -> None:
        for piece, its_p in pieces(start, stop):
            rows = piece.of_queries(query), piece.of_keys(key), piece.of_keys(value)
            masks = piece.of_scores(bias), piece.of_scores(ceiling), piece.of_scores(kept)
            _mix(rows, masks, piece.of_entries(its_p), piece.of_queries(output), scale)

    if in_one_piece:
        _mix((query, key, value), (bias, ceiling, kept), p[0], output, scale)
    else:
        divide(query, entries, nanoseconds / max(1, entries), forward)

    def go_back(g: Any, d_query: Any, d_key: Any, d_value: Any, d_scores: Any) -> None:
        if in_one_piece:
            _mix_back((g, query, key, value), kept, p[0], (d_query, d_key, d_value, d_scores), scale)
            return

        def backward(start: int, stop: int) -> None:
            for place, (piece, its_p) in enumerate(pieces(start, stop)):
                rows = piece.of_queries(g), piece.of_queries(query), piece.of_keys(key), piece.of_keys(value)
                of_rows = piece.of_queries(d_query), piece.of_keys(d_key), piece.of_keys(d_value)
                results = *of_rows, piece.of_scores(d_scores)
                _mix_back(rows, piece.of_scores(kept), piece.of_entries(its_p), results, scale, place > 0)

        for x in (d_key, d_value):
            x[..., blocks[-1][1] :, :] = 0  # of keys that the first piece has not
        divide(query, entries, nanoseconds / max(1, entries), backward)

    return go_back


def _mix(rows: Sequence[Any], masks: Sequence[Any], p: Any, output: Any, scale: float) -> None:
    """Writes the weights, transposed, to p and the values that they mix to output.

    rows: query, key and value. masks: what is added to scores, what none may be above, and what dropout leaves of the
    weights, each or None.
    """
    (query, key, value), (bias, ceiling, kept) = rows, masks
    library = array_module(query)
    scores = library.matmul(key, _turned(query, scale), out=p)  # (..., N_k, N_q)
    if bias is not None:
        scores += _transposed(bias)
    small = are_small(scores)
    if ceiling is not None:
        library.fmin(scores, _transposed(ceiling), out=scores)  # -inf where hidden, over NaN too
    if not small:
        scores -= subtracted(_column_maximum(scores))
    weights = library.exp(scores, out=scores)
    total = sum_of_rows(weights)  # (..., N_q)
    library.maximum(total, LEAST_TOTAL, out=total)  # if nothing is visible: 0 / LEAST_TOTAL
    weights /= total[..., None, :]
    library.matmul(_transposed(_dropped(weights, kept)), value, out=output)


def _mix_back(rows: Sequence[Any], kept: Any, p: Any, results: Sequence[Any], scale: float, adds: bool = False) -> None:
    """Writes the gradients by the formulas of `attend`; `adds` those of key and value to what is there.

    rows: dO, query, key and value. results: for the gradients of query, key, value and, or None, scores.
    """
    (g, query, key, value), (d_query, d_key, d_value, d_scores) = rows, results
    library = array_module(query)
    _product(_dropped(p, kept), g, d_value, adds)
    ds = library.matmul(value, _turned(g, scale if d_scores is None else 1.0))  # (..., N_k, N_q): scale dPᵀ, or dPᵀ
    if kept is not None:
        ds *= _transposed(kept)
    ds -= sum_of_rows(ds * p)[..., None, :]
    ds *= p
    if d_scores is not None:
        d_scores[...] = _transposed(ds)
        ds *= scale
    library.matmul(_transposed(ds), key, out=d_query)
    _product(ds, query, d_key, adds)


def _product(x: Any, y: Any, total: Any, adds: bool) -> None:
    """Writes x y to the array `total`, or adds it."""
    if adds:
        total += x @ y
    else:
        array_module(x).matmul(x, y, out=total)


# ---- pieces ----------------------------------------------------------------------------------------------------------


class _Piece:
    """Takes entries of one leading axis, a block of queries, and the first keys out of arrays that have them.

    Args:
        leading, axis: how many leading axes there are, and of which of them `entries` are taken.
        queries: which of them.
        end: how many keys.
    """

    def __init__(self, leading: int, axis: int, entries: slice, queries: slice, end: int) -> None:
        self._axis = axis - leading - 2 if leading else -math.inf  # from the end: arrays may lack the first ones
        self._entries = (..., entries, *[slice(None)] * (leading + 1 - axis))
        self._queries, self._keys = queries, slice(end)

    def of_entries(self, x: Any) -> Any:
        """(..., n, m), or fewer axes."""
        return x if x.ndim < -self._axis or x.shape[self._axis] == 1 else x[self._entries]

    def of_queries(self, x: Any) -> Any:
        """(..., N_q, d)."""
        return self.of_entries(x)[..., self._queries, :]

    def of_keys(self, x: Any) -> Any:
        """(..., N_k, d)."""
        return self.of_entries(x)[..., self._keys, :]

    def of_scores(self, x: Any) -> Any:
        """What broadcasts to (..., N_q, N_k); None of None."""
        if x is None:
            return None
        queries = slice(None) if x.shape[-2] == 1 else self._queries
        return self.of_entries(x)[..., queries, slice(None) if x.shape[-1] == 1 else self._keys]


def _blocks(visible: Visible | None, n_q: int, n_k: int) -> list[tuple[slice, int]]:
    """Queries, and how many keys there are up to the last one that they see: all, or several blocks if a mask hides."""
    mask = None if visible is None else visible.array
    if type(mask) is not np.ndarray or n_q < 2 * QUERIES or mask.shape[-2:] != (n_q, n_k) or n_k == 0:
        return [(slice(0, n_q), n_k)]
    assert visible is not None
    blocks = [slice(start, min(start + QUERIES, n_q)) for start in range(0, n_q, QUERIES)]
    return [(queries, max(1, int(visible.ends[queries].max()))) for queries in blocks]


# ---- scores ----------------------------------------------------------------------------------------------------------


def _transposed(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _turned(x: Any, factor: float) -> Any:
    """x (..., n, m) times the factor as (..., m, n), in that order in memory.

    OpenBLAS multiplies small matrices by it in half of the time that it takes by a transposed view.
    """
    library, turned = array_module(x), _transposed(x)
    return library.multiply(turned, factor, out=library.empty(turned.shape, x.dtype))


def _dropped(transposed: Any, kept: Any) -> Any:
    return transposed if kept is None else transposed * _transposed(kept)


def are_small(scores: Any) -> bool:
    """Whether all are, hidden ones included; a look at them takes less time than what it saves, but on a GPU."""
    if type(scores) is not np.ndarray:
        return False
    least = np.minimum.reduce(scores, axis=None, initial=0.0)
    return bool(least >= -SMALL_SCORE and np.maximum.reduce(scores, axis=None, initial=0.0) <= SMALL_SCORE)


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
