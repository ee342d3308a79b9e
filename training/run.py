"""A run: the folder in which a training lives, by default runs/<task>-<number>.

It holds checkpoint.npz (everything; the rest is for people), config.json, metrics.jsonl (a line for each evaluation)
and pictures. The folder gets its name when its first checkpoint is in it, so whatever has a name can be resumed. Only
trainer.py knows what is in a checkpoint.
"""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from training import checkpoint
from training.checkpoint import CheckpointError
from training.files import naming, sync_folder, write_whole
from training.settings import SettingsError, typed

RUNS = Path("runs")
CHECKPOINT, METRICS, CONFIG = "checkpoint.npz", "metrics.jsonl", "config.json"

UNNAMED = ".minigrad-run-of-"
"""What the name of a folder begins with until its first checkpoint is in it; then comes the process's number."""


class Run:
    """The folder of one run, this process's alone until it is left (`with Run(...) as run:`) or the process ends."""

    def __init__(self, folder: Path) -> None:
        """Open the folder of a run. Raises CheckpointError if there is none, or another process is training it."""
        self.folder = folder
        try:
            self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise CheckpointError(
                f"{folder} is no folder of a run ({error.strerror}); name one like runs/reverse-1"
            ) from error
        try:
            # The system drops the lock with the process, however that ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise CheckpointError(f"{folder} is being trained by another process; wait for it or stop it") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._lock)

    def load(self) -> dict[Any, Any]:
        """The tree of the last checkpoint. Raises CheckpointError."""
        return checkpoint.load(self.folder / CHECKPOINT)

    def save(self, tree: dict[Any, Any]) -> None:
        """Replace the checkpoint. Raises OSError, with the last one untouched, when it can't be written."""
        checkpoint.save(self.folder / CHECKPOINT, tree)

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        path = self.folder / METRICS
        with naming(path), open(path, "a") as file:
            file.write(json.dumps(line) + "\n")

    def rewrite_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Make metrics.jsonl these lines: a resumed run drops what was measured after its checkpoint.

        A file that has them already is not touched, so that a finished run can be where nothing can be written.
        """
        path = self.folder / METRICS
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        if not path.exists() or path.read_bytes() != content:
            write_whole(path, lambda file: file.write(content))


def start_run(task: str, out: Path | None, config: dict[str, Any], tree: dict[Any, Any]) -> Run:
    """Make the folder of a new run with config.json and a first checkpoint: `out`, or the next free runs/<task>-<n>.

    Raises SettingsError if `out` exists already; OSError, leaving nothing behind, if it can't be written.
    """
    if out is not None and out.exists():
        raise SettingsError(
            f"--out {out} exists already: name a new folder, or go on with this one: {typed('--resume', out)}"
        )
    names = (RUNS / f"{task}-{number}" for number in itertools.count(1)) if out is None else [out]
    parent = RUNS if out is None else out.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # so mkdir calls a file in the place of the parent
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(parent)) from error
    for left in parent.glob(f"{UNNAMED}*"):
        with contextlib.suppress(CheckpointError), Run(left):  # a process that is at work holds its own
            shutil.rmtree(left, ignore_errors=True)
    unnamed = parent / f"{UNNAMED}{os.getpid()}"
    unnamed.mkdir()
    run = Run(unnamed)
    try:
        write_whole(unnamed / CONFIG, lambda file: file.write(json.dumps(config, indent=2).encode() + b"\n"))
        checkpoint.save(unnamed / CHECKPOINT, tree)
        run.folder = _give_first_free_name(unnamed, names)
    except BaseException:
        with run:
            shutil.rmtree(unnamed, ignore_errors=True)
        raise
    return run


def _give_first_free_name(folder: Path, names: Iterable[Path]) -> Path:
    for name in names:
        try:
            os.rename(folder, name)  # refused by the system if `name` has been taken meanwhile
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        else:
            sync_folder(name.parent)
            return name
    raise SettingsError(f"--out {name} exists already: name a new folder")
