"""Masks of attention: the two that models make, and how the doors of attention read those they are given.

One polarity everywhere: True = may be attended to. Masks broadcast to the scores, (B, H, N_q, N_k), by NumPy's rule.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

from minigrad import DeviceError, Tensor, ops
from minigrad.backend import array_module, device_of, numbers_of
from minigrad.dtypes import is_floating
from nn.common import array_of, on_its_device


@on_its_device
def padding_mask(ids: Any, pad_id: int) -> Tensor:
    """Which of the integers `ids` (B, N), an array or a Tensor, are not padding: (B, 1, 1, N).

    Raises ValueError for ids of another number of axes.
    """
    if ids.ndim != 2:
        raise ValueError(f"padding_mask: ids must have the shape (B, N), got {ids.shape}")
    kept = array_of(ids)[:, None, None, :] != pad_id
    return Tensor(kept, device=ids.device if isinstance(ids, Tensor) else None)


def causal_mask(N_q: int, N_k: int, offset: int = 0) -> Tensor:
    """Which keys are not after a query: (N_q, N_k), True where j <= i + offset for query i and key j.

    Aligned at the top left, as in PyTorch. `offset` is the number of keys from before the first query, in a cache.
    """
    return Tensor(_not_after(np, N_q, N_k, offset))


class Visible:
    """Which keys each query may attend to, and forms of it that rooms ask for, each made once.

    Attributes:
        array: booleans that broadcast to the scores (..., N_q, N_k), with two axes at least.
    """

    def __init__(self, array: Any) -> None:
        self.array = array
        self._ceilings: dict[np.dtype, Any] = {}

    def __repr__(self) -> str:
        return f"visible keys of shape {self.array.shape}"

    def ceiling(self, dtype: np.dtype) -> Any:
        """What no score may be above: infinity where visible, else -infinity. Along rows of memory lie the queries."""
        ceiling = self._ceilings.get(dtype)
        if ceiling is None:
            library = array_module(self.array)
            turned = library.ascontiguousarray(self.array.swapaxes(-1, -2))  # (..., N_k, N_q)
            ceiling = library.where(turned, dtype.type(math.inf), -math.inf).swapaxes(-1, -2)
            if library is np:
                ceiling.flags.writeable = False  # all layers share it
            self._ceilings[dtype] = ceiling
        return ceiling

    @functools.cached_property
    def ends(self) -> Any:
        """(N_q,): how many keys there are up to the last one that a query sees, whichever its batch entry and head."""
        seen = self.array.any(axis=tuple(range(self.array.ndim - 2)))  # (N_q, N_k)
        return np.where(seen.any(axis=-1), seen.shape[-1] - seen[:, ::-1].argmax(axis=-1), 0)


def _not_after(library: Any, n_q: int, n_k: int, offset: int) -> Any:
    return library.arange(n_k) <= library.arange(offset, offset + n_q)[:, None]


MOST_KEPT = 1 << 16  # scores; of more, making the causal mask is a small part of the work


def _causal(library: Any, n_q: int, n_k: int, offset: int) -> Visible:
    """The causal mask: of NumPy's arrays the same object again, unless it is large."""
    if library is np and n_q * n_k <= MOST_KEPT and type(offset) is int:
        return _kept_causal(n_q, n_k, offset)
    return Visible(_not_after(library, n_q, n_k, offset))


@functools.lru_cache(maxsize=8)
def _kept_causal(n_q: int, n_k: int, offset: int) -> Visible:
    visible = Visible(_not_after(np, n_q, n_k, offset))
    visible.array.flags.writeable = False
    return visible


def check_masks(
    query: Any, shape: tuple[int, ...], attn_mask: Any, is_causal: bool, causal_offset: int, key_lengths: Any
) -> None:
    """Raises what `nn.functional.scaled_dot_product_attention` says of these arguments; `shape`: of the scores."""
    if attn_mask is not None:
        _check_mask(attn_mask, shape)
        _check_device("attn_mask", attn_mask, query)
    if key_lengths is not None:
        _check_lengths(key_lengths, shape)
        _check_device("key_lengths", key_lengths, query)
    if causal_offset != 0 and not is_causal:
        raise ValueError(f"attention: causal_offset={causal_offset} only has a meaning together with is_causal=True")


