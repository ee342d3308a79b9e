"""Counting what is right, and the shapes of answers and attention."""

import numpy as np
import pytest

import minigrad as mg
from models import Transformer
from training.evaluate import answers, count_right, cross_attention, exact_match_by_group
from training.tasks import make_task
from training.tasks.base import Example


@pytest.fixture
def task():
    return make_task("copy", alphabet="abcd", max_length=6)


@pytest.fixture
def model(task):
    mg.manual_seed(0)
    size = len(task.source_vocabulary)
    return Transformer(size, size, d_model=16, num_heads=2, num_decoder_layers=3, d_ff=32, dropout=0.5, max_length=7)


def test_count_right():
    examples = [Example("a", "1"), Example("b", "22"), Example("c", "3")]
    assert count_right(examples, ["1", "2", ""]) == 1


def test_exact_match_by_group_puts_kinds_with_few_values_first():
    examples = [
        Example("a", "1", {"format": "z", "language": "de"}),
        Example("b", "2", {"format": "y", "language": "de"}),
        Example("c", "3"),
    ]
    counts = exact_match_by_group(examples, ["1", "0", "3"])
    assert list(counts.items()) == [
        (("language", "de"), (1, 2)),
        (("format", "y"), (0, 1)),
        (("format", "z"), (1, 1)),
    ]


def test_answers_do_not_depend_on_dropout_or_on_the_other_sources(task, model):
    sources = [example.source for example in task.held_out(20)]
    given = answers(model, task, sources)
    assert given == [answer for source in sources for answer in answers(model, task, [source])]
    assert model.training
    assert answers(model, task, []) == []


@pytest.mark.parametrize("answer", ["", "ab", "abcdab", "abcdabc"])
def test_cross_attention_has_a_row_for_each_symbol(task, model, answer):
    weights = cross_attention(model, task, "abca", answer)
    assert list(weights) == [f"decoder.layers.{i}.multihead_attn" for i in range(3)]
    rows = min(len(answer) + 1, 7)  # decoding stops after 7 symbols: the longest answer has no EOS
    for heads in weights.values():
        assert heads.shape == (2, rows, 5)
        np.testing.assert_allclose(heads.sum(-1), 1, rtol=1e-5)
    assert model.training
