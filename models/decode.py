"""A Transformer's answers, written symbol by symbol as its own symbols are fed back to it: greedy and beam search.

Ids and scores are NumPy arrays on the CPU; only the model runs where it lives. It reads each symbol once: what its
attention needs of those before is in a cache, whose rows go the way of the answers' rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import minigrad as mg
from models.transformer import Transformer


def greedy_decode(model: Transformer, source_ids: Any, bos_id: int, eos_id: int, max_length: int) -> np.ndarray:
    """The likeliest next symbol, again and again, until the end symbol or until there are `max_length` symbols.

    Args:
        model: runs in evaluation mode, without recording; its modules' modes are put back, whatever happens.
        source_ids: (B, N_s) integers, as `Transformer.forward` takes them.
        bos_id, eos_id: the symbols that begin and end a target.
        max_length: the longest answer, with its end symbol.

    Returns int64 (B, N), N <= max_length: answers without the begin symbol. After the end symbol comes padding, which
    is never chosen as a symbol. Raises ValueError for a max_length above the model's own, or an eos_id that cannot be
    chosen; for source_ids as `Transformer.forward` does.
    """
    _check("greedy_decode", model, eos_id, max_length)
    with _answering(model):
        cache = model.cache(source_ids, max_length)
        answers = np.full((cache.batch, max_length), model.pad_id)
        rows = np.arange(cache.batch)  # the answers that have not ended: only they are computed on
        symbols = np.full(cache.batch, bos_id)  # the last one of each
        for length in range(1, max_length + 1):
            logits = model.decode_next(symbols, cache)  # (rows, V)
            symbols = _without_padding(logits, model).argmax(axis=-1)  # (rows,)
            answers[rows, length - 1] = symbols
            going_on = symbols != eos_id
            if not going_on.any():
                break
            if not going_on.all():
                rows, symbols = rows[going_on], symbols[going_on]
                cache.take(going_on)
    return answers[:, :length]


def beam_decode(
    model: Transformer,
    source_ids: Any,
    bos_id: int,
    eos_id: int,
    max_length: int,
    beam_size: int = 4,
    length_penalty: float = 0.6,
) -> np.ndarray:
    """The best answer found while following the `beam_size` likeliest beginnings (Vaswani et al. 2017, section 6.1).

    Of the continuations of all beginnings, those that are complete and among the `beam_size` likeliest are answers; the
    likeliest others are followed. Complete is what ends, or has `max_length` symbols. Answers Y compare by
    log P(Y) / lp(Y) with lp(Y) = ((5 + |Y|) / 6)^length_penalty (Wu et al. 2016, "Google's neural machine translation
    system", eq. 14); |Y| counts the end symbol. A search stops when nothing that it follows can become better.

    Args:
        model, source_ids, bos_id, eos_id, max_length: as for `greedy_decode`.
        beam_size: at least 1; with 1 and no penalty the answer is the greedy one.
        length_penalty: at least 0, for none; the more, the longer the answers.

    Returns int64 (B, N), N <= max_length, as `greedy_decode` does. Raises ValueError as it does, and for a beam_size or
    length_penalty that is too small.
    """
    _check("beam_decode", model, eos_id, max_length)
    if beam_size < 1 or length_penalty < 0:
        raise ValueError(
            "beam_decode: beam_size must be at least 1 and length_penalty at least 0, "
            f"got {beam_size} and {length_penalty}"
        )
    with _answering(model):
        cache = model.cache(source_ids, max_length)
        searches = [_Search(bos_id, eos_id, max_length, beam_size, length_penalty) for _ in range(cache.batch)]
        going_on = searches
        while going_on:
            symbols = np.concatenate([search.symbols for search in going_on])
            logits = model.decode_next(symbols, cache)  # (beams of all, V)
            log_probabilities = _without_padding(logits.log_softmax(-1), model)
            starts = np.cumsum([0, *[len(search.symbols) for search in going_on]])[:-1]  # of each search's rows
            for search, part in zip(going_on, np.split(log_probabilities, starts[1:]), strict=True):
                search.advance(part)
            rows = [start + s.parents for s, start in zip(going_on, starts, strict=True) if not s.over]
            going_on = [search for search in going_on if not search.over]
            if going_on:
                cache.take(np.concatenate(rows))
    found = [search.answer for search in searches]
    answers = np.full((len(found), max(map(len, found), default=0)), model.pad_id)
    for padded, answer in zip(answers, found, strict=True):
        padded[: len(answer)] = answer
    return answers


class _Search:
    """The beam search for one source.

    Attributes:
        beginnings: (beams, length) what is followed, the likeliest first, with the begin symbol.
        parents: (beams,) which of the beginnings before the last `advance` each of them continues.
        scores: (beams,) log P of each.
        answer: the best so far, without the begin symbol.
        over: whether nothing that is followed can become better.
    """

    def __init__(self, bos_id: int, eos_id: int, max_length: int, beam_size: int, length_penalty: float) -> None:
        self._eos_id, self._max_length = eos_id, max_length
        self._beam_size, self._length_penalty = beam_size, length_penalty
        self.beginnings = np.full((1, 1), bos_id)
        self.parents = np.zeros(1, int)
        self.scores = np.zeros(1)
        self.answer = np.empty(0, int)
        self._best = -np.inf  # the answer's score

    def advance(self, log_probabilities: np.ndarray) -> None:
        """Make each beginning longer by one symbol; (beams, V) is how likely each symbol is after each of them."""
        totals = self.scores[:, None] + log_probabilities  # (beams, V)
        order = np.argsort(-totals, axis=None, kind="stable")[: 2 * self._beam_size]  # one per beam ends, so half go on
        beam, symbol = np.divmod(order, totals.shape[1])
        longer = np.concatenate([self.beginnings[beam], symbol[:, None]], axis=1)
        scores = totals[beam, symbol]
        length = longer.shape[1] - 1

        complete = (symbol == self._eos_id) | (length == self._max_length)
        first = complete[: self._beam_size].argmax()  # all are of one length, so the first is the best
        score = scores[first] / self._penalty(length)
        if complete[first] and score > self._best:
            self._best, self.answer = score, longer[first, 1:]
        follow = np.flatnonzero(~complete)[: self._beam_size]
        self.beginnings, self.parents, self.scores = longer[follow], beam[follow], scores[follow]

    @property
    def symbols(self) -> np.ndarray:
        """(beams,) the last symbol of each beginning."""
        return self.beginnings[:, -1]

    @property
    def over(self) -> bool:
        return not len(self.scores) or self._best >= self.scores[0] / self._penalty(self._max_length)

    def _penalty(self, length: int) -> float:
        return ((5 + length) / 6) ** self._length_penalty


@contextmanager
def _answering(model: Transformer) -> Iterator[None]:
    """Evaluation mode, without recording; then each module's own mode again."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with mg.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def _without_padding(scores: mg.Tensor, model: Transformer) -> np.ndarray:
    """(B, V) as an array, in which padding is impossible."""
    array = scores.numpy().copy()
    array[:, model.pad_id] = -np.inf
    return array


def _check(name: str, model: Transformer, eos_id: int, max_length: int) -> None:
    if not 1 <= max_length <= model.max_length:
        raise ValueError(f"{name}: max_length must be from 1 to {model.max_length}, the model's own, got {max_length}")
    vocabulary = model.generator.weight.shape[0]
    if not 0 <= eos_id < vocabulary or eos_id == model.pad_id:
        raise ValueError(
            f"{name}: eos_id must be one of the target's ids 0 to {vocabulary - 1} and not the padding's "
            f"{model.pad_id}, got {eos_id}"
        )
