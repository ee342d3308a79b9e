"""The copy task: the answer is the source itself. The first thing that attention must learn."""

from training.tasks.strings import LetterTask


class CopyTask(LetterTask):
    """`hello` -> `hello`. Options: see `LetterTask`."""

    name = "copy"
    description = "repeat a string of letters"

    def answer(self, source: str) -> str:
        """The source itself."""
        return source
