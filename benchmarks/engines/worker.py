"""The process that an engine runs in: makes its model, then does what the lines of its input say.

    python -m benchmarks.engines.worker ENGINE WORKLOAD --threads T [--decode]

A step is one of training, or, with --decode, the answers to a batch. Every line of input is answered by a line of JSON;
`benchmarks.engines.processes` has the other end.

    results N  what N steps give: a loss each, or a number that depends on all symbols of the answers; null for nothing
    run N      "seconds" that N steps took, after a few that are not counted
    memory     "bytes": the process's peak since before the model was made, less what it had then; null if not known

It waits for a line without using the processor. What engines print goes to its standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engines.sizes import NotInstalled, Workload

WARM_UP = 0.05  # seconds


@dataclass(frozen=True)
class Engine:
    """Where an engine's step is written, and the package that it needs."""

    module: str
    package: str


ENGINES = {
    "minigrad": Engine("in_minigrad", "numpy"),
    "parallel": Engine("in_parallel", "numpy"),
    "torch": Engine("in_pytorch", "torch"),
    "floor": Engine("floor", "numpy"),
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


def number(result: Any) -> float | None:
    """What a step gave, once it is computed: an engine may return before that."""
    return None if result is None else float(result)


def run(step: Callable[[], Any], steps: int) -> float:
    """The seconds that so many steps take, after some to warm up caches and wake the engine's threads."""
    start = time.perf_counter()
    number(step())
    while time.perf_counter() - start < WARM_UP:
        number(step())
    start = time.perf_counter()
    for _ in range(steps):
        result = step()
    number(result)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Run one engine for benchmarks/train_step.py.")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--decode", action="store_true")
    given = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    engine = ENGINES[given.engine]
    try:
        module = importlib.import_module(f"benchmarks.engines.{engine.module}")
        memory = Memory()
        build = module.build_decoding if given.decode else module.build
        step = build(Workload(given.workload), given.threads)
    except ModuleNotFoundError as error:
        if error.name != engine.package:
            raise
        return answer(missing=f"{engine.package} is not installed: pip install {engine.package}")
    except NotInstalled as error:
        return answer(missing=str(error))
    answer(version=f"{engine.package} {importlib.metadata.version(engine.package)}")
    for line in sys.stdin:
        match line.split():
            case ["results", count]:
                answer(results=[number(step()) for _ in range(int(count))])
            case ["run", count]:
                answer(seconds=run(step, int(count)))
            case ["memory"]:
                answer(bytes=memory.peak())


if __name__ == "__main__":
    main()
