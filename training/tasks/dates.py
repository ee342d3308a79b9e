"""The dates task: human-written dates in English, German, French and Spanish to ISO 8601, `YYYY-MM-DD`.

Only strings that mean one date are used: `03/04/2021` is in March in American English and in April elsewhere, so it
never occurs, while `25/12/2021` does. How the languages write dates is in `date_formats.py`.
"""

from datetime import date
from itertools import cycle

import numpy as np

from training.tasks.base import Example, Task, Vocabulary
from training.tasks.date_formats import DateFormat, load_formats, readings
from training.tasks.split import is_held_out, split_hash

FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2099, 12, 31)

_YEAR_TO_CHECK = 2000
"""A leap year, so that it has every day that any year has."""


class DatesTask(Task):
    """`25. Dezember 2021` -> `2021-12-25`, for every day of 1900-2099, in all formats of `date_formats.load_formats`.

    Language, format within the language, and day are drawn uniformly, but a day that would make the format's text
    ambiguous is drawn again. One calendar day in ten is held out, in all languages and formats. Examples are grouped by
    "language" and "format" (a CLDR pattern). The vocabulary is the characters that the formats write, sorted.

    Raises MissingDependency if `babel` is not installed.
    """

    name = "dates"
    description = (
        "read dates written in English, German, French and Spanish, and write them as YYYY-MM-DD (needs babel)"
    )

    def __init__(self) -> None:
        written, read = load_formats()
        self.formats = written
        self._formats_of: dict[str, list[DateFormat]] = {}
        for format in written:
            self._formats_of.setdefault(format.language, []).append(format)
        self._languages = list(self._formats_of)
        self._groups = {format: {"language": format.language, "format": format.pattern} for format in written}
        self._ambiguous = {format: _ambiguous_days(format, read) for format in written}
        super().__init__(
            source_vocabulary=Vocabulary("".join(sorted(set().union(*(format.characters for format in written))))),
            target_vocabulary=Vocabulary("-0123456789"),
            max_source_length=max(format.max_length for format in written),
            max_target_length=len("YYYY-MM-DD"),
        )

    @property
    def options(self) -> dict[str, int | str]:
        """None: an empty dict."""
        return {}

    def sample(self, rng: np.random.Generator) -> Example:
        """A training example, drawn with `rng`; its day is never a held-out one."""
        formats = self._formats_of[self._languages[int(rng.random() * len(self._languages))]]
        format = formats[int(rng.random() * len(formats))]
        first, days = FIRST_DAY.toordinal(), LAST_DAY.toordinal() - FIRST_DAY.toordinal() + 1
        while True:
            day = date.fromordinal(first + int(rng.random() * days))
            if not is_held_out(day.isoformat()) and self._is_clear(format, day):
                return self._example(format, day)

    def held_out(self, count: int) -> list[Example]:
        """`count` held-out examples of as many days, the languages in turn, and in each language its formats in turn.

        Raises ValueError if `count` is more than the days held out.
        """
        ordinals = range(FIRST_DAY.toordinal(), LAST_DAY.toordinal() + 1)
        unused = [day for day in map(date.fromordinal, ordinals) if is_held_out(day.isoformat())]
        unused.sort(key=lambda day: split_hash(day.isoformat()))
        if count > len(unused):
            raise ValueError(f"{self.name}: {len(unused)} days are held out, {count} asked for; ask for fewer examples")
        turns = cycle(self._languages)
        formats = {language: cycle(formats) for language, formats in self._formats_of.items()}
        examples: list[Example] = []
        while len(examples) < count:
            format = next(formats[next(turns)])
            clear = next((i for i, day in enumerate(unused) if self._is_clear(format, day)), None)
            if clear is not None:  # else only days are left that this format can't write clearly: the next one's turn
                examples.append(self._example(format, unused.pop(clear)))
        return examples

    def _is_clear(self, format: DateFormat, day: date) -> bool:
        return (day.month, day.day) not in self._ambiguous[format]

    def _example(self, format: DateFormat, day: date) -> Example:
        return Example(format.write(day), day.isoformat(), self._groups[format])


def _ambiguous_days(format: DateFormat, read: list[DateFormat]) -> frozenset[tuple[int, int]]:
    """The (month, day) whose text in `format` can mean another date too in some format of `read`.

    One year stands for all: every format writes the year in the same four digits, readers ignore which weekday it is,
    and what another year lacks is only the 29th of February. Raises ValueError if no day is left that means one date.
    """
    first = date(_YEAR_TO_CHECK, 1, 1).toordinal()
    days = [date.fromordinal(first + i) for i in range(366)]
    ambiguous = frozenset((day.month, day.day) for day in days if readings(format.write(day), read) != {day})
    if len(ambiguous) == len(days):
        raise ValueError(f"dates: no text of the {format.language} format {format.pattern!r} means exactly one date")
    return ambiguous
