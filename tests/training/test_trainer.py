"""The trainer: going on from a saved state gives the same bits as never having stopped."""

import itertools
import math

import numpy as np
import pytest

import minigrad as mg
from training import checkpoint
from training.checkpoint import CheckpointError
from training.settings import Settings, SettingsError
from training.tasks import make_task
from training.trainer import Trainer, TrainingError

SMALL = {
    "d_model": 16,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_ff": 32,
    "dropout": 0.1,
    "batch_size": 8,
    "steps": 20,
    "warmup": 5,
    "eval_size": 10,
    "test_size": 10,
    "device": mg.get_default_device(),
}


def spoil(trainer, value):
    """Write `value` into the last parameter; returns its name."""
    *_, (name, parameter) = trainer.model.named_parameters()
    parameter.data[...] = value
    return name


def small_trainer(task="copy", **settings):
    return Trainer(make_task(task, max_length=5), Settings(**{**SMALL, **settings}))


def arrays_of(tree):
    if isinstance(tree, np.ndarray):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else []
    return list(itertools.chain.from_iterable(arrays_of(child) for child in children))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("schedule", ["cosine", "warmup", "constant"])
def test_resumed_is_undisturbed(tmp_path, optimizer, schedule):
    settings = {"optimizer": optimizer, "schedule": schedule, "weight_decay": 0.01, "label_smoothing": 0.1}
    settings["tie_embeddings"] = schedule == "cosine"
    undisturbed = small_trainer(**settings)
    for _ in range(10):
        undisturbed.train_step()

    stopped = small_trainer(**settings)
    for _ in range(4):
        stopped.train_step()
    path = tmp_path / "checkpoint.npz"
    checkpoint.save(path, stopped.state_dict())
    for _ in range(3):  # work that is lost
        stopped.train_step()
    resumed = Trainer.from_state_dict(checkpoint.load(path), path)
    for _ in range(6):
        resumed.train_step()

    assert resumed.losses == undisturbed.losses
    assert resumed.optimizer.param_groups[0]["lr"] == undisturbed.optimizer.param_groups[0]["lr"]
    ours, theirs = (arrays_of(trainer.state_dict()) for trainer in (resumed, undisturbed))
    assert len(ours) == len(theirs) > 2 * len(resumed.parameters) - 1
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


# ---- threads ---------------------------------------------------------------------------------------------------------

on_a_cpu = pytest.mark.cpu_only(reason="a GPU takes each batch as a whole")


@on_a_cpu
@pytest.mark.parametrize("amp", [False, True], ids=["float32", "mixed precision"])
def test_with_threads_resumed_is_undisturbed_too(tmp_path, amp):
    settings = {"threads": 2, "batch_size": 7, "amp": amp, "label_smoothing": 0.1}
    undisturbed, stopped = small_trainer(**settings), small_trainer(**settings)
    for _ in range(8):
        undisturbed.train_step()
    for _ in range(3):
        stopped.train_step()
    path = tmp_path / "checkpoint.npz"
    checkpoint.save(path, stopped.state_dict())
    resumed = Trainer.from_state_dict(checkpoint.load(path), path)
    assert resumed.threads == 2
    for _ in range(5):
        resumed.train_step()
    assert resumed.losses == undisturbed.losses
    for a, b in zip(arrays_of(resumed.state_dict()), arrays_of(undisturbed.state_dict()), strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


@on_a_cpu
def test_threads_change_the_losses_by_rounding_alone():
    """Sources and targets are of different lengths, and 7 examples do not split evenly."""
    losses = []
    for threads in (1, 2, 3):
        trainer = small_trainer(threads=threads, batch_size=7, dropout=0.0, label_smoothing=0.1)
        for _ in range(10):
            trainer.train_step()
        trainer.check_finite()
        losses.append(trainer.losses)
    assert losses[0][0] - losses[0][-1] > 0.1  # it learns
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-5)
    assert losses[1] != losses[0]


