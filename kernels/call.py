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

from kernels.arrays import address_of, copied, described, is_plain
from kernels.devices import check_computes
from kernels.dropout import read_dropout
from kernels.tiles import HEAD_DIMS, ON_TENSOR_CORES
from minigrad.backend import Array, DeviceError, array_module, device_of, is_array

DTYPES = ("float32", "float16", "bfloat16")
FLOATING = (*DTYPES, "float64")  # of a bias; bfloat16 is no kind of NumPy's own

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


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `attention_forward` and `attention_backward` take by keyword; described there."""

    bias: Array | None = None
    is_causal: bool = False
    causal_offset: int = 0
    key_lengths: Any = None
    scale: float | None = None
    dropout_p: float = 0.0
    dropout_key: Sequence[int] | None = None
    tensor_cores: bool = False


class Call:
    """Checked arguments, as the kernels take them."""

    def __init__(self, query: Array, key: Array, value: Array, options: Options) -> None:
        _check_inputs(query, key, value)
        self.library, self.device = array_module(query), device_of(query)
        self.is_16_bit = query.dtype.itemsize == 2
        self.tensor_cores = self.is_16_bit or options.tensor_cores
        self.kind = str(query.dtype) if self.is_16_bit or not self.tensor_cores else ON_TENSOR_CORES
        check_computes("attention", self.kind, self.device)
        self.query, self.key, self.value = (self.readable(x) for x in (query, key, value))
        batches, heads, queries, width = query.shape
        key_heads, keys = key.shape[1:3]
        self.scores_shape = (batches, heads, queries, keys)
        self.key_heads, self.width = key_heads, width
        self.bias = _read_bias(options.bias, query, self.scores_shape)
        self.key_lengths = _read_key_lengths(options.key_lengths, query, batches, keys)
        self.attention = np.zeros(1, ATTENTION)  # an array of one struct passes by value
        a = self.attention[0]
        for name, size in zip(SIZES, (batches, heads, key_heads, queries, keys, width), strict=True):
            a[name] = size
        a["causal_offset"] = _read_causal(options, queries, keys)
        a["scale"] = _read_scale(options, width)
        if self.is_16_bit and self.bias is None and not a["scale"] > 0:
            self.bias = self.library.ones((1, 1, 1, 1), np.bool_)  # else the scale must not change the order of scores
        dropout = read_dropout(options.dropout_p, options.dropout_key, "attention: dropout_p", "dropout_key")
        a["dropout_key"], a["drop_below"], a["keep_scale"] = dropout
        self.has_dropout = options.dropout_p > 0
        self.set_strides(q=self.query, k=self.key, v=self.value)
        if self.bias is not None:
            self.set_bias_strides("bias", self.bias)

    @property
    def bias_kind(self) -> int:
        if self.bias is None:
            return NO_BIAS
        return BOOLEAN_BIAS if self.bias.dtype == np.bool_ else FLOAT_BIAS

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
        other.kind = "float32"
        inputs = (self.query, self.key, self.value)
        other.query, other.key, other.value = map(as_float32, inputs)
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
    return x if side_by_side and _is_whole(x) else copied(x)


def as_float32(x: Array) -> Array:
    """x, or a copy, as the kernels for CUDA cores read it. (What was broadcast has another order in memory as one.)"""
    return with_contiguous_rows(x.astype(np.float32, copy=False))


def _is_whole(x: Array) -> bool:
    """Whether all elements lie at multiples of their size, which a field of a struct, or a view of bytes, may not."""
    return all(number % x.itemsize == 0 for number in (address_of(x), *x.strides))


def with_aligned_rows(x: Array) -> Array:
    """x itself if all its rows start at multiples of 16 bytes, else a copy of which they do."""
    x = with_contiguous_rows(x)
    if _starts_aligned(x):
        return x
    *lengths, width = x.shape
    at_once = 16 // x.itemsize
    filled_up = array_module(x).empty((*lengths, -(-width // at_once) * at_once), x.dtype)
    filled_up[..., :width] = x
    return filled_up[..., :width]


def is_aligned(x: Array) -> bool:
    """Whether every row starts at a multiple of 16 bytes and ends at one, so that 16 bytes can be read at once."""
    return x.shape[-1] * x.itemsize % 16 == 0 and _starts_aligned(x)


def _starts_aligned(x: Array) -> bool:
    """Whether each row starts at a multiple of 16 bytes; so would rows past the last one, whose places are computed."""
    *leading, row_step = zip(x.strides[:-1], x.shape[:-1], strict=True)
    steps = [stride for stride, size in leading if size > 1]
    return all(number % 16 == 0 for number in (address_of(x), row_step[0], *steps))


def empty_like(x: Array) -> Array:
    """An array of x's shape and dtype, in its order in memory: heads that were split off are joined without a copy."""
    result = array_module(x).empty_like(x)
    return with_contiguous_rows(result)  # an axis of stride 0 may have become the innermost


def _check_device(name: str, x: Array, query: Array) -> None:
    if device_of(x) != device_of(query):
        raise DeviceError(f"attention: the query is on {device_of(query)} and {name} on {device_of(x)}")


def _check_inputs(query: Array, key: Array, value: Array) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not is_plain(x):
            raise TypeError(f"attention: {name} must be an array of NumPy or CuPy, got {described(x)}")
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"attention: query, key and value must have one dtype, got {query.dtype}, {key.dtype} and {value.dtype}"
        )
    if str(query.dtype) not in DTYPES:
        raise TypeError(f"attention kernels compute in {', '.join(DTYPES)}, got {query.dtype}")
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
    if not is_plain(bias) or not (bias.dtype == np.bool_ or bias.dtype.name in FLOATING):
        found = bias.dtype if is_plain(bias) else described(bias)
        raise TypeError(f"attention: bias must be a boolean (True = may be attended to) or floating array, got {found}")
    _check_device("the bias", bias, query)
    sizes = (1,) * (4 - bias.ndim) + bias.shape
    if len(sizes) != 4 or any(size not in (1, full) for size, full in zip(sizes, shape, strict=True)):
        raise ValueError(f"attention: bias {bias.shape} does not broadcast to the scores (B, H, N_q, N_k) = {shape}")
    if bias.dtype != np.bool_:
        bias = bias.astype(np.float32, copy=False)
    return bias if _is_whole(bias) else copied(bias)


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


def _read_scale(options: Options, width: int) -> float:
    if options.scale is None:
        return 1 / math.sqrt(width)
    largest = float(np.finfo(np.float32).max)
    if not isinstance(options.scale, (float, int, np.number)) or not abs(options.scale) <= largest:
        raise ValueError(f"attention: scale must be a number that float32 holds, got {options.scale!r}")
    return float(options.scale)


def _read_causal(options: Options, queries: int, keys: int) -> int:
    """An offset that 32 bits hold, with the meaning of the one given; N_k lets every query see all keys."""
    try:
        offset = operator.index(options.causal_offset)
    except TypeError:
        raise TypeError(f"attention: causal_offset must be an integer, got {options.causal_offset!r}") from None
    return max(-queries, min(offset, keys)) if options.is_causal else keys
