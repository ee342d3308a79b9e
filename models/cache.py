"""A Transformer's decoder for one symbol of each target after another: it reads each once, and keeps what it needs.

What is kept, and the step that reads the next symbol, which computes on arrays: see `nn.cached_layers`. It gives what
`Transformer.decode` gives in evaluation mode. Which symbol comes next is chosen in `models.decode`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad import Tensor, cat, zeros
from minigrad.backend import to_device
from minigrad.ops.elementwise import narrowed, widened
from models.stack import Decoder, DecoderLayer
from nn.attention import MultiHeadAttention
from nn.cached_attention import CachedAttention, CachedSelfAttention
from nn.cached_layers import OnArrays, on_arrays
from nn.dropout import Dropout
from nn.embedding import LearnedPositionalEncoding, PositionalEncoding
from nn.feed_forward import ACTIVATIONS
from nn.module import is_plain

if TYPE_CHECKING:
    from models.transformer import Transformer


class LayerCache:
    """A layer of the decoder, at one place of the target after another.

    Args:
        memory: what it attends to, (B, N_s, D).
        memory_mask: which of it may be attended to, (B, 1, 1, N_s).
        max_length: how many places there will be.
    """

    def __init__(self, layer: DecoderLayer, memory: Tensor, memory_mask: Tensor, max_length: int) -> None:
        self._norm_first = layer.norm_first
        self._norms = [on_arrays(norm) for norm in (layer.norm1, layer.norm2, layer.norm3)]
        self._self_attn = CachedSelfAttention(layer.self_attn, max_length)
        self._multihead_attn = CachedAttention(layer.multihead_attn, memory, memory_mask)
        self._linear1, self._linear2 = on_arrays(layer.linear1), on_arrays(layer.linear2)
        self._activation = ACTIVATIONS[layer.activation]

    def __call__(self, x: Any, visible: Any) -> Any:
        """The vectors of the next place, (B, D), to the same shape.

        visible: for self-attention, (B, 1, N) with N the places up to this one; None for all of them.
        """

        def attend(x: Any) -> Any:
            return self._self_attn(x, visible)

        sublayers: tuple[OnArrays, ...] = (attend, self._multihead_attn, self._feed_forward)
        for sublayer, norm in zip(sublayers, self._norms, strict=True):
            x = x + sublayer(norm(x)) if self._norm_first else norm(x + sublayer(x))
        return x

    def _feed_forward(self, x: Any) -> Any:
        hidden = self._activation(widened(self._linear1(x)))  # (B, d_ff)
        return self._linear2(narrowed(hidden, x.dtype))

    def take(self, rows: Any) -> None:
        """Goes on with these rows of the batch: (B',) integers, or (B,) booleans."""
        self._self_attn.take(rows)
        self._multihead_attn.take(rows)


class Cache:
    """What `Transformer.decode_next` remembers of the sources, and of the beginnings of their targets.

    Args:
        model: whose decoder, and what stands around it, this is.
        memory: what the encoder made of the sources, (B, N_s, D).
        memory_mask: which of it may be attended to, (B, 1, 1, N_s).
        max_length: how many symbols a target has at most. ValueError for more than the model's positions.

    Attributes:
        length: how many symbols of each target were read.
    """

    def __init__(self, model: Transformer, memory: Tensor, memory_mask: Tensor, max_length: int) -> None:
        self.length = 0
        self._pad_id, self._device, self._scale = model.pad_id, memory.device, math.sqrt(model.d_model)
        self._embedding = on_arrays(model.target_embedding)
        places = zeros(max_length, model.d_model, dtype=memory.dtype, device=memory.device)
        self._places = widened(model.target_positions(places).data)
        self._layers = [LayerCache(layer, memory, memory_mask, max_length) for layer in model.decoder.layers]
        last = [model.generator] if model.decoder.norm is None else [model.decoder.norm, model.generator]
        self._last = [on_arrays(layer) for layer in last]
        self._kept = np.ones((len(memory), max_length), bool)  # False where a target has padding

    @property
    def batch(self) -> int:
        """How many sources, and targets, there are."""
        return len(self._kept)

    def next(self, ids: np.ndarray) -> Any:
        """The next symbol of each target, (B,), to the logits (B, V) of the symbol after it, an array.

        Errors as for `Transformer.decode_next`.
        """
        visible = self._visible(ids)
        rows = self._embedding(to_device(ids, self._device))  # (B, D)
        x = narrowed(widened(rows) * self._scale + self._places[self.length], rows.dtype)
        self.length += 1
        for layer in self._layers:
            x = layer(x, visible)
        for function in self._last:
            x = function(x)
        return x

    def _visible(self, ids: np.ndarray) -> Any:
        """Which symbols up to these may be attended to, an array (B, 1, N) where the model is; None for all."""
        batch, room = self._kept.shape
        _check_next(ids, batch, self.length, room)
        self._kept[:, self.length] = ids != self._pad_id
        return None if self._kept.all() else to_device(self._kept[:, None, : self.length + 1], self._device)

    def take(self, rows: np.ndarray) -> None:
        """Goes on with these targets and their sources: (B',) integers, or (B,) booleans."""
        for layer in self._layers:
            layer.take(rows)
        self._kept = self._kept[rows]


class WholeCache:
    """The same for a model with parts of other kinds: the beginnings of its targets, decoded as a whole each time.

    Args:
        model: in evaluation mode.
        memory: what its encoder made of the sources, (B, N_s, D).
        source_ids: (B, N_s).
    """

    def __init__(self, model: Transformer, memory: Tensor, source_ids: Tensor, max_length: int) -> None:
        self._model, self._memory, self._source_ids, self._room = model, memory, source_ids, max_length
        self._ids = Tensor._of(source_ids.data[:, :0])

    @property
    def batch(self) -> int:
        """How many sources, and targets, there are."""
        return len(self._source_ids)

    @property
    def length(self) -> int:
        """How many symbols of each target were read."""
        return self._ids.shape[1]

    def next(self, ids: np.ndarray) -> Any:
        """As `Cache.next`."""
        _check_next(ids, self.batch, self.length, self._room)
        newest = Tensor(ids[:, None], device=self._ids.device)
        self._ids = cat([self._ids, newest], 1)
        return self._model.decode(self._ids, self._memory, self._source_ids)[:, -1].data

    def take(self, rows: np.ndarray) -> None:
        """As `Cache.take`."""
        self._ids, self._memory, self._source_ids = self._ids[rows], self._memory[rows], self._source_ids[rows]


def is_for(model: Transformer) -> bool:
    """Whether `Cache` knows what the decoder does: by the kinds of those parts that it does not call, but reads."""
    layers = list(model.decoder.layers) if is_plain(model.decoder, Decoder) else []
    if not all(is_plain(layer, DecoderLayer) for layer in layers):
        return False
    attentions = [attention for layer in layers for attention in (layer.self_attn, layer.multihead_attn)]
    known: list[tuple[list[Any], tuple[type, ...]]] = [
        ([model.decoder], (Decoder,)),
        (attentions, (MultiHeadAttention,)),
        ([model.dropout, *[layer.dropout for layer in layers]], (Dropout,)),
        ([model.target_positions], (PositionalEncoding, LearnedPositionalEncoding)),
    ]
    return all(any(is_plain(part, kind) for kind in kinds) for parts, kinds in known for part in parts)


def _check_next(ids: np.ndarray, batch: int, length: int, room: int) -> None:
    if ids.shape != (batch,) or length == room:
        raise ValueError(
            f"Transformer.decode_next: ids of shape {ids.shape} were given after {length} symbols of each target; the "
            f"cache is for ids of shape ({batch},), and for {room} symbols"
        )
