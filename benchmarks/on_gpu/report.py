"""A table of results, in which every row says pass, fail or skipped; written to a file while it grows."""

from __future__ import annotations

import textwrap
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.on_gpu.measuring import Deadline

NAME, CELL = 52, 13  # widths of columns


class Row(NamedTuple):
    """A result: whether it is as it should be, its numbers, and what else there is to say.

    part: what of the thing that was tried, if there are several rows of it.
    """

    passed: bool
    cells: Sequence[str]
    note: str = ""
    part: str = ""


class CannotBeTried(Exception):
    """What this GPU has no place for; its text says why. The row is skipped, and the run may pass without it."""


class Report:
    """Rows go to the screen and to a file at once, so that a program that is stopped leaves what it has found."""

    def __init__(self, path: Path, deadline: Deadline) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        self._deadline = deadline
        self._verdicts: Counter[str] = Counter()
        self._too_late = 0  # rows for which no time was left

    def line(self, text: str = "") -> None:
        for file in (None, self._file):
            print(text.rstrip(), file=file, flush=True)

    def section(self, title: str, columns: Sequence[str]) -> None:
        self.line(f"\n{title}\n")
        self._row("", "", columns, "")

    def add(self, name: str, work: Callable[..., Sequence[Row]], *arguments: Any) -> None:
        """The rows that `work(*arguments)` finds; if it fails, or no time is left for it, one row that says so."""
        if self._deadline.passed:
            self._too_late += 1
            return self._judge("skipped", name, (), "no time left")
        try:
            rows = work(*arguments)
        except CannotBeTried as reason:
            return self._judge("skipped", name, (), str(reason))
        except Exception as error:  # whatever it is, the other rows are wanted
            traceback.print_exc()
            return self._judge("fail", name, (), textwrap.shorten(f"{type(error).__name__}: {error}", 160))
        for row in rows:
            self._judge("pass" if row.passed else "fail", f"{name} {row.part}", row.cells, row.note)
        return None

    def close(self) -> int:
        """The last line. Returns the exit status: 1 if a row failed, no time was left for one, or none passed."""
        counts = ", ".join(f"{self._verdicts[verdict]} {verdict}" for verdict in ("pass", "fail", "skipped"))
        self.line(f"\n{self._verdicts.total()} rows: {counts}; {self._deadline.elapsed:.0f} s")
        passed = self._verdicts["pass"] and not self._verdicts["fail"] and not self._too_late
        unknown = f": for want of time {self._too_late} rows show nothing" if self._too_late else ""
        self.line(f"{'Passed' if passed else 'NOT passed'}{unknown}")
        self._file.close()
        return int(not passed)

    def _judge(self, verdict: str, name: str, cells: Sequence[str], note: str) -> None:
        self._verdicts[verdict] += 1
        self._row(verdict, name, cells, note)

    def _row(self, verdict: str, name: str, cells: Sequence[str], note: str) -> None:
        self.line(f"{verdict:8}{name:{NAME}}" + "".join(f"{cell:>{CELL}}" for cell in cells) + f"  {note}")


def mebibytes(size: int | str | None) -> str:
    """A size in bytes as it is printed; a word stays, and None is a dash."""
    return "-" if size is None else size if isinstance(size, str) else f"{size / 2**20:,.1f} MiB"
