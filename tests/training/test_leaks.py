"""1,000 training steps leave nothing behind, neither objects nor memory, with Python's garbage collector on and off.

Each run is a process of its own. By hand, at the sizes that train.py has for the task:
python -m tests.training.test_leaks off sound full
"""

import functools
import gc
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from training.settings import Settings
from training.tasks import make_task
from training.trainer import Trainer

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
STATM = Path("/proc/self/statm")
MARKS = [100, 550, 1000]
"""The steps after which is counted; what is allocated once and for all has been by the first."""
GROWTH = 400 * 1024
"""Bytes by which the resident memory may grow from the first mark to the last: one kept loss a step is thrice that."""
TINY = {"d_model": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 16, "dropout": 0.1, "batch_size": 2}


class LeakingTrainer(Trainer):
    """A trainer that leaves the loss of each step in a list that holds itself, and goes only if the collector comes."""

    def _loss(self, source, target):
        loss = super()._loss(source, target)
        cycle = [loss]
        cycle.append(cycle)
        return loss


TRAINERS = {"sound": Trainer, "leaking": LeakingTrainer}


# ---- the process that trains -----------------------------------------------------------------------------------------


def main(collector, kind, sizes):
    """Train, and print what is alive and how much memory is resident at each mark."""
    task, chosen = (make_task("reverse", max_length=5), TINY) if sizes == "tiny" else (make_task("reverse"), {})
    trainer = TRAINERS[kind](task, Settings(steps=MARKS[-1], eval_size=10, test_size=10, **chosen))
    if collector == "off":
        gc.disable()
    marks = []
    while not trainer.finished:
        trainer.train_step()
        if trainer.step == MARKS[0]:
            look()  # what looking itself takes for the first time
            gc.collect()  # which from then on leaves out tuples of numbers
        if trainer.step in MARKS:
            marks.append(look())
    print("\n".join(marks))


def look():
    """The memory and the objects as one string, which is no object that is counted."""
    return json.dumps({"memory": resident(), "objects": census()})


def census():
    """How many objects of each type are alive: those that the collector knows, and the arrays that they refer to."""
    known = gc.get_objects()
    counts = Counter(type(thing).__qualname__ for thing in known)
    counts["ndarray"] = len({id(thing) for thing in gc.get_referents(*known) if type(thing) is np.ndarray})
    return counts


def resident():
    """The bytes of this process that are in memory; None where the system does not say."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if STATM.exists() else None


# ---- the tests -------------------------------------------------------------------------------------------------------


@functools.cache
def marks_of(collector, kind):
    command = [sys.executable, "-m", "tests.training.test_leaks", collector, kind, "tiny"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def grown(collector, kind):
    """By how many the objects of each type are more at each later mark than at the first; only what is not 0."""
    first, *later = [Counter(mark["objects"]) for mark in marks_of(collector, kind)]
    return [{name: mark[name] - first[name] for name in first | mark if mark[name] != first[name]} for mark in later]


def memory_grown(collector, kind):
    if not STATM.exists():
        pytest.skip("there is no /proc/self/statm, which tells the memory that is resident")
    first, *_, last = [mark["memory"] for mark in marks_of(collector, kind)]
    return last - first


@pytest.mark.parametrize("collector", ["on", "off"])
def test_as_many_objects_are_alive_after_each_step(collector):
    objects = marks_of(collector, "sound")[0]["objects"]
    assert objects["Tensor"] and objects["Parameter"] and objects["ndarray"] and not objects.get("Node")
    assert grown(collector, "sound") == [{}, {}]


@pytest.mark.parametrize("collector", ["on", "off"])
def test_the_resident_memory_stays_what_it_is(collector):
    assert memory_grown(collector, "sound") < GROWTH


def test_one_loss_a_step_that_stays_is_noticed_in_objects_and_memory():
    for mark, growth in zip(MARKS[1:], grown("off", "leaking"), strict=True):
        assert [growth[name] for name in ("Tensor", "Node", "ndarray")] == [mark - MARKS[0]] * 3
    assert memory_grown("off", "leaking") > 2 * GROWTH


if __name__ == "__main__":
    main(*sys.argv[1:])
