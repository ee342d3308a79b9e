"""The tasks on made-up strings: copy, reverse, sort, addition."""

import json

import numpy as np
import pytest

from training.tasks import make_task
from training.tasks.split import is_held_out

LETTER_TASKS = ["copy", "reverse", "sort"]
STRING_TASKS = [*LETTER_TASKS, "addition"]
BAD_LETTERS = "--alphabet must be printable characters, none of them ∎ or a combining accent"


def samples(task, count, seed=0):
    rng = np.random.default_rng(seed)
    return [task.sample(rng) for _ in range(count)]


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("copy", "hello", "hello"),
        ("reverse", "hello", "olleh"),
        ("sort", "hello", "ehllo"),
        ("addition", "12345+678", "13023"),
        ("addition", "9999999999+9999999999", "19999999998"),
    ],
)
def test_answers(name, source, target):
    assert make_task(name).answer(source) == target


def test_sort_follows_the_alphabet_given():
    assert make_task("sort", alphabet="cbaABC").answer("AabBc") == "cbaAB"


@pytest.mark.parametrize("name", LETTER_TASKS)
def test_letter_samples(name):
    task = make_task(name)
    examples = samples(task, 3000)
    assert {len(example.source) for example in examples} == set(range(4, 11))
    assert set("".join(example.source for example in examples)) == set("abcdefghijklmnopqrstuvwxyz")
    for example in examples:
        assert example.target == task.answer(example.source)
        assert example.groups == {}
    assert (task.max_source_length, task.max_target_length) == (10, 10)


def test_addition_samples():
    task = make_task("addition")
    examples = samples(task, 3000)
    lengths = set()
    for example in examples:
        left, right = example.source.split("+")
        assert not left.startswith("0") and not right.startswith("0")
        assert example.target == str(int(left) + int(right))
        assert len(example.source) <= task.max_source_length
        assert len(example.target) <= task.max_target_length
        lengths |= {len(left), len(right)}
    assert lengths == set(range(4, 11))


def test_addition_of_single_digits_has_zero():
    task = make_task("addition", min_length=1, max_length=1)
    assert {example.source[0] for example in samples(task, 1000)} == set("0123456789")


@pytest.mark.parametrize("name", STRING_TASKS)
def test_held_out_is_never_sampled(name):
    # Few strings, so that training meets nearly all of its part: a leak would show.
    options = {"alphabet": "abcd", "max_length": 5} if name in LETTER_TASKS else {"max_length": 2}
    task = make_task(name, min_length=1, **options)
    held_out = {example.source for example in task.held_out(80)}
    assert len(held_out) == 80
    seen = {example.source for example in samples(task, 10_000)}
    assert len(seen) > 800
    assert not held_out & seen


def test_addition_holds_out_both_orders():
    task = make_task("addition", min_length=1, max_length=2)
    seen = {example.source for example in samples(task, 10_000)}
    for example in task.held_out(200):
        assert "+".join(reversed(example.source.split("+"))) not in seen


@pytest.mark.parametrize("name", STRING_TASKS)
def test_held_out_depends_on_the_task_alone(name):
    first, second = make_task(name), make_task(name)
    samples(first, 10, seed=7)
    examples = first.held_out(200)
    assert examples == second.held_out(200)
    assert examples[:50] == first.held_out(50)
    assert len({example.source for example in examples}) == 200
    assert all(example.target == first.answer(example.source) for example in examples)


@pytest.mark.parametrize("name", STRING_TASKS)
def test_samples_depend_on_the_generator_alone(name):
    task = make_task(name)
    assert samples(task, 20, seed=3) == samples(make_task(name), 20, seed=3)
    assert samples(task, 20, seed=3) != samples(task, 20, seed=4)


@pytest.mark.parametrize("alphabet", ["ab", "0123456789", "abcdefghijklmnopqrstuvwxyz", "äöüß"])
def test_a_tenth_is_held_out(alphabet):
    task = make_task("copy", alphabet=alphabet, min_length=10, max_length=14)
    rng = np.random.default_rng(0)
    drawn = {task.draw(rng) for _ in range(10_000)}
    assert 0.08 < sum(map(is_held_out, drawn)) / len(drawn) < 0.12  # the rate's standard deviation is about 0.004


