"""What the commands have in common: their options, and what was measured as a file."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines.measuring import Measured
from benchmarks.engines.processes import take_cores


def parser_of(description: str) -> argparse.ArgumentParser:
    """With the options that all commands have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=7, help="how often each takes its turn (default: 7)")
    parser.add_argument("--threads", type=int, default=2, help="cores for each engine (default: 2)")
    parser.add_argument("--block", type=float, default=0.5, help="seconds of a turn, about (default: 0.5)")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    return parser


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; from now on this process keeps to as many cores as they say."""
    given = parser.parse_args(arguments)
    if given.rounds < 1:
        parser.error(f"--rounds must be 1 or more, not {given.rounds}")
    try:
        take_cores(given.threads)
    except ValueError as error:
        parser.error(str(error))
    return given


def names(known: Sequence[str], kind: str) -> Any:
    """For argparse: a list of some of these names, with commas."""

    def read(text: str) -> list[str]:
        given = text.split(",")
        for name in given:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {kind} is called {name!r}; there are {', '.join(known)}")
        return given

    return read


def write(path: Path, given: argparse.Namespace, results: dict[str, list[Measured]]) -> None:
    """All that was measured, as JSON."""
    values = {
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "threads": given.threads,
        "rounds": given.rounds,
        "results": {name: [vars(result) for result in measured] for name, measured in results.items()},
    }
    path.write_text(json.dumps(values, indent=1) + "\n")
