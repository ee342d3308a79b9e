"""Options of the benchmarks that make no sense, and files that cannot be written, are refused before any measuring."""

import os

import pytest

from benchmarks import attention, bookkeeping, generation, scaling, train_step
from benchmarks.engines import command

pytestmark = pytest.mark.cpu_only(reason="they are benchmarks of CPUs")

COUNT, SECONDS = "must be an integer from 1 on, not", "must be a number of seconds above 0, not"
WITH_ALL_OPTIONS = [train_step, scaling, attention, generation]


@pytest.fixture
def refused(monkeypatch, capsys):
    """What a command says and does not do: a function of its module and arguments, that returns the last line."""

    def of(module, *arguments):
        monkeypatch.setattr("sys.argv", [module.__name__, *arguments])
        monkeypatch.setattr(module, "measure", lambda *_, **__: pytest.fail("it measures"), raising=False)
        with pytest.raises(SystemExit) as ended:
            module.main()
        said = capsys.readouterr()
        assert (ended.value.code, said.out) == (2, "")
        return said.err.strip().split("\n")[-1].split(" error: ")[1]

    return of


@pytest.mark.parametrize("module", WITH_ALL_OPTIONS, ids=lambda module: module.__name__)
@pytest.mark.parametrize(
    "option, value, text",
    [
        ("--rounds", "0", COUNT),
        ("--rounds", "2.5", COUNT),
        ("--threads", "0", COUNT),
        ("--threads", "two", COUNT),
        ("--block", "nan", SECONDS),
        ("--block", "inf", SECONDS),
        ("--block", "0", SECONDS),
        ("--block", "-1", SECONDS),
        ("--block", "long", SECONDS),
    ],
)
def test_numbers_that_make_no_sense(module, option, value, text, refused):
    assert refused(module, option, value) == f"argument {option}: {text} {value!r}"


@pytest.mark.parametrize("module", WITH_ALL_OPTIONS, ids=lambda module: module.__name__)
def test_more_threads_than_cores(module, refused):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"argument --threads: must be from 1 to {cores}, the cores that there are, not 5000"
    assert refused(module, "--threads", "5000") == text


def test_pairs(refused):
    assert refused(bookkeeping, "--pairs", "0") == f"argument --pairs: {COUNT} '0'"


@pytest.mark.parametrize(
    "option, value, text",
    [
        ("--engines", "minigrad,torhc", "no engine is called 'torhc'; there are minigrad, parallel, by-hand, torch, "),
        ("--sizes", "huge", "no size is called 'huge'; there are tiny, nanogpt-cpu, mid, baby, dates"),
    ],
)
def test_unknown_names(option, value, text, refused):
    assert refused(train_step, option, value).startswith(f"argument {option}: {text}")


def test_names_may_have_spaces_and_count_once():
    assert command.names(["tiny", "mid", "baby"], "size")("mid, tiny,mid") == ["mid", "tiny"]


@pytest.mark.parametrize("module, option", [(train_step, "--json"), (attention, "--json"), (attention, "--plot")])
def test_a_file_that_cannot_be_written(module, option, tmp_path, refused):
    for path, why in ((tmp_path / "none" / "found", "No such file or directory"), (tmp_path, "Is a directory")):
        assert refused(module, option, str(path)) == f"argument {option}: '{path}' cannot be written: {why}"


def test_a_folder_that_cannot_be_written_into(tmp_path, refused):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "out"
    text = f"argument --out: no files can be written into '{path}': Not a directory"
    assert refused(scaling, "--out", str(path)) == text


def test_trying_to_write_leaves_a_file_as_it_was(tmp_path):
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("kept")
    assert [command.new_file(str(path)) for path in (new, old)] == [new, old]
    assert not new.exists() and old.read_text() == "kept"
    assert command.folder(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b" and not any((tmp_path / "a/b").iterdir())
