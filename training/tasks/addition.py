"""The addition task: the sum of two whole numbers in decimal digits, most significant first, as people write them."""

import re

import numpy as np

from training.tasks.base import Vocabulary
from training.tasks.strings import StringTask, check_lengths, draw_length

DIGITS = "0123456789"


class AdditionTask(StringTask):
    """`12345+678` -> `13023`. An operand has `min_length` to `max_length` digits, drawn uniformly, and no leading zero.

    A pair of operands is held out in both orders. Raises ValueError for bad lengths.
    """

    name = "addition"
    description = "add two whole numbers, digit by digit"

    def __init__(self, min_length: int = 4, max_length: int = 10) -> None:
        check_lengths(self.name, min_length, max_length)
        self.min_length, self.max_length = min_length, max_length
        super().__init__(
            source_vocabulary=Vocabulary(DIGITS + "+"),
            target_vocabulary=Vocabulary(DIGITS),
            max_source_length=2 * max_length + 1,
            max_target_length=max_length + 1,
        )

    @property
    def options(self) -> dict[str, int | str]:
        """`min_length` and `max_length`: digits of an operand."""
        return {"min_length": self.min_length, "max_length": self.max_length}

    def draw(self, rng: np.random.Generator) -> str:
        """A sum of either part of the split."""
        return f"{self._operand(rng)}+{self._operand(rng)}"

    def answer(self, source: str) -> str:
        """The sum in decimal digits."""
        left, right = source.split("+")
        return str(int(left) + int(right))

    def split_key(self, source: str) -> str:
        """The operands in a fixed order: who has seen a+b in training knows b+a."""
        return "+".join(sorted(source.split("+")))

    def check_source(self, text: str) -> None:
        """Raise ValueError unless `text` is a sum such as 1234+567, of at most `max_length` digits each."""
        super().check_source(text)
        operands = re.fullmatch("([0-9]+)[+]([0-9]+)", text)
        if not operands or max(map(len, operands.groups())) > self.max_length:
            raise ValueError(
                f"{self.name}: {text!r} is not two whole numbers of at most {self.max_length} digits "
                "with a plus sign between them, such as 1234+567"
            )

    def _operand(self, rng: np.random.Generator) -> str:
        length = draw_length(rng, self.min_length, self.max_length)
        digits = rng.integers(10, size=length)
        if length > 1 and digits[0] == 0:
            digits[0] = rng.integers(1, 10)
        return "".join([DIGITS[digit] for digit in digits.tolist()])
