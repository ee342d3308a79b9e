"""The process that an engine runs in: makes its model, then does what the lines of its input say.

    python -m benchmarks.engines.worker ENGINE WORKLOAD THREADS [--decode]

A step is one of training, or, with --decode, the answers to a batch. Every line of input is answered by a line of JSON;
`benchmarks.engines.processes` has the other end.

    results N  "results" of N steps: a loss each, or a number that depends on all symbols of the answers, or several
    run N      "seconds" that N steps took, after a few that are not counted; a single one, if it is slow, is the first
    memory     "bytes": the process's peak since before the model was made, less what it had then; null if not known

It waits for a line without using the processor. What engines print goes to its standard error.
"""

from __future__ import annotations

import sys

if {"minigrad", "parallel", "by-hand", "floor-divided"} & set(sys.argv[1:2]):
    import minigrad  # noqa: F401 - before NumPy, whose BLAS reads a setting while it is loaded

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engines.sizes import NotInstalled, Workload

WARM_UP = 0.05  # seconds
SLOW = 3.0  # seconds of a step, in which caches and threads are warm soon enough

Step = Callable[[], Any]


@dataclass(frozen=True)
class Engine:
    """Where an engine's step is written, the package that it needs, and the function that makes the step."""

    module: str
    package: str
    build: str = "build"


ENGINES = {
    "minigrad": Engine("in_minigrad", "numpy"),
    "parallel": Engine("in_parallel", "numpy"),
    "by-hand": Engine("by_hand", "numpy"),
    "torch": Engine("in_pytorch", "torch"),
    "floor-blas": Engine("floor", "numpy"),
    "floor-divided": Engine("floor", "numpy", "build_divided"),
    "jax": Engine("in_jax", "jax"),
    "tinygrad": Engine("in_tinygrad", "tinygrad"),
    "autograd": Engine("in_autograd", "autograd"),
}


class Memory:
    """The process's memory, as Linux counts it."""

    def __init__(self) -> None:
        """Starts a new peak."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._before = self._read("VmRSS")

    def peak(self) -> int | None:
        """Bytes at the peak, beyond those at the start; None if the system does not tell."""
        return None if self._before is None else self._read("VmHWM") - self._before

    @staticmethod
    def _read(field: str) -> Any:
        try:
            found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        except OSError:
            return None
        return found and int(found[1]) * 1024


def numbers(result: Any) -> list[float]:
    """What a step gave, once it is computed: an engine may return before that. Nothing, a number or a list of some."""
    if result is None:
        return []
    return [float(x) for x in result] if isinstance(result, list) else [float(result)]


def run(step: Step, steps: int) -> float:
    """The seconds that so many steps take, after some to warm up caches and wake the engine's threads.

    What a step gave is dropped before the next, so that it does not count as memory of that.
    """
    start = time.perf_counter()
    numbers(step())
    if steps == 1 and (taken := time.perf_counter() - start) > SLOW:
        return taken
    while time.perf_counter() - start < WARM_UP:
        numbers(step())
    start = time.perf_counter()
    for _ in range(steps - 1):
        step()
    numbers(step())
    return time.perf_counter() - start


def serve(package: str, load: Callable[[], Callable[[], Step]]) -> None:
    """Answer the lines.

    Args:
        package: that must be installed.
        load: imports the engine, and returns what builds its step; the memory of that counts.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    try:
        build = load()
        memory = Memory()
        step = build()
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        return answer(missing=f"{package} is not installed: pip install {package}")
    except NotInstalled as error:
        return answer(missing=str(error))
    answer(version=f"{package} {importlib.metadata.version(package)}")
    for line in sys.stdin:
        match line.split():
            case ["results", count]:
                answer(results=[number for _ in range(int(count)) for number in numbers(step())])
            case ["run", count]:
                answer(seconds=run(step, int(count)))
            case ["memory"]:
                answer(bytes=memory.peak())


def main() -> None:
    parser = argparse.ArgumentParser(description="Run one engine for benchmarks/train_step.py.")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("workload", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("--decode", action="store_true")
    given = parser.parse_args()
    engine = ENGINES[given.engine]

    def load() -> Callable[[], Step]:
        module = importlib.import_module(f"benchmarks.engines.{engine.module}")
        build = getattr(module, "build_decoding" if given.decode else engine.build)
        return lambda: build(Workload(given.workload), given.threads)

    serve(engine.package, load)


if __name__ == "__main__":
    main()
