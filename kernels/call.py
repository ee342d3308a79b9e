"""The arguments of attention: checked, and put into the struct that the kernels take.

Shapes and letters: query (B, H, N_q, d), key and value (B, H_kv, N_k, d). What runs the kernels is in `kernels.launch`.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.dropout import philox_key
from kernels.tiles import HEAD_DIMS
from minigrad.backend import Array, DeviceError, array_module, device_of, is_array

FLOATING = ("float16", "bfloat16", "float32", "float64")  # bfloat16 is no kind of NumPy's own

# struct Attention of attention.cuh, field by field.
STRIDES = np.dtype([(axis, np.int64) for axis in ("batch", "head", "row")])
BIAS_STRIDES = np.dtype([(axis, np.int64) for axis in ("batch", "head", "query", "key")])
SIZES = ("batches", "heads", "key_heads", "queries", "keys", "width")
ATTENTION = np.dtype(
    [
        *((name, STRIDES) for name in ("q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v")),
        *((name, BIAS_STRIDES) for name in ("bias", "d_bias")),
        *((name, np.int32) for name in (*SIZES, "causal_offset")),
        ("scale", np.float32),
        ("dropout_key", np.uint32, (2,)),
        ("drop_below", np.uint32),
        ("keep_scale", np.float32),
    ],
    align=True,
)
NO_BIAS, BOOLEAN_BIAS, FLOAT_BIAS = range(3)  # as attention.cuh numbers them


@dataclass(frozen=True)
class Options:
    """What `attention_forward` and `attention_backward` take by keyword; described there."""

    bias: Array | None
    is_causal: bool
    causal_offset: int
    key_lengths: Any
    scale: float | None
    dropout_p: float
    dropout_key: Sequence[int] | None
    tensor_cores: bool = False


class Call:
    """Checked arguments, as the kernels take them."""

    def __init__(self, query: Array, key: Array, value: Array, options: Options) -> None:
        _check_inputs(query, key, value)
        self.library, self.device = array_module(query), device_of(query)
        self.is_16_bit = query.dtype.itemsize == 2
        self.tensor_cores = self.is_16_bit or options.tensor_cores
        self.query, self.key, self.value = (self.readable(x) for x in (query, key, value))
        batches, heads, queries, width = query.shape
        key_heads, keys = key.shape[1:3]
        self.scores_shape = (batches, heads, queries, keys)
        self.key_heads, self.width = key_heads, width
        self.bias = _read_bias(options.bias, query, self.scores_shape)
        self.key_lengths = _read_key_lengths(options.key_lengths, query, batches, keys)
        self.has_dropout = options.dropout_p > 0
        self.attention = np.zeros(1, ATTENTION)  # an array of one struct passes by value
        a = self.attention[0]
        for name, size in zip(SIZES, (batches, heads, key_heads, queries, keys, width), strict=True):
            a[name] = size
        a["causal_offset"] = _read_causal(options, queries, keys)
        a["scale"] = 1 / math.sqrt(width) if options.scale is None else options.scale
        if self.is_16_bit and self.bias is None and not a["scale"] > 0:
            self.bias = self.library.ones((1, 1, 1, 1), np.bool_)  # else the scale must not change the order of scores
        a["dropout_key"], a["drop_below"], a["keep_scale"] = _read_dropout(options)
        self.set_strides(q=self.query, k=self.key, v=self.value)
        if self.bias is not None:
            self.set_bias_strides("bias", self.bias)

    @property
    def bias_kind(self) -> int:
        if self.bias is None:
            return NO_BIAS
        return BOOLEAN_BIAS if self.bias.dtype == np.bool_ else FLOAT_BIAS

    @property
    def kind(self) -> str:
        """Whose source and tiles serve it: those of its dtype, or "tf32" for float32 on tensor cores."""
        return "tf32" if self.tensor_cores and not self.is_16_bit else str(self.query.dtype)

    @property
    def is_plain(self) -> bool:
        return self.bias is None and not self.has_dropout

    def readable(self, x: Array) -> Array:
        """x, or a copy whose rows the kernels of this dtype can read."""
        return with_aligned_rows(x) if self.tensor_cores else with_contiguous_rows(x)

    def on_cuda_cores(self) -> Call:
        """The same call of the same numbers as float32, by the plain kernels."""
        other = copy.copy(self)
        other.is_16_bit = other.tensor_cores = False
        inputs = (self.query, self.key, self.value)
        other.query, other.key, other.value = (x.astype(np.float32, copy=False) for x in inputs)
        other.attention = self.attention.copy()
        other.set_strides(q=other.query, k=other.key, v=other.value)
        return other

    def set_strides(self, **arrays: Array) -> None:
        """Tells the kernels where the rows of these arrays (batch, head, row, d) are."""
        for name, array in arrays.items():
            self.attention[name] = tuple(stride // array.itemsize for stride in array.strides[:3])

    def set_bias_strides(self, name: str, bias: Array) -> None:
        """The same for a bias or its gradient, with stride 0 along an axis that it is broadcast to."""
        strides = self.library.broadcast_to(bias, self.scores_shape).strides
        self.attention[name] = tuple(stride // bias.itemsize for stride in strides)


# ---- arrays ----------------------------------------------------------------------------------------------------------


def with_contiguous_rows(x: Array) -> Array:
    """x itself, whatever its strides, if the elements of its last axis lie side by side; else a copy."""
    side_by_side = x.strides[-1] == x.itemsize or x.shape[-1] == 1
    whole = all(stride % x.itemsize == 0 for stride in x.strides)  # not a field of a struct
    return x if side_by_side and whole else array_module(x).ascontiguousarray(x)


def with_aligned_rows(x: Array) -> Array:
    """x itself if all its rows start at multiples of 16 bytes, else a copy of which they do."""
    x = with_contiguous_rows(x)
    if all(number % 16 == 0 for number in (address_of(x), *x.strides[:-1])):
        return x
    *lengths, width = x.shape
    at_once = 16 // x.itemsize
    filled_up = array_module(x).empty((*lengths, -(-width // at_once) * at_once), x.dtype)
    filled_up[..., :width] = x
    return filled_up[..., :width]


def is_aligned(x: Array) -> bool:
    """Whether every row starts at a multiple of 16 bytes and ends at one, so that 16 bytes can be read at once."""
    steps = [stride for stride, size in zip(x.strides[:-1], x.shape[:-1], strict=True) if size > 1]
    return all(number % 16 == 0 for number in (address_of(x), x.shape[-1] * x.itemsize, *steps))


def address_of(x: Array) -> int:
    """Where an array's first element lies, in the memory of its device."""
    return x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr


