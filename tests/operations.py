"""The table of everything: each operation, method and function, and what it was held against. Run it from a clone:

    python -m tests.operations              all of it, in one to four minutes
    python -m tests.operations exp softmax  these alone

It runs the checks of `tests.minigrad.ops.factory` on the Cases of the test files, and PyTorch's own samples. A name
without a Case is a hole in it. It ends with what differs from PyTorch on purpose, read from docs/architecture.md, and
exits with 1 if anything fails or is missing, with 2 if PyTorch is not installed.
"""

from __future__ import annotations

# The settings of a test run come first: some are read when NumPy is imported.
import tests.conftest  # noqa: F401  # isort: skip

import argparse
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import minigrad as mg
import nn.functional as F
from minigrad import Tensor, ops
from tests import op_db
from tests.differences import differences, names_in
from tests.minigrad import test_function_table, test_tensor_methods
from tests.minigrad.ops import test_ops
from tests.minigrad.ops.factory import CHECKS, Case, run_check
from tests.nn import test_functional_table

OF_METHODS = ("torch", "refusals", "gradients", "half")  # the rest is checked of the operations that methods hand on to
OF_FUNCTIONAL = (*OF_METHODS, "device")
HOLE, FAILED, DONE, NONE = "HOLE", "✗", "✓", "–"


@dataclass
class Row:
    """One operation, method or function under all its names.

    Attributes:
        names: such as "Tensor.exp", "mg.exp".
        cases: how it is called.
        checks: which of `CHECKS` hold for its table.
        counts: check -> what it counted, once it has passed.
        failures: check or sample -> what was wrong.
        samples: of PyTorch's, (passed, tried).
        rows: numbers of the differences on purpose.
    """

    names: list[str]
    cases: list[Case]
    checks: tuple[str, ...]
    counts: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    samples: tuple[int, int] = (0, 0)
    rows: list[int] = field(default_factory=list)

    @property
    def short_names(self) -> set[str]:
        return {name.partition(".")[2] for name in self.names}

    @property
    def public_names(self) -> set[str]:
        """Those that PyTorch has too: methods and functions."""
        return {name.partition(".")[2] for name in self.names if not name.startswith("ops.")}

    def cells(self) -> list[str]:
        """What the columns of `HEAD` say of it."""
        if not self.cases:
            return [HOLE] * 8 + [NONE, ""]
        differentiable = any(case.differentiable for case in self.cases)
        passed, tried = self.samples
        value, dtype, gradient = (self._compared(word) for word in ("value", "dtype", "gradient"))
        half, floating = self._cell("half"), self.counts.get("half", 1) > 0
        refusals = self._cell("refusals")
        return [
            value,
            dtype,
            gradient if differentiable else NONE,
            str(self.counts["refusals"]) if refusals == DONE and self.counts["refusals"] else refusals,
            self._cell("gradients") if differentiable else NONE,
            half if floating else NONE,
            self._cell("numpy"),
            self._cell("device"),
            f"{passed}/{tried}" if tried else NONE,
            " ".join(f"[{number}]" for number in self.rows),
        ]

    def _cell(self, check: str) -> str:
        return NONE if check not in self.checks else FAILED if check in self.failures else DONE

    def _compared(self, what: str) -> str:
        """Of the comparison with PyTorch: ✗ for what differed, ? for what was not reached then."""
        failure = self.failures.get("torch")
        return DONE if failure is None else FAILED if what in failure.split(":")[0] else "?"


HEAD = ["value", "dtype", "gradient", "refused", "order 2", "16 bits", "NumPy", "GPU", "op_db", "on purpose"]
LEGEND = """\
value, dtype, gradient: PyTorch's, on shapes and numbers that Hypothesis draws, in float32 and float64, and in 16 bits
where PyTorch computes in it.    order 2: gradients, and gradients of gradients, are finite differences'.
refused: so many wrong operands were refused, with PyTorch's kind of error; ✓: PyTorch takes all that were tried.
    The kind says little where PyTorch's is RuntimeError, as for most: ValueError, TypeError, IndexError and
    ZeroDivisionError count as that too.
16 bits: values and gradients in float16 and bfloat16 are those of float64, but for rounding.
NumPy: the values are NumPy's.    GPU: on a stand-in for CuPy nothing leaves the device (methods hand on to operations).
op_db: PyTorch's own samples, passed/tried.    –: has no meaning here.    [1]: differs on purpose, see below."""


