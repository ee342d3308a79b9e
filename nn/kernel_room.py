"""The kernel room of attention: CUDA C++ in memory that grows with N, not N²; on a CPU run by an emulator.

It reads masks as they come, where the rooms of `nn.rooms` get them combined into N_q N_k places. The kernels and their
algorithm are in `kernels`; what they take is (B, H, N, d), and here other forms of arrays are brought into that one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernels import attention_backward, attention_forward
from kernels.dropout import dropout_factor
from kernels.tiles import HEAD_DIMS
from minigrad import op, ops
from minigrad.backend import array_module, device_of, to_device
from minigrad.bfloat import takes_bfloat16
from minigrad.dtypes import is_16_bit
from minigrad.ops.elementwise import narrowed
from nn.common import array_of, as_dtype, repeated_heads
from nn.masks import read_masks, wants_gradient
from nn.plain_room import plain_attention
from nn.rooms import TileOptions, wants_tensor_cores

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
    tensor_cores: bool,
) -> Any:
    """The same in the plain room, with the same dropout: from it come gradients of gradients."""
    shape = (*query.shape[:-1], key.shape[-2])  # (B, H, N_q, N_k)
    visible, bias = read_masks(query, shape, mask, options.is_causal, options.causal_offset, key_lengths)
    kept = None
    if options.dropout_key is not None:
        factor = dropout_factor(shape, options.dropout_p, options.dropout_key).astype(np.float32)
        kept = to_device(factor, device_of(array_of(query)))
    heads = query.shape[1]
    inputs = (query, repeated_heads(key, heads), repeated_heads(value, heads), bias)
    q, k, v, bias = [as_dtype(x, np.float32) for x in inputs]
    return narrowed(plain_attention(q, k, v, bias, visible, kept, scale=options.scale), query.dtype)


@takes_bfloat16
@op(reference=composed_attention, exempt=["mask", "key_lengths"], optional=["mask", "key_lengths"])
def kernel_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    key_lengths: Any,
    *,
    options: TileOptions,
    mask_gradient: bool,
    tensor_cores: bool,
) -> Any:
    """dropout(softmax(Q Kᵀ scale + mask)) V; keeps its inputs, its output and one number for each query.

    query (B, H, N_q, d), key and value (B, H_kv, N_k, d), mask as `kernels.attention_forward` takes its bias. The
    gradients' formulas are at `kernels.attention_backward`, which makes the weights again. mask_gradient: whether that
    of a floating mask is wanted. tensor_cores: for float32 too.
    """
    given = {"bias": mask, "key_lengths": key_lengths, "tensor_cores": tensor_cores, **options._asdict()}
    output, lse = attention_forward(query, key, value, **given)

    def pullback(g: Any) -> tuple[Any, ...]:
        gradients = attention_backward(g, query, key, value, output, lse, **given, bias_gradient=mask_gradient)
        return *gradients, None

    return output, pullback


# ---- its inputs ------------------------------------------------------------------------------------------------------


def attention_by_kernels(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    key_lengths: Any,
    *,
    leading: tuple[int, ...],
    dtype: np.dtype,
    options: TileOptions,
    enable_gqa: bool,
) -> Any:
    """`nn.functional.scaled_dot_product_attention` of arguments that it has checked, (*leading, N_q, E) in `dtype`.

    Raises TypeError for another dtype than float32, float16 and bfloat16, ValueError for more than 256 features.
    """
    shape = (*leading, query.shape[-2], value.shape[-1])
    width = max(1, query.shape[-1], value.shape[-1])
    _check_size(dtype, width)
    if enable_gqa and (len(leading) < 2 or key.shape[-3] != value.shape[-3]):
        key, value, enable_gqa = repeated_heads(key, leading[-1]), repeated_heads(value, leading[-1]), False
    if len(leading) < 2:  # no axis of heads
        query, key, value, attn_mask = [_with_axis_of_heads(x) for x in (query, key, value, attn_mask)]
        leading = (*leading, 1)
    batch, heads = leading[:-1], leading[-1]
    key_heads = key.shape[-3] if enable_gqa else heads
    inputs = [
        _with_features(_in_four_axes(as_dtype(x, dtype), batch, its_heads), width)
        for x, its_heads in ((query, heads), (key, key_heads), (value, key_heads))
    ]
    mask = None if attn_mask is None else _mask_in_four_axes(attn_mask, batch)
    if key_lengths is not None:
        lengths = array_of(key_lengths)
        key_lengths = array_module(lengths).repeat(lengths, math.prod(batch[1:]))  # (B,)
    output = kernel_attention(
        *inputs,
        mask,
        key_lengths,
        options=options,
        mask_gradient=wants_gradient(mask),
        tensor_cores=wants_tensor_cores(),
    )
    if value.shape[-1] < width:
        output = output[..., : value.shape[-1]]
    return output if output.shape == shape else ops.reshape(output, shape)


def _check_size(dtype: np.dtype, width: int) -> None:
    if dtype != np.float32 and not is_16_bit(dtype):
        raise TypeError(
            f"attention: the kernel room computes in float32, float16 and bfloat16, got {dtype}; "
            "the rooms plain and fused take it"
        )
    if width > HEAD_DIMS[-1]:
        raise ValueError(
            f"attention: the kernel room takes heads of up to {HEAD_DIMS[-1]} features, got {width}; "
            "the rooms plain and fused take more"
        )


def _with_axis_of_heads(x: Any) -> Any:
    """(..., n, m) to (..., 1, n, m); also a mask of fewer axes, or none."""
    return x if x is None or x.ndim < 2 else ops.expand_dims(x, -3)


def _in_four_axes(x: Any, batch: tuple[int, ...], heads: int) -> Any:
    """x (..., n, m) broadcast to (*batch, heads, n, m), and the batch's axes made one; without a copy if they are."""
    *_, n, m = x.shape
    if x.shape != (*batch, heads, n, m):
        x = ops.broadcast_to(x, (*batch, heads, n, m))
    return x if len(batch) == 1 else ops.reshape(x, (math.prod(batch), heads, n, m))


def _mask_in_four_axes(mask: Any, batch: tuple[int, ...]) -> Any:
    """The same, broadcast over the batch only where it differs within it: it stays as small as it is otherwise."""
    sizes = (1,) * (len(batch) + 3 - mask.ndim) + mask.shape
    *own, heads, _, _ = sizes
    mask = mask if mask.shape == sizes else ops.reshape(mask, sizes)
    return _in_four_axes(mask, (1,) * len(batch) if set(own) <= {1} else batch, heads)


def _with_features(x: Any, width: int) -> Any:
    """x with zeros behind the features of each row, which change no product."""
    missing = width - x.shape[-1]
    return x if missing == 0 else ops.pad(x, pad_width=((0, 0),) * 3 + ((0, missing),))