def empty_like(x: Array) -> Array:
    """An array of x's shape and dtype, in its order in memory: heads that were split off are joined without a copy."""
    result = array_module(x).empty_like(x)
    return with_contiguous_rows(result)  # an axis of stride 0 may have become the innermost


def check_like_query(name: str, x: Array, query: Array) -> None:
    """ValueError, TypeError or DeviceError unless x has the query's shape, dtype and device."""
    if not is_array(x) or x.shape != query.shape:
        found = x.shape if is_array(x) else repr(x)
        raise ValueError(f"attention: {name} must be an array of the query's shape {query.shape}, got {found}")
    if x.dtype != query.dtype:
        raise TypeError(f"attention: {name} must be {query.dtype} as the query is, got {x.dtype}")
    _check_device(name, x, query)


def _check_device(name: str, x: Array, query: Array) -> None:
    if device_of(x) != device_of(query):
        raise DeviceError(f"attention: the query is on {device_of(query)} and {name} on {device_of(x)}")


def _check_inputs(query: Array, key: Array, value: Array) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not is_array(x):
            raise TypeError(f"attention: {name} must be an array of NumPy or CuPy, got {type(x).__name__}")
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"attention: query, key and value must have one dtype, got {query.dtype}, {key.dtype} and {value.dtype}"
        )
    _check_device("the key", key, query)
    _check_device("the value", value, query)
    shapes = f"query {query.shape}, key {key.shape} and value {value.shape}"
    if not (
        query.ndim == key.ndim == 4
        and key.shape == value.shape
        and (query.shape[0], query.shape[3]) == (key.shape[0], key.shape[3])
    ):
        raise ValueError(f"attention: {shapes} do not fit; they are (B, H, N_q, d), (B, H_kv, N_k, d) and the same")
    if not 1 <= query.shape[3] <= HEAD_DIMS[-1]:
        raise ValueError(f"attention kernels: the head dimension must be 1 to {HEAD_DIMS[-1]}, got {query.shape[3]}")
    if query.shape[1] != 0 and (key.shape[1] == 0 or query.shape[1] % key.shape[1] != 0):
        raise ValueError(f"attention: the query's heads must be a multiple of the key's, got {shapes}")
    if query.shape[2] + key.shape[2] >= 2**31 - 2**10 or math.prod(query.shape[:2]) >= 2**31:
        raise ValueError(f"attention: {shapes} are longer than the kernels' 32-bit row numbers")


