"""The folder of a run: its name is its own, it is whole when it has it, and one process trains in it."""

import json
import os

import numpy as np
import pytest

from training import checkpoint, run
from training.checkpoint import CheckpointError
from training.run import Run, start_run
from training.settings import SettingsError

TREE = {"step": 0, "weight": np.ones(3)}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_next_free_name_is_taken(tmp_path):
    folders = [start_run("copy", None, {"task": "copy"}, TREE).folder for _ in range(3)]
    assert [str(folder) for folder in folders] == ["runs/copy-1", "runs/copy-2", "runs/copy-3"]
    assert sorted(os.listdir("runs")) == ["copy-1", "copy-2", "copy-3"]
    assert json.loads((folders[1] / "config.json").read_text()) == {"task": "copy"}


def test_a_name_taken_by_a_file_is_passed_over(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "copy-1").write_text("mine")
    assert str(start_run("copy", None, {}, TREE).folder) == "runs/copy-2"
    assert (tmp_path / "runs" / "copy-1").read_text() == "mine"


def test_an_out_that_exists_is_left_alone(tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(
        SettingsError, match=r"--out .*mine exists already: name a new folder, or go on with this one: "
    ):
        start_run("copy", out, {}, TREE)
    assert os.listdir(out) == ["notes.txt"]


def test_an_out_that_another_process_makes_meanwhile_is_left_alone(tmp_path, monkeypatch):
    out = tmp_path / "mine"
    save = checkpoint.save

    def save_slowly(path, tree):
        save(path, tree)
        out.mkdir()
        (out / "checkpoint.npz").write_text("theirs")

    monkeypatch.setattr(checkpoint, "save", save_slowly)
    with pytest.raises(SettingsError, match=r"--out .*mine exists already"):
        start_run("copy", out, {}, TREE)
    assert (out / "checkpoint.npz").read_text() == "theirs"
    assert os.listdir(tmp_path) == ["mine"]


def test_a_run_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(path, tree):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(OSError, match="No space left"):
        start_run("copy", None, {}, TREE)
    assert os.listdir(tmp_path / "runs") == []


def test_one_process_trains_in_a_run():
    with (
        start_run("copy", None, {}, TREE) as first,
        pytest.raises(CheckpointError, match="runs/copy-1 is being trained by another process"),
    ):
        Run(first.folder)
    with Run(first.folder) as second:
        assert second.load()["step"] == 0


def test_what_a_killed_process_left_unnamed_is_removed(tmp_path):
    left, held = (tmp_path / "runs" / f"{run.UNNAMED}{number}" for number in (1, 2))
    for folder in (left, held):
        folder.mkdir(parents=True)
        (folder / "checkpoint.npz").write_bytes(b"half of a checkpo")
    with Run(held):
        start_run("copy", None, {}, TREE)
    assert sorted(os.listdir("runs")) == [held.name, "copy-1"]


def test_metrics_that_are_right_are_not_written_again():
    run_ = start_run("copy", None, {}, TREE)
    run_.append_metrics({"step": 10})
    before = (run_.folder / run.METRICS).stat()
    run_.rewrite_metrics([{"step": 10}])
    assert (run_.folder / run.METRICS).stat().st_ino == before.st_ino
    run_.rewrite_metrics([])
    assert (run_.folder / run.METRICS).read_bytes() == b""


def test_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for name, reason in (("none", "No such file or directory"), ("file", "Not a directory")):
        with pytest.raises(CheckpointError, match=rf"{name} is no folder of a run \({reason}\); name one like"):
            Run(tmp_path / name)


def test_metrics_are_cut_to_the_given_lines():
    run_ = start_run("copy", None, {}, TREE)
    for step in (10, 20, 30):
        run_.append_metrics({"step": step})
    with open(run_.folder / run.METRICS, "a") as file:
        file.write('{"step": 4')  # a killed process
    run_.rewrite_metrics([{"step": 10}, {"step": 20}])
    run_.append_metrics({"step": 30})
    lines = (run_.folder / run.METRICS).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 10}, {"step": 20}, {"step": 30}]
