"""The rooms of attention: several ways to compute softmax(Q Kᵀ scale) V, which give the same numbers and gradients.

The door to them is `nn.scaled_dot_product`: it checks shapes and dtypes, reads the masks, and asks here which room is
to be taken. "plain" and "fused", in `nn.plain_room` and `nn.fused_room`, get the same six things:

    query    (..., N_q, d)      float32 or float64, like key and value; their leading axes are equal
    key      (..., N_k, d)
    value    (..., N_k, E)
    bias     floating, or None: added to the scores; broadcasts to (..., N_q, N_k), with two axes at least
    visible  a `nn.masks.Visible`, or None: which keys may be attended to
    kept     (..., N_q, N_k), or None: what dropout multiplies the weights by

Two more rooms work in tiles, so they take the masks as they were given, and `TileOptions`: "tiled", in `nn.tiled_room`,
and "kernel", in `nn.kernel_room`.

What is not visible is left out before the softmax looks at a row, so no result depends on it. A query to which nothing
is visible gets 0, and gives the gradient 0.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import numpy as np

from kernels import has_kernels
from minigrad.threads import inherited

NAMES = ("plain", "fused", "tiled", "kernel")
MANY_SCORES = 2**22  # N_q N_k, from which on tiles are worth it: by benchmarks/attention.py


class TileOptions(NamedTuple):
    """What the rooms that work in tiles are told beside arrays, as `kernels.attention_forward` names it.

    Attributes:
        is_causal, causal_offset: query i attends to key j only if j <= i + causal_offset.
        scale: what scores are multiplied by.
        dropout_p, dropout_key: the probability that a weight is dropped, and the key of `minigrad.random` which says
            which ones; None if none is.
    """

    is_causal: bool
    causal_offset: int
    scale: float
    dropout_p: float
    dropout_key: Sequence[int] | None


class _Pinned(threading.local):
    name: str | None = None
    tensor_cores = False


_pinned = _Pinned()


@contextmanager
def attention_room(name: str, *, tensor_cores: bool = False) -> Iterator[None]:
    """Within this context, in this thread, attention is computed in the room `name`.

    The rooms are "plain", "fused", "tiled" and "kernel". Without it, "kernel" is taken on a GPU for floats of 16 and 32
    bits; on a CPU "tiled" for 2²² scores and more of a head (N_q N_k; memory then grows with N instead of N²); else
    "fused". On a CPU "kernel" runs the same kernels in an emulator, for study: slowly, and it needs g++. Rooms may drop
    different weights; each drops the same ones going back.

    tensor_cores: in the room "kernel", float32 is multiplied on tensor cores too, as exactly: three products for one.
    16 bits are in any case.

    Raises ValueError for another name, and for tensor cores in another room.
    """
    if name not in NAMES:
        raise ValueError(f"attention_room: there is no room {name!r}; the rooms are {', '.join(NAMES)}")
    if tensor_cores and name != "kernel":
        raise ValueError(f'attention_room: tensor_cores=True is for the room "kernel", got {name!r}')
    with _pinned_to(name, tensor_cores):
        yield


@inherited
def same_attention_room() -> AbstractContextManager[None]:
    """A block with what this thread has pinned, or not, for another one."""
    return _pinned_to(_pinned.name, _pinned.tensor_cores)


@contextmanager
def _pinned_to(name: str | None, tensor_cores: bool) -> Iterator[None]:
    former = _pinned.name, _pinned.tensor_cores
    _pinned.name, _pinned.tensor_cores = name, tensor_cores
    try:
        yield
    finally:
        _pinned.name, _pinned.tensor_cores = former


def chosen_room(dtype: np.dtype, width: int, device: str, scores: int) -> str:
    """The pinned room's name, else the fastest's: never a matter of the values.

    width: the features of a head; scores: how many it has, N_q N_k.
    """
    if _pinned.name is not None:
        return _pinned.name
    if device == "cpu":
        return "tiled" if scores >= MANY_SCORES else "fused"
    return "kernel" if has_kernels(str(dtype), width, device) else "fused"


def wants_tensor_cores() -> bool:
    """Whether the pinned room is "kernel" with tensor cores for float32."""
    return _pinned.tensor_cores
