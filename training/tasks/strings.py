"""What the tasks on made-up strings share: drawing, the split of their sources by hash, and the options' checks.

`StringTask` is for any of them, `LetterTask` for those whose source is a string of letters. How a source is answered is
each task's own.
"""

import string
import unicodedata
from abc import abstractmethod

import numpy as np

from training.settings import flag
from training.tasks.base import END, Example, Task, Vocabulary
from training.tasks.split import is_held_out

MIN_DISTINCT_SOURCES = 100
"""Fewer different sources than this cannot be split into a training and a held-out part worth the name."""

MAX_LENGTH = 1000
"""Of a string: attention's memory grows with the square of the length."""

MAX_DRAWS = 1000
"""Draws for one new held-out example. One draw in ten is held out: so many in vain mean that no new one is left."""


class StringTask(Task):
    """A task whose sources are drawn at random and whose answers are computed.

    A subclass defines `draw` and `answer`, and checks its options with the functions below.
    """

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> str:
        """A source text of either part of the split."""

    @abstractmethod
    def answer(self, source: str) -> str:
        """The right target text."""

    def split_key(self, source: str) -> str:
        """What is held out: sources with the same key are on the same side of the split."""
        return source

    def sample(self, rng: np.random.Generator) -> Example:
        """A training example, drawn with `rng`; never a held-out one."""
        source = self.draw(rng)
        while is_held_out(self.split_key(source)):
            source = self.draw(rng)
        return Example(source, self.answer(source))

    def held_out(self, count: int) -> list[Example]:
        """`count` distinct held-out examples, as `Task.held_out` promises."""
        rng = np.random.default_rng(0)
        sources: dict[str, None] = {}  # keeps the order
        draws = 0
        while len(sources) < count:
            source = self.draw(rng)
            draws += 1
            if source not in sources and is_held_out(self.split_key(source)):
                sources[source] = None
                draws = 0
            elif draws == MAX_DRAWS:
                options = " ".join(f"{flag(name)} {value}" for name, value in self.options.items())
                raise ValueError(
                    f"{self.name}: only {len(sources)} different held-out examples found, {count} asked for: "
                    f"{options} give too few strings; allow longer ones or ask for fewer examples"
                )
        return [Example(source, self.answer(source)) for source in sources]


class LetterTask(StringTask):
    """A `StringTask` whose source is `min_length` to `max_length` letters of `alphabet`, and whose target is as long.

    Length and letters are drawn uniformly. Raises ValueError for an alphabet that is empty, has a letter twice or one
    that can't be shown, for bad lengths, and for options that give fewer than MIN_DISTINCT_SOURCES different strings.
    """

    def __init__(self, alphabet: str = string.ascii_lowercase, min_length: int = 4, max_length: int = 10) -> None:
        check_lengths(self.name, min_length, max_length)
        if not isinstance(alphabet, str) or not alphabet or not all(map(_has_own_column, alphabet)):
            raise ValueError(
                f"{self.name}: --alphabet must be printable characters, none of them {END} or a combining accent, "
                f"got {alphabet!r}"
            )
        if len(set(alphabet)) < len(alphabet):
            twice = next(letter for letter in alphabet if alphabet.count(letter) > 1)
            raise ValueError(f"{self.name}: --alphabet {alphabet!r} has {twice!r} more than once")
        distinct = sum(len(alphabet) ** length for length in range(min_length, max_length + 1))
        if distinct < MIN_DISTINCT_SOURCES:
            raise ValueError(
                f"{self.name}: an alphabet of {len(alphabet)} and lengths {min_length}-{max_length} give only "
                f"{distinct} different strings; at least {MIN_DISTINCT_SOURCES} are needed, so that some can be held "
                "out: allow more letters or longer strings"
            )
        self.alphabet, self.min_length, self.max_length = alphabet, min_length, max_length
        vocabulary = Vocabulary(alphabet)
        super().__init__(
            source_vocabulary=vocabulary,
            target_vocabulary=vocabulary,
            max_source_length=max_length,
            max_target_length=max_length,
        )

    @property
    def options(self) -> dict[str, int | str]:
        """`alphabet`, `min_length` and `max_length`."""
        return {"alphabet": self.alphabet, "min_length": self.min_length, "max_length": self.max_length}

    def draw(self, rng: np.random.Generator) -> str:
        """A string of letters of either part of the split."""
        length = draw_length(rng, self.min_length, self.max_length)
        return "".join([self.alphabet[i] for i in rng.integers(len(self.alphabet), size=length).tolist()])


def draw_length(rng: np.random.Generator, min_length: int, max_length: int) -> int:
    """A whole number in [min_length, max_length], uniformly."""
    return min_length + int(rng.random() * (max_length - min_length + 1))  # several times faster than rng.integers


def check_lengths(task: str, min_length: int, max_length: int) -> None:
    """Raise ValueError unless both are whole numbers and 1 <= min_length <= max_length <= MAX_LENGTH."""
    for name, value in (("min_length", min_length), ("max_length", max_length)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_LENGTH:
            raise ValueError(f"{task}: {flag(name)} must be a whole number from 1 to {MAX_LENGTH}, got {value!r}")
    if min_length > max_length:
        raise ValueError(f"{task}: --min-length {min_length} is greater than --max-length {max_length}")


def _has_own_column(letter: str) -> bool:
    """Whether it can be shown in a table: it is visible, combines with no other letter, and doesn't stand for EOS."""
    return letter.isprintable() and not unicodedata.category(letter).startswith("M") and letter != END
