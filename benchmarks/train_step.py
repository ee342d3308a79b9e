"""One training step on a CPU, in minigrad and in other engines: time and memory, side by side.

    python benchmarks/train_step.py                                     # every size and engine that there is
    python benchmarks/train_step.py --sizes tiny,mid --engines minigrad,torch --rounds 15

Every engine runs in a process of its own, starts from the same parameters and trains on the same batches; the losses of
the first steps must agree. Then the engines take turns in blocks of about half a second, and a ratio is the median
over rounds of the times of one round, so that a busy machine weighs on both; its quartiles stand beside it. A slow
engine takes fewer turns. The floor is the step's matrix products alone, in two ways of which the faster counts. Memory
is the peak of a process, less what it had before its model was made.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a clone's, installed or not

from benchmarks.engines.command import names, new_file, parsed, parser_of, write
from benchmarks.engines.in_minigrad import draw, make
from benchmarks.engines.measuring import Measured, NotTheSame, measure
from benchmarks.engines.processes import WorkerError
from benchmarks.engines.sizes import SIZES, Workload
from benchmarks.engines.tables import mebibytes, ratio, table
from benchmarks.engines.worker import ENGINES
from training.tasks.base import MissingDependency

OURS, FLOORS = ("minigrad", "parallel"), ("floor-blas", "floor-divided")
NAMES = (*(name for name in ENGINES if name not in FLOORS), "floor")

ENGINES_HELP = (
    f"some of {','.join(NAMES)} (default: all that are installed). parallel: minigrad with nn.ParallelLoss; by-hand: "
    "its operations without its engine, of GPTs only; floor: the step's matrix products alone, in two ways"
)
LEGEND = """
Ratios, and multiples of the faster floor, are medians over rounds of the times of one round, with quartiles in
brackets: not quotients of the medians in ms. Below 1, the engine that heads the column is faster."""


def lines(measured: Sequence[Measured]) -> tuple[list[str], list[list[str]]]:
    """Heads and a line for each engine: ms of a step, ratios of ours to it, multiple of the floor, memory."""
    by_name = {result.name: result for result in measured}
    ours = [by_name[name] for name in OURS if name in by_name]
    floor = min((by_name[name] for name in FLOORS if name in by_name), key=lambda it: it.milliseconds, default=None)
    rows = []
    for result in measured:
        row = [result.name, f"{result.milliseconds:.2f}"]
        row += ["1" if own is result else ratio(own.ratios_to(result)) for own in ours]
        row.append(f"{result.ratios_to(floor)[1]:.2f}" if floor else "-")
        row.append("-" if result.name in FLOORS else mebibytes(result.peak_bytes))
        rows.append([*row, result.version])
    return ["", "ms/step", *(f"{own.name} / it" for own in ours), "x floor", "peak MiB", "with"], rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if every size was measured, and the engines agree."""
    parser = parser_of("Time a training step in minigrad and in other engines.")
    parser.add_argument("--engines", type=names(NAMES, "engine"), default=NAMES, help=ENGINES_HELP)
    parser.add_argument("--json", type=new_file, help="a file for all that was measured")
    sizes_help = f"some of {','.join(SIZES)} (default: all)"
    parser.add_argument("--sizes", type=names(list(SIZES), "size"), default=list(SIZES), help=sizes_help)
    given = parsed(parser, arguments)
    engines = [part for name in given.engines for part in (FLOORS if name == "floor" else (name,))]
    results: dict[str, list[Measured]] = {}
    for name in given.sizes:
        size = SIZES[name]
        print(f"\n{name}: {size}; threads: {given.threads}, rounds: {given.rounds}\n", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            workload = Workload(Path(folder) / "workload.npz")
            try:
                workload.save(size, make(size).state_dict(), draw(size))
                measured = measure(workload, engines, given.rounds, given.threads, given.block)
            except (NotTheSame, WorkerError, MissingDependency) as error:
                print(f"{name} was not measured: {error}", flush=True)
                continue
        if not measured:
            print(f"{name} was not measured: no engine was there", flush=True)
            continue
        results[name] = measured
        print(table(*lines(measured), markdown=given.markdown), flush=True)
    if results:
        print(LEGEND)
    if given.json:
        write(given.json, given, results)
    return int(len(results) < len(given.sizes))


if __name__ == "__main__":
    sys.exit(main())
