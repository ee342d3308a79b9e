"""What a task is: a vocabulary for each side, training examples without end, and held-out examples to test on.

No task itself is here, and nothing of the model or of the training loop: they only see the ids that `Task.batch` makes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

PAD, BOS, EOS = 0, 1, 2
"""Token ids that every vocabulary begins with: padding, beginning and end of a sequence."""

END = "∎"
"""How EOS is shown to people."""


class VocabularyError(ValueError):
    """A character or an id that a vocabulary does not have."""


class MissingDependency(ImportError):
    """A task needs a package that is not installed. The message says which, and how to get it."""


class Vocabulary:
    """Single characters as token ids: PAD, BOS and EOS, then `symbols` in their order.

    Raises VocabularyError if `symbols` is empty or has a character twice.
    """

    def __init__(self, symbols: str) -> None:
        if not symbols:
            raise VocabularyError("a vocabulary needs at least one character")
        for position, symbol in enumerate(symbols):
            if symbol in symbols[:position]:
                raise VocabularyError(f"the character {symbol!r} occurs twice in {symbols!r}")
        self.symbols = symbols
        self._id_of = {symbol: index for index, symbol in enumerate(symbols, start=EOS + 1)}

    def __len__(self) -> int:
        """The number of ids, the three special ones included."""
        return EOS + 1 + len(self.symbols)

    def encode(self, text: str) -> list[int]:
        """The ids of the characters of `text`, without BOS or EOS.

        Raises VocabularyError naming the first character that is unknown and its position, counted from 1.
        """
        try:
            return [self._id_of[character] for character in text]
        except KeyError:
            position = next(i for i, character in enumerate(text) if character not in self._id_of)
            raise VocabularyError(
                f"unknown character {text[position]!r} at position {position + 1} of {text!r}; "
                f"the characters are {self.symbols!r}"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` up to the first EOS; PAD and BOS are skipped.

        Raises VocabularyError for an id outside [0, len(self)).
        """
        characters = []
        for index in ids:
            if not 0 <= index < len(self):
                raise VocabularyError(f"id {index} is outside the vocabulary of {len(self)} ids")
            if index == EOS:
                break
            if index > EOS:
                characters.append(self.symbols[index - EOS - 1])
        return "".join(characters)


@dataclass(frozen=True)
class Example:
    """One source text and its right answer. `groups` says what to report it under, such as {"language": "de"}."""

    source: str
    target: str
    groups: Mapping[str, str] = field(default_factory=dict, hash=False)


class Task(ABC):
    """Base class of the tasks. A task fixes its vocabularies, its longest texts and its held-out examples.

    A subclass sets `name` and `description`, passes the rest to this constructor, and defines `options`, `sample` and
    `held_out`. Lengths are in characters, without BOS and EOS.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    """One line, for lists of tasks."""

    def __init__(
        self,
        *,
        source_vocabulary: Vocabulary,
        target_vocabulary: Vocabulary,
        max_source_length: int,
        max_target_length: int,
    ) -> None:
        self.source_vocabulary = source_vocabulary
        self.target_vocabulary = target_vocabulary
        self.max_source_length = max_source_length
        self.max_target_length = max_target_length

    @property
    @abstractmethod
    def options(self) -> dict[str, int | str]:
        """The constructor's options as JSON values."""

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> Example:
        """A training example, drawn with `rng`; never a held-out one."""

    @abstractmethod
    def held_out(self, count: int) -> list[Example]:
        """`count` distinct examples that `sample` never gives.

        They depend on the task and its options alone, and `held_out(n)` begins with `held_out(m)` for m < n.
        Raises ValueError if the task has fewer.
        """

    def check_source(self, text: str) -> None:
        """Raise ValueError, with one line, unless `text` is a source that this task's model can read."""
        if not text:
            raise ValueError(f"{self.name}: the text is empty")
        if len(text) > self.max_source_length:
            raise ValueError(
                f"{self.name}: the text has {len(text)} characters, this task takes at most {self.max_source_length}"
            )
        self.source_vocabulary.encode(text)

    def encode_sources(self, sources: Sequence[str]) -> np.ndarray:
        """Source ids, int64 (B, N_s): symbols, EOS, then PAD up to the longest of the batch."""
        encode = self.source_vocabulary.encode
        return _padded([[*encode(source), EOS] for source in sources])

    def batch(self, examples: Sequence[Example]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of `examples`, int64: source (B, N_s) as `encode_sources`, target (B, N_t) the same after a BOS.

        Raises ValueError for an empty batch, VocabularyError for an unknown character.
        """
        encode = self.target_vocabulary.encode
        source = self.encode_sources([example.source for example in examples])
        target = _padded([[BOS, *encode(example.target), EOS] for example in examples])
        return source, target


def _padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    if not rows:
        raise ValueError("a batch needs at least one example")
    ids = np.full((len(rows), max(map(len, rows))), PAD, dtype=np.int64)
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return ids