# ---- options ---------------------------------------------------------------------------------------------------------


def _read_bias(bias: Array | None, query: Array, shape: tuple[int, ...]) -> Array | None:
    """The bias as the kernels read it: boolean or float32."""
    if bias is None:
        return None
    if not is_array(bias) or not (bias.dtype == np.bool_ or bias.dtype.name in FLOATING):
        found = bias.dtype if is_array(bias) else type(bias).__name__
        raise TypeError(f"attention: bias must be a boolean (True = may be attended to) or floating array, got {found}")
    _check_device("the bias", bias, query)
    sizes = (1,) * (4 - bias.ndim) + bias.shape
    if len(sizes) != 4 or any(size not in (1, full) for size, full in zip(sizes, shape, strict=True)):
        raise ValueError(f"attention: bias {bias.shape} does not broadcast to the scores (B, H, N_q, N_k) = {shape}")
    return bias if bias.dtype == np.bool_ else bias.astype(np.float32, copy=False)


def _read_key_lengths(key_lengths: Any, query: Array, batches: int, keys: int) -> Array | None:
    if key_lengths is None:
        return None
    library = array_module(query)
    if is_array(key_lengths):
        _check_device("key_lengths", key_lengths, query)
    lengths = library.asarray(key_lengths)
    if lengths.dtype.kind not in "iu":
        raise TypeError(f"attention: key_lengths must be integers, got {lengths.dtype}")
    if lengths.shape != (batches,):
        raise ValueError(f"attention: key_lengths must be of shape (B,) = ({batches},), got {lengths.shape}")
    return library.ascontiguousarray(library.clip(lengths, 0, keys).astype(np.int32))


def _read_causal(options: Options, queries: int, keys: int) -> int:
    """An offset that 32 bits hold, with the meaning of the one given; N_k lets every query see all keys."""
    offset = operator.index(options.causal_offset)
    return max(-queries, min(offset, keys)) if options.is_causal else keys


def _read_dropout(options: Options) -> tuple[tuple[int, int], int, float]:
    """(dropout_key, drop_below, keep_scale) of the struct."""
    p = options.dropout_p
    if not 0 <= p <= 1:
        raise ValueError(f"attention: dropout_p must be from 0 to 1, got {p}")
    if p == 0:
        return (0, 0), 0, 1.0
    numbers = options.dropout_key
    if numbers is None or len(numbers) != 3 or not all(0 <= n < 2**64 for n in numbers):
        raise ValueError(
            f"attention: dropout_p={p} needs dropout_key=(seed, step, call), three integers from 0 to 2**64 - 1, "
            f"got {numbers!r}"
        )
    words = philox_key([operator.index(n) for n in numbers])
    return words, min(round(p * 2**32), 2**32 - 1), 0.0 if p == 1 else 1 / (1 - p)
