"""Tables for the screen, and the same in Markdown for a page."""

from __future__ import annotations

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool = False) -> str:
    """Columns under their heads, all but the first aligned to the right."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(heads))]
    text = [
        [f"{cell:{'>' if i else '<'}{width}}" for i, (cell, width) in enumerate(zip(line, widths, strict=True))]
        for line in lines
    ]
    if not markdown:
        return "\n".join("  ".join(line).rstrip() for line in text)
    rule = ["-" * (width - 1) + (":" if i else "-") for i, width in enumerate(widths)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [text[0], rule, *text[1:]])


def ratio(quartiles: tuple[float, float, float]) -> str:
    """The median, and the quartiles beside it."""
    low, middle, high = quartiles
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def mebibytes(size: int | None) -> str:
    """A size in bytes in MiB; None is a dash."""
    return "-" if size is None else f"{size / 2**20:.1f}"
