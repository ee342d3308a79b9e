"""The command line: what a person types, sees and gets wrong. Errors are one line, and nothing is overwritten."""

import contextlib
import errno
import fcntl
import json
import os
import pty
import re
import resource
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest

import minigrad as mg
import train
from training import checkpoint, loop
from training.settings import typed

REPOSITORY = Path(__file__).parents[1]

SMALL = shlex.split(
    "copy --alphabet abcd --min-length 3 --max-length 5 --d-model 16 --heads 2 --layers 1 --d-ff 32 --dropout 0.1"
    " --batch-size 8 --steps 20 --eval-every 5 --eval-size 10 --test-size 10"
    f" --device {mg.get_default_device()}"
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run_train(capsys):
    """Calls main; returns the exit status, stdout, and stderr without the progress bar."""

    def call(*arguments):
        status = train.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a short finished run; not to be changed."""
    out = tmp_path_factory.mktemp("trained") / "run"
    assert train.main([*SMALL, "--out", str(out)]) == 0
    return out


def one_line(err):
    assert err.startswith("train.py: ") and err.endswith("\n") and err.count("\n") == 1, err
    return err.removeprefix("train.py: ").rstrip()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- what goes well --------------------------------------------------------------------------------------------------


def test_a_run_ends_with_answers_attention_and_its_files(run_train):
    status, out, err = run_train(*SMALL)
    assert (status, err) == (0, "")
    assert "copy: repeat a string of letters; " in out
    assert out.count("held-out exact match") == 4
    assert re.search(r"exact match on 10 unseen examples: \d+\.\d % \(greedy decoding\)", out)
    assert out.count("→") == 8
    assert "attention of decoder.layers.0.multihead_attn, mean of its 2 heads; █ is " in out
    folder = Path("runs/copy-1")
    assert {"checkpoint.npz", "config.json", "metrics.jsonl"} <= set(os.listdir(folder))
    config = json.loads((folder / "config.json").read_text())
    assert config["task"] == "copy" and config["task_options"]["alphabet"] == "abcd"
    assert (config["encoder_layers"], config["decoder_layers"], config["dropout"]) == (1, 1, 0.1)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10, 15, 20]
    assert all(list(line) == ["step", "seconds", "loss", "exact_match"] for line in lines)
    assert run_train(*SMALL)[0] == 0
    assert sorted(os.listdir("runs")) == ["copy-1", "copy-2"]


def test_with_matplotlib_there_are_pictures(run_train):
    pytest.importorskip("matplotlib")
    status, out, err = run_train(*SMALL, "--steps", 5)
    assert (status, err) == (0, "")
    assert "in runs/copy-1: attention.png, checkpoint.npz, config.json, curves.png, metrics.jsonl" in out
    for name in ("attention.png", "curves.png"):
        assert Path("runs/copy-1", name).read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_hint_takes_the_place_of_pictures(run_train, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, out, err = run_train(*SMALL, "--steps", 5)
    assert (status, err) == (0, "")
    assert "pictures need matplotlib" in out and "pip install" in out
    assert "in runs/copy-1: checkpoint.npz, config.json, metrics.jsonl" in out


def test_list_names_the_tasks(run_train):
    status, out, _ = run_train("--list")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["addition", "copy", "dates", "reverse", "sort"]


def test_help_tells_every_flag(capsys):
    with pytest.raises(SystemExit) as caught:
        train.main(["--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0
    for flag in ("--d-model", "--layers", "--norm-first", "--alphabet", "--resume", "--answer", "--beam"):
        assert f"{flag} " in out or f"{flag}," in out


@pytest.mark.parametrize("beam", [1, 3])
def test_answer(run_train, trained, beam):
    status, out, err = run_train("--answer", trained, "abca", "--beam", beam)
    assert (status, err) == (0, "")
    answer = out.splitlines()[0]
    assert set(answer) <= set("abcd")
    assert "attention of decoder.layers.0.multihead_attn" in out


def test_a_run_in_mixed_precision_goes_on_in_it(run_train):
    status, out, err = run_train(*SMALL, "--amp", "--steps", 10, "--out", "run")
    assert (status, err) == (0, "") and out.count("held-out exact match") == 2
    assert json.loads(Path("run/config.json").read_text())["amp"] is True
    state = checkpoint.load("run/checkpoint.npz")["scaler"]
    assert state["scale"] * 2 ** (10 - state["_growth_tracker"]) >= 65536  # no step without a trace
    before = contents(Path("run"))
    status, out, err = run_train("--resume", "run")
    assert (status, err) == (0, "") and contents(Path("run"))["checkpoint.npz"] == before["checkpoint.npz"]


@pytest.mark.cpu_only(reason="a GPU takes each batch as a whole")
def test_threads_stay_with_the_run_unless_others_are_given(run_train):
    status, out, err = run_train(*SMALL, "--threads", 2, "--out", "run")
    assert (status, err) == (0, "") and " parameters on cpu, 2 threads\n" in out
    assert json.loads(Path("run/config.json").read_text())["threads"] == 2
    status, out, err = run_train("--resume", "run")
    assert (status, err) == (0, "") and " parameters on cpu, 2 threads\n" in out
    status, out, err = run_train("--resume", "run", "--threads", 1)
    assert (status, err) == (0, "") and " parameters on cpu\n" in out
    assert run_train("--answer", "run", "abc")[0] == 0


def test_resume_of_a_finished_run_reports_again_and_changes_nothing(run_train, trained):
    before = contents(trained)
    status, out, _ = run_train("--resume", trained)
    assert status == 0
    assert "exact match on 10 unseen examples" in out
    after = contents(trained)
    for name in ("checkpoint.npz", "config.json", "metrics.jsonl"):
        assert before[name] == after[name]


def test_a_finished_run_can_be_where_nothing_can_be_written(run_train, trained):
    with file_size_limit(0):
        status, out, err = run_train("--resume", trained)
    assert (status, err) == (0, "")
    assert "exact match on 10 unseen examples" in out


def test_answer_takes_the_checkpoint_itself_and_a_text_that_begins_with_a_dash(run_train):
    assert run_train(*SMALL, "--alphabet=-abc", "--out", "a b")[1].splitlines()[-1].startswith("ask it: ")
    status, _, err = run_train("--answer", "a b/checkpoint.npz", "--", "-abc")
    assert (status, err) == (0, "")


def test_commands_to_type_are_ready_for_a_shell(run_train):
    out = run_train(*SMALL, "--alphabet", "ab$`", "--out", "a b")[1]
    words = shlex.split(out.splitlines()[-1].removeprefix("ask it: "))
    assert words[2:4] == ["--answer", "a b"]
    assert set(words[-1]) <= set("ab$`")


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["revers"],
            "unknown task 'revers': the tasks are addition, copy, dates, reverse, sort; did you mean 'reverse'?",
        ),
        (["--steps", "0"], "--steps must be from 1 to 1000000000, not 0"),
        (["--steps", "many"], "argument --steps: invalid int value: 'many'; see python train.py --help"),
        (["--dropout", "1.5"], "--dropout must be 0 or more and below 1, not 1.5"),
        (["--lr", "nan"], "--lr must be a finite number above 0, not nan"),
        (["--d-model", "30"], "--d-model must be a multiple of --heads, and 30 is not one of 4"),
        (["--layers", "0"], "--encoder-layers must be from 1 to 1000, not 0"),
        (["--seed", "-1"], "--seed must be from 0 to 2**64 - 1, not -1"),
        (["--device", "cpu\n"], r"--device must be cpu, cuda or cuda:1, not 'cpu\n'"),
        (["--device", "gpu"], "--device must be cpu, cuda or cuda:1, not 'gpu'"),
        (["--threads", "0"], "--threads must be from 1 to 128, not 0"),
        (["--threads", "2", "--device", "cuda"], "--threads 2 says nothing beside --device cuda; leave it out"),
        (["--colour", "red"], "unrecognized arguments: --colour; see python train.py --help"),
        (["copy", "sort"], "unrecognized arguments: sort; see python train.py --help"),
        (["--min-length", "9", "--max-length", "3"], "reverse: --min-length 9 is greater than --max-length 3"),
        (["--alphabet", "aab"], "reverse: --alphabet 'aab' has 'a' more than once"),
        (["dates", "--alphabet", "ab"], "dates: no option --alphabet; the options of this task are: none"),
        (["--resume", "runs/x", "--lr", "1"], "--resume doesn't go together with --lr"),
        (["copy", "--resume", "runs/x"], "--resume doesn't go together with copy"),
        (["--answer", "runs/x", "abc", "--steps", "3"], "--answer doesn't go together with --steps"),
        (["--answer", "runs/x"], "--answer needs a text after the folder of the run; see python train.py --help"),
        (["--max-length", "100000000"], "reverse: --max-length must be a whole number from 1 to 1000, got 100000000"),
    ],
)
def test_a_command_line_without_sense(run_train, tmp_path, arguments, message):
    status, out, err = run_train(*arguments)
    assert (status, out, one_line(err)) == (2, "", message)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "text, message",
    [
        ("abxa", "--answer: unknown character 'x' at position 3 of 'abxa'; the characters are 'abcd'"),
        ("abcdabcd", "--answer: copy: the text has 8 characters, this task takes at most 5"),
        ("", "--answer: copy: the text is empty"),
    ],
)
def test_a_text_that_the_model_cannot_read(run_train, trained, text, message):
    status, out, err = run_train("--answer", trained, text)
    assert (status, out, one_line(err)) == (2, "", message)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--resume", "RUN", "--device", "gpu"], "--device must be cpu, cuda or cuda:1, not 'gpu'"),
        (["--answer", "RUN", "abc", "--device", "gpu"], "--device must be cpu, cuda or cuda:1, not 'gpu'"),
        (["--answer", "RUN", "abc", "--beam", "0"], "--beam must be from 1 to 100000, not 0"),
    ],
)
def test_a_flag_value_without_sense_is_not_the_checkpoints_fault(run_train, trained, arguments, message):
    status, out, err = run_train(*(trained if word == "RUN" else word for word in arguments))
    assert (status, out, one_line(err)) == (2, "", message)


@pytest.mark.parametrize("mode", ["--resume", "--answer"])
def test_a_checkpoint_that_cannot_be_used(run_train, trained, tmp_path, mode):
    text = ["abc"] if mode == "--answer" else []

    status, _, err = run_train(mode, "none", *text)
    assert status == 1 and one_line(err).endswith("runs/reverse-1")

    damaged = tmp_path / "damaged"
    damaged.mkdir()
    status, _, err = run_train(mode, damaged, *text)
    assert status == 1 and f"there is no checkpoint {damaged}/checkpoint.npz" in one_line(err)

    whole = (trained / "checkpoint.npz").read_bytes()
    (damaged / "checkpoint.npz").write_bytes(whole[: len(whole) // 2])
    status, _, err = run_train(mode, damaged, *text)
    assert status == 1 and "it isn't a whole .npz file; put a copy of the checkpoint there, or train anew" in one_line(
        err
    )
    assert (damaged / "checkpoint.npz").read_bytes() == whole[: len(whole) // 2]

    np.savez(damaged / "checkpoint.npz", weights=np.ones(3))
    status, _, err = run_train(mode, damaged, *text)
    assert status == 1 and "is damaged, or a file of another program" in one_line(err)

    checkpoint.save(damaged / "checkpoint.npz", {"weights": np.ones(3)})
    status, _, err = run_train(mode, damaged, *text)
    assert status == 1 and "checkpoint.npz doesn't fit this program (checkpoint " in one_line(err)


def test_an_out_that_exists(run_train, trained):
    before = contents(trained)
    status, _, err = run_train("--out", trained)
    assert status == 2
    assert one_line(err) == (
        f"--out {trained} exists already: name a new folder, or go on with this one: {typed('--resume', trained)}"
    )
    assert contents(trained) == before


@contextlib.contextmanager
def file_size_limit(size):
    """Inside, the system refuses to let a file grow over `size` bytes, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [10, 1000])
