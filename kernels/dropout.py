"""Which weights the kernels drop, in NumPy: the whole mask at once, for what is not done by tiles.

The kernels make it again tile by tile, from the same numbers: attention.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def dropout_factor(shape: tuple[int, ...], p: float, key: Sequence[int]) -> np.ndarray:
    """What dropout multiplies weights of shape (B, H, N_q, N_k) by: 0 with probability p, else 1 / (1 - p); float64.

    key: the `dropout_key` of `attention_forward`.
    """
    if p in (0, 1):
        return np.full(shape, 1.0 - p)
    batches, heads, queries, keys = shape
    head, query, key_place = np.ogrid[: batches * heads, :queries, :keys]
    # Four weights, whose places differ in bit 3 of query and key, share the four numbers of one counter.
    numbers = philox4x32((key_place & ~8, query & ~8, head, 0), philox_key(key))
    number = np.choose((query >> 3 & 1) * 2 + (key_place >> 3 & 1), numbers)
    return np.where(number >= round(p * 2**32), 1 / (1 - p), 0.0).reshape(shape)


def philox_key(dropout_key: Sequence[int]) -> tuple[int, int]:
    """The kernels' two key words: of the stream that minigrad.random names (seed, step, call), the first number."""
    seed, step, call = dropout_key
    stream = np.random.Philox(key=seed, counter=np.array([0, 0, call, step], np.uint64))
    word = int(stream.random_raw())
    return word & 0xFFFFFFFF, word >> 32


def philox4x32(counter: Sequence[Any], key: tuple[int, int]) -> list[np.ndarray]:
    """Philox4x32-10 of Salmon et al. 2011: four arrays of 32-bit counters and a pair of keys to four of numbers."""
    c0, c1, c2, c3 = (np.asarray(word).astype(np.uint64) for word in counter)
    k0, k1 = key
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (second >> np.uint64(32)) ^ c1 ^ np.uint64(k0), second & low
        c2, c3 = (first >> np.uint64(32)) ^ c3 ^ np.uint64(k1), first & low
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [word.astype(np.uint32) for word in (c0, c1, c2, c3)]
