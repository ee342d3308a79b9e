"""Checkpoints: a tree of arrays and plain values in one .npz file, without pickle.

What is in the tree is its owner's business (`Trainer.state_dict`); that the file is whole or not there at all is
`files.write_whole`'s. Loading runs no code from the file, so a checkpoint of unknown origin can be opened safely.

An array is an entry of its own, named by its path in the tree: `numpy.load(path)["tree/model/..."]` reads one too. The
entry "structure" is JSON: the format's name and version, and the tree with each array replaced by its entry's name. A
node is {"array": name}, {"value": JSON scalar}, {"list": [nodes]}, {"tuple": [nodes]} or {"dict": [[key, node], ...]}:
pairs, since a JSON object would turn the keys 0, 1, 2 of an optimizer's state into strings.
"""

import json
import zipfile
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.dtypes import tensor_dtype
from training.files import write_whole

FORMAT, VERSION = "minigrad checkpoint", 1

_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, LookupError, AttributeError, TypeError, ValueError, RuntimeError)
"""What zipfile, NumPy and JSON raise for bytes that don't mean what they should."""

_WAY_OUT = "; put a copy of the checkpoint there, or train anew"


class CheckpointError(Exception):
    """A checkpoint can't be used. The message is one line that names the file and the way out."""


def save(path: str | PathLike[str], tree: dict[Any, Any]) -> None:
    """Write `tree` (dicts with str or int keys, lists, tuples, arrays, str, int, float, bool, None) to `path`.

    At any moment `path` is either the former file or the new one. Raises OSError when it can't be written (the former
    one stays), TypeError for a value that has no place in a checkpoint.
    """
    arrays: dict[str, np.ndarray] = {}
    structure = {"format": FORMAT, "version": VERSION, "tree": _describe(tree, "tree", arrays)}
    # An array of one string needs no pickle. The other names begin with "tree", so none is an option of savez.
    entries: dict[str, Any] = {"structure": np.array(json.dumps(structure)), **arrays}
    write_whole(Path(path), lambda file: np.savez(file, **entries))


def load(path: str | PathLike[str]) -> dict[Any, Any]:
    """The tree that `save` wrote to `path`: the same keys, values, dtypes and shapes. Raises CheckpointError."""
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise CheckpointError(
                    f"{path} is no checkpoint, or only the beginning of one: it isn't a whole .npz file{_WAY_OUT}"
                )
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                structure = json.loads(str(archive["structure"]))
                if structure["format"] != FORMAT:
                    raise CheckpointError(f"{path} is a {structure['format']!r}, not a {FORMAT!r}{_WAY_OUT}")
                if structure["version"] != VERSION:
                    raise CheckpointError(
                        f"{path} is in version {structure['version']} of the checkpoint format, but this program reads "
                        f"version {VERSION}: use the program that wrote it, or train anew"
                    )
                tree: dict[Any, Any] = _rebuild(structure["tree"], archive)
                return tree
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"there is no checkpoint {path}: name the folder of a run, such as runs/reverse-1"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise CheckpointError(f"{path} doesn't fit into memory ({error}){_WAY_OUT}") from error
    except _BROKEN as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} is damaged, or a file of another program ({reason}){_WAY_OUT}") from error


def _describe(value: Any, name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The JSON node of `value`; its arrays are added to `arrays` under their paths."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"{name}: an array of Python objects can't be saved without pickle")
        if name in arrays:
            raise TypeError(f"{name}: two arrays of the tree have this path")
        is_narrow = value.dtype == "bfloat16"  # which NumPy's files do not know
        arrays[name] = value.view(np.uint16) if is_narrow else value
        return {"bfloat16" if is_narrow else "array": name}
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{name}: a key must be a str or an int, not {key!r}")
        return {"dict": [[key, _describe(child, f"{name}/{key}", arrays)] for key, child in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_describe(child, f"{name}/{index}", arrays) for index, child in enumerate(value)]}
    if value is None or type(value) in (str, int, float, bool):
        return {"value": value}
    raise TypeError(f"{name}: a {type(value).__name__} can't be saved; use an array, a dict, a list or a plain value")


def _rebuild(node: dict[str, Any], archive: np.lib.npyio.NpzFile) -> Any:
    ((kind, content),) = node.items()
    if kind == "array":
        return archive[content]
    if kind == "bfloat16":
        return archive[content].view(tensor_dtype("bfloat16"))
    if kind == "dict":
        return {key: _rebuild(child, archive) for key, child in content}
    if kind == "list":
        return [_rebuild(child, archive) for child in content]
    if kind == "tuple":
        return tuple(_rebuild(child, archive) for child in content)
    if kind == "value":
        return content
    raise ValueError(f"unknown kind of node {kind!r}")