def test_a_full_disk_at_the_start(run_train, tmp_path, size):
    with file_size_limit(size):
        status, _, err = run_train(*SMALL)
    assert status == 1
    assert one_line(err) == "can't make a run in runs (File too large; make room there); name another folder with --out"
    assert os.listdir(tmp_path / "runs") == []


def test_a_full_disk_while_training(run_train, trained, tmp_path):
    # The first checkpoint has no moments of the optimizer in it yet: it fits, the next one doesn't.
    with file_size_limit((trained / "checkpoint.npz").stat().st_size * 2 // 3):
        status, _, err = run_train(*SMALL)
    assert status == 1
    assert one_line(err) == (
        "runs/copy-1/checkpoint.npz: File too large; make room there; the last checkpoint is kept: "
        f"go on with: {typed('--resume', 'runs/copy-1')}"
    )
    assert sorted(os.listdir("runs/copy-1")) == ["checkpoint.npz", "config.json", "metrics.jsonl"]
    assert run_train("--resume", "runs/copy-1")[0] == 0
    undisturbed, resumed = (checkpoint.load(f / "checkpoint.npz") for f in (trained, Path("runs/copy-1")))
    for name, array in undisturbed["model"].items():
        assert array.tobytes() == resumed["model"][name].tobytes()


def test_a_loss_that_is_no_number(run_train):
    status, _, err = run_train(*SMALL, "--lr", "1e30", "--optimizer", "sgd", "--clip", "0", "--schedule", "constant")
    assert status == 1
    line = one_line(err)
    assert "train anew with a lower --lr (it is 1e+30) or a lower --clip (it is 0, for no limit)" in line
    assert line.endswith("; runs/copy-1 keeps its checkpoint of step 0")
    assert checkpoint.load("runs/copy-1/checkpoint.npz")["step"] == 0


def test_parameters_that_are_no_numbers_are_not_saved(run_train):
    status, _, err = run_train(*SMALL, "--lr", "1e30", "--eval-every", 1)
    assert status == 1
    line = one_line(err)
    assert re.match(r"the held-out loss is (nan|inf) at step \d+; train anew with a lower --lr", line)
    step = checkpoint.load("runs/copy-1/checkpoint.npz")["step"]
    assert line.endswith(f"; runs/copy-1 keeps its checkpoint of step {step}")
    assert run_train("--answer", "runs/copy-1", "abc")[0] == 0


@pytest.mark.parametrize("out, problem", [("file/x", "Not a directory"), ("x" * 300, "File name too long")])
def test_an_out_that_cannot_be_made(run_train, tmp_path, out, problem):
    (tmp_path / "file").write_text("mine")
    status, _, err = run_train(*SMALL, "--out", out)
    assert status == 1
    assert one_line(err) == f"can't make {out} ({problem}); name another folder with --out"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(mg.cuda_available(), reason="there is a GPU")
def test_no_gpu(run_train, tmp_path):
    status, _, err = run_train(*SMALL, "--device", "cuda")
    assert status == 1 and "CuPy" in one_line(err)
    assert os.listdir(tmp_path) == []


def test_no_babel(run_train, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "babel"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "babel", None)
    status, _, err = run_train("dates")
    assert status == 1 and "babel" in one_line(err) and "pip install" in err
    assert os.listdir(tmp_path) == []


# ---- from outside ----------------------------------------------------------------------------------------------------


@pytest.mark.cpu_only(reason="it starts processes, which do not know the stand-in")
def test_the_first_command_needs_only_the_core(tmp_path):
    """As a process of its own, from another folder, with every optional package out of reach."""
    blocked = ["babel", "cupy", "matplotlib", "safetensors", "torch", "pytest", "hypothesis"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked})); sys.path.insert(0, {str(REPOSITORY)!r});"
        "import train; sys.exit(train.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *SMALL, "--steps", "5"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "exact match on 10 unseen examples" in done.stdout


