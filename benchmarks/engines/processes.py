"""The other end of `benchmarks.engines.worker`: starting an engine's process, and asking it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from benchmarks.engines.sizes import NotInstalled

ROOT = Path(__file__).parents[2]

# How many threads an engine takes is left to it, within the cores that it gets.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "MKL_NUM_THREADS")


def take_cores(count: int) -> None:
    """Keep this process, and those that it starts from now on, to so many cores, where the system can.

    Raises ValueError if there are fewer.
    """
    can = hasattr(os, "sched_setaffinity")  # Linux
    cores = sorted(os.sched_getaffinity(0)) if can else list(range(os.cpu_count() or 1))
    if not 1 <= count <= len(cores):
        raise ValueError(f"must be from 1 to {len(cores)}, the cores that there are, not {count}")
    if can:
        os.sched_setaffinity(0, cores[:count])


class WorkerError(Exception):
    """The engine's process came to an end; the text is the error that it ended with."""


class Worker:
    """An engine in a process of its own, on the cores that this process may use. Ended on leaving the context."""

    def __init__(self, engine: str, *arguments: object, module: str = "worker") -> None:
        """Returns at once, while the process begins: see `ready`.

        Args:
            arguments: of the program `module` in benchmarks/engines, after the engine's name.
        """
        self.engine = engine
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.engines.{module}", engine, *map(str, arguments)],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )

    def ready(self) -> str:
        """Waits for the model to be made; the version of what it is made with. Raises NotInstalled."""
        answer = self._answer()
        if "missing" in answer:
            raise NotInstalled(answer["missing"])
        return answer["version"]

    def results(self, steps: int) -> list[float] | None:
        """Of the next steps, the losses, or numbers made of what they give; None if they give nothing."""
        return self._ask(f"results {steps}")["results"] or None

    def seconds(self, steps: int) -> float:
        """What so many steps take."""
        return self._ask(f"run {steps}")["seconds"]

    def peak_bytes(self) -> int | None:
        """The most memory that it took, from before its model was made; None if the system does not tell."""
        return self._ask("memory")["bytes"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> WorkerError:
        self._stderr.seek(0)
        words = re.split(r"^ .*\n", self._stderr.read(), flags=re.MULTILINE)[-1].split(
            "\n"
        )  # after a traceback's lines
        return WorkerError(f"{self.engine}: {'; '.join(filter(None, words)) or f'exit status {self._process.wait()}'}")
