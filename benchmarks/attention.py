"""Attention on a CPU, forward and backward: time and memory of each room over the length N, beside PyTorch's.

    python benchmarks/attention.py                               # N = 128 ... 16,384: half an hour or so
    python benchmarks/attention.py --max-n 4096 --plot attention.png --json attention.json

8 heads of 64 features, float32, causal and full. Turns and ratios are as in `benchmarks/train_step.py`, and so are
processes; PyTorch's is its `scaled_dot_product_attention`. Memory is the peak of a process beyond its inputs. At the
end it says from which length on the tiled room is at least as fast as the fused one; `nn.rooms.chosen_room` switches by
such figures.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # a clone's, installed or not

from benchmarks.engines.attention import ENGINES, HEADS, MASKS, WIDTH
from benchmarks.engines.command import count, new_file, parsed, parser_of, write
from benchmarks.engines.measuring import Measured, check_results, take_turns
from benchmarks.engines.processes import Worker, WorkerError
from benchmarks.engines.sizes import NotInstalled
from benchmarks.engines.tables import mebibytes, ratio, table

SHORTEST, LONGEST = 128, 16384
FITTING = 1024  # a length that fits everywhere, from which memory is foretold
TOLERANCE = 1e-5  # relative, between engines, of float32
SHARE_OF_MEMORY = 0.5  # of what is free, that an engine may be expected to take
HEADINGS = ("", "ms", "tiled / it", "peak MiB", "with")


class Case(NamedTuple):
    """What is measured at a time."""

    mask: str
    length: int

    def __str__(self) -> str:
        return f"{self.mask}, N = {self.length}"


Results = Mapping[Case, Sequence[Measured]]


def measure(engines: Sequence[str], case: Case, rounds: int, threads: int, block: float) -> list[Measured]:
    """These engines in turn, of which those are left out, with a line, that are not installed or end at their first
    step, as they do if memory is short. Raises NotTheSame, WorkerError.
    """
    with ExitStack() as stack:
        turns = []
        for engine in engines:  # one after another, so that each has the machine for itself at first
            worker = stack.enter_context(Worker(engine, case.length, case.mask, threads, module="attention"))
            try:
                turns.append((worker, Measured(engine, worker.ready())))
            except (NotInstalled, WorkerError) as reason:
                say(f"{engine} is left out at N = {case.length}: {reason}")
        check_results([worker for worker, _ in turns], 1, TOLERANCE)
        take_turns(turns, rounds, block, 1)
    return [measured for _, measured in turns]


def lengths(length: int, longest: int) -> Iterator[int]:
    """Doubling, up to the longest."""
    while length <= longest:
        yield length
        length *= 2


def fitting(length: int, shorter: int, measured: Sequence[Measured]) -> list[str]:
    """Those of the engines that memory will do for; says which are left out. `measured`: at the shorter length."""
    free = free_bytes()
    fits = []
    for engine in measured:
        expected = (engine.peak_bytes or 0) * (length / shorter) ** 2  # as if all of it were of N²
        if free is not None and expected > SHARE_OF_MEMORY * free:
            say(f"{engine.name} is left out at N = {length}: it may take {gib(expected)}, and {gib(free)} are free")
        else:
            fits.append(engine.name)
    return fits


def free_bytes() -> int | None:
    """Of the machine's memory; None if the system does not tell."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def switch_over(results: Results, mask: str) -> int | None:
    """The least length from which on the tiled room is at least as fast as the fused; None if it is not at the last."""
    found = None
    for case in sorted((case for case in results if case.mask == mask), reverse=True):
        by_name = {measured.name: measured for measured in results[case]}
        if "tiled" not in by_name or ("fused" in by_name and by_name["tiled"].ratios_to(by_name["fused"])[1] > 1):
            break
        found = case.length
    return found


# ---- showing it ------------------------------------------------------------------------------------------------------


def lines(measured: Sequence[Measured]) -> list[list[str]]:
    """A line for each engine."""
    tiled = next((result for result in measured if result.name == "tiled"), None)
    rows = []
    for result in measured:
        over = "-" if tiled is None else "1" if tiled is result else ratio(tiled.ratios_to(result))
        rows.append([result.name, f"{result.milliseconds:.2f}", over, mebibytes(result.peak_bytes), result.version])
    return rows


def gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def say(line: str) -> None:
    print(line, flush=True)


def draw(results: Results, path: Path) -> None:
    """Time and memory over N, on axes of logarithms, into a PNG file. ImportError if matplotlib is not installed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 2, sharex=True, sharey="row", figsize=(9, 7))
    quantities = (("ms", lambda m: m.milliseconds), ("peak MiB", lambda m: m.peak_bytes / 2**20 if m.peak_bytes else 0))
    for (label, quantity), axes_of_row in zip(quantities, grid, strict=True):
        for axes, mask in zip(axes_of_row, MASKS, strict=True):
            for name in ENGINES:
                points = [
                    (case.length, quantity(result))
                    for case, measured in results.items()
                    for result in measured
                    if (case.mask, result.name) == (mask, name)
                ]
                if points:
                    axes.plot(*zip(*points, strict=True), marker="o", label=name)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title(mask, fontsize=9)
            axes.set_xlabel("N")
            axes.set_ylabel(label)
            axes.grid(alpha=0.3)
    grid[0][0].legend()
    figure.suptitle(f"Attention forward and backward, {HEADS} heads, d = {WIDTH}, float32")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = parser_of("Time attention in every room, and PyTorch's, over the length.")
    parser.add_argument("--min-n", type=count, default=SHORTEST, help=f"the shortest N (default: {SHORTEST})")
    parser.add_argument("--max-n", type=count, default=LONGEST, help=f"the longest N (default: {LONGEST})")
    parser.add_argument("--plot", type=new_file, help="a PNG file to draw the figures into; needs matplotlib")
    parser.add_argument("--json", type=new_file, help="a file for all that was measured")
    given = parsed(parser, arguments)
    if given.min_n > given.max_n:
        parser.error(f"argument --min-n: must be at most --max-n, which is {given.max_n}, not {given.min_n}")
    options = given.rounds, given.threads, given.block
    results: dict[Case, list[Measured]] = {}
    for mask in MASKS:
        engines = list(ENGINES)
        if given.min_n > FITTING:
            engines = fitting(given.min_n, FITTING, measure(engines, Case(mask, FITTING), 0, *options[1:]))
        for length in lengths(given.min_n, given.max_n):
            case = Case(mask, length)
            results[case] = measure(engines, case, *options)
            say(f"\n{case}; threads: {given.threads}, rounds: {given.rounds}\n")
            say(table(HEADINGS, lines(results[case]), given.markdown))
            if 2 * length <= given.max_n:
                engines = fitting(2 * length, length, results[case])
    found = {mask: switch_over(results, mask) for mask in MASKS}
    for mask, least in found.items():
        where = "at none of these lengths" if least is None else f"from N = {least} on, N_q N_k = {least**2}"
        say(f"\n{mask}: the tiled room is at least as fast as the fused one {where}")
    if given.json:
        write(given.json, given, {str(case): measured for case, measured in results.items()}, switch_over=found)
    if given.plot:
        try:
            draw(results, given.plot)
        except ImportError as error:
            say(f"There is no picture: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