@pytest.mark.cpu_only(reason="it starts processes, which do not know the stand-in")
def test_on_a_terminal_there_is_a_progress_bar(tmp_path):
    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))  # rows and columns
    command = [sys.executable, REPOSITORY / "train.py", *SMALL]
    subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=stderr, check=True)
    os.close(stderr)
    bar = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert re.search(r"\d+/20 .* loss=\d+\.\d{4}, tokens/s=\d+, exact match=", bar)


def in_a_shell(folder, arguments, rest):
    command = shlex.join([sys.executable, str(REPOSITORY / "train.py"), *map(str, arguments)])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} {rest}"], cwd=folder, capture_output=True, text=True
    )
    return done, f"go on with: {command.split(' copy ')[0]} --resume runs/copy-1"


@pytest.mark.cpu_only(reason="it starts processes, which do not know the stand-in")
@pytest.mark.parametrize(
    "rest, problem", [("| head -n 2", "Broken pipe"), (">/dev/full", "No space left on device; make room there")]
)
def test_an_output_that_fails_is_one_line(tmp_path, rest, problem):
    done, again = in_a_shell(tmp_path, SMALL, rest)
    assert done.returncode == 1
    assert one_line(done.stderr) == f"output: {problem}; the last checkpoint is kept: {again}"
    assert Path("runs/copy-1/checkpoint.npz").exists()


def test_what_is_measured_is_saved_before_it_is_printed(monkeypatch):
    def nobody_reads(bar, line):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(loop.tqdm, "write", nobody_reads)
    assert train.main(SMALL) == 1
    assert checkpoint.load("runs/copy-1/checkpoint.npz")["step"] == 5


@pytest.mark.cpu_only(reason="it starts processes, which do not know the stand-in")
@pytest.mark.parametrize("rest", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(tmp_path, rest):
    done, _ = in_a_shell(tmp_path, SMALL, rest)
    assert (done.returncode, done.stderr) == (0, "")
    assert checkpoint.load("runs/copy-1/checkpoint.npz")["step"] == 20


@pytest.mark.cpu_only(reason="it starts processes, which do not know the stand-in")
def test_a_terminal_without_the_signs(tmp_path):
    done = subprocess.run(
        [sys.executable, REPOSITORY / "train.py", *SMALL],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert "; # is 0." in done.stdout
    assert "?" not in done.stdout
