"""Vocabularies, batches and the registry: what holds for every task."""

import re
import sys

import numpy as np
import pytest

from training.tasks import TASKS, make_task
from training.tasks.base import BOS, EOS, PAD, Example, MissingDependency, Vocabulary, VocabularyError
from training.tasks.split import is_held_out


def test_special_ids_are_the_first_three():
    assert (PAD, BOS, EOS) == (0, 1, 2)
    assert Vocabulary("ba").encode("ab") == [4, 3]
    assert len(Vocabulary("ba")) == 5


def test_decode_undoes_encode():
    vocabulary = Vocabulary("abcé ")
    assert vocabulary.decode(vocabulary.encode("é bca")) == "é bca"
    assert vocabulary.decode(np.array(vocabulary.encode("cab"), dtype=np.int64)) == "cab"


def test_decode_skips_padding_and_bos_and_stops_at_eos():
    vocabulary = Vocabulary("abc")
    assert vocabulary.decode([BOS, 3, PAD, 4, EOS, 5, PAD]) == "ab"
    assert vocabulary.decode([]) == ""


@pytest.mark.parametrize("index", [-1, 6])
def test_decode_refuses_an_id_outside_the_vocabulary(index):
    with pytest.raises(VocabularyError, match=f"^id {index} is outside the vocabulary of 6 ids$"):
        Vocabulary("abc").decode([3, index])


def test_encode_names_the_unknown_character_and_where_it_is():
    with pytest.raises(VocabularyError) as error:
        Vocabulary("abc").encode("abßc?")
    assert str(error.value) == "unknown character 'ß' at position 3 of 'abßc?'; the characters are 'abc'"
    assert isinstance(error.value, ValueError)


def test_vocabulary_needs_characters_and_each_once():
    with pytest.raises(VocabularyError, match="needs at least one character"):
        Vocabulary("")
    with pytest.raises(VocabularyError, match="the character 'b' occurs twice in 'abcb'"):
        Vocabulary("abcb")


def test_batch_layout():
    source, target = make_task("reverse").batch([Example("abc", "cba"), Example("z", "z")])
    assert source.dtype == target.dtype == np.int64
    assert source.tolist() == [[3, 4, 5, EOS], [28, EOS, PAD, PAD]]
    assert target.tolist() == [[BOS, 5, 4, 3, EOS], [BOS, 28, EOS, PAD, PAD]]


def test_encode_sources_is_the_source_half_of_batch():
    task = make_task("copy")
    examples = [task.sample(np.random.default_rng(1)) for _ in range(5)]
    assert np.array_equal(task.encode_sources([example.source for example in examples]), task.batch(examples)[0])


def test_empty_batch_is_refused():
    with pytest.raises(ValueError, match="at least one example"):
        make_task("copy").batch([])


def test_registry():
    assert sorted(TASKS) == ["addition", "copy", "dates", "reverse", "sort"]
    for name, task in TASKS.items():
        assert task.name == name
        assert task.description and "\n" not in task.description


def test_unknown_task_lists_the_names_and_the_nearest():
    expected = "unknown task 'revers': the tasks are addition, copy, dates, reverse, sort; did you mean 'reverse'?"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        make_task("revers")
    with pytest.raises(ValueError, match=r"are addition, copy, dates, reverse, sort$"):
        make_task("qqqq")


def test_unknown_option_lists_the_options():
    with pytest.raises(ValueError, match=r"^addition: no option --alphabet; .* are: --min-length, --max-length$"):
        make_task("addition", alphabet="abc")
    with pytest.raises(ValueError, match=r"^dates: no option --max-length; .* are: none$"):
        make_task("dates", max_length=4)


def test_dates_without_babel_say_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)  # what an import finds when the package is missing
    with pytest.raises(MissingDependency) as error:
        make_task("dates")
    assert isinstance(error.value, ImportError)
    assert "babel" in str(error.value)
    assert "pip install -e '.[data]'" in str(error.value)
    assert "\n" not in str(error.value)


def test_split_is_the_same_for_ever():
    # A run that is resumed, or a model that is tested elsewhere, must see the same split: these values may not change.
    held_out = [number for number in range(100) if is_held_out(str(number))]
    assert held_out == [0, 7, 9, 10, 33, 40, 44, 51, 57, 59, 70, 71, 74, 90]
