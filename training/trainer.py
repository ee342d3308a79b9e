"""A model in training: one step, one evaluation, and all that a run needs to go on from where it was.

Random numbers depend on (seed, step) alone: parameters on (seed, 0), the examples and dropout of step t = 1, 2, ... on
(seed, t). So a checkpoint needs no random state, and a resumed run draws what an undisturbed one would have drawn.
"""

import dataclasses
import math
import textwrap
from pathlib import Path
from typing import Any, Self

import numpy as np

import minigrad as mg
import nn
import nn.functional as F
from nn.optim import GradScaler, clip_grad_norm_
from training.build import build_model, build_optimizer, build_schedule
from training.checkpoint import CheckpointError
from training.evaluate import answers, count_right
from training.settings import Settings, SettingsError
from training.tasks import Task, make_task
from training.tasks.base import PAD


class TrainingError(Exception):
    """Training can't go on. The message is one line that says at which step, and the way out."""


STATE = {
    "config": dict,
    "symbols": list,
    "step": int,
    "seconds": float,
    "history": list,
    "losses": list,
    "model": dict,
    "optimizer": dict,
    "schedule": dict,
    "scaler": dict,
}
"""The keys of `Trainer.state_dict` and the types of their values."""

CONFIG = {"task": str, "task_options": dict, **{setting.name: setting.type for setting in dataclasses.fields(Settings)}}
"""The same of `Trainer.config`."""

LINE = {"step": int, "seconds": float, "loss": float, "exact_match": float}
"""The same of a line of the history."""


