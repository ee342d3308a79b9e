"""Tables and attention maps as text."""

import codecs

import numpy as np

from training import text
from training.tasks.base import Example


def test_a_share_is_rounded_down():
    assert text.share(999, 1000) == " 99.9 %"
    assert text.share(9999, 10000) == " 99.9 %"
    assert text.share(3, 3) == "100.0 %"
    assert text.share(0, 3) == "  0.0 %"


def test_group_table():
    counts = {("format", "d. MMMM y"): (9, 10), ("language", "de"): (1, 3)}
    assert text.group_table(counts) == (
        "  format    d. MMMM y  90.0 %  9/10\n"  #
        "  language  de         33.3 %  1/3"
    )
    assert text.group_table({}) == ""


def test_sample_table_marks_what_is_wrong():
    examples = [Example("abc", "cba"), Example("de", "ed")]
    assert text.sample_table(examples, ["cba", "ee"]) == (
        "  ✓ abc → cba\n"  #
        "  ✗ de  → ee  (right: ed)"
    )


def test_attention_map_shows_the_mean_over_heads_of_the_last_layer():
    first = np.zeros((2, 2, 3))
    heads = np.array([[[1.0, 0.0, 0.0], [0.0, 0.25, 0.75]], [[1.0, 0.0, 0.0], [0.0, 0.75, 0.25]]])  # (H, N_q, N_k)
    assert text.attention_map({"first": first, "last": heads}, "ab", "x") == (
        "attention of last, mean of its 2 heads; █ is 1.00\n     a b ∎ \n  x  ██\n  ∎    ▒▒▒▒"
    )


def test_attention_map_of_wide_symbols_keeps_its_columns():
    lines = text.attention_map({"last": np.full((1, 2, 3), 1 / 3)}, "あい", "い").split("\n")
    assert lines[1:] == ["     あい∎ ", "  い ██████", "  ∎  ██████"]


def test_a_terminal_without_the_signs_gets_others_in_their_columns():
    codecs.register_error("plain", text.plain)
    heads = np.array([[[0.1, 0.5, 0.9], [0.0, 0.3, 0.7]]])
    shown = text.attention_map({"last": heads}, "ab", "x").encode("ascii", "plain").decode()
    assert shown.split("\n") == [
        "attention of last, mean of its 1 heads; # is 0.90",
        "     a b $ ",
        "  x    ::##",
        "  $    ..**",
    ]
    marks = text.sample_table([Example("é", "é"), Example("a", "b")], ["é", "a"])
    assert marks.encode("ascii", "plain").decode() == "  + ? > ?\n  x a > a  (right: b)"
