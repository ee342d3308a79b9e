"""The one launcher of the attention kernels: arrays in, arrays out, on a GPU through CuPy or on a CPU by the emulator.

What the kernels compute is in attention.cuh and the sources beside it, their tile sizes in `kernels.tiles`, the reading
of arguments in `kernels.call`. Arrays of NumPy are run by `kernels.emulator`, arrays of CuPy by `cupy.RawModule`, from
the same text.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels.arrays import check_alike, contiguous
from kernels.call import FLOAT_BIAS, Call, Options, as_float32, empty_like, is_aligned, with_contiguous_rows
from kernels.devices import computes, shared_memory_limit
from kernels.modules import kernel
from kernels.tiles import HEAD_DIMS, ON_TENSOR_CORES, Tiles, choose_tiles
from minigrad.backend import Array, on_device_of

_SOURCES_16 = ("philox.cuh", "attention.cuh", "ptx.cuh", "attention_warps.cuh", "attention_16.cu")
SOURCES = {
    "float32": ("philox.cuh", "attention.cuh", "attention_f32.cu"),
    ON_TENSOR_CORES: ("philox.cuh", "attention.cuh", "ptx.cuh", "attention_warps.cuh", "attention_tf32.cu"),
    "float16": _SOURCES_16,
    "bfloat16": _SOURCES_16,
}

# ---- the two doors ---------------------------------------------------------------------------------------------------


def attention_forward(
    query: Array,
    key: Array,
    value: Array,
    *,
    bias: Array | None = None,
    is_causal: bool = False,
    causal_offset: int = 0,
    key_lengths: Any = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    dropout_key: Sequence[int] | None = None,
    tensor_cores: bool = False,
) -> tuple[Array, Array]:
    """dropout(softmax(Q Kᵀ scale + bias)) V, in memory that grows with N, not N²: Dao 2023, "FlashAttention-2".

    Args:
        query, key, value: (B, H, N_q, d), (B, H_kv, N_k, d) twice, of one dtype and device; d from 1 to 256. H is a
            multiple of H_kv: as many heads of the query, side by side, share each of key and value. Any strides will
            do; only an array whose last axis is not contiguous is copied, and on tensor cores one whose rows do not
            begin at multiples of 16 bytes.
        bias: broadcasts to (B, H, N_q, N_k). Boolean: True = may be attended to. Floating: added to the scores.
        is_causal: query i attends to key j only if j <= i + causal_offset, which may be any integer.
        key_lengths: (B,), integers: only so many of the first keys may be attended to. All masks must allow.
        scale: 1 / √d by default.
        dropout_p: the probability that a weight is dropped; the others are multiplied by 1 / (1 - p).
        dropout_key: (seed, step, call), integers below 2**64, from which the dropped weights follow: pass the same to
            `attention_backward`.
        tensor_cores: for float32: a product is made of three of tensor cores (TF32), as exact but for infinite inputs
            and those within 2⁻¹² of float32's largest number, of which comes NaN. 16 bits are multiplied there in any
            case. Needs compute capability 8.0, as these do.

    Weights of 16 bits are off by up to 2⁻²³ of the largest score, relatively, unless the bias is floating: that is
    below float16's own rounding for scores up to 4,000, bfloat16's up to 30,000; from 10⁸ on they may overflow.

    Returns the output, like the query in shape, dtype and order in memory, and the logarithm of each row's sum of
    exponentials (B, H, N_q), float32. A query to which nothing is visible gets 0 and -inf.
    Raises TypeError for dtypes, ValueError for shapes and numbers that do not fit, DeviceError for arrays apart.
    """
    options = Options(
        bias=bias,
        is_causal=is_causal,
        causal_offset=causal_offset,
        key_lengths=key_lengths,
        scale=scale,
        dropout_p=dropout_p,
        dropout_key=dropout_key,
        tensor_cores=tensor_cores,
    )
    with on_device_of(query):
        call = Call(query, key, value, options)
        output, lse = empty_like(query), call.library.empty(query.shape[:3], np.float32)
        if key.shape[2] == 0:
            output[...], lse[...] = 0, -math.inf
        elif output.size > 0:
            _forward(call, output, lse)
    return output, lse


def attention_backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    lse: Array,
    *,
    bias: Array | None = None,
    is_causal: bool = False,
    causal_offset: int = 0,
    key_lengths: Any = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    dropout_key: Sequence[int] | None = None,
    tensor_cores: bool = False,
    bias_gradient: bool = True,
) -> tuple[Array, Array, Array, Array | None]:
    """The gradients of query, key, value, and of a floating bias, given that of the output (B, H, N_q, d).

    The weights are computed again from `lse`: nothing of size N_q N_k is kept or made. With P the weights,

        dV = Pᵀ dO,  dP = dO Vᵀ,  dS = P ∘ (dP − rowsum(dO ∘ O)),  dQ = scale dS K,  dK = scale dSᵀ Q,  dbias = dS,

    each summed over what its input was broadcast to, in a fixed order: the same call gives the same bits.

    Args:
        output, lse: what `attention_forward` returned; the other arguments are those that it was given.
        bias_gradient: whether the bias's gradient is wanted, which costs another pass.

    Returns (d_query, d_key, d_value, d_bias) in their inputs' shapes and dtypes; d_bias is None unless wanted, and for
    a bias that is boolean or None. Raises as `attention_forward` does.
    """
    options = Options(
        bias=bias,
        is_causal=is_causal,
        causal_offset=causal_offset,
        key_lengths=key_lengths,
        scale=scale,
        dropout_p=dropout_p,
        dropout_key=dropout_key,
        tensor_cores=tensor_cores,
    )
    with on_device_of(query):
        call = Call(query, key, value, options)
        check_alike("attention: grad_output", grad_output, query, query.shape)
        check_alike("attention: output", output, query, query.shape)
        check_alike("attention: lse", lse, query, query.shape[:3], np.float32)
        d_query, d_key, d_value = empty_like(query), empty_like(key), empty_like(value)
        d_bias = None
        if bias is not None and bias_gradient and call.bias_kind == FLOAT_BIAS:
            d_bias = call.library.zeros(bias.shape, np.float32)
        if query.size == 0 or key.size == 0:
            d_query[...], d_key[...], d_value[...] = 0, 0, 0
        else:
            _backward(call, call.readable(grad_output), output, lse, d_query, d_key, d_value, d_bias)
        if bias is not None and d_bias is not None:
            d_bias = d_bias.astype(bias.dtype, copy=False)
    return d_query, d_key, d_value, d_bias


# ---- launches: on the current GPU, which is the query's --------------------------------------------------------------


def _forward(call: Call, output: Array, lse: Array) -> None:
    call.set_strides(o=output)
    kernels = _Kernels(call, backward=False)
    batches, heads, queries, _ = call.scores_shape
    blocks = batches * heads * _ceil(queries, kernels.tiles.own)
    kernels.launch("attention_forward", blocks, *_inputs(call), output, lse, call.bias, call.key_lengths)


def _backward(
    call: Call,
    d_o: Array,
    output: Array,
    lse: Array,
    d_query: Array,
    d_key: Array,
    d_value: Array,
    d_bias: Array | None,
) -> None:
    output, lse = with_contiguous_rows(output), contiguous(lse)
    call.set_strides(o=output, d_o=d_o, d_q=d_query, d_k=d_key, d_v=d_value)
    delta = call.library.empty_like(lse)  # (B, H, N_q)
    share = call.library.empty_like(lse)  # found by attention_dq where P needs it: in float32, and with a float bias
    kernels = _Kernels(call, d_o, backward=True)
    own = kernels.tiles.own
    batches, heads, queries, keys = call.scores_shape
    masks = (call.bias, call.key_lengths)
    rows = (*_inputs(call), d_o, lse, delta, share)
    blocks = _ceil(lse.size, kernels.tiles.threads // 32)  # a warp for a row
    kernels.launch("attention_delta", blocks, output, d_o, delta, has_tiles=False)
    kernels.launch("attention_dq", batches * heads * _ceil(queries, own), *rows, d_query, *masks)
    blocks = batches * call.key_heads * _ceil(keys, own) * kernels.tiles.parts
    kernels.launch("attention_dkdv", blocks, *rows, d_key, d_value, *masks)
    # What is added to all scores of a row does not change its softmax: the gradient of such a bias stays 0.
    if d_bias is not None and d_bias.ndim > 0 and d_bias.shape[-1] == keys:
        _bias_gradient(call, d_o, lse, delta, share, d_bias)


def _bias_gradient(call: Call, d_o: Array, lse: Array, delta: Array, share: Array, d_bias: Array) -> None:
    if call.tensor_cores:  # there is one kernel, for CUDA cores: it is seldom wanted
        on_tensor_cores, call, d_o = call, call.on_cuda_cores(), as_float32(d_o)
        call.set_strides(d_o=d_o)
        if not on_tensor_cores.is_16_bit:  # scores of three products sum to other weights in float32's last digits
            share = _share_of_rows(call, d_o, lse, delta)
    call.set_bias_strides("d_bias", d_bias)
    kernels = _Kernels(call, d_o, backward=True)
    *leading, bias_queries, keys = (1,) * (4 - d_bias.ndim) + d_bias.shape
    blocks = math.prod(leading) * _ceil(bias_queries, kernels.tiles.own) * _ceil(keys, kernels.tiles.stream)
    rows = (*_inputs(call), d_o, lse, delta, share)
    kernels.launch("attention_dbias", blocks, *rows, d_bias, call.bias, call.key_lengths)


def _share_of_rows(call: Call, d_o: Array, lse: Array, delta: Array) -> Array:
    """The sum of each row's weights exp(S - lse), (B, H, N_q), of scores as the kernels of this call sum them."""
    share, d_query = call.library.empty_like(lse), empty_like(call.query)
    call.set_strides(d_q=d_query)
    kernels = _Kernels(call, d_o, backward=True)
    batches, heads, queries, _ = call.scores_shape
    rows = (*_inputs(call), d_o, lse, delta, share)
    blocks = batches * heads * _ceil(queries, kernels.tiles.own)
    kernels.launch("attention_dq", blocks, *rows, d_query, call.bias, call.key_lengths)
    return share


