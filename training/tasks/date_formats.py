"""How English, German, French and Spanish write dates: formats that write a date and read one back.

Names and standard formats come from the locale data (CLDR) of the `babel` package; a few customary forms that CLDR
lacks are listed here. The task itself, and which of the strings it uses, are in `dates.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING

from training.tasks.base import MissingDependency

if TYPE_CHECKING:
    from babel import Locale

LOCALES = {"en": ("en_US", "en_GB"), "de": ("de",), "fr": ("fr",), "es": ("es",)}
"""The locales whose standard formats a language takes. The forms listed below use the names of the first."""

STANDARD = ("full", "long", "medium", "short")
SKELETONS = ("yMd", "yMMMd", "yMMMEd")
"""CLDR's names of the locale's formats for a date in digits, with a short month, and with a short weekday as well."""

CUSTOMARY = {
    "en": ("MMMM ddd, y", "ddd MMMM y", "d-MMM-y"),
    "de": ("dd. MMMM y", "'den' d. MMMM y"),
    "fr": ("EEEE ddd MMMM y", "'le' ddd MMMM y", "dd-MM-y"),
    "es": ("d 'de' MMMM 'del' y", "dd/MM/y", "dd-MM-y"),
}
"""Further forms, as CLDR patterns. `ddd` is the day as an ordinal number (1st, 1er)."""

ONLY_READ = {"en": ("M-d-y", "d-M-y")}
"""Customary too, but never written here, because dd-MM-y stands for them: a reader must take them into account."""

_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2009\u202f", " "))
"""CLDR's no-break and thin spaces, which nobody types."""

_NUMBERS = {text: number for number in range(1, 32) for text in (str(number), f"{number:02}")}
"""Day and month numbers as people write them: a leading zero is allowed where the format itself has none."""


class DateFormat:
    """One way to write a date, such as `d. MMMM y` in German.

    Args:
        language: what the format belongs to, for reports: "en", "de", ...
        pattern: CLDR date pattern of the fields EEEE E (weekday), MMMM MMM MM M, ddd dd d, y and quoted text.
        months, weekdays: names by field ("MMMM", "MMM"; "EEEE", "E"), January first and Monday first.
        ordinals: the days 1-31 for the field ddd.

    Raises ValueError for a field that is not among these, or if day, month or year is missing.
    """

    def __init__(
        self,
        language: str,
        pattern: str,
        months: Mapping[str, list[str]],
        weekdays: Mapping[str, list[str]],
        ordinals: list[str],
    ) -> None:
        numbers = [str(number) for number in range(1, 32)]
        padded = [f"{number:02}" for number in range(1, 32)]
        texts_of: dict[str, dict[str, list[str]]] = {
            "weekday": dict(weekdays),
            "month": {**months, "M": numbers[:12], "MM": padded[:12]},
            "day": {"d": numbers, "dd": padded, "ddd": ordinals},
            "year": {"y": []},  # any four digits
        }
        self.language = language
        self.pattern = pattern
        self._texts: dict[str, list[str]] = {"weekday": [""] * 7}  # of the fields in this pattern
        template, expression = "", ""
        for quoted, field, literal in re.findall("'([^']*)'|([A-Za-z]+)|([^A-Za-z']+)", pattern):
            if not field:
                template += (quoted + literal).replace("{", "{{").replace("}", "}}")
                expression += re.escape(quoted + literal)
                continue
            kind = next((kind for kind, fields in texts_of.items() if field in fields), None)
            if kind is None:
                raise ValueError(f"the {language} date pattern {pattern!r} has the field {field!r}, which is not known")
            self._texts[kind] = texts_of[kind][field]
            template += f"{{{kind}}}"
            expression += f"(?P<{kind}>{'[0-9]{4}' if kind == 'year' else _any_of(self._readable(kind))})"
        if not {"day", "month", "year"} <= self._texts.keys():
            raise ValueError(f"the {language} date pattern {pattern!r} lacks a day, a month or a year")
        self._template = template
        self._expression = re.compile(expression, re.IGNORECASE)
        self._month_of, self._day_of = self._readable("month"), self._readable("day")

    def write(self, day: date) -> str:
        """`day` in this format."""
        texts = self._texts
        return self._template.format(
            weekday=texts["weekday"][day.weekday()],
            month=texts["month"][day.month - 1],
            day=texts["day"][day.day - 1],
            year=day.year,
        )

    def read(self, text: str) -> date | None:
        """The date that `text` means in this format, or None if it means none.

        As a person reads: case does not matter, nor a leading zero. Any weekday will do, the right one or not.
        """
        match = self._expression.fullmatch(text)
        if not match:
            return None
        try:
            return date(int(match["year"]), self._month_of[match["month"].lower()], self._day_of[match["day"].lower()])
        except ValueError:  # no such day in that month
            return None

    @property
    def characters(self) -> set[str]:
        """All characters that this format can write."""
        literals = self._template.format(weekday="", month="", day="", year="0123456789")
        return set(literals).union(*(text for texts in self._texts.values() for text in texts))

    @property
    def max_length(self) -> int:
        """Characters of the longest text that this format can write."""
        longest = {kind: max(texts, key=len, default="") for kind, texts in self._texts.items()}
        return len(self._template.format(**{**longest, "year": "0000"}))

    def _readable(self, kind: str) -> dict[str, int]:
        """Lower-case text -> number from 1, for the weekday, month or day."""
        texts = self._texts[kind]
        return _NUMBERS if texts[0].isdigit() else {text.lower(): i for i, text in enumerate(texts, start=1)}


