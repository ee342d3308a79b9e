"""What the commands have in common: options, refused at once where they make no sense, and the file of results."""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines.measuring import Measured
from benchmarks.engines.processes import take_cores


def parser_of(description: str) -> argparse.ArgumentParser:
    """With the options that all commands have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=count, default=7, help="how often each takes its turn (default: 7)")
    parser.add_argument("--threads", type=count, default=2, help="cores for each engine (default: 2)")
    parser.add_argument("--block", type=seconds, default=0.5, help="seconds of a turn, about (default: 0.5)")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    return parser


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; from now on this process keeps to as many cores as they say."""
    given = parser.parse_args(arguments)
    try:
        take_cores(given.threads)
    except ValueError as error:
        parser.error(f"argument --threads: {error}")
    return given


# ---- for argparse: what an option is ---------------------------------------------------------------------------------


def count(text: str) -> int:
    """An integer from 1 on."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be an integer from 1 on, not {text!r}")
    return number


def seconds(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return number


def names(known: Sequence[str], kind: str) -> Callable[[str], list[str]]:
    """A list of some of these names, with commas; each once."""

    def read(text: str) -> list[str]:
        given = list(dict.fromkeys(name.strip() for name in text.split(",")))
        for name in given:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {kind} is called {name!r}; there are {', '.join(known)}")
        return given

    return read


def new_file(text: str) -> Path:
    """A file that can be written. That is tried, so that it does not fail after an hour; it is left as it was."""
    path = Path(text)
    try:
        existed = path.exists()
        path.open("a").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}") from None
    if not existed:
        path.unlink()
    return path


def folder(text: str) -> Path:
    """A folder that files can be written into; it is made if there is none."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"no files can be written into {text!r}: {error.strerror}") from None
    return path


# ---- results ---------------------------------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """What the figures depend on."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "processor": processor(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{blas['name']} {blas['version']}",
    }


def processor() -> str:
    """The model's name, where the system tells."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def write(path: Path, given: argparse.Namespace, results: dict[str, list[Measured]], **others: Any) -> None:
    """All that was measured, as JSON."""
    values = {
        "machine": machine(),
        "threads": given.threads,
        "rounds": given.rounds,
        **others,
        "results": {name: [vars(result) for result in measured] for name, measured in results.items()},
    }
    path.write_text(json.dumps(values, indent=1) + "\n")
