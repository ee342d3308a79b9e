"""Training: one step, the loop around it, and all that a run needs to go on from where it was.

Random numbers depend on (seed, step) alone: parameters on (seed, 0), the examples and dropout of step t = 1, 2, ... on
(seed, t). So a checkpoint needs no random state, and a resumed run draws what an undisturbed one would have drawn.
"""

import dataclasses
import math
import signal
import textwrap
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import numpy as np
from tqdm import tqdm

import minigrad as mg
import nn.functional as F
from models import Transformer
from nn.optim import SGD, Adam, AdamW, CosineSchedule, WarmupSchedule, clip_grad_norm_
from training.checkpoint import CheckpointError
from training.evaluate import answers, count_right
from training.run import Run
from training.settings import Settings, SettingsError
from training.tasks import Task, make_task
from training.tasks.base import PAD

BETAS, EPS = (0.9, 0.98), 1e-9
"""Of Adam, as in Vaswani et al. 2017, section 5.3."""

MOMENTUM = 0.9
"""Of SGD."""


class TrainingError(Exception):
    """Training can't go on. The message is one line that says at which step, and the way out."""


class Trainer:
    """The model in training: its parameters, optimizer and schedule, and how far it is."""

    def __init__(self, task: Task, settings: Settings) -> None:
        """Draw the parameters. Raises SettingsError if the settings don't fit the task, DeviceError for no device."""
        self.task, self.settings = task, settings
        mg.manual_seed(settings.seed)
        self.model = _build_model(task, settings)
        self.parameters = list(self.model.parameters())
        self.optimizer = _build_optimizer(self.parameters, settings)
        self.schedule = _build_schedule(self.optimizer, settings)
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
        """One step on a batch of new examples. Returns the symbols in both its sides. Raises TrainingError for NaN."""
        settings, step = self.settings, self.step + 1
        mg.manual_seed(settings.seed, step)
        rng = np.random.default_rng((settings.seed, step))
        source, target = self.task.batch([self.task.sample(rng) for _ in range(settings.batch_size)])
        logits = self.model(source, target[:, :-1])  # (B, N_t - 1, V)
        loss = F.cross_entropy(
            logits.reshape(-1, logits.shape[-1]),
            mg.Tensor(target[:, 1:].reshape(-1), device=settings.device),
            ignore_index=PAD,
            label_smoothing=settings.label_smoothing,
        )
        self._check("loss", loss.item(), step)
        self.optimizer.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(self.parameters, settings.clip or math.inf)
        self._check("gradient", float(norm), step)
        self.optimizer.step()
        if self.schedule:
            self.schedule.step()
        self.step = step
        self.losses.append(loss.item())
        return int(np.count_nonzero(source) + np.count_nonzero(target))  # PAD is 0

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
        }

    @classmethod
    def from_state_dict(cls, tree: dict[str, Any], path: Path, device: str | None = None) -> Self:
        """The trainer as it was when `tree` was made, on `device` or where it was.

        `path` is only for messages. Raises CheckpointError if the tree is not that of a trainer.
        """
        try:
            config = dict(tree["config"])
            task = make_task(config.pop("task"), **config.pop("task_options"))
            settings = Settings(**config)
            trainer = cls(task, settings if device is None else dataclasses.replace(settings, device=device))
            if trainer._symbols() != tree["symbols"]:
                raise ValueError("its symbols are others than those that the task has here")
            trainer.model.load_state_dict(tree["model"])
            trainer.optimizer.load_state_dict(tree["optimizer"])
            if trainer.schedule:
                trainer.schedule.load_state_dict(tree["schedule"])
            trainer.step, trainer.seconds = tree["step"], tree["seconds"]
            trainer.history, trainer.losses = tree["history"], tree["losses"]
        except mg.DeviceError:
            raise
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            reason = textwrap.shorten(str(error), 200)
            raise CheckpointError(
                f"{path} doesn't fit this program ({reason}); use the program that wrote it, or train anew"
            ) from error
        return trainer

    def _symbols(self) -> list[str]:
        return [self.task.source_vocabulary.symbols, self.task.target_vocabulary.symbols]

    def _check(self, what: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            raise TrainingError(
                f"the {what} is {value} at step {step}; train anew with a lower --lr (it is {self.settings.lr:g}) "
                f"or a lower --clip (it is {self.settings.clip:g})"
            )


def train(trainer: Trainer, run: Run) -> bool:
    """Train until the trainer is finished, with a line on the screen and a checkpoint at each evaluation.

    Returns False if SIGINT or SIGTERM asked to stop: then the step at hand was finished and saved. Raises TrainingError
    for a NaN or a full disk; the checkpoint in the run is then the last one that was saved.
    """
    settings = trainer.settings
    saved = trainer.step
    started = time.perf_counter() - trainer.seconds
    with (
        StopRequest() as stop,
        np.errstate(all="ignore"),  # what overflows shows as a NaN in the loss, which is checked
        tqdm(total=settings.steps, initial=trainer.step, unit="step", disable=None, leave=False) as bar,
    ):
        symbols, since = 0, time.perf_counter()
        while not trainer.finished and not stop.requested:
            try:
                symbols += trainer.train_step()
            except TrainingError as error:
                raise TrainingError(f"{error}; {run.folder} keeps its checkpoint of step {saved}") from None
            trainer.seconds = time.perf_counter() - started
            speed = symbols / (time.perf_counter() - since)
            bar.set_postfix(_postfix(trainer, speed), refresh=False)
            bar.update()
            evaluate = trainer.step % settings.eval_every == 0 or trainer.step == settings.steps
            if evaluate:
                line = trainer.evaluate()
                bar.write(_line(line, speed))
                symbols, since = 0, time.perf_counter()
            if evaluate or stop.requested:
                try:
                    if evaluate:
                        run.append_metrics(line)
                    run.save(trainer.state_dict())
                except OSError as error:
                    raise TrainingError(
                        f"{error.filename or run.folder}: {error.strerror}; the checkpoint of step {saved} is kept: "
                        f"make room and go on by --resume {run.folder}"
                    ) from error
                saved = trainer.step
    return not stop.requested


class StopRequest:
    """While entered, SIGINT (Ctrl-C) or SIGTERM only sets `requested`; a second one ends the process at once."""

    def __init__(self) -> None:
        self.requested = False
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._former = {number: signal.signal(number, self._request) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self.__exit__(None, None, None)


def _line(measured: dict[str, float], speed: float) -> str:
    return (
        f"step {measured['step']:>6}  {measured['seconds']:7.1f} s  loss {measured['loss']:.4f}  {speed:7.0f} tokens/s"
        f"  held-out exact match {100 * measured['exact_match']:.1f} %"
    )


def _postfix(trainer: Trainer, speed: float) -> dict[str, str]:
    held_out = f"{100 * trainer.history[-1]['exact_match']:.1f} %" if trainer.history else "–"
    return {"loss": f"{trainer.losses[-1]:.4f}", "tokens/s": f"{speed:.0f}", "held-out": held_out}


def _build_model(task: Task, settings: Settings) -> Transformer:
    try:
        model = Transformer(
            len(task.source_vocabulary),
            len(task.target_vocabulary),
            d_model=settings.d_model,
            num_heads=settings.heads,
            num_encoder_layers=settings.encoder_layers,
            num_decoder_layers=settings.decoder_layers,
            d_ff=settings.d_ff,
            dropout=settings.dropout,
            activation=settings.activation,
            norm_first=settings.norm_first,
            max_length=max(task.max_source_length, task.max_target_length) + 1,  # with EOS or BOS
            pad_id=PAD,
            tie_embeddings=settings.tie_embeddings,
            positions=settings.positions,
        )
    except ValueError as error:
        raise SettingsError(" ".join(str(error).split())) from error
    model.to(settings.device)
    return model


def _build_optimizer(parameters: list[Any], settings: Settings) -> SGD | Adam | AdamW:
    if settings.optimizer == "sgd":
        return SGD(parameters, lr=settings.lr, momentum=MOMENTUM, weight_decay=settings.weight_decay)
    kind = {"adam": Adam, "adamw": AdamW}[settings.optimizer]
    return kind(parameters, lr=settings.lr, betas=BETAS, eps=EPS, weight_decay=settings.weight_decay)


def _build_schedule(optimizer: SGD | Adam | AdamW, settings: Settings) -> CosineSchedule | WarmupSchedule | None:
    if settings.schedule == "constant":
        return None
    if settings.schedule == "cosine":
        return CosineSchedule(optimizer, settings.steps, warmup_steps=settings.warmup)
    # The paper's rate at its highest, the last step of the warm-up, is factor / sqrt(d_model * warmup): make that --lr.
    factor = settings.lr * math.sqrt(settings.d_model * max(settings.warmup, 1))
    return WarmupSchedule(optimizer, settings.d_model, settings.warmup, factor=factor)