class _Kernels:
    """The kernels of a call, built for its dtype, head dimension and options."""

    def __init__(self, call: Call, *read: Array, backward: bool) -> None:
        """`read`: arrays beside query, key and value that are read 16 bytes at once if all are aligned to that."""
        self._call, kind = call, call.kind
        limit = shared_memory_limit(call.device)
        self.tiles: Tiles = choose_tiles(kind, call.width, backward=backward, plain=call.is_plain, shared_limit=limit)
        options = {"BIAS": call.bias_kind, "DROPOUT": int(call.has_dropout)}
        if call.is_16_bit:
            options["USE_BF16"] = int(kind == "bfloat16")
        elif not call.tensor_cores:
            options["ALIGNED"] = int(all(map(is_aligned, (*_inputs(call), *read))))
        self._options = (*self.tiles.options, *(f"-D{name}={value}" for name, value in options.items()))
        self._sources = SOURCES[kind]

    def launch(self, name: str, blocks: int, *arguments: Array | None, has_tiles: bool = True) -> None:
        if blocks >= 2**31:
            raise ValueError(f"attention: {blocks} blocks of work, a GPU takes fewer than 2**31 in one launch")
        shared = self.tiles.shared if has_tiles else 0
        found = kernel(self._call.library, self._call.device, self._sources, self._options, name, shared)
        found((blocks,), (self.tiles.threads,), (*arguments, self._call.attention), shared_mem=shared)


@functools.cache
def has_kernels(kind: str, width: int, device: str) -> bool:
    """Whether attention of this kind and head dimension can be run on this device, forward and backward.

    kind: the arrays' dtype, or `kernels.tiles.ON_TENSOR_CORES`.
    """
    if kind not in SOURCES or not 1 <= width <= HEAD_DIMS[-1] or not computes(kind, device):
        return False
    limit = shared_memory_limit(device)
    try:
        for backward in (False, True):
            choose_tiles(kind, width, backward=backward, plain=False, shared_limit=limit)
    except ValueError:
        return False
    return True


def _inputs(call: Call) -> tuple[Array, Array, Array]:
    return call.query, call.key, call.value


def _ceil(rows: int, size: int) -> int:
    return -(-rows // size)
