"""What a training step of a GPT costs in minigrad as one of N, D, depth and batch grows: tables, and a plot.

    python benchmarks/scaling.py --out runs/scaling --markdown

Around the size nanogpt-cpu one number at a time is doubled. What is to be expected is how the multiplications of the
step's matrix products grow (`benchmarks/engines/floor.py`): attention's with N², the others' with N D² per layer. An
exponent is the slope of log cost over log size; of all points, and from each point to the next. Sizes take turns as
the engines of `benchmarks/train_step.py` do. Needs matplotlib for the plot, scaling.png; the numbers are scaling.json.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # a clone's, installed or not

from benchmarks.engines.command import folder, parsed, parser_of, write
from benchmarks.engines.floor import multiplications
from benchmarks.engines.in_minigrad import draw, make
from benchmarks.engines.measuring import Measured, take_turns
from benchmarks.engines.processes import Worker
from benchmarks.engines.sizes import SIZES, GPTSize, Workload
from benchmarks.engines.tables import mebibytes, table

BASE: Any = SIZES["nanogpt-cpu"]


@dataclass(frozen=True)
class Sweep:
    """One field of GPTSize, how it is called, and its values."""

    field: str
    title: str
    values: tuple[int, ...]

    @property
    def sizes(self) -> list[GPTSize]:
        return [replace(BASE, **{self.field: value}) for value in self.values]


SWEEPS = (
    Sweep("length", "length N", (16, 32, 64, 128, 256, 512)),
    Sweep("d_model", "width D", (32, 64, 128, 256, 512)),
    Sweep("layers", "layers", (1, 2, 4, 8, 16)),
    Sweep("batch", "batch B", (3, 6, 12, 24, 48)),
)


def measure(sweep: Sweep, rounds: int, threads: int, block: float) -> list[Measured]:
    """A training step at each size of the sweep. Raises WorkerError."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        turns = []
        for size, value in zip(sweep.sizes, sweep.values, strict=True):
            workload = Workload(Path(folder) / f"{value}.npz")
            workload.save(size, make(size).state_dict(), draw(size))
            worker = stack.enter_context(Worker("minigrad", workload.path, threads))
            turns.append((worker, Measured(str(value), worker.ready())))
        take_turns(turns, rounds, block, BASE.batches)
    return [result for _, result in turns]


def exponent(values: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost over log value, by least squares."""
    return float(np.polyfit(np.log(values), np.log(costs), 1)[0])


def lines(sweep: Sweep, measured: Sequence[Measured]) -> list[list[str]]:
    """A line for each value, with the exponents from the value before it, and one with those of all values."""
    costs = [result.milliseconds for result in measured]
    expected = [float(multiplications(size)) for size in sweep.sizes]
    rows = []
    for i, result in enumerate(measured):
        part = slice(max(i - 1, 0), i + 1)
        slopes = [f"{exponent(sweep.values[part], y[part]):.2f}" if i else "" for y in (costs, expected)]
        rows.append([result.name, f"{result.milliseconds:.2f}", *slopes, mebibytes(result.peak_bytes)])
    return [*rows, ["all", "", *(f"{exponent(sweep.values, y):.2f}" for y in (costs, expected)), ""]]


def draw_sweeps(results: dict[str, list[Measured]], path: Path) -> None:
    """Time over size, both logarithmic, beside what is expected, through the base size. ImportError: no matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(1, len(SWEEPS), figsize=(3.2 * len(SWEEPS), 3.2), sharey=True)
    for axes, sweep in zip(grid, SWEEPS, strict=True):
        costs = np.array([result.milliseconds for result in results[sweep.field]])
        expected = np.array([float(multiplications(size)) for size in sweep.sizes])
        expected *= costs[sweep.values.index(getattr(BASE, sweep.field))] / multiplications(BASE)
        axes.loglog(
            sweep.values, expected, "--", color="0.5", label=f"expected, {exponent(sweep.values, expected):.2f}"
        )
        axes.loglog(sweep.values, costs, "o-", label=f"measured, {exponent(sweep.values, costs):.2f}")
        axes.set_xticks(sweep.values, [str(value) for value in sweep.values])
        axes.minorticks_off()
        axes.set_xlabel(sweep.title)
        axes.legend(title="exponent", fontsize=8, title_fontsize=8)
    grid[0].set_ylabel("ms per training step")
    figure.suptitle(str(BASE), fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = parser_of("Measure how the cost of a training step grows.")
    parser.add_argument("--out", type=folder, default="runs", help="folder for the plot and numbers (default: runs)")
    given = parsed(parser, arguments)
    print(f"around: {BASE}; threads: {given.threads}, rounds: {given.rounds}", flush=True)
    results: dict[str, list[Measured]] = {}
    for sweep in SWEEPS:
        results[sweep.field] = measure(sweep, given.rounds, given.threads, given.block)
        heads = [sweep.title, "ms/step", "exponent", "expected", "peak MiB"]
        print(f"\n{table(heads, lines(sweep, results[sweep.field]), given.markdown)}", flush=True)
    write(given.out / "scaling.json", given, results)
    try:
        draw_sweeps(results, given.out / "scaling.png")
    except ImportError as error:
        print(f"\nThere is no plot: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
