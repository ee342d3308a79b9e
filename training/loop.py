"""The loop around a trainer's steps: progress on the screen, evaluations, checkpoints, and stopping when asked to."""

import contextlib
import os
import signal
import time
from types import FrameType
from typing import Any, Self

import numpy as np
from tqdm import tqdm

from training.run import Run
from training.trainer import Trainer, TrainingError


def train(trainer: Trainer, run: Run) -> bool:
    """Train until the trainer is finished, with a line on the screen and a checkpoint at each evaluation.

    Returns False if SIGINT or SIGTERM asked to stop: then the step at hand was finished and saved. Raises TrainingError
    for what is not finite, OSError for a full disk or an output that nobody reads; the run keeps its last checkpoint.
    """
    settings = trainer.settings
    saved = trainer.step
    started = time.perf_counter() - trainer.seconds

    def save(measured: dict[str, float] | None = None) -> None:
        nonlocal saved
        trainer.check_finite()
        if measured:
            run.append_metrics(measured)
        run.save(trainer.state_dict())
        saved = trainer.step

    try:
        with (
            StopRequest() as stop,
            np.errstate(all="ignore"),  # what overflows shows as a NaN in the loss, which is checked
            tqdm(total=settings.steps, initial=trainer.step, unit="step", disable=None, leave=False) as bar,
        ):
            symbols, since = 0, time.perf_counter()
            while not trainer.finished and not stop.requested:
                symbols += trainer.train_step()
                trainer.seconds = time.perf_counter() - started
                speed = symbols / (time.perf_counter() - since)
                bar.set_postfix(_postfix(trainer, speed), refresh=False)
                bar.update()
                if trainer.step % settings.eval_every == 0 or trainer.finished:
                    measured = trainer.evaluate()
                    save(measured)
                    bar.write(_line(measured, speed))  # last: it fails if nobody reads on
                    symbols, since = 0, time.perf_counter()
            if saved < trainer.step:
                save()
    except TrainingError as error:
        raise TrainingError(f"{error}; {run.folder} keeps its checkpoint of step {saved}") from error
    return not stop.requested


class StopRequest:
    """While entered, SIGINT (Ctrl-C) or SIGTERM only sets `requested`; a second one ends the process at once.

    A signal that the process was started to ignore, as a shell does for what runs in the background, stays ignored.
    """

    def __init__(self) -> None:
        self.requested = False
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self.__exit__()  # the former handlers take the next one
        with contextlib.suppress(OSError):  # not print: it may be in the middle of a line
            os.write(2, b"\nstopping after this step and its checkpoint; again to end at once\n")


def _line(measured: dict[str, float], speed: float) -> str:
    return (
        f"step {measured['step']:>6}  {measured['seconds']:7.1f} s  loss {measured['loss']:.4f}  {speed:7.0f} tokens/s"
        f"  held-out exact match {100 * measured['exact_match']:.1f} %"
    )


def _postfix(trainer: Trainer, speed: float) -> dict[str, str]:
    held_out = f"{100 * trainer.history[-1]['exact_match']:.1f} %" if trainer.history else "-"
    return {"loss": f"{trainer.losses[-1]:.4f}", "tokens/s": f"{speed:.0f}", "exact match": held_out}
