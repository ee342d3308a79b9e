"""Stopped at random moments, by kill -9 and while it saves too, a training goes on by --resume to the same bits.

MINIGRAD_KILLS=20 asks for more kills than the few of every day.
"""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from training import checkpoint
from training.files import temporary_name

REPOSITORY = Path(__file__).parents[2]
KILLS = int(os.environ.get("MINIGRAD_KILLS", "4"))
LONGEST_WAIT = 60.0
"""Seconds without progress after which a process counts as stuck."""

FLAGS = shlex.split(
    "reverse --alphabet abcd --min-length 3 --max-length 5 --d-model 16 --heads 2 --layers 1 --d-ff 32 --dropout 0.1"
    f" --batch-size 4 --steps {80 * KILLS} --eval-every 2 --eval-size 4 --test-size 4"
)


def start(*arguments):
    command = [sys.executable, str(REPOSITORY / "train.py"), *map(str, arguments)]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell lets what it runs behind it ignore Ctrl-C
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=heard)


def finish(process):
    _, err = process.communicate()
    assert process.returncode == 0, err


def kill(process):
    process.kill()
    process.communicate()


def wait_until(condition, process):
    """Wait for the condition, or the end of the process."""
    end = time.monotonic() + LONGEST_WAIT
    while not condition() and process.poll() is None:
        assert time.monotonic() < end, "no progress"
        time.sleep(0.0005)


def lines_of(folder):
    path = folder / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def final_state(folder):
    """All of the last checkpoint but the clock."""
    tree = checkpoint.load(folder / "checkpoint.npz")
    assert tree["step"] == 80 * KILLS
    assert [json.loads(line) for line in lines_of(folder)] == tree["history"]
    for line in tree["history"]:
        del line["seconds"]
    del tree["seconds"]
    return tree


def assert_same_bits(a, b, path="tree"):
    assert type(a) is type(b), path
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), path
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            assert_same_bits(a[key], b[key], f"{path}/{key}")
    else:
        assert a == b, path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(start(*FLAGS, "--out", folder))
    return final_state(folder)


@pytest.mark.slow
def test_killed_at_random_moments(undisturbed, tmp_path):
    rng = random.Random(0)
    folder = tmp_path / "run"
    saving = temporary_name(folder / "checkpoint.npz")
    kills = kills_during_a_save = 0
    while kills < KILLS or kills_during_a_save == 0:
        process = start("--resume", folder) if folder.exists() else start(*FLAGS, "--out", folder)
        enough = len(lines_of(folder)) + rng.randint(1, 5)
        wait_until(lambda enough=enough: len(lines_of(folder)) >= enough, process)  # it gets on a little
        time.sleep(rng.uniform(0, 0.02))
        if kills % 2:  # every other one while it writes a checkpoint
            wait_until(saving.exists, process)
        assert process.poll() is None, process.communicate()[1]
        kill(process)
        kills += 1
        kills_during_a_save += saving.exists()
    finish(start("--resume", folder))
    assert_same_bits(final_state(folder), undisturbed)
    assert not list(folder.glob(".*"))


@pytest.mark.slow
def test_killed_while_it_starts(undisturbed, tmp_path):
    """A folder that has the name of a run can be resumed, however early the process was killed."""
    folder = tmp_path / "runs" / "run"
    process = start(*FLAGS, "--out", folder)
    wait_until(lambda: folder.parent.exists() and os.listdir(folder.parent), process)  # its folder has no name yet
    kill(process)
    if folder.exists():
        finish(start("--resume", folder))
    else:
        finish(start(*FLAGS, "--out", folder))
    assert_same_bits(final_state(folder), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop(undisturbed, tmp_path, number):
    """Ctrl-C and SIGTERM: the step at hand is finished and saved, and the last line says how to go on."""
    folder = tmp_path / "run"
    process = start(*FLAGS, "--out", folder)
    wait_until(lambda: lines_of(folder), process)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 130
    step = checkpoint.load(folder / "checkpoint.npz")["step"]
    first, last = err.strip().splitlines()
    assert first == "stopping after this step and its checkpoint; again to end at once"
    again = " ".join([*process.args[:2], "--resume", str(folder)])
    assert last == f"train.py: stopped and saved at step {step}; go on with: {again}"
    finish(start("--resume", folder))
    assert_same_bits(final_state(folder), undisturbed)
