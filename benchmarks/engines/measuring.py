"""Engines, or sizes, that take turns: the time of a step in each round, and the ratios of times within a round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.engines.processes import Worker
from benchmarks.engines.sizes import NotInstalled, Workload

CHECKED_PASSES = 3  # through the batches; by then engines that compile have done so
TOLERANCE = 5e-4  # relative, of a loss in float32
PAUSE = 0.1  # seconds, after which the threads of the engine before have gone to sleep
PATIENCE = 60.0  # seconds for all turns of an engine: one that has used them up takes no more


class NotTheSame(Exception):
    """An engine computes something else."""


@dataclass
class Measured:
    """What takes turns, such as an engine. `seconds`: of a step, in each round; in the first ones, if it is slow."""

    name: str
    version: str
    peak_bytes: int | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def milliseconds(self) -> float:
        """Of a step, the median of the rounds."""
        return statistics.median(self.seconds) * 1e3

    def ratios_to(self, other: Measured) -> tuple[float, float, float]:
        """A step's time over the other one's: lower quartile, median and upper quartile of the rounds of both."""
        ratios = [a / b for a, b in zip(self.seconds, other.seconds, strict=False)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        return low, middle, high


def measure(
    workload: Workload, engines: Sequence[str], rounds: int, threads: int, block: float, decode: bool = False
) -> list[Measured]:
    """The engines that are installed, in turn; says on the screen which are not.

    Args:
        block: about how many seconds a turn takes.
        decode: a step is the answers to a batch, not training.

    Raises NotTheSame, WorkerError.
    """
    with ExitStack() as stack:
        workers, measured = [], []
        for engine in engines:  # one after another, as they compile and warm up
            worker = stack.enter_context(Worker(engine, workload.path, threads, *["--decode"] * decode))
            try:
                measured.append(Measured(engine, worker.ready()))
            except NotInstalled as reason:
                print(f"{engine} is left out: {reason}", flush=True)
            else:
                workers.append(worker)
        check_results(workers, CHECKED_PASSES * workload.size.batches)
        take_turns(list(zip(workers, measured, strict=True)), rounds, block, workload.size.batches)
    return measured


def check_results(workers: Sequence[Worker], steps: int, tolerance: float = TOLERANCE) -> None:
    """Raise NotTheSame unless the first `steps` steps give what those of the first engine do that gives anything."""
    expected: list[float] | None = None
    for worker in workers:
        results = worker.results(steps)
        if results is None:
            continue
        expected = expected or results
        if any(not abs(a - b) <= tolerance * abs(b) for a, b in zip(results, expected, strict=True)):
            raise NotTheSame(f"{worker.engine}: the first steps give {results}, they must give {expected}")


def take_turns(turns: Sequence[tuple[Worker, Measured]], rounds: int, block: float, cycle: int) -> None:
    """In each round every worker runs for about `block` seconds, there and back; fills in times and memory.

    cycle: how many batches there are; a turn goes through them a whole number of times, so it may take longer.
    A worker that has run for PATIENCE seconds takes no part in the rounds that are left.
    """
    counts = [steps_of_a_block(worker, block, cycle) for worker, _ in turns]
    counted = [(worker, result, count) for (worker, result), count in zip(turns, counts, strict=True)]
    for i in range(rounds):
        for worker, result, count in counted if i % 2 == 0 else reversed(counted):
            if sum(result.seconds) * count < PATIENCE:
                time.sleep(PAUSE)
                result.seconds.append(worker.seconds(count) / count)
    for worker, result in turns:
        result.peak_bytes = worker.peak_bytes()


def steps_of_a_block(worker: Worker, seconds: float, cycle: int) -> int:
    """How many steps take about so long: a multiple of `cycle`, after which the batches come again."""
    steps = cycle
    while (taken := worker.seconds(steps)) < seconds / 4:
        steps *= 4
    return cycle * max(1, round(seconds / taken * steps / cycle))