class Trainer:
    """The model in training: its parameters, optimizer, schedule and gradient scaler, and how far it is."""

    def __init__(self, task: Task, settings: Settings) -> None:
        """Draw the parameters. Raises SettingsError if the settings don't fit the task, DeviceError for no device."""
        self.task, self.settings = task, settings
        mg.manual_seed(settings.seed)
        self.model = build_model(task, settings)
        self.parameters = list(self.model.parameters())
        self.optimizer = build_optimizer(self.parameters, settings)
        self.schedule = build_schedule(self.optimizer, settings)
        try:
            self.autocast = mg.autocast(settings.amp_dtype, enabled=settings.amp)
        except TypeError as error:
            raise SettingsError(f"--amp-dtype: {error}") from error
        self.scaler = GradScaler(enabled=settings.amp and settings.amp_dtype == "float16")
        self.threads = settings.threads if settings.device == "cpu" else 1
        try:
            held_out = task.held_out(settings.eval_size + settings.test_size)
        except ValueError as error:
            raise SettingsError(f"--eval-size and --test-size: {error}") from error
        self.eval_examples, self.test_examples = held_out[: settings.eval_size], held_out[settings.eval_size :]
        self.step = 0
        self.seconds = 0.0
        self.history: list[dict[str, float]] = []
        """The lines of metrics.jsonl."""
        self.losses: list[float] = []
        """Of the steps since the last evaluation."""

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.settings.steps

    def train_step(self) -> int:
        """One step on a batch of new examples; returns how many symbols its sources and targets have.

        Raises TrainingError, with the parameters as they were, if the loss or the gradient is not finite. With mixed
        precision such a gradient is passed over, and the next ones scaled less, as long as they are scaled up at all.
        """
        settings, step = self.settings, self.step + 1
        mg.manual_seed(settings.seed, step)
        rng = np.random.default_rng((settings.seed, step))
        source, target = self.task.batch([self.task.sample(rng) for _ in range(settings.batch_size)])
        loss = self._loss(source, target)
        value = loss.item()
        self._require_finite("loss", value, step)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = clip_grad_norm_(self.parameters, settings.clip or math.inf)
        if self.scaler.get_scale() <= 1:
            self._require_finite("gradient", float(norm), step)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.schedule:
            self.schedule.step()
        self.step = step
        self.losses.append(value)
        return int(np.count_nonzero(source) + np.count_nonzero(target))  # PAD is 0

    def check_finite(self) -> None:
        """Raise TrainingError unless the parameters, and a loss on held-out examples, are finite numbers.

        A step's own loss and gradient say nothing of the parameters that it leaves.
        """
        source, target = self.task.batch(self.eval_examples[: self.settings.batch_size])
        self.model.eval()
        with mg.no_grad(), np.errstate(all="ignore"):
            loss = self._loss(source, target).item()
        self.model.train()
        for name, values in self.model.state_dict().items():
            self._require_finite(f"largest number in {name}", float(np.abs(values).max()), self.step)
        self._require_finite("held-out loss", loss, self.step)

    def evaluate(self) -> dict[str, float]:
        """Measure exact match on held-out examples, and add a line to the history."""
        given = answers(self.model, self.task, [e.source for e in self.eval_examples])
        line = {
            "step": self.step,
            "seconds": round(self.seconds, 2),
            "loss": sum(self.losses) / len(self.losses),
            "exact_match": count_right(self.eval_examples, given) / len(given),
        }
        self.history.append(line)
        self.losses = []
        return line

    def config(self) -> dict[str, Any]:
        """What the run was started with, as JSON values."""
        return {
            "task": self.task.name,
            "task_options": self.task.options,
            **dataclasses.asdict(self.settings),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that `from_state_dict` needs, as a tree for checkpoint.save."""
        return {
            "config": self.config(),
            "symbols": self._symbols(),
            "step": self.step,
            "seconds": self.seconds,
            "history": self.history,
            "losses": self.losses,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict() if self.schedule else {},
            "scaler": self.scaler.state_dict(),
        }

    @classmethod
    def from_state_dict(cls, tree: dict[str, Any], path: Path, **changes: Any) -> Self:
        """The trainer as it was when `tree` was made, but for the settings in `changes`: its device, its beams.

        `path` is only for messages. Raises SettingsError for a bad change, DeviceError for a device that is not there,
        CheckpointError if the tree is not that of a trainer.
        """
        Settings(**changes)  # before the checkpoint is blamed for them
        try:
            _check_types("checkpoint", tree, STATE)
            _check_types("config", tree["config"], CONFIG)
            config = dict(tree["config"])
            task = make_task(config.pop("task"), **config.pop("task_options"))
            trainer = cls(task, Settings(**{**config, **changes}))
            if trainer._symbols() != tree["symbols"]:
                raise ValueError("its symbols are others than those that the task has here")
            trainer.model.load_state_dict(tree["model"])
            trainer.optimizer.load_state_dict(tree["optimizer"])
            if trainer.schedule:
                trainer.schedule.load_state_dict(tree["schedule"])
            trainer.scaler.load_state_dict(tree["scaler"])
            trainer.step, trainer.seconds = tree["step"], tree["seconds"]
            trainer.history, trainer.losses = tree["history"], tree["losses"]
            trainer._check_progress()
            trainer.check_finite()
        except mg.DeviceError:
            raise
        except TrainingError as error:
            raise CheckpointError(f"{path} is of no use: {error}") from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            reason = textwrap.shorten(str(error), 200)
            raise CheckpointError(
                f"{path} doesn't fit this program ({reason}); use the program that wrote it, or train anew"
            ) from error
        return trainer

    def _loss(self, source: np.ndarray, target: np.ndarray) -> mg.Tensor:
        """The mean loss over the symbols of `target` (B, N_t), each predicted from those before it."""
        return nn.ParallelLoss(self._loss_and_count, self.threads)(source, target)

    def _loss_and_count(self, source: np.ndarray, target: np.ndarray) -> tuple[mg.Tensor, int]:
        """That of the whole batch or a part of it, and over how many symbols it is the mean."""
        expected = target[:, 1:]  # (B, N_t - 1)
        with self.autocast:
            logits = self.model(source, target[:, :-1])  # (B, N_t - 1, V)
            loss = F.cross_entropy(
                logits.reshape(-1, logits.shape[-1]),
                mg.Tensor(expected.reshape(-1), device=self.settings.device),
                ignore_index=PAD,
                label_smoothing=self.settings.label_smoothing,
            )
        return loss, int(np.count_nonzero(expected != PAD))

    def _check_progress(self) -> None:
        """Raise ValueError unless step, history and losses belong together."""
        for line in self.history:
            _check_types("history", line, LINE)
        evaluated = [0, *(line["step"] for line in self.history)]
        if evaluated != sorted(evaluated) or self.step > self.settings.steps:
            raise ValueError(f"step {self.step} of {self.settings.steps} after evaluations at {evaluated[1:]}")
        if len(self.losses) != self.step - evaluated[-1] or not all(type(loss) is float for loss in self.losses):
            raise ValueError(f"losses must be one number for each step from {evaluated[-1]} to {self.step}")

    def _symbols(self) -> list[str]:
        return [self.task.source_vocabulary.symbols, self.task.target_vocabulary.symbols]

    def _require_finite(self, what: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            raise TrainingError(
                f"the {what} is {value} at step {step}; train anew with a lower --lr (it is {self.settings.lr:g}) "
                f"or a lower --clip (it is {self.settings.clip:g}{', for no limit' if not self.settings.clip else ''})"
            )


def _check_types(what: str, given: Any, types: dict[str, Any]) -> None:
    """Raise ValueError unless `given` is a dict with these keys, and values of these types."""
    if not isinstance(given, dict):
        raise ValueError(f"{what} must be a dict, not {given!r}")
    for key in sorted(types.keys() ^ given.keys(), key=str):
        raise ValueError(f"{what} {'lacks' if key in types else 'has the unknown key'} {key!r}")
    for key, kind in types.items():
        if type(given[key]) is not kind and not (kind is float and type(given[key]) is int):
            raise ValueError(f"{what}: {key!r} must be of type {kind.__name__}, not {given[key]!r}")
