"""The rooms of attention: several ways to compute softmax(Q Kᵀ scale) V, which give the same numbers and gradients.

The door to them is `nn.scaled_dot_product`: it checks shapes and dtypes and reads the masks, so
that every room gets the same six inputs:

    query    (..., N_q, d)      float32 or float64, like key and value; their leading axes are equal
    key      (..., N_k, d)
    value    (..., N_k, E)
    bias     floating, or None: added to the scores; broadcasts to (..., N_q, N_k), with two axes at least
    visible  boolean, or None: True = may be attended to; broadcasts likewise
    kept     (..., N_q, N_k), or None: what dropout multiplies the weights by

A third room, "kernel", works in tiles, so it takes the masks as they were given: `nn.kernel_room`.

What is not visible is left out before the softmax looks at a row, so no result depends on it. A query to which nothing
is visible gets 0, and gives the gradient 0.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kernels import has_kernels
from minigrad import op
from minigrad.backend import array_module
from minigrad.ops import constant, exp, matmul, max, maximum, sum, swapaxes, where

# ---- plain: the definition -------------------------------------------------------------------------------------------


def attention_weights(query: Any, key: Any, bias: Any, visible: Any, *, scale: float) -> Any:
    """softmax(Q Kᵀ scale + bias) over the visible keys (..., N_q, N_k): Vaswani et al. 2017, equation 1."""
    scores = matmul(query, swapaxes(key, -1, -2)) * scale  # (..., N_q, N_k)
    scores = scores if bias is None else scores + bias
    scores = scores if visible is None else where(visible, scores, -math.inf)
    exponentials = exp(scores - _row_maximum(scores))  # 0 where hidden
    total = sum(exponentials, axis=-1, keepdims=True)  # (..., N_q, 1), 0 if nothing is visible
    return exponentials / where(total == 0, 1.0, total)


def plain_attention(query: Any, key: Any, value: Any, bias: Any, visible: Any, kept: Any, *, scale: float) -> Any:
    """The definition, as a composition of operations."""
    weights = attention_weights(query, key, bias, visible, scale=scale)
    return mixture(weights, value, kept)


def mixture(weights: Any, value: Any, kept: Any) -> Any:
    """The values (..., N_k, E) mixed by the weights (..., N_q, N_k) that dropout leaves: (..., N_q, E)."""
    return matmul(weights if kept is None else weights * kept, value)


def _row_maximum(scores: Any) -> Any:
    """(..., N_q, 1), finite even for a row of -inf alone; a constant: softmax does not depend on what is subtracted."""
    lowest = float(np.finfo(scores.dtype).min)
    if scores.shape[-1] == 0:
        return lowest
    return maximum(max(constant(scores), axis=-1, keepdims=True), lowest)


# ---- fused: one operation, in few passes -----------------------------------------------------------------------------


@op(reference=plain_attention, exempt=["visible", "kept"], optional=["bias", "visible", "kept"])
def fused_attention(query: Any, key: Any, value: Any, bias: Any, visible: Any, kept: Any, *, scale: float) -> Any:
    """The same as one operation; keeps one array of N_q N_k numbers, and makes one more going back.

    That array is transposed, (..., N_k, N_q): maximum, sum and subtraction then run along whole rows of memory, which
    is several times faster for short sequences. It holds exponentials e; the weights are P = e / total, but the smaller
    arrays (..., N_q, E) are divided instead. Going back, with dO the gradient of the output,

        dV = Pᵀ dO,   dP = dO Vᵀ,   dS = P ∘ (dP − rowsum(dP ∘ P)),   dQ = scale dS K,   dK = scale dSᵀ Q.

    Results have the inputs' order in memory: heads that were split off without a copy are joined again without one.
    """
    library = array_module(query)
    scaled = query * scale  # (..., N_q, d)
    e = key @ _transposed(scaled)  # (..., N_k, N_q), the scores
    if bias is not None:
        e += _transposed(bias)
    if visible is not None:
        ceiling = library.where(visible, e.dtype.type(math.inf), e.dtype.type(-math.inf))
        library.fmin(e, _transposed(ceiling), out=e)  # -inf where hidden, over NaN too
    e -= library.maximum(_column_maximum(e), np.finfo(e.dtype).min)  # finite for a column of -inf alone
    library.exp(e, out=e)
    total = library.ones(e.shape[-2], e.dtype) @ e  # (..., N_q)
    total += total == 0  # nothing visible: 0 / 1
    share = (1.0 / total)[..., None]
    output = library.empty_like(query, shape=(*query.shape[:-1], value.shape[-1]))  # (..., N_q, E)
    library.matmul(_transposed(_dropped(e, kept)), value, out=output)
    output *= share
    has_bias = bias is not None

    def pullback(g: Any) -> tuple[Any, ...]:
        g = g * share  # (..., N_q, E), the gradient of the product that was then divided
        d_value = library.matmul(_dropped(e, kept), g, out=library.empty_like(value))
        d_e = value @ _transposed(g)  # (..., N_k, N_q), dP / total
        if kept is not None:
            d_e *= _transposed(kept)
        mean = library.einsum("...kq,...kq->...q", d_e, e)
        mean *= share[..., 0]
        d_e -= mean[..., None, :]
        d_scores = library.multiply(d_e, e, out=d_e)
        d_query = library.matmul(_transposed(d_scores), key, out=library.empty_like(scaled))
        d_query *= scale
        d_key = library.matmul(d_scores, scaled, out=library.empty_like(key))
        return d_query, d_key, d_value, _transposed(d_scores) if has_bias else None, None, None

    return output, pullback


def _transposed(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _dropped(transposed: Any, kept: Any) -> Any:
    return transposed if kept is None else transposed * _transposed(kept)


def _column_maximum(x: Any) -> Any:
    """(..., n, m) to (..., 1, m), by halves: a few long passes, where NumPy's reduction goes row by row."""
    library = array_module(x)
    while x.shape[-2] > 1:
        half = (x.shape[-2] + 1) // 2  # the halves of an odd length share a row
        x = library.maximum(x[..., :half, :], x[..., -half:, :])
    return x


