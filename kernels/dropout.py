"""Dropout of the kernels in NumPy: what they are told of it, and the masks that they make of that.

The kernels make a mask again wherever they need it, from the same numbers: attention.cuh of attention's weights,
elementwise.cu of an array's elements. Here it is made at once, for compositions of operations and for tests.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernels.elements import CHUNK, THREADS

# ---- what the kernels are told ---------------------------------------------------------------------------------------


class Dropout(NamedTuple):
    """Arguments of the kernels, as they are named there."""

    key: tuple[int, int]  # of the random numbers
    drop_below: int  # what has a 32-bit random number below it is dropped: p 2^32
    keep_scale: float  # the rest is multiplied by it: 1 / (1 - p)


def read_dropout(p: float, key: Sequence[int] | None, p_name: str, key_name: str) -> Dropout:
    """What the kernels are told of a probability and of a key (seed, step, call), which may be None if p is 0.

    ValueError, which calls them by these names, for p outside 0 ... 1 and a key that is not three integers below 2^64.
    """
    if not isinstance(p, (int, float, np.number)) or not 0 <= p <= 1:
        raise ValueError(f"{p_name} must be from 0 to 1, got {p!r}")
    if p == 0:
        return Dropout((0, 0), 0, 1.0)
    if not isinstance(key, Sequence) or len(key) != 3 or not all(map(_is_word, key)):
        raise ValueError(
            f"{p_name}={p} needs {key_name}=(seed, step, call), three integers from 0 to 2**64 - 1, got {key!r}"
        )
    words = philox_key([operator.index(number) for number in key])
    return Dropout(words, min(round(p * 2**32), 2**32 - 1), 0.0 if p == 1 else 1 / (1 - p))


def _is_word(number: object) -> bool:
    return isinstance(number, (int, np.integer)) and 0 <= int(number) < 2**64


# ---- masks -----------------------------------------------------------------------------------------------------------


def dropout_factor(shape: tuple[int, ...], p: float, key: Sequence[int]) -> np.ndarray:
    """What dropout of attention multiplies weights (B, H, N_q, N_k) by, given this p and `dropout_key`; float64."""
    words, drop_below, keep_scale = read_dropout(p, key, "p", "key")
    batches, heads, queries, keys = shape
    head, query, key_place = np.ogrid[: batches * heads, :queries, :keys]
    # Four weights, whose places differ in bit 3 of query and key, share the four numbers of one counter.
    numbers = philox4x32((key_place & ~8, query & ~8, head, 0), words)
    number = np.choose((query >> 3 & 1) * 2 + (key_place >> 3 & 1), numbers)
    return np.where(number < drop_below, 0.0, keep_scale).reshape(shape)


def element_factor(shape: tuple[int, ...], p: float, key: Sequence[int]) -> np.ndarray:
    """What `apply_dropout` multiplies the elements of an array of this shape by, given this p and key; float64."""
    words, drop_below, keep_scale = read_dropout(p, key, "p", "key")
    place = np.arange(math.prod(shape))
    counter = place // CHUNK * THREADS + place % THREADS  # four elements of a chunk have its four numbers
    numbers = philox4x32((counter & 0xFFFFFFFF, counter >> 32, 0, 0), words)
    number = np.choose(place % CHUNK // THREADS, numbers)
    return np.where(number < drop_below, 0.0, keep_scale).reshape(shape)


# ---- random numbers --------------------------------------------------------------------------------------------------


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