@on_a_cpu
def test_a_loss_that_is_no_number_stops_the_training_with_threads_too():
    trainer = small_trainer(threads=2)
    spoil(trainer, math.nan)
    with pytest.raises(TrainingError, match=r"^the loss is nan at step 1; train anew with a lower --lr"):
        trainer.train_step()
    assert trainer.step == 0


@pytest.mark.skipif(not mg.cuda_available(), reason="there is no GPU")
def test_a_gpu_takes_each_batch_as_a_whole():
    """A run with threads goes on there, and with threads again where it came from."""
    trainer = small_trainer(threads=2, device="cuda")
    assert trainer.threads == 1 and trainer.settings.threads == 2
    trainer.train_step()
    back = Trainer.from_state_dict(trainer.state_dict(), "some.npz", device="cpu")
    assert back.threads == 2
    back.train_step()


# ---- mixed precision -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init_scale", [2.0**16, 2.0**21], ids=["good steps", "overflows on the way"])
def test_with_mixed_precision_resumed_is_undisturbed_too(tmp_path, init_scale):
    """With the larger scale the gradients leave float16 in some steps before and behind the checkpoint."""
    undisturbed, stopped = small_trainer(amp=True), small_trainer(amp=True)
    path = tmp_path / "checkpoint.npz"
    with np.errstate(all="ignore"):
        for trainer in (undisturbed, stopped):
            trainer.scaler.load_state_dict({**trainer.scaler.state_dict(), "scale": init_scale, "growth_interval": 3})
        for _ in range(12):
            undisturbed.train_step()
        for _ in range(5):
            stopped.train_step()
        checkpoint.save(path, stopped.state_dict())
        resumed = Trainer.from_state_dict(checkpoint.load(path), path)
        for _ in range(7):
            resumed.train_step()
    assert resumed.settings.amp and resumed.losses == undisturbed.losses
    assert resumed.scaler.state_dict() == undisturbed.scaler.state_dict() != stopped.scaler.state_dict()
    assert all(state["step"] >= 5 for state in resumed.optimizer.state.values())
    ours, theirs = (arrays_of(trainer.state_dict()) for trainer in (resumed, undisturbed))
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


def test_steps_whose_gradients_leave_float16_are_left_out():
    trainer = small_trainer(amp=True, optimizer="sgd", schedule="constant")
    trainer.scaler.load_state_dict({**trainer.scaler.state_dict(), "scale": 2.0**24})
    before = arrays_of(trainer.model.state_dict())
    with np.errstate(all="ignore"):
        trainer.train_step()
    assert trainer.step == 1 and trainer.optimizer.state == {} and trainer.scaler.get_scale() == 2.0**23
    for a, b in zip(before, arrays_of(trainer.model.state_dict()), strict=True):
        np.testing.assert_array_equal(a, b)
    with np.errstate(all="ignore"):
        for _ in range(19):
            trainer.train_step()
    assert trainer.optimizer.state and 2.0**10 < trainer.scaler.get_scale() < 2.0**23
    trainer.check_finite()


def test_gradients_that_are_no_numbers_at_any_scale_stop_the_training():
    trainer = small_trainer(amp=True)
    trainer.parameters[0].register_hook(lambda g: g * math.nan)
    with np.errstate(all="ignore"), pytest.raises(TrainingError, match="the gradient is nan at step 17; train anew"):
        for _ in range(20):
            trainer.train_step()
    assert trainer.scaler.get_scale() == 1 and trainer.optimizer.state == {}


