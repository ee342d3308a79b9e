"""Attention on a CPU, forward and backward: time and memory of each room over the length N, beside PyTorch's.

    python benchmarks/attention.py                               # N = 128 ... 16,384: half an hour or so
    python benchmarks/attention.py --max-n 4096 --plot attention.png --json attention.json

8 heads of 64 features, float32, causal and full. For each length every room is in a process of its own, and so is
PyTorch's `scaled_dot_product_attention` where it is installed. They take turns, and a ratio is the median over rounds
of the times of one round, so that a busy machine weighs on both. Memory is the peak of the process beyond its inputs.
The room "kernel" is left out: on a CPU an emulator runs it, for study. At the end it says from which length on the
tiled room is at least as fast as the fused one; `nn.rooms.chosen_room` switches by such figures.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # a clone's, installed or not

from benchmarks.engines.processes import THREAD_VARIABLES
from benchmarks.engines.worker import Memory

HEADS, WIDTH, SHORTEST = 8, 64, 128
FITTING = 1024  # a length that fits everywhere, from which memory is foretold
ROOMS = ("plain", "fused", "tiled")
ENGINES = (*ROOMS, "PyTorch")
TOLERANCE = 1e-5  # relative Frobenius error between engines, of float32
SHARE_OF_MEMORY = 0.5  # of what is free, that a room may be expected to take
BLOCK, PAUSE = 0.2, 0.1  # seconds of a turn, at least; after which threads of BLAS have gone to sleep
PATIENCE = 90.0  # seconds for all rounds of a length, after which three are enough

CHECKED = 16  # rows of all results

Step = Callable[[], Sequence[np.ndarray]]  # the output, and the gradients of query, key and value


class NotTheSame(Exception):
    """An engine computes something else."""


class Died(Exception):
    """An engine's process has ended, as it does if memory is short."""


# ---- in an engine's process ------------------------------------------------------------------------------------------


def serve(connection: Connection, engine: str, length: int, is_causal: bool, threads: int) -> None:
    """Do a step, then answer what is asked: "check", a part of its results; "memory", bytes; a number, the seconds
    of a step, timed over so many.
    """
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, HEADS, length, WIDTH), np.float32) for _ in range(4)]
    make = in_pytorch if engine == "PyTorch" else in_minigrad
    make([array[:, :, :CHECKED].copy() for array in arrays], engine, is_causal, threads)()  # what a first call loads
    step = make(arrays, engine, is_causal, threads)
    memory = Memory()
    results = [x[:, :, -CHECKED:].copy() for x in step()]
    answers = {"check": results, "memory": memory.peak()}
    while True:
        asked = connection.recv()
        connection.send(answers[asked] if asked in answers else seconds_of(step, asked))


