"""Training on a GPU, by the stand-in for CuPy: nothing is computed elsewhere, and runs move between devices."""

import shlex

import numpy as np
import pytest

import nn.functional as F
import train
from tests.cupy_standin import installed
from training import checkpoint
from training.trainer import Trainer

SMALL = shlex.split(
    "copy --alphabet abcd --min-length 3 --max-length 5 --d-model 16 --heads 2 --layers 1 --d-ff 32 --dropout 0"
    " --batch-size 8 --steps 8 --eval-every 4 --eval-size 10 --test-size 10"
)


@pytest.fixture(autouse=True)
def one_room_of_attention():
    """On a GPU attention has a room of its own, which draws other masks of dropout."""
    with F.attention_room("fused"):
        yield


def trained(folder, *flags):
    assert train.main([*SMALL, "--out", str(folder), *flags]) == 0
    return checkpoint.load(folder / "checkpoint.npz")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_run_on_a_gpu_is_that_on_the_cpu(tmp_path, capsys, optimizer):
    here = trained(tmp_path / "cpu", "--device", "cpu", "--optimizer", optimizer)
    with installed():
        there = trained(tmp_path / "cuda", "--device", "cuda", "--optimizer", optimizer)
    assert "parameters on cuda" in capsys.readouterr().out
    assert all(type(values) is np.ndarray for values in there["model"].values())
    losses, expected = ([line["loss"] for line in run["history"]] for run in (there, here))
    assert losses == pytest.approx(expected, rel=1e-4)


def test_all_of_a_trainer_is_on_its_device(tmp_path):
    with installed():
        trained(tmp_path / "run", "--device", "cuda")
        trainer = Trainer.from_state_dict(checkpoint.load(tmp_path / "run" / "checkpoint.npz"), tmp_path)
        kept = [array for state in trainer.optimizer.state.values() for array in state.values()]
        devices = {f"cuda:{array.device.id}" for array in kept if hasattr(array, "device")}
        assert devices | {tensor.device for tensor in trainer.parameters} == {"cuda:0"}


def test_a_checkpoint_moves_between_devices(tmp_path, capsys):
    with installed():
        trained(tmp_path / "run", "--device", "cuda")
        path = tmp_path / "run" / "checkpoint.npz"
        moved = Trainer.from_state_dict(checkpoint.load(path), path, device="cpu", steps=9)
        stayed = Trainer.from_state_dict(checkpoint.load(path), path, steps=9)
        for trainer, device in ((moved, "cpu"), (stayed, "cuda:0")):
            trainer.train_step()
            assert {parameter.device for parameter in trainer.parameters} == {device}
        assert moved.losses[-1] == pytest.approx(stayed.losses[-1], rel=1e-4)
    capsys.readouterr()
    assert train.main(["--answer", str(tmp_path / "run"), "abca"]) == 0  # on the CPU, with no GPU there
    assert capsys.readouterr().out