@pytest.mark.slow
@pytest.mark.parametrize("amp_dtype", ["float16", "bfloat16"])
def test_mixed_precision_learns_as_float32_does(amp_dtype):
    losses = []
    for amp in (False, True):
        sizes = {"d_model": 32, "batch_size": 32, "steps": 120, "dropout": 0.0, "warmup": 20}
        trainer = small_trainer(**({"amp": True, "amp_dtype": amp_dtype} if amp else {}), **sizes)
        with np.errstate(all="ignore"):
            for _ in range(120):
                trainer.train_step()
        losses.append((trainer.losses[0], np.mean(trainer.losses[-10:])))
    (first, last), (first_of_amp, last_of_amp) = losses
    assert first_of_amp != first and first_of_amp == pytest.approx(first, rel=1e-3 if amp_dtype == "float16" else 8e-3)
    assert last_of_amp == pytest.approx(last, rel=0.1) and last_of_amp < 0.8 * first


def test_a_checkpoint_without_a_scaler_of_a_run_with_one():
    tree = small_trainer(amp=True).state_dict()
    tree["scaler"] = {}
    with pytest.raises(CheckpointError, match=r"some\.npz doesn't fit this program \(.*a scaler's state is scale"):
        Trainer.from_state_dict(tree, "some.npz")


def test_bfloat16_has_the_range_of_float32_so_no_loss_is_scaled():
    assert small_trainer(amp=True, amp_dtype="bfloat16").scaler.get_scale() == 1
    assert small_trainer(amp=True).scaler.get_scale() > 1


@pytest.mark.parametrize("options", [{}, {"amp": True}, {"amp": True, "amp_dtype": "bfloat16"}])
def test_everything_stays_float32(options):
    trainer = small_trainer(**options)
    trainer.train_step()
    floats = [array for array in arrays_of(trainer.state_dict()) if array.dtype.kind == "f"]
    assert {array.dtype for array in floats} == {np.dtype(np.float32)}


def test_another_seed_is_another_run():
    losses = []
    for seed in (0, 0, 1, 2**64 - 1):
        trainer = small_trainer(seed=seed)
        trainer.train_step()
        losses.append(trainer.losses[0])
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3


def test_the_first_loss_is_that_of_guessing():
    """A loss far below ln V at the start would mean that the decoder sees its answers."""
    trainer = small_trainer(dropout=0.0)
    trainer.train_step()
    assert trainer.losses[0] == pytest.approx(math.log(len(trainer.task.target_vocabulary)), rel=0.3)


def test_the_learning_rate_at_its_highest_is_the_one_given():
    for schedule in ("cosine", "warmup", "constant"):
        trainer = small_trainer(schedule=schedule, lr=0.003)
        rates = []
        for _ in range(SMALL["steps"]):
            rates.append(trainer.optimizer.param_groups[0]["lr"])
            trainer.train_step()
        assert max(rates) == pytest.approx(0.003, rel=1e-6)


def test_an_evaluation_is_a_line_of_the_history():
    trainer = small_trainer()
    for _ in range(3):
        trainer.train_step()
    losses = trainer.losses
    line = trainer.evaluate()
    assert list(line) == ["step", "seconds", "loss", "exact_match"]
    assert line["step"] == 3 and line["loss"] == sum(losses) / 3
    assert trainer.history == [line] and trainer.losses == []
    assert trainer.model.training


def test_held_out_examples_are_in_neither_training_nor_the_other_part():
    trainer = small_trainer(eval_size=50, test_size=50)
    held_out = {example.source for example in trainer.eval_examples + trainer.test_examples}
    assert len(held_out) == 100
    rng = np.random.default_rng(0)
    assert not held_out & {trainer.task.sample(rng).source for _ in range(2000)}


def test_more_held_out_examples_than_there_are():
    with pytest.raises(SettingsError, match="--eval-size and --test-size: copy: only"):
        Trainer(make_task("copy", alphabet="ab", max_length=6), Settings(**{**SMALL, "test_size": 500}))


