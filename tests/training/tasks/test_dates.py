"""The dates task. Its strings are read back by a parser that shares nothing with the task: names and rules by hand."""

import calendar
import re
from collections import Counter
from datetime import date, timedelta

import numpy as np
import pytest

from training.tasks import make_task
from training.tasks.date_formats import DateFormat, load_formats, readings
from training.tasks.dates import DatesTask, _ambiguous_days
from training.tasks.split import is_held_out

babel = pytest.importorskip("babel", reason="the dates task needs babel: pip install babel")

MONTHS = [
    "january januar janvier enero",
    "february februar février febrero",
    "march märz mars marzo",
    "april april avril abril",
    "may mai mai mayo",
    "june juni juin junio",
    "july juli juillet julio",
    "august august août agosto",
    "september september septembre septiembre",
    "october oktober octobre octubre",
    "november november novembre noviembre",
    "december dezember décembre diciembre",
]
WEEKDAYS = [
    "monday montag lundi lunes",
    "tuesday dienstag mardi martes",
    "wednesday mittwoch mercredi miércoles",
    "thursday donnerstag jeudi jueves",
    "friday freitag vendredi viernes",
    "saturday samstag samedi sábado",
    "sunday sonntag dimanche domingo",
]
FILLERS = {"de", "del", "den", "le", "st", "nd", "rd", "th", "er"}
LANGUAGES = ["en", "de", "fr", "es"]


def meanings(word, table, shortest):
    """The numbers of the names in `table` that `word` can abbreviate."""
    names = [(i, name) for i, line in enumerate(table) for name in line.split()]
    return {i for i, name in names if len(word) >= shortest and name.startswith(word)}


def dates_in(text):
    """Every date that a person can read in `text`.

    A name, full or shortened, says the month. Of two numbers with dots the first is the day; with `/` or `-` either.
    """
    text = text.lower()
    words = [word for word in re.findall(r"[^\W\d_]+", text) if word not in FILLERS]
    *numbers, year = map(int, re.findall(r"\d+", text))
    if len(numbers) == 2:
        day_month = {tuple(numbers)} if re.search(r"\d\.\d", text) else {tuple(numbers), tuple(reversed(numbers))}
        candidates = [(day, month, words) for day, month in day_month]
    else:
        candidates = [
            (numbers[0], month + 1, words[:i] + words[i + 1 :])
            for i, word in enumerate(words)
            for month in meanings(word, MONTHS, 3)
        ]
    found = set()
    for day, month, others in candidates:
        try:
            read = date(year, month, day)
        except ValueError:
            continue
        if all(read.weekday() in meanings(word, WEEKDAYS, 2) for word in others):
            found.add(read)
    return found


@pytest.fixture(scope="module")
def task():
    return make_task("dates")


@pytest.fixture(scope="module")
def examples(task):
    rng = np.random.default_rng(0)
    return [task.sample(rng) for _ in range(30_000)]


def written_as(task, language, pattern, day):
    (format,) = [format for format in task.formats if (format.language, format.pattern) == (language, pattern)]
    return format.write(day)


def test_the_parser_of_this_test_can_tell():
    assert dates_in("03/04/2021") == {date(2021, 3, 4), date(2021, 4, 3)}
    assert dates_in("3-4-2021") == {date(2021, 3, 4), date(2021, 4, 3)}
    assert dates_in("03.04.2021") == {date(2021, 4, 3)}
    assert dates_in("Tue, 2 March 2021") == {date(2021, 3, 2)}
    assert dates_in("Mon, 2 March 2021") == set()  # it was a Tuesday
    assert dates_in("mar, 2 mar 2021") == {date(2021, 3, 2)}
    assert dates_in("29 février 2021") == set()


def test_every_sample_means_exactly_its_target(examples):
    for example in examples:
        assert dates_in(example.source) == {date.fromisoformat(example.target)}, example


def test_every_held_out_example_means_exactly_its_target(task):
    for example in task.held_out(3000):
        assert dates_in(example.source) == {date.fromisoformat(example.target)}, example


def test_every_format_writes_every_day_of_a_year_right(task):
    for format in task.formats:
        for i in range(366):
            day = date(2024, 1, 1) + timedelta(days=i)
            assert day in dates_in(format.write(day)), (format.pattern, format.write(day))