def seconds_of(step: Step, count: int) -> float:
    """The seconds of one, of so many."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


def in_minigrad(arrays: Sequence[np.ndarray], room: str, is_causal: bool, threads: int) -> Step:
    """arrays: query, key, value and the gradient of the output, (1, H, N, d)."""
    import minigrad as mg
    import nn.functional as F

    inputs = [mg.Tensor(array, requires_grad=True) for array in arrays[:3]]
    g = mg.Tensor(arrays[3])

    def step() -> Sequence[np.ndarray]:
        with F.attention_room(room):
            output = F.scaled_dot_product_attention(*inputs, is_causal=is_causal)
        return [x.data for x in (output, *mg.grad(output, inputs, g))]

    return step


def in_pytorch(arrays: Sequence[np.ndarray], engine: str, is_causal: bool, threads: int) -> Step:
    import torch

    torch.set_num_threads(threads)
    inputs = [torch.tensor(array, requires_grad=True) for array in arrays[:3]]
    g = torch.tensor(arrays[3])

    def step() -> Sequence[np.ndarray]:
        output = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=is_causal)
        return [x.detach().numpy() for x in (output, *torch.autograd.grad(output, inputs, g))]

    return step


# ---- in this process -------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """One engine at one length. `seconds`: of a step, in each round."""

    engine: str
    length: int
    is_causal: bool
    peak_bytes: int | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def milliseconds(self) -> float:
        return statistics.median(self.seconds) * 1e3

    def ratio_to(self, other: Measured) -> float:
        """How much longer it takes than the other: the median over rounds."""
        return statistics.median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))


class Engine:
    """An engine in its process. Ended on leaving the context."""

    def __init__(self, name: str, length: int, is_causal: bool, threads: int) -> None:
        """Returns at once, while the process begins."""
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, other_end = context.Pipe()
        self._process = context.Process(target=serve, args=(other_end, name, length, is_causal, threads), daemon=True)
        self._process.start()
        other_end.close()

    def ask(self, what: str | int) -> Any:
        """See `serve`. Raises Died."""
        try:
            self._connection.send(what)
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            raise Died(f"its process ended with status {self._process.exitcode}") from None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


def measure(names: Sequence[str], length: int, is_causal: bool, rounds: int, threads: int) -> list[Measured]:
    """These engines in turn, of which those that die are left out, with a line. Raises NotTheSame."""
    with ExitStack() as stack:
        turns: list[tuple[Engine, Measured, int]] = []
        expected = None
        for name in names:  # one after another, so that each has the machine for itself at first
            engine = stack.enter_context(Engine(name, length, is_causal, threads))
            try:
                results = engine.ask("check")
                measured = Measured(name, length, is_causal, engine.ask("memory"))
                turns.append((engine, measured, max(1, round(BLOCK / engine.ask(1)))))
            except Died as error:
                say(f"{name} at N = {length} is left out: {error}")
                continue
            expected = expected or results
            check(name, results, expected)
        start = time.perf_counter()
        for i in range(rounds):
            for engine, measured, count in turns if i % 2 == 0 else reversed(turns):
                time.sleep(PAUSE)
                measured.seconds.append(engine.ask(count))
            if i >= 2 and time.perf_counter() - start > PATIENCE:
                break
    return [measured for _, measured, _ in turns]


def check(name: str, results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Raise NotTheSame unless the engine's results are the first one's."""
    for what, found, right in zip(("output", "d_query", "d_key", "d_value"), results, expected, strict=True):
        error = np.linalg.norm(found - right) / np.linalg.norm(right)
        if not error < TOLERANCE:
            raise NotTheSame(f"{name}: {what} is off by {error:.1e}")


def lengths(length: int, longest: int) -> Iterator[int]:
    """Doubling, up to the longest."""
    while length <= longest:
        yield length
        length *= 2


def fitting(names: Sequence[str], length: int, before: Sequence[Measured]) -> list[str]:
    """Those of the engines that memory will do for; says which are left out. `before`: of a shorter length."""
    by_name = {measured.engine: measured for measured in before}
    room = free_bytes()
    fits = []
    for name in names:
        if before and name not in by_name:
            continue  # left out before
        expected = 0.0
        if before:
            shorter = by_name[name]
            expected = (shorter.peak_bytes or 0) * (length / shorter.length) ** 2  # as if all of it were of N²
        if room is not None and expected > SHARE_OF_MEMORY * room:
            say(f"{name} at N = {length} is left out: it may take {gib(expected)}, and {gib(room)} are free")
        else:
            fits.append(name)
    return fits