def test_a_loss_that_is_no_number_stops_the_training():
    trainer = small_trainer(lr=1e30, optimizer="sgd", clip=0.0, schedule="constant", warmup=0)
    message = r"is (nan|inf) at step \d+; train anew with a lower --lr \(it is 1e\+30\) or a lower --clip"
    with np.errstate(all="ignore"), pytest.raises(TrainingError, match=message):
        for _ in range(10):
            trainer.train_step()
    assert trainer.step < 10


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda tree: tree.pop("model"), "checkpoint lacks 'model'"),
        (lambda tree: tree["config"].update(task="juggle"), "unknown task 'juggle'"),
        (lambda tree: tree["config"].update(colour="red"), "config has the unknown key 'colour'"),
        (lambda tree: tree["config"].update(heads=3), "--d-model must be a multiple of --heads"),
        (lambda tree: tree["config"].update(d_ff=33), "33"),
        (lambda tree: tree.update(symbols=["ab", "ab"]), "its symbols are others"),
        (lambda tree: tree.update(config=None), "checkpoint: 'config' must be of type dict, not None"),
        (lambda tree: tree["config"].update(beam=2.5), "config: 'beam' must be of type int, not 2.5"),
        (lambda tree: tree["config"].update(lr="x"), "config: 'lr' must be of type float, not 'x'"),
        (lambda tree: tree["config"].update(norm_first=1), "config: 'norm_first' must be of type bool, not 1"),
        (lambda tree: tree["config"].update(task_options={"max_length": 10**9}), "--max-length must be a whole number"),
        (lambda tree: tree.update(step="x"), "checkpoint: 'step' must be of type int, not 'x'"),
        (lambda tree: tree.update(step=1.5), "checkpoint: 'step' must be of type int, not 1.5"),
        (lambda tree: tree.update(step=-5), "losses must be one number for each step from 0 to -5"),
        (lambda tree: tree.update(step=21, losses=[0.5] * 21), "step 21 of 20"),
        (lambda tree: tree.update(seconds="x"), "checkpoint: 'seconds' must be of type float, not 'x'"),
        (lambda tree: tree.update(history="abc"), "checkpoint: 'history' must be of type list, not 'abc'"),
        (lambda tree: tree.update(history=[1]), "history must be a dict, not 1"),
        (lambda tree: tree.update(history=[{"step": 1}]), "history lacks '"),
        (lambda tree: tree.update(losses=["x"], step=1), "losses must be one number for each step from 0 to 1"),
        (lambda tree: tree["schedule"].update(last_step=math.inf), "infinity"),
        (lambda tree: tree["model"].popitem(), "missing"),
    ],
)
def test_a_tree_that_is_not_a_trainers(change, reason):
    tree = small_trainer().state_dict()
    change(tree)
    with pytest.raises(CheckpointError, match=r"^some\.npz doesn't fit this program \(.*") as caught:
        Trainer.from_state_dict(tree, "some.npz")
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_parameters_that_are_no_numbers():
    trainer = small_trainer()
    trainer.check_finite()
    name = spoil(trainer, math.nan)
    with pytest.raises(
        TrainingError, match=rf"^the largest number in {name} is nan at step 0; train anew with a lower --lr"
    ):
        trainer.check_finite()
    assert trainer.model.training
    with pytest.raises(
        CheckpointError, match=rf"^some\.npz is of no use: the largest number in {name} is nan at step 0"
    ):
        Trainer.from_state_dict(trainer.state_dict(), "some.npz")


def test_parameters_so_large_that_the_loss_is_no_number():
    trainer = small_trainer()
    for parameter in trainer.parameters:
        parameter.data[...] = 1e30
    with pytest.raises(TrainingError, match=r"^the held-out loss is (nan|inf) at step 0; train anew with a lower --lr"):
        trainer.check_finite()


def test_the_check_leaves_training_as_it_was():
    checked, unchecked = small_trainer(), small_trainer()
    for _ in range(3):
        checked.check_finite()
        checked.train_step()
        unchecked.train_step()
    assert checked.losses == unchecked.losses


def test_whole_numbers_do_for_others(tmp_path):
    tree = small_trainer(clip=1, weight_decay=0).state_dict()
    assert Trainer.from_state_dict(tree, "some.npz").settings.clip == 1
