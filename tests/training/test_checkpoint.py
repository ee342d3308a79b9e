"""The checkpoint file: what goes in comes out, and no fault leaves a broken one or runs code from it."""

import errno
import os
import pickle
import resource

import numpy as np
import pytest

from training import checkpoint
from training.checkpoint import CheckpointError
from training.files import temporary_name, write_whole


@pytest.fixture
def tree():
    rng = np.random.default_rng(0)
    return {
        "model": {"embed.weight": rng.normal(size=(3, 4)).astype(np.float32), "scale": np.array(2.5, dtype=np.float64)},
        "optimizer": {
            "state": {0: {"step": 7, "exp_avg": np.zeros((0, 2), dtype=np.float32)}, 1: {}},
            "param_groups": [
                {"lr": 0.1 + 0.2, "betas": (0.9, 0.98), "params": [0, 1], "maximize": False, "note": None}
            ],
        },
        "narrow": np.array([[1.5, -2.0]]).astype("bfloat16"),
        "text": "große Zahl: ∞",
        "huge": float("inf"),
        "empty": [{}, [], ()],
    }


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


def test_what_goes_in_comes_out(tmp_path, tree):
    checkpoint.save(tmp_path / "c.npz", tree)
    assert_same(checkpoint.load(tmp_path / "c.npz"), tree)
    assert os.listdir(tmp_path) == ["c.npz"]


def test_numpy_reads_an_array_by_its_path(tmp_path, tree):
    checkpoint.save(tmp_path / "c.npz", tree)
    with np.load(tmp_path / "c.npz", allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["tree/model/embed.weight"], tree["model"]["embed.weight"])


@pytest.mark.parametrize(
    "value, message",
    [
        ({"f": np.float32(1)}, "tree/f: a float32 can't be saved"),
        ({"f": {1.5: 0}}, "tree/f: a key must be a str or an int, not 1.5"),
        ({"f": np.array([object()])}, "tree/f: an array of Python objects"),
        ({0: np.ones(1), "0": np.ones(1)}, "tree/0: two arrays of the tree have this path"),
        ({"f": [{1, 2}]}, "tree/f/0: a set can't be saved"),
    ],
)
def test_what_has_no_place_in_a_checkpoint(tmp_path, value, message):
    with pytest.raises(TypeError, match=message):
        checkpoint.save(tmp_path / "c.npz", value)
    assert os.listdir(tmp_path) == []


def test_missing(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no checkpoint .*none\.npz: name the folder of a run"):
        checkpoint.load(tmp_path / "none.npz")


def test_a_folder_in_its_place(tmp_path):
    with pytest.raises(CheckpointError, match="can't be read: Is a directory"):
        checkpoint.load(tmp_path)


def test_truncated_anywhere(tmp_path, tree):
    path = tmp_path / "c.npz"
    checkpoint.save(path, tree)
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"c\.npz is .*(put a copy|train anew)") as caught:
            checkpoint.load(path)
        assert "\n" not in str(caught.value)


def test_a_changed_byte_is_noticed_or_harmless(tmp_path, tree):
    path = tmp_path / "c.npz"
    checkpoint.save(path, tree)
    content = path.read_bytes()
    noticed = 0
    for index in range(0, len(content), 3):
        path.write_bytes(content[:index] + bytes([content[index] ^ 0x55]) + content[index + 1 :])
        try:
            assert_same(checkpoint.load(path), tree)  # harmless: a date, a permission
        except CheckpointError as error:
            noticed += 1
            assert "\n" not in str(error)
    assert noticed > len(content) / 9


def test_foreign_files(tmp_path):
    path = tmp_path / "c.npz"
    np.savez(path, weight=np.ones(3))
    with pytest.raises(CheckpointError, match=r"c\.npz is damaged, or a file of another program"):
        checkpoint.load(path)
    np.savez(path, structure=np.array('{"format": "other", "version": 1}'))
    with pytest.raises(CheckpointError, match=r"c\.npz is a 'other', not a 'minigrad checkpoint'"):
        checkpoint.load(path)
    np.savez(path, structure=np.array('{"format": "minigrad checkpoint", "version": 2}'))
    with pytest.raises(
        CheckpointError, match="in version 2 of the checkpoint format, but this program reads version 1"
    ):
        checkpoint.load(path)
    for structure in ("[]", "nonsense", '{"format": "minigrad checkpoint", "version": 1, "tree": [1]}'):
        np.savez(path, structure=np.array(structure))
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.load(path)
    path.write_text("a text file")
    with pytest.raises(CheckpointError, match=r"isn't a whole \.npz file"):
        checkpoint.load(path)


class Explosive:
    def __reduce__(self):
        return (pytest.fail, ("the checkpoint ran code",))


def test_pickles_are_not_opened(tmp_path):
    path = tmp_path / "c.npz"
    np.savez(path, structure=np.array([Explosive()], dtype=object))
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path)
    path.write_bytes(pickle.dumps(Explosive()))
    with pytest.raises(CheckpointError, match=r"isn't a whole \.npz file"):
        checkpoint.load(path)


def test_a_full_disk_leaves_the_last_good_one(tmp_path, tree):
    path = tmp_path / "c.npz"
    checkpoint.save(path, tree)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (path.stat().st_size, hard)
    )  # the system refuses to write more: as on a full disk
    try:
        with pytest.raises(OSError, match=r"c\.npz"):
            checkpoint.save(path, {**tree, "more": np.ones(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_same(checkpoint.load(path), tree)
    assert os.listdir(tmp_path) == ["c.npz"]


def test_a_fault_while_syncing_leaves_the_last_good_one(tmp_path, monkeypatch):
    path = tmp_path / "notes.txt"
    write_whole(path, lambda file: file.write(b"first"))

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*notes\.txt"):
        write_whole(path, lambda file: file.write(b"second"))
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_what_a_killed_process_left_is_written_over(tmp_path, tree):
    path = tmp_path / "c.npz"
    temporary_name(path).write_bytes(b"half of a checkpo")
    checkpoint.save(path, tree)
    assert_same(checkpoint.load(path), tree)
    assert os.listdir(tmp_path) == ["c.npz"]
