"""The Transformer of Vaswani et al. 2017, from token ids to logits.

Here is what stands around the stacks of `models.stack`: embeddings, positions, masks made of the ids, and the
projection to the vocabulary. The decoder for one symbol of a target after another is in `models.cache`; decoding, where
the model's own symbols are fed back to it, in `models.decode`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

import nn
from minigrad import Tensor, cat, get_num_threads, no_grad
from minigrad.backend import on_device_of
from minigrad.dividing import undivided
from minigrad.threads import as_in_this_thread, run_at_once
from minigrad.watchers import is_watched
from models.cache import Cache, WholeCache, is_for
from models.stack import EncoderDecoder, Weights, keep_weights
from nn.masks import padding_mask

LEAST_IN_PARTS = 64_000_000  # multiplications, some 3 ms of a core; for less two threads take longer than one
POSITIONS = {"sinusoidal": nn.PositionalEncoding, "learned": nn.LearnedPositionalEncoding}


class Transformer(nn.Module):
    """Encoder and decoder: reads source ids and, at each place of the target, gives the logits of the next symbol.

    Args:
        source_vocab_size, target_vocab_size: how many ids V there are on each side.
        d_model, num_heads, num_encoder_layers, num_decoder_layers, d_ff, activation, norm_first, final_norm: as for
            EncoderDecoder.
        dropout: probability, as for EncoderDecoder, and for embeddings + positions (section 5.4).
        max_length: the longest source and target; a longer one is a ValueError that names both lengths.
        pad_id: the id that fills up short rows, on both sides; nothing attends to it.
        tie_embeddings: one matrix for the target's embedding and the output projection (Press & Wolf 2017, "Using the
            output embedding to improve language models"), and for the source's embedding too if both vocabularies have
            the same size (section 3.4): then an id should mean the same on both sides. The padding's row, which
            otherwise stays zero, is then trained as the output projection's; harmless, as nothing attends to padding.
        positions: "sinusoidal" (section 3.5) or "learned", a table for each side.

    Embeddings start as N(0, 1/D) and are read times √D (section 3.4). The output projection starts as any Linear, so
    small that the first loss is near ln V; a tied one gives more, since the row of the symbol just read fits best. The
    stacks are `encoder` and `decoder`, so a state_dict of torch.nn.Transformer loads with `strict=False`: what it lacks
    are the embeddings and the output projection. Raises ValueError for sizes that do not fit and for an unknown name.
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        d_model: int = 64,
        num_heads: int = 4,
        num_encoder_layers: int = 2,
        num_decoder_layers: int = 2,
        d_ff: int = 256,
        dropout: float = 0.1,
        activation: str = "relu",
        norm_first: bool = False,
        final_norm: bool | None = None,
        max_length: int = 512,
        pad_id: int = 0,
        tie_embeddings: bool = False,
        positions: str = "sinusoidal",
    ) -> None:
        super().__init__()
        if positions not in POSITIONS:
            raise ValueError(f"Transformer: positions must be one of {', '.join(POSITIONS)}, got {positions!r}")
        self.d_model, self.max_length, self.pad_id = d_model, max_length, pad_id
        self.source_embedding = nn.Embedding(source_vocab_size, d_model, padding_idx=pad_id)
        self.target_embedding = nn.Embedding(target_vocab_size, d_model, padding_idx=pad_id)
        self.source_positions = POSITIONS[positions](d_model, max_length)
        self.target_positions = POSITIONS[positions](d_model, max_length)
        self.dropout = nn.Dropout(dropout)
        stack = EncoderDecoder(
            d_model,
            num_heads,
            num_encoder_layers,
            num_decoder_layers,
            d_ff,
            dropout,
            activation,
            norm_first,
            final_norm,
        )
        self.encoder, self.decoder = stack.encoder, stack.decoder
        self.generator = nn.Linear(d_model, target_vocab_size)
        if tie_embeddings:
            self.generator.weight = self.target_embedding.weight
            if source_vocab_size == target_vocab_size:
                self.source_embedding.weight = self.target_embedding.weight
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight, std=d_model**-0.5)

    def forward(self, source_ids: Any, target_ids: Any, need_weights: bool = False) -> Any:
        """Source (B, N_s) and target ids (B, N_t) to logits (B, N_t, V).

        The logits at place i are of the symbol after target_ids[:, i], and depend on target_ids[:, : i + 1] only. To
        train, give the target with BOS and without its last symbol, and compare with the target without BOS.

        Args:
            source_ids, target_ids: integers, as a Tensor on the model's device, an array or nested lists.
            need_weights: return (logits, weights): a dict from module path ("encoder.layers.0.self_attn",
                "decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn" ...) to attention (B, H, N_q, N_k).

        Raises ValueError for ids that are not two-dimensional, too long or of different batch sizes, TypeError if they
        are no integers, IndexError if one is not in the vocabulary.
        """
        source_ids = self._ids("source_ids", source_ids)
        if not need_weights:
            return self.decode(target_ids, self.encode(source_ids), source_ids)
        memory, weights = self.encode(source_ids, need_weights)
        logits, decoder_weights = self.decode(target_ids, memory, source_ids, need_weights)
        return logits, {**weights, **decoder_weights}

    def encode(self, source_ids: Any, need_weights: bool = False) -> Any:
        """Source ids (B, N_s) to the memory that the decoder reads, (B, N_s, D).

        Weights and errors as for `forward`.
        """
        source_ids = self._ids("source_ids", source_ids)
        weights: Weights = {}
        x = self._vectors(source_ids, self.source_embedding, self.source_positions)  # (B, N_s, D)
        memory = keep_weights(
            self.encoder(x, padding_mask(source_ids, self.pad_id), need_weights=need_weights), weights, "encoder"
        )
        return (memory, weights) if need_weights else memory

    def decode(self, target_ids: Any, memory: Any, source_ids: Any, need_weights: bool = False) -> Any:
        """Target ids (B, N_t), the memory (B, N_s, D) and the ids (B, N_s) that it was made of to logits (B, N_t, V).

        Weights and errors as for `forward`.
        """
        target_ids, source_ids = self._ids("target_ids", target_ids), self._ids("source_ids", source_ids)
        if target_ids.shape[0] != source_ids.shape[0] or memory.shape[:2] != source_ids.shape:
            raise ValueError(
                f"Transformer: target_ids {target_ids.shape}, source_ids {source_ids.shape} and memory {memory.shape} "
                "do not fit; they must be (B, N_t), (B, N_s) and (B, N_s, D)"
            )
        weights: Weights = {}
        x = self._vectors(target_ids, self.target_embedding, self.target_positions)  # (B, N_t, D)
        result = self.decoder(
            x,
            memory,
            padding_mask(target_ids, self.pad_id),
            padding_mask(source_ids, self.pad_id),
            is_causal=True,
            need_weights=need_weights,
        )
        logits = self.generator(keep_weights(result, weights, "decoder"))  # (B, N_t, V)
        return (logits, weights) if need_weights else logits

    def cache(self, source_ids: Any, max_length: int) -> Cache | WholeCache:
        """What `decode_next` starts from: sources (B, N_s), encoded, and room for targets of `max_length` symbols.

        Errors as for `forward`.
        """
        with no_grad():
            source_ids = self._ids("source_ids", source_ids)
            memory, mask = self._encoded(source_ids), padding_mask(source_ids, self.pad_id)
            with on_device_of(memory.data):
                own = type(self).decode is Transformer.decode and type(self)._vectors is Transformer._vectors
                if own and is_for(self):
                    return Cache(self, memory, mask, max_length)
                return WholeCache(self, memory, source_ids, max_length)

    def _encoded(self, source_ids: Tensor) -> Tensor:
        """What `encode` gives, where nothing is recorded; large batches in parts, each in a thread from end to end.

        Threads then wait for one another once, where divided operations have them wait at each.
        """
        numbers = source_ids.numel() * 12 * self.d_model**2 * len(self.encoder.layers)  # multiplications, roughly
        worth_it = numbers >= LEAST_IN_PARTS and source_ids.device == "cpu" and not self.training and not is_watched()
        if not worth_it or get_num_threads() == 1 or len(source_ids) == 1:
            return self.encode(source_ids)

        def encoded(rows: np.ndarray) -> Tensor:
            with undivided():
                return self.encode(Tensor._of(rows))

        parts = np.array_split(source_ids.data, min(get_num_threads(), len(source_ids)))
        return cat(run_at_once([as_in_this_thread(functools.partial(encoded, rows)) for rows in parts]))

    def decode_next(self, ids: Any, cache: Cache | WholeCache) -> Tensor:
        """The next symbol of each target, an array (B,), to the logits (B, V) of the symbol after it.

        Called for symbol after symbol it gives, in evaluation mode, what `decode` gives at each place of the whole.
        Nothing is recorded. Raises ValueError for more symbols than the cache has room for, or of another batch size;
        else as `forward`.
        """
        with no_grad(), on_device_of(self.generator.weight.data):
            return Tensor._of(cache.next(np.asarray(ids)))

    def _ids(self, name: str, ids: Any) -> Tensor:
        ids = ids if isinstance(ids, Tensor) else Tensor(ids, device=self.generator.weight.device)
        if ids.ndim != 2:
            raise ValueError(f"Transformer: {name} must have two axes, (B, N), got shape {ids.shape}")
        if ids.dtype.kind not in "iu":
            raise TypeError(f"Transformer: {name} must be integers, got {ids.dtype}; convert them with .long()")
        return ids

    def _vectors(self, ids: Tensor, embedding: nn.Embedding, positions: nn.Module) -> Tensor:
        """What a stack reads, (B, N, D): the ids' embeddings × √D, as large as the positions, plus these."""
        return self.dropout(positions(embedding(ids) * math.sqrt(self.d_model)))
