"""What differs from PyTorch on purpose: the last table of docs/architecture.md, read by the tests and by the table of
everything."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"


def differences() -> list[list[str]]:
    """The rows of the table: what, PyTorch, minigrad, why."""
    table = ARCHITECTURE.read_text(encoding="utf-8").rpartition("|---|")[2]
    lines = [line for line in table.splitlines()[1:] if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names_in(text: str) -> list[str]:
    """The names in backquotes, dotted ones whole: of `maximum(x, 0)` maximum, of `x.sum()` Tensor.sum.

    What is an expression instead, such as `x[i] = v` or `eps=0`, names nothing.
    """
    found = [re.fullmatch(r"([A-Za-z_][\w.]*)(\(.*\))?", code) for code in re.findall(r"`([^`]*)`", text)]
    return [re.sub(r"^x\.", "Tensor.", match[1]) for match in found if match]


@cache
def taken_more_widely(kind: str) -> frozenset[str]:
    """The names, without their module, of what takes operands that PyTorch refuses: of "integers", or of "booleans"."""
    rows = [what for what, *_ in differences() if what.partition(" in ")[0] in (kind, "integers or booleans")]
    return frozenset(name.rpartition(".")[2] for row in rows for name in names_in(row))