def test_all_languages_formats_months_and_days_are_sampled(task, examples):
    pairs = Counter((example.groups["language"], example.groups["format"]) for example in examples)
    assert set(pairs) == {(format.language, format.pattern) for format in task.formats}
    assert {language for language, _ in pairs} == set(LANGUAGES)
    assert len({pattern for _, pattern in pairs}) >= 13
    for language in LANGUAGES:
        share = sum(count for (other, _), count in pairs.items() if other == language) / len(examples)
        assert 0.23 < share < 0.27
        targets = [example.target for example in examples if example.groups["language"] == language]
        assert {target[5:7] for target in targets} == {f"{month:02}" for month in range(1, 13)}
        assert {target[8:] for target in targets} == {f"{day:02}" for day in range(1, 32)}
    assert {example.target[:4] for example in examples} == {str(year) for year in range(1900, 2100)}


@pytest.mark.parametrize(
    ("language", "pattern", "day", "text"),
    [
        ("en", "MMMM d, y", date(2021, 3, 1), "March 1, 2021"),
        ("en", "M/d/y", date(2021, 12, 25), "12/25/2021"),
        ("en", "dd/MM/y", date(2021, 12, 25), "25/12/2021"),
        ("en", "MMMM ddd, y", date(2021, 3, 1), "March 1st, 2021"),
        ("en", "ddd MMMM y", date(1999, 11, 12), "12th November 1999"),
        ("en", "ddd MMMM y", date(1999, 11, 22), "22nd November 1999"),
        ("en", "EEEE, MMMM d, y", date(2000, 2, 29), "Tuesday, February 29, 2000"),
        ("de", "EEEE, d. MMMM y", date(2021, 3, 1), "Montag, 1. März 2021"),
        ("de", "dd.MM.y", date(2021, 3, 4), "04.03.2021"),
        ("de", "d.M.y", date(2021, 3, 4), "4.3.2021"),
        ("fr", "EEEE d MMMM y", date(2021, 8, 15), "dimanche 15 août 2021"),
        ("fr", "'le' ddd MMMM y", date(2021, 2, 1), "le 1er février 2021"),
        ("fr", "'le' ddd MMMM y", date(2021, 2, 2), "le 2 février 2021"),
        ("es", "d 'de' MMMM 'de' y", date(2099, 12, 31), "31 de diciembre de 2099"),
        ("es", "EEEE, d 'de' MMMM 'de' y", date(2021, 9, 1), "miércoles, 1 de septiembre de 2021"),
    ],
)
def test_known_texts(task, language, pattern, day, text):
    assert written_as(task, language, pattern, day) == text


def test_numeric_dates_are_used_only_where_day_and_month_cannot_be_swapped(examples):
    numeric = [example for example in examples if re.fullmatch(r"\d+[/-]\d+[/-]\d+", example.source)]
    assert len(numeric) > 1000
    for example in numeric:
        day = date.fromisoformat(example.target)
        assert day.day > 12 or day.day == day.month
    assert any(day[5:7] == day[8:] for day in (example.target for example in numeric))


def test_readings_know_both_orders_of_numbers():
    _, read = load_formats()
    both = {date(2021, 3, 4), date(2021, 4, 3)}
    for text in ("03/04/2021", "3/4/2021", "3-4-2021", "03-04-2021"):
        assert readings(text, read) == both
    for text in ("13/4/2021", "4/13/2021", "13.04.2021", "13 APRIL 2021", "april 13th, 2021", "13 de abril de 2021"):
        assert readings(text, read) == {date(2021, 4, 13)}
    assert readings("03.04.2021", read) == {date(2021, 4, 3)}
    for text in ("31/4/2021", "29 February 2021", "13/13/2021", "03/04/21", "March 2021", "tomorrow", ""):
        assert readings(text, read) == set()


def test_ambiguous_days_hold_for_every_year(task):
    # The task looks at one year only; here its reader looks at each.
    _, read = load_formats()
    rng = np.random.default_rng(1)
    for format in task.formats:
        for ordinal in rng.integers(date(1900, 1, 1).toordinal(), date(2099, 12, 31).toordinal() + 1, size=40).tolist():
            day = date.fromordinal(ordinal)
            assert (readings(format.write(day), read) == {day}) == task._is_clear(format, day)


def test_leap_days(task):
    rng = np.random.default_rng(2)
    targets = {task.sample(rng).target for _ in range(60_000)} | {example.target for example in task.held_out(3000)}
    seen = {target[:4] for target in targets if target.endswith("-02-29")}
    assert len(seen) > 10
    assert all(calendar.isleap(int(year)) for year in seen)


def test_held_out_days_never_occur_in_training(task, examples):
    held_out = task.held_out(3000)
    days = {example.target for example in held_out}
    assert len(days) == 3000
    assert not days & {example.target for example in examples}
    assert all(is_held_out(day) for day in days)


def test_held_out_examples_are_fixed_and_distinct(task):
    held_out = task.held_out(500)
    assert held_out == DatesTask().held_out(500)
    assert held_out[:100] == task.held_out(100)
    assert len({example.source for example in held_out}) == 500