@pytest.mark.parametrize("name", STRING_TASKS)
def test_options_rebuild_the_task(name):
    task = make_task(name, min_length=2, max_length=6)
    options = json.loads(json.dumps(task.options))
    rebuilt = make_task(name, **options)
    assert rebuilt.options == task.options
    assert rebuilt.held_out(20) == task.held_out(20)
    assert rebuilt.source_vocabulary.symbols == task.source_vocabulary.symbols


@pytest.mark.parametrize("name", STRING_TASKS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_length": 5, "max_length": 3}, "--min-length 5 is greater than --max-length 3"),
        ({"min_length": 0}, "--min-length must be a whole number from 1 to 1000, got 0"),
        ({"max_length": -2}, "--max-length must be a whole number from 1 to 1000, got -2"),
        ({"min_length": 4.0}, "--min-length must be a whole number from 1 to 1000, got 4.0"),
        ({"min_length": True}, "--min-length must be a whole number from 1 to 1000, got True"),
        ({"max_length": 1001}, "--max-length must be a whole number from 1 to 1000, got 1001"),
    ],
)
def test_bad_lengths(name, options, message):
    with pytest.raises(ValueError) as error:
        make_task(name, **options)
    assert str(error.value) == f"{name}: {message}"


@pytest.mark.parametrize("name", LETTER_TASKS)
@pytest.mark.parametrize(
    ("alphabet", "message"),
    [
        ("", f"{BAD_LETTERS}, got ''"),
        ("ab\n", rf"{BAD_LETTERS}, got 'ab\n'"),
        (26, f"{BAD_LETTERS}, got 26"),
        ("abcd∎", f"{BAD_LETTERS}, got 'abcd∎'"),
        ("abcde\u0301", f"{BAD_LETTERS}, got 'abcde\u0301'"),
        ("abca", "--alphabet 'abca' has 'a' more than once"),
    ],
)
def test_bad_alphabet(name, alphabet, message):
    with pytest.raises(ValueError) as error:
        make_task(name, alphabet=alphabet)
    assert str(error.value) == f"{name}: {message}"


def test_too_few_strings_to_split():
    with pytest.raises(ValueError, match=r"^copy: an alphabet of 2 and lengths 1-3 give only 14 different strings; at"):
        make_task("copy", alphabet="ab", min_length=1, max_length=3)
    assert len(make_task("copy", alphabet="ab", min_length=1, max_length=6).held_out(5)) == 5
    make_task("copy", alphabet="a", min_length=1, max_length=1000)


def test_too_few_held_out_strings():
    task = make_task("reverse", alphabet="ab", min_length=1, max_length=6)
    with pytest.raises(ValueError) as error:
        task.held_out(100)
    found = int(str(error.value).split()[2])
    assert str(error.value) == (
        f"reverse: only {found} different held-out examples found, 100 asked for: --alphabet ab --min-length 1 "
        "--max-length 6 give too few strings; allow longer ones or ask for fewer examples"
    )
    assert len(task.held_out(found)) == found


@pytest.mark.parametrize("name", LETTER_TASKS)
def test_check_source_of_letters(name):
    task = make_task(name)
    task.check_source("a")  # shorter than in training is allowed
    task.check_source("abcdefghij")
    with pytest.raises(ValueError, match=f"^{name}: the text is empty$"):
        task.check_source("")
    with pytest.raises(ValueError, match=f"^{name}: the text has 11 characters, this task takes at most 10$"):
        task.check_source("abcdefghijk")
    with pytest.raises(ValueError, match=r"^unknown character 'B' at position 2 of 'aBc'; the characters are 'abc"):
        task.check_source("aBc")


def test_check_source_of_addition():
    task = make_task("addition", min_length=1, max_length=4)
    task.check_source("1+2")
    task.check_source("9999+9999")
    for text in ("12", "12+", "+12", "1+2+3", "12345+1"):
        with pytest.raises(ValueError) as error:
            task.check_source(text)
        assert str(error.value) == (
            f"addition: {text!r} is not two whole numbers of at most 4 digits with a plus sign between them, "
            "such as 1234+567"
        )
    with pytest.raises(ValueError, match="unknown character '-' at position 2"):
        task.check_source("1-2")