def all_rows() -> list[Row]:
    """A row for each public name; names that mean the same function share one."""
    methods = set(test_tensor_methods.methods_of_tensor()) - test_tensor_methods.OTHERS
    functions = set(test_function_table.functions_of_minigrad()) - test_function_table.OTHERS
    functional = set(F.__all__) - test_functional_table.OTHERS - test_functional_table.OPERATIONS
    tables = [
        ("ops", ops, set(test_ops.OPERATIONS), _cases_of_operations(), tuple(CHECKS)),
        ("Tensor", Tensor, methods, test_tensor_methods.CASES, OF_METHODS),
        ("mg", mg, functions, test_function_table.CASES, OF_METHODS),
        ("F", F, functional, test_functional_table.CASES, OF_FUNCTIONAL),
    ]
    rows = []
    for prefix, home, names, cases, checks in tables:
        for name in sorted(names):
            own = vars(home).get(name, getattr(home, name))
            also = [f"{other}.{name}" for other, place in (("mg", mg), ("F", F)) if vars(place).get(name) is own]
            alike = [case for case in cases if case.name == name]
            rows.append(Row(list(dict.fromkeys([f"{prefix}.{name}", *also])), alike, checks))
    return rows


def _cases_of_operations() -> list[Case]:
    files = {f.__module__.removeprefix("minigrad.ops.") for f in test_ops.OPERATIONS.values()}
    return [c for file in sorted(files) for c in importlib.import_module(f"tests.minigrad.ops.test_{file}").CASES]


# ---- filling it ------------------------------------------------------------------------------------------------------


def check(row: Row) -> None:
    """Run all checks of a row."""
    for name in row.checks:
        try:
            row.counts[name] = sum(run_check(case, name) for case in row.cases)
        except Exception as error:
            row.failures[name] = f"{type(error).__name__ if not str(error) else ''}{error}"


def try_samples(rows: Sequence[Row]) -> tuple[int, int, dict[str, int]]:
    """Run PyTorch's samples of all rows; returns how many passed and were tried, and reason -> how many were not."""
    passed = tried = 0
    not_tried: dict[str, int] = {}
    for entry in op_db.database():
        concerned = [row for row in rows if row.public_names & op_db.names_of(entry)]
        if not concerned:
            continue
        outcome = op_db.run(entry)
        passed, tried = passed + outcome.passed, tried + outcome.tried
        for reason, count in outcome.not_tried.items():
            not_tried[reason] = not_tried.get(reason, 0) + count
        for row in concerned:
            row.samples = row.samples[0] + outcome.passed, row.samples[1] + outcome.tried
            row.failures |= {f"op_db {sample}": wrong for sample, wrong in outcome.failures}
    return passed, tried, not_tried


def note_differences(rows: Sequence[Row]) -> None:
    """Give each row the numbers of the differences whose first column names it: as `exp`, or as `ops.exp` alone."""
    for number, (what, *_) in enumerate(differences(), 1):
        named = set(names_in(what))
        for row in rows:
            if named & (row.short_names | set(row.names)):
                row.rows.append(number)


# ---- showing it ------------------------------------------------------------------------------------------------------


def lines_of(rows: Sequence[Row]) -> Iterator[str]:
    """The table, a line a row."""
    names = [" ".join(row.names) for row in rows]
    cells = [HEAD, *[row.cells() for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEAD))]
    for name, line in zip(["", *names], cells, strict=True):
        padded = [cell.center(width) for cell, width in zip(line, widths, strict=True)]
        yield f"{name:{max(map(len, names))}}  {'  '.join(padded)}".rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 if nothing fails and nothing is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.operations", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="show these alone: exp, softmax, __add__ ...")
    chosen = set(parser.parse_args(arguments).names)
    rows = all_rows()
    unknown = chosen - {name for row in rows for name in row.short_names}
    if unknown:
        parser.error(f"no operation, method or function has the name {', '.join(sorted(unknown))}")
    missing = [name for name in ("torch", "expecttest") if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"missing, to compare with: {' and '.join(missing)}; pip install -e '.[test,crosscheck]'")
    rows = [row for row in rows if not chosen or chosen & row.short_names]
    for place, row in enumerate(rows, 1):
        if sys.stderr.isatty():
            print(f"{place}/{len(rows)}", end="\r", file=sys.stderr)
        check(row)
    passed, tried, not_tried = try_samples(rows)
    note_differences(rows)
    print("\n".join(lines_of(rows)), LEGEND, sep="\n\n")
    print(f"\nPyTorch's samples: {passed} passed of {tried} tried. Not tried, and why:")
    for reason, count in sorted(not_tried.items()):
        print(f"  {count:4} {reason}")
    print("\nDiffers from PyTorch on purpose:")
    for number, (what, theirs, ours, why) in enumerate(differences(), 1):
        if not chosen or any(number in row.rows for row in rows):
            print(f"  [{number}] {what}: in PyTorch {theirs}; here {ours}. {why}")
    wrong = [row for row in rows if row.failures or not row.cases]
    print(f"\n{len(rows)} rows, {len(wrong)} of them with a hole or a failure")
    for row in wrong:
        for what, text in [*row.failures.items()][:3] if row.cases else [("hole", "it has no Case")]:
            print(f"{row.names[0]}, {what}: {text.partition(chr(10))[0]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