# ---- which room ------------------------------------------------------------------------------------------------------

ROOMS: dict[str, Callable[..., Any]] = {"plain": plain_attention, "fused": fused_attention}  # of the six inputs
NAMES = (*ROOMS, "kernel")


class _Pinned(threading.local):
    name: str | None = None
    tensor_cores = False


_pinned = _Pinned()


@contextmanager
def attention_room(name: str, *, tensor_cores: bool = False) -> Iterator[None]:
    """Within this context, in this thread, attention is computed in the room `name`: "plain", "fused" or "kernel".

    Without it, "kernel" is taken on a GPU for floats of 16 and 32 bits, else "fused". On a CPU "kernel" runs the same
    kernels in an emulator, for study: slowly, and it needs g++.

    tensor_cores: in the room "kernel", float32 is multiplied on tensor cores too, as exactly: three products for one.
    16 bits are in any case.

    Raises ValueError for another name, and for tensor cores in another room.
    """
    if name not in NAMES:
        raise ValueError(f"attention_room: there is no room {name!r}; the rooms are {', '.join(NAMES)}")
    if tensor_cores and name != "kernel":
        raise ValueError(f'attention_room: tensor_cores=True is for the room "kernel", got {name!r}')
    former = _pinned.name, _pinned.tensor_cores
    _pinned.name, _pinned.tensor_cores = name, tensor_cores
    try:
        yield
    finally:
        _pinned.name, _pinned.tensor_cores = former


def chosen_room(dtype: np.dtype, width: int, device: str) -> str:
    """The pinned room's name, else the fastest's, for heads of so many features: never a matter of the values."""
    if _pinned.name is not None:
        return _pinned.name
    return "kernel" if device != "cpu" and has_kernels(str(dtype), width, device) else "fused"


def wants_tensor_cores() -> bool:
    """Whether the pinned room is "kernel" with tensor cores for float32."""
    return _pinned.tensor_cores
