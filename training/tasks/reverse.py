"""The reverse task: the letters from last to first. Attention must learn to walk backwards from the end."""

from training.tasks.strings import LetterTask


class ReverseTask(LetterTask):
    """`hello` -> `olleh`. Options: see `LetterTask`."""

    name = "reverse"
    description = "write a string of letters backwards"

    def answer(self, source: str) -> str:
        """The source from its last letter to its first."""
        return source[::-1]
