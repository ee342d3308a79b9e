"""Files that are there whole or not at all, and what went wrong with one, in words.

Everything a run writes goes through here, except the lines appended to metrics.jsonl: a kill, a full disk or a power
cut at any moment leaves the file as it was before or as it should be after, never half of it.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A disk or a quota is full, or a file as large as the system allows."""


def reason(error: OSError) -> str:
    """Why something could not be written or read, in words, with the way out of a full disk."""
    return f"{error.strerror or error}{'; make room there' if error.errno in FULL else ''}"


def explain(error: OSError) -> str:
    """`reason` after the file that it is about; an error that names no file is one of stdout."""
    return f"{error.filename or 'output'}: {reason(error)}"


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make an OSError inside name `path`: writes name no file, and people need not know of temporary ones."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def temporary_name(path: Path) -> Path:
    """Where `write_whole` builds the file: a fixed name, so the next write replaces what a killed one left there."""
    return path.with_name(f".{path.name}.tmp")


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Call `write(file)` on a temporary file beside `path`, and move it to `path` once all of it is on the disk.

    Two processes must not write the same path at the same time. Raises OSError that names `path`, which stays as it
    was, when it can't be written, as on a full disk.
    """
    temporary = temporary_name(path)
    with naming(path):
        try:
            with open(temporary, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until names made, moved or removed in `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