def read_masks(
    query: Any, shape: tuple[int, ...], attn_mask: Any, is_causal: bool, causal_offset: int, key_lengths: Any
) -> tuple[Any, Any]:
    """(visible, bias) of masks that were checked: all conditions in one, or None, and what is added to the scores."""
    library = array_module(array_of(query))
    causal = _causal(library, shape[-2], shape[-1], causal_offset) if is_causal else None
    if attn_mask is None and key_lengths is None:  # the usual case
        return causal, None
    conditions = [] if causal is None else [causal.array]
    bias = None
    if attn_mask is not None:
        if attn_mask.ndim < 2:
            attn_mask = ops.reshape(attn_mask, (1, -1))
        if attn_mask.dtype == np.bool_:
            conditions.append(array_of(attn_mask).copy())  # its owner may write over it before gradients are taken
        else:
            bias = attn_mask
    if key_lengths is not None:
        lengths = array_of(key_lengths).reshape(-1, *[1] * (len(shape) - 1))  # (B, 1, 1, 1)
        conditions.append(library.arange(shape[-1]) < lengths)
    if len(conditions) == 1:
        return causal or Visible(conditions[0]), bias
    return Visible(functools.reduce(operator.and_, conditions)) if conditions else None, bias


def wants_gradient(mask: Any) -> bool:
    """Whether it is a Tensor to which gradients go."""
    return isinstance(mask, Tensor) and mask.requires_grad


def _check_mask(mask: Any, shape: tuple[int, ...]) -> None:
    if not hasattr(mask, "dtype"):
        raise TypeError(f"attention: attn_mask must be a Tensor or an array, got {type(mask).__name__}")
    if mask.dtype != np.bool_ and not is_floating(mask.dtype):
        raise TypeError(
            f"attention: attn_mask has the dtype {mask.dtype}, which leaves open what it means: write mask != 0 for a "
            "boolean mask (True = may be attended to), or make it floating to have it added to the scores"
        )
    if mask.ndim == 3 and len(shape) > 3:
        raise ValueError(
            f"attention: attn_mask of shape {mask.shape} may mean two things: write mask[:, None] if it is "
            "(B, N_q, N_k), mask[None] if it is (H, N_q, N_k)"
        )
    if not _broadcasts(mask.shape, shape):
        raise ValueError(
            f"attention: attn_mask of shape {mask.shape} does not broadcast to the scores, whose shape is {shape}; "
            "padding (B, N_k) is written mask[:, None, None, :]"
        )


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(shape) <= len(to) and all(n in (1, m) for n, m in zip(reversed(shape), reversed(to), strict=False))


def _check_lengths(lengths: Any, shape: tuple[int, ...]) -> None:
    if not hasattr(lengths, "dtype") or lengths.dtype.kind not in "iu":
        kind = getattr(lengths, "dtype", type(lengths).__name__)
        raise TypeError(f"attention: key_lengths must be a Tensor or an array of integers, got {kind}")
    if len(shape) < 3 or lengths.shape != shape[:1]:
        batch = f"({shape[0]},)" if len(shape) > 2 else "(B,), for queries with a batch axis"
        raise ValueError(f"attention: key_lengths must have the shape {batch}, got {lengths.shape}")
    data = array_of(lengths)
    if data.size:
        least, most = numbers_of(data.min(), data.max())
        if not 0 <= least <= most <= shape[-1]:
            raise ValueError(f"attention: key_lengths must be from 0 to {shape[-1]} (the keys), got {least} to {most}")


def _check_device(name: str, mask: Any, query: Any) -> None:
    own, others = device_of(array_of(mask)), device_of(array_of(query))
    if own != others:
        raise DeviceError(f"attention: {name} is on {own}, the queries are on {others}; move it with .to({others!r})")