def test_held_out_examples_are_balanced(task):
    pairs = Counter((example.groups["language"], example.groups["format"]) for example in task.held_out(1000))
    for language in LANGUAGES:
        counts = [pairs[format.language, format.pattern] for format in task.formats if format.language == language]
        assert sum(counts) == 250
        assert max(counts) - min(counts) <= 1


def test_a_tenth_of_the_days_in_every_year_and_month_is_held_out():
    days = [date.fromordinal(i) for i in range(date(1900, 1, 1).toordinal(), date(2100, 1, 1).toordinal())]
    held_out = [day for day in days if is_held_out(day.isoformat())]
    assert 0.095 < len(held_out) / len(days) < 0.105
    assert {day.year for day in held_out} == set(range(1900, 2100))
    assert {day.month for day in held_out} == set(range(1, 13))


def test_all_held_out_days_can_be_had_but_no_more(task):
    days = sum(is_held_out(date.fromordinal(i).isoformat()) for i in range(693596, 766645))
    assert (date.fromordinal(693596), date.fromordinal(766644)) == (date(1900, 1, 1), date(2099, 12, 31))
    assert len({example.target for example in task.held_out(days)}) == days
    with pytest.raises(ValueError, match=f"^dates: {days} days are held out, {days + 1} asked for; ask for fewer"):
        task.held_out(days + 1)


def test_lengths_and_vocabulary(task, examples):
    symbols = task.source_vocabulary.symbols
    assert symbols == "".join(sorted(symbols))
    assert not set("\u00a0\u2009\u202f") & set(symbols)
    assert set("éûäá 0123456789.,/-") <= set(symbols)
    assert max(len(example.source) for example in examples) <= task.max_source_length <= 40
    assert {len(example.target) for example in examples} == {task.max_target_length} == {10}
    source, target = task.batch(examples[:64])
    assert source.shape[0] == target.shape[0] == 64
    assert target.shape[1] == 12
    for ids, example in zip(source, examples, strict=False):
        assert task.source_vocabulary.decode(ids) == example.source


def test_max_length_and_characters_are_those_of_what_is_written(task):
    days = [date.fromordinal(i) for i in range(date(2000, 1, 1).toordinal(), date(2010, 1, 1).toordinal())]
    for format in task.formats:
        texts = [format.write(day) for day in days]
        assert max(map(len, texts)) == format.max_length
        assert set("".join(texts)) <= format.characters


def test_check_source_takes_any_text_over_the_vocabulary(task):
    task.check_source("le 25 dezember, 2021")
    task.check_source("03/04/2021")
    with pytest.raises(ValueError, match=r"^dates: the text is empty$"):
        task.check_source("")
    longest = task.max_source_length
    with pytest.raises(
        ValueError, match=f"^dates: the text has {longest + 1} characters, this task takes at most {longest}$"
    ):
        task.check_source("1" * (longest + 1))
    with pytest.raises(ValueError, match=r"^unknown character '日' at position 5 of '2021日'"):
        task.check_source("2021日")


def test_a_format_without_any_clear_day_is_refused():
    day_first, month_first = make_format("d MM y"), make_format("MM d y")
    ambiguous = _ambiguous_days(day_first, [day_first, month_first])
    assert (3, 4) in ambiguous and (4, 3) in ambiguous
    assert not {(4, 4), (3, 13), (2, 29)} & ambiguous
    with pytest.raises(ValueError, match=r"^dates: no text of the xx format 'd MM y' means exactly one date$"):
        _ambiguous_days(day_first, [make_format("y MM d")])


def test_options_are_empty(task):
    assert task.options == {}
    assert make_task("dates", **task.options).source_vocabulary.symbols == task.source_vocabulary.symbols


def make_format(pattern):
    names = [f"name{i:02}" for i in range(1, 13)]
    return DateFormat("xx", pattern, {"MMMM": names, "MMM": names}, {"EEEE": names[:7], "E": names[:7]}, [])


def test_a_pattern_that_cannot_be_written_is_refused():
    with pytest.raises(ValueError, match=r"^the xx date pattern 'd MMMM y G' has the field 'G', which is not known$"):
        make_format("d MMMM y G")
    with pytest.raises(ValueError, match=r"^the xx date pattern 'MMMM y' lacks a day, a month or a year$"):
        make_format("MMMM y")


def test_literals_of_a_pattern_are_kept():
    format = make_format("'{d}' d.MMMM (y)")
    assert format.write(date(2021, 2, 3)) == "{d} 3.name02 (2021)"
    assert format.read("{D} 03.NAME02 (2021)") == date(2021, 2, 3)
    assert format.read("{d} 3xname02 (2021)") is None