def free_bytes() -> int | None:
    """Of the machine's memory; None if the system does not tell."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def switch_over(results: Sequence[Measured], is_causal: bool) -> int | None:
    """The least length from which on the tiled room is at least as fast as the fused; None if it is not at the last."""
    by_length: dict[int, dict[str, Measured]] = {}
    for measured in results:
        if measured.is_causal == is_causal:
            by_length.setdefault(measured.length, {})[measured.engine] = measured
    found = None
    for length, by_name in sorted(by_length.items(), reverse=True):
        if "tiled" not in by_name or ("fused" in by_name and by_name["tiled"].ratio_to(by_name["fused"]) > 1):
            break
        found = length
    return found


# ---- showing it ------------------------------------------------------------------------------------------------------

HEAD = f"{'mask':8}{'N':>7}  {'engine':9}{'ms':>11}{'tiled / it':>12}{'peak MiB':>11}"


def rows(results: Sequence[Measured]) -> str:
    """A line for each engine at one length."""
    tiled = next((measured for measured in results if measured.engine == "tiled"), None)
    lines = []
    for measured in results:
        mask, n, ms = "causal" if measured.is_causal else "full", measured.length, measured.milliseconds
        ratio = f"{tiled.ratio_to(measured):.2f}" if tiled else "-"
        peak = "-" if measured.peak_bytes is None else f"{measured.peak_bytes / 2**20:.1f}"
        lines.append(f"{mask:8}{n:>7}  {measured.engine:9}{ms:>11.2f}{ratio:>12}{peak:>11}")
    return "\n".join(lines)


def gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def say(line: str) -> None:
    print(line, flush=True)


def draw(results: Sequence[Measured], path: Path) -> None:
    """Time and memory over N, on axes of logarithms, into a PNG file. ImportError if matplotlib is not installed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 2, sharex=True, sharey="row", figsize=(9, 7))
    quantities = (("ms", lambda m: m.milliseconds), ("peak MiB", lambda m: m.peak_bytes / 2**20 if m.peak_bytes else 0))
    for (label, quantity), axes_of_row in zip(quantities, grid, strict=True):
        for axes, is_causal in zip(axes_of_row, (True, False), strict=True):
            for name in ENGINES:
                points = [(m.length, quantity(m)) for m in results if (m.engine, m.is_causal) == (name, is_causal)]
                if points:
                    axes.plot(*zip(*points, strict=True), marker="o", label=name)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title("causal" if is_causal else "full", fontsize=9)
            axes.set_xlabel("N")
            axes.set_ylabel(label)
            axes.grid(alpha=0.3)
    grid[0][0].legend()
    figure.suptitle(f"Attention forward and backward, {HEADS} heads, d = {WIDTH}, float32")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def report(threads: int, results: Sequence[Measured]) -> dict[str, Any]:
    """All that was measured, as JSON values."""
    machine = {"processor": platform.processor() or platform.machine(), "python": platform.python_version()}
    found = {"causal": switch_over(results, True), "full": switch_over(results, False)}
    return {"machine": machine, "threads": threads, "switch_over": found, "results": [asdict(m) for m in results]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time attention in every room, and PyTorch's, over the length.")
    parser.add_argument("--max-n", type=int, default=16384, help="the longest N (default: 16384)")
    parser.add_argument("--min-n", type=int, default=SHORTEST, help=f"the shortest N (default: {SHORTEST})")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each; fewer, if they are long (default: 7)")
    parser.add_argument("--threads", type=int, default=2, help="of BLAS and of PyTorch (default: 2)")
    parser.add_argument("--plot", type=Path, help="a PNG file to draw the figures into; needs matplotlib")
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    given = parser.parse_args(arguments)
    for name in THREAD_VARIABLES:  # the engines' processes read them when they import NumPy
        os.environ[name] = str(given.threads)
    names = list(ENGINES)
    if importlib.util.find_spec("torch") is None:
        say("PyTorch is not installed, so it is left out: pip install torch")
        names.remove("PyTorch")
    say(HEAD)
    results: list[Measured] = []
    for is_causal in (True, False):
        before: list[Measured] = []
        if given.min_n > FITTING:
            before = measure(names, FITTING, is_causal, 0, given.threads)
        for length in lengths(given.min_n, given.max_n):
            before = measure(fitting(names, length, before), length, is_causal, given.rounds, given.threads)
            say(rows(before))
            results += before
    for is_causal in (True, False):
        length, mask = switch_over(results, is_causal), "causal" if is_causal else "full"
        least = "at none of these lengths" if length is None else f"from N = {length} on, N_q N_k = {length**2}"
        say(f"{mask}: the tiled room is at least as fast as the fused one {least}")
    if given.json:
        given.json.write_text(json.dumps(report(given.threads, results), indent=1) + "\n")
    if given.plot:
        try:
            draw(results, given.plot)
        except ImportError as error:
            say(f"There is no picture: {error}")


if __name__ == "__main__":
    main()
