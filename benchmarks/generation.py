"""Greedy decoding of the dates model on a CPU, in minigrad and in PyTorch: sequences per second, side by side.

    python benchmarks/generation.py                 # batches of 1, 32 and 128 sources

Both go the same way, that of `models.greedy_decode`, and must give the same answers. The encoder runs once, and so do
the projections of what it gives to each decoder layer's keys and values. Then, for each symbol, the decoder computes
that place alone: its keys and values join those of the places before, in arrays made for all of them, and the largest
of the logits is taken. Rows whose answer has ended are left out from then on.

The parameters are those that training starts from, but for the end symbol, which is made impossible: so every answer
has the length of a date and the symbol after it, as those of a trained model do. Turns, ratios and memory are as in
`benchmarks/train_step.py`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a clone's, installed or not

from benchmarks.engines.command import new_file, parsed, parser_of, write
from benchmarks.engines.in_minigrad import draw, make
from benchmarks.engines.measuring import Measured, NotTheSame, measure
from benchmarks.engines.processes import WorkerError
from benchmarks.engines.sizes import SIZES, Workload
from benchmarks.engines.tables import mebibytes, table
from training.tasks.base import EOS, MissingDependency

ENGINES = ("minigrad", "torch")
BATCHES = (1, 32, 128)
HEADS = ("batch", "", "sequences/s", "speed over it", "peak MiB", "with")


def prepare(batch: int, path: Path) -> Workload:
    """Parameters, and batches of so many sources."""
    size = SIZES["dates"]
    size = replace(size, settings=replace(size.settings, batch_size=batch))
    parameters = make(size).state_dict()
    parameters["generator.bias"][EOS] = -1e9
    workload = Workload(path)
    workload.save(size, parameters, draw(size))
    return workload


def lines(batch: int, measured: Sequence[Measured]) -> list[list[str]]:
    """A line for each engine; the speed is how many times as many sequences minigrad has made in a round."""
    rows = []
    for result in measured:
        low, middle, high = result.ratios_to(measured[0])
        speed = "1" if result is measured[0] else f"{middle:.2f} ({low:.2f}-{high:.2f})"
        rate = batch / result.milliseconds * 1e3
        rows.append([str(batch), result.name, f"{rate:.0f}", speed, mebibytes(result.peak_bytes), result.version])
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if all was measured, and the engines agree."""
    parser = parser_of("Time greedy decoding in minigrad and in PyTorch.")
    parser.add_argument("--json", type=new_file, help="a file for all that was measured")
    given = parsed(parser, arguments)
    results: dict[str, list[Measured]] = {}
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for batch in BATCHES:
            try:
                workload = prepare(batch, Path(folder) / f"{batch}.npz")
                measured = measure(workload, ENGINES, given.rounds, given.threads, given.block, decode=True)
            except (NotTheSame, WorkerError, MissingDependency) as error:
                print(f"batch {batch} was not measured: {error}", flush=True)
            else:
                results[str(batch)] = measured
                rows += lines(batch, measured)
    print(f"{SIZES['dates']}; threads: {given.threads}, rounds: {given.rounds}\n")
    print(table(HEADS, rows, given.markdown))
    if given.json:
        write(given.json, given, results)
    return int(len(results) < len(BATCHES))


if __name__ == "__main__":
    sys.exit(main())