def readings(text: str, formats: Iterable[DateFormat]) -> set[date]:
    """All the dates that `text` can mean in one or other of `formats`."""
    return {day for format in formats if (day := format.read(text)) is not None}


def load_formats() -> tuple[list[DateFormat], list[DateFormat]]:
    """The formats that are written, each once per language, and all that a reader must know (these and ONLY_READ).

    Raises MissingDependency if `babel` is not installed.
    """
    try:
        from babel import Locale
    except ImportError as error:
        raise MissingDependency(
            "dates: the package babel, which has the names of months and days, is not installed: "
            "run pip install -e '.[data]' or pip install babel"
        ) from error
    written: list[DateFormat] = []
    only_read: list[DateFormat] = []
    for language, locale_names in LOCALES.items():
        locales = [Locale.parse(name) for name in locale_names]
        locale_of: dict[str, Locale] = {}  # the first that has the pattern
        for locale in locales:
            for pattern in _patterns(locale):
                locale_of.setdefault(pattern, locale)
        for pattern in CUSTOMARY[language]:
            locale_of.setdefault(pattern, locales[0])
        written += [_format(language, pattern, locale) for pattern, locale in locale_of.items()]
        only_read += [_format(language, pattern, locales[0]) for pattern in ONLY_READ.get(language, ())]
    return written, written + only_read


def _patterns(locale: Locale) -> list[str]:
    """The locale's own patterns, with plain spaces and all digits of the year (two leave the century open)."""
    found = [locale.date_formats[style] for style in STANDARD] + [locale.datetime_skeletons[name] for name in SKELETONS]
    patterns = [format.pattern.translate(_SPACES) for format in found]
    patterns = [re.sub("y+", "y", pattern) for pattern in patterns]
    return [re.sub("(?<!E)E{1,3}(?!E)", "E", pattern) for pattern in patterns]  # E, EE and EEE mean the same


def _format(language: str, pattern: str, locale: Locale) -> DateFormat:
    def names(table: Mapping[int, str], keys: range) -> list[str]:
        return [table[key].translate(_SPACES) for key in keys]

    months, weekdays = locale.months["format"], locale.days["format"]
    return DateFormat(
        language,
        pattern,
        months={
            field: names(months[width], range(1, 13)) for field, width in (("MMMM", "wide"), ("MMM", "abbreviated"))
        },
        weekdays={field: names(weekdays[width], range(7)) for field, width in (("EEEE", "wide"), ("E", "abbreviated"))},
        ordinals=[_ordinal(language, number) for number in range(1, 32)],
    )


def _ordinal(language: str, number: int) -> str:
    """The day of the month as it is said: all are ordinal numbers in English, only the first is in French."""
    if language == "en":
        suffix = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        return f"{number}{suffix}"
    return "1er" if language == "fr" and number == 1 else str(number)


def _any_of(texts: Iterable[str]) -> str:
    """A regular expression for one of `texts`, the longest that fits."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
