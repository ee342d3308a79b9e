"""Results as text for a terminal: tables, sample answers, attention maps. Prints nothing: report.py does."""

import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

from training.tasks.base import END, Example

SHADES = " ░▒▓█"
PLAIN = dict(zip(SHADES + END + "✓✗→", " .:*#$+x>", strict=True))
"""What stands for these signs in ASCII."""


def plain(error: UnicodeError) -> tuple[str, int]:
    """An error handler of `codecs`: puts ASCII in the place of what a terminal's encoding lacks, column for column."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def share(right: int, total: int) -> str:
    """As "99.4 %", rounded down: 100.0 % means all."""
    return f"{1000 * right // total / 10:5.1f} %"


def group_table(counts: Mapping[tuple[str, str], tuple[int, int]]) -> str:
    """A line for each group: its kind and value, the share that is right, and right/all. "" without groups."""
    lines = []
    width = max((len(value) for _, value in counts), default=0)
    for (kind, value), (right, total) in counts.items():
        lines.append(f"  {kind:<9} {value:<{width}} {share(right, total)}  {right}/{total}")
    return "\n".join(lines)


def sample_table(examples: Sequence[Example], given: Sequence[str]) -> str:
    """A line for each example: a mark for right or wrong, source, answer, and what would have been right."""
    width = max(len(example.source) for example in examples)
    lines = []
    for example, answer in zip(examples, given, strict=True):
        right = answer == example.target
        lines.append(
            f"  {'✓' if right else '✗'} {example.source:<{width}} → {answer}"
            + ("" if right else f"  (right: {example.target})")
        )
    return "\n".join(lines)


def attention_map(weights: Mapping[str, np.ndarray], source: str, answer: str) -> str:
    """The last attention of `weights`, each (H, N_q, N_k) by module path, in block characters, the mean of its heads.

    The source's symbols and EOS along the top, the answer's down the side. The darkest shade is the largest weight.
    """
    path, heads = list(weights.items())[-1]
    mean = heads.mean(axis=0)  # (N_q, N_k)
    top = float(mean.max())
    levels = np.minimum((mean / top * len(SHADES)).astype(int), len(SHADES) - 1)
    lines = [
        f"attention of {path}, mean of its {len(heads)} heads; {SHADES[-1]} is {top:.2f}",
        "     " + "".join(_cell(symbol) for symbol in source + END),
    ]
    for symbol, row in zip(answer + END, levels, strict=False):  # no row of END if the answer has none
        lines.append(f"  {_cell(symbol)} " + "".join(2 * SHADES[level] for level in row).rstrip())
    return "\n".join(lines)


def _cell(symbol: str) -> str:
    """The symbol, two columns wide."""
    return symbol if unicodedata.east_asian_width(symbol) in "WF" else symbol + " "
