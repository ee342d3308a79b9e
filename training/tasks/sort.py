"""The sort task: the letters in the alphabet's order. Attention must learn to choose by content, not by place."""

from training.tasks.strings import LetterTask


class SortTask(LetterTask):
    """`hello` -> `ehllo`. Options: see `LetterTask`; the order is that of the option `alphabet`."""

    name = "sort"
    description = "put a string of letters in alphabetical order"

    def answer(self, source: str) -> str:
        """The letters of the source in the order of `alphabet`."""
        return "".join(sorted(source, key=self.alphabet.index))
