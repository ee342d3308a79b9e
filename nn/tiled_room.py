"""The tiled room of attention: array operations in memory that grows with N, not N²; for long sequences on a CPU.

It goes through the scores tile by tile and keeps none of them; docs/tiled-attention.md derives the algorithm. It reads
masks as they come, where the rooms of `nn.rooms` get them combined into N_q N_k places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from kernels.dropout import read_dropout
from minigrad import op, ops
from minigrad.backend import array_module, device_of, to_device
from minigrad.dividing import divide
from nn.common import array_of, as_dtype
from nn.fused_room import NS_OF_A_SCORE
from nn.masks import read_masks, wants_gradient
from nn.plain_room import plain_attention
from nn.rooms import TileOptions

QUERIES, KEYS = 256, 512  # of a tile
Place = tuple[int, ...]  # of a head, on the leading axes

# ---- the operation ---------------------------------------------------------------------------------------------------


def composed_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    key_lengths: Any,
    *,
    options: TileOptions,
    mask_gradient: bool,
) -> Any:
    """The same in the plain room, with the same dropout: from it come gradients of gradients."""
    shape = (*query.shape[:-1], key.shape[-2])  # of the scores
    visible, bias = read_masks(query, shape, mask, options.is_causal, options.causal_offset, key_lengths)
    kept = None
    if options.dropout_key is not None:
        q, k, lengths = array_of(query), array_of(key), array_of(key_lengths)
        kept = _Tiles(q, k, None, lengths, options).dropout_factor()
    return plain_attention(query, key, value, as_dtype(bias, query.dtype), visible, kept, scale=options.scale)


@op(reference=composed_attention, exempt=["mask", "key_lengths"], optional=["mask", "key_lengths"])
def tiled_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    key_lengths: Any,
    *,
    options: TileOptions,
    mask_gradient: bool,
) -> Any:
    """dropout(softmax(Q Kᵀ scale + mask)) V by tiles: Dao 2023, "FlashAttention-2", algorithms 1 and 2.

    query (..., N_q, d), key (..., N_k, d) and value (..., N_k, E) have the same leading axes; mask, of two axes at
    least, broadcasts to the scores S, (..., N_q, N_k). Keeps its inputs, its output and two numbers of each query: the
    greatest score m, and `share`, 1 over the sum of the exponentials e = exp(S − m). (The paper keeps the logarithm of
    the sum, m − log(share), which would be rounded.) The weights are P = share e, but the smaller arrays (..., N_q, E)
    are multiplied by it. Going back, with dO the gradient of the output O, e is made again, and

        dV = Pᵀ dO,   dP = dO Vᵀ,   dS = P ∘ (dP − rowsum(dO ∘ O)),   dQ = scale dS K,   dK = scale dSᵀ Q.

    mask_gradient: whether that of a floating mask, dS summed over what it was broadcast to, is wanted.
    """
    library, dtype, scale = array_module(query), query.dtype, options.scale
    tiles = _Tiles(query, key, mask, key_lengths, options)
    output = library.empty_like(query, shape=(*query.shape[:-1], value.shape[-1]))  # (..., N_q, E)
    lowest = float(np.finfo(dtype).min)  # not -inf: the difference of two is to be a number
    greatest, share = library.full(query.shape[:-1], lowest, dtype), library.empty(query.shape[:-1], dtype)

    def forward(start: int, stop: int) -> None:
        ones, memory = library.ones(KEYS, dtype), tiles.memory()
        for head, rows in tiles.blocks(start, stop):
            q, k, v, m = query[head][rows] * scale, key[head], value[head], greatest[head][rows]
            total, o = library.zeros(len(q), dtype), library.zeros((len(q), v.shape[1]), dtype)
            for tile in tiles.of(head, rows):
                e = tiles.scores(tile, q, k, memory)
                larger = library.maximum(m, e.max(axis=1))
                e -= larger[:, None]
                library.exp(e, out=e)  # 0 where hidden
                shrink = library.exp(m - larger)
                m[...] = larger
                total *= shrink
                total += e @ ones[: e.shape[1]]
                if tiles.drops:
                    e *= tiles.kept(tile)
                o *= shrink[:, None]
                o += e @ v[tile.columns]
            total += total == 0  # nothing visible: 0 / 1
            share[head][rows] = 1 / total
            output[head][rows] = o * (tiles.keep_scale / total)[:, None]

    heads, ns = math.prod(tiles.shape[:-2]), NS_OF_A_SCORE * math.prod(tiles.shape[-2:])
    divide(query, heads, ns, forward)

    def pullback(g: Any) -> tuple[Any, ...]:
        d_query, d_key, d_value = library.empty_like(query), library.zeros_like(key), library.zeros_like(value)
        d_mask = _MaskGradient(tiles, mask) if mask_gradient else None

        def backward(start: int, stop: int) -> None:
            memory, memory_of_d_e = tiles.memory(), tiles.memory()
            for head, rows in tiles.blocks(start, stop):
                q, k, v, m = query[head][rows] * scale, key[head], value[head], greatest[head][rows]
                d_o = g[head][rows] * share[head][rows][:, None]  # dO share
                mean = (d_o * output[head][rows]).sum(axis=1)  # rowsum(dO ∘ O) share
                d_o *= tiles.keep_scale
                d_q, d_k, d_v = library.zeros_like(q), d_key[head], d_value[head]
                for tile in tiles.of(head, rows):
                    e = tiles.scores(tile, q, k, memory)
                    e -= m[:, None]
                    library.exp(e, out=e)
                    d_e = memory_of_d_e[: e.size].reshape(e.shape)
                    kept = tiles.kept(tile) if tiles.drops else None
                    dropped = e if kept is None else library.multiply(e, kept, out=d_e)
                    d_v[tile.columns] += dropped.T @ d_o
                    library.matmul(d_o, v[tile.columns].T, out=d_e)  # dP share
                    if kept is not None:
                        d_e *= kept
                    d_e -= mean[:, None]
                    d_e *= e  # dS
                    d_q += d_e @ k[tile.columns]
                    d_k[tile.columns] += d_e.T @ q
                    if d_mask is not None:
                        d_mask.add(tile, d_e)
                d_q *= scale
                d_query[head][rows] = d_q

        if d_mask is None:
            divide(query, heads, ns, backward)
        else:
            backward(0, heads)  # all of them may add to the same sums
        return d_query, d_key, d_value, None if d_mask is None else d_mask.sums.reshape(mask.shape), None

    return output, pullback


class _MaskGradient:
    """The gradient of a mask: that of the scores, summed tile by tile over what the mask was broadcast to."""

    def __init__(self, tiles: _Tiles, mask: Any) -> None:
        shape = (1,) * (len(tiles.shape) - mask.ndim) + mask.shape
        self.sums = tiles.library.zeros(shape, tiles.dtype)

    def add(self, tile: Tile, d_scores: Any) -> None:
        *leading, n_q, n_k = self.sums.shape
        own = self.sums[tuple(0 if n == 1 else place for place, n in zip(tile.head, leading, strict=True))]
        own = own[tile.rows if n_q > 1 else slice(None), tile.columns if n_k > 1 else slice(None)]
        own += d_scores.sum(axis=tuple(axis for axis in (0, 1) if own.shape[axis] == 1), keepdims=True)


# ---- tiles -----------------------------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """Some queries (rows) and some keys (columns) of one head."""

    head: Place
    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


class _Tiles:
    """The tiles of the scores (..., N_q, N_k): which there are, and what masks and dropout make of each.

    Keys that lengths or the causal mask hide from all queries of a tile are in none.

    Attributes:
        library, dtype: of the arrays.
        shape: of the scores.
        drops, keep_scale: whether dropout drops anything, and what it multiplies the rest by.
    """

    def __init__(self, query: Any, key: Any, mask: Any, key_lengths: Any, options: TileOptions) -> None:
        self.library, self.dtype, self._device = array_module(query), query.dtype, device_of(query)
        self.shape = (*query.shape[:-1], key.shape[-2])
        self._mask = None if mask is None else self.library.broadcast_to(mask, self.shape)  # a view
        self._lengths = None if key_lengths is None else key_lengths.tolist()
        self._causal_offset = options.causal_offset if options.is_causal else None
        dropout = read_dropout(options.dropout_p, options.dropout_key, "dropout_p", "dropout_key")
        self.keep_scale, self._drop_below = dropout.keep_scale, dropout.drop_below
        self.drops, self._dropout_key = options.dropout_key is not None, options.dropout_key

    def blocks(self, start: int, stop: int) -> Iterator[tuple[Place, slice]]:
        """The queries whose tiles are in one row, of each head from the number `start` to below `stop`."""
        for head in itertools.islice(np.ndindex(*self.shape[:-2]), start, stop):
            for rows in _slices(self.shape[-2], QUERIES):
                yield head, rows

    def of(self, head: Place, rows: slice) -> Iterator[Tile]:
        """The tiles of these queries."""
        end = self.shape[-1] if self._lengths is None else self._lengths[head[0]]
        if self._causal_offset is not None:
            end = min(end, rows.stop + self._causal_offset)  # query i sees the keys j <= i + offset
        for columns in _slices(end, KEYS):
            yield Tile(head, rows, columns)

    def memory(self) -> Any:
        """For the numbers of one tile."""
        *_, n_q, n_k = self.shape
        return self.library.empty(min(QUERIES, n_q) * min(KEYS, n_k), self.dtype)

    def scores(self, tile: Tile, q: Any, k: Any, memory: Any) -> Any:
        """Q Kᵀ + mask of a tile in this memory, -inf where hidden; q: the tile's queries, scaled; k: all keys."""
        library, (_, rows, columns) = self.library, tile
        s = memory[: math.prod(tile.shape)].reshape(tile.shape)
        library.matmul(q, k[columns].T, out=s)
        if self._mask is not None:
            mask = self._mask[tile.head][rows, columns]
            if mask.dtype == np.bool_:
                library.copyto(s, -math.inf, where=~mask)
            else:
                s += mask
        if self._causal_offset is not None and columns.stop - 1 > rows.start + self._causal_offset:
            last = library.arange(rows.start, rows.stop) + self._causal_offset  # the last key that each query sees
            library.copyto(s, -math.inf, where=library.arange(columns.start, columns.stop) > last[:, None])
        return s

    def kept(self, tile: Tile) -> Any:
        """Which weights of a tile dropout keeps: booleans, drawn on the CPU, at each call the same.

        The numbers are Philox's (Salmon et al. 2011), of the stream that `minigrad.random` names (seed, step, call);
        the tile's number stands in a word of the counter that the stream leaves 0.
        """
        assert self._dropout_key is not None
        *leading, n_q, n_k = self.shape
        grid = (*leading, -(-n_q // QUERIES), -(-n_k // KEYS))
        place = (*tile.head, tile.rows.start // QUERIES, tile.columns.start // KEYS)
        seed, step, call = self._dropout_key
        counter = np.array([0, np.ravel_multi_index(place, grid), call, step], np.uint64)
        stream = np.random.Philox(key=seed, counter=counter)
        size = math.prod(tile.shape)
        drawn = stream.random_raw(-(-size // 2)).view(np.uint32)[:size]  # two numbers of 32 bits in one of 64
        return to_device((drawn >= self._drop_below).reshape(tile.shape), self._device)

    def dropout_factor(self) -> Any:
        """What dropout multiplies the weights (..., N_q, N_k) by; 0 also for those that are in no tile."""
        factor = self.library.zeros(self.shape, self.dtype)
        for head, rows in self.blocks(0, math.prod(self.shape[:-2])):
            for tile in self.of(head, rows):
                factor[head][rows, tile.columns] = self.kept(tile) * self.keep_scale
        return factor


def _slices(end: int, size: int) -> Iterator[slice]:
    """0 ... end in pieces of this size, of which the last may be smaller."""
    for start in range(0, end, size):
        yield slice(start, min(start + size, end))


# ---- its inputs ------------------------------------------------------------------------------------------------------


def attention_by_tiles(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    key_lengths: Any,
    *,
    options: TileOptions,
) -> Any:
    """`nn.functional.scaled_dot_product_attention` of arguments that it has checked; the leading axes are equal."""
    if attn_mask is not None and attn_mask.ndim < 2:
        attn_mask = ops.reshape(attn_mask, (1, -1))
    return tiled_attention(
        query,
        key,
        value,
        attn_mask,
        key_lengths,
        options=options,
        mask_gradient=wants_gradient(attn_mask),
    )
