"""Train a Transformer on a task, go on with a run, or ask a trained one.

    python train.py                            train on the task `reverse`
    python train.py TASK [FLAGS]               train on another task; --list names them
    python train.py --resume RUN               go on with a run that was stopped, as if it never had been
    python train.py --answer RUN "text"        what the trained model answers, and where it looked

The flags of sizes and hyper-parameters come from training/settings.py, those of a task from its own options. This file
reads the command line, calls `training`, and turns every error into one line and an exit status: 2 for a command line
that makes no sense, 130 after Ctrl-C, else 1.
"""

import os

# BLAS reads this when NumPy is first imported. On one thread the products of a small model are no slower, other
# programs on the machine can't make them many times slower, and their bits don't depend on the number of cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import codecs
import contextlib
import dataclasses
import inspect
import math
import sys
from pathlib import Path
from typing import Any, NoReturn

import minigrad as mg
from training import checkpoint, text
from training.checkpoint import CheckpointError
from training.evaluate import answers, cross_attention
from training.files import reason, told
from training.loop import train
from training.report import print_report
from training.run import CHECKPOINT, RUNS, Run, start_run
from training.settings import DEFAULTS, Settings, SettingsError, flag, settings_for, typed
from training.tasks import TASKS, make_task
from training.trainer import Trainer, TrainingError

MODES = {"list": set(), "resume": {"device"}, "answer": {"task", "device", "beam"}}
"""What may be asked for instead of a new training, and the other flags that go with it."""

TASK_OPTIONS = {
    name: option.default for task in TASKS.values() for name, option in inspect.signature(task).parameters.items()
}
"""The options that any task has, with their defaults."""

METAVARS = {int: "N", float: "X", str: "TEXT"}
"""What stands for a flag's value in --help."""


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; returns the exit status."""
    prepare_output()
    try:
        return dispatch(arguments)
    except SettingsError as error:
        return fail(2, error)
    except (CheckpointError, TrainingError, mg.DeviceError, ImportError) as error:
        return fail(1, error)
    except MemoryError as error:
        return fail(1, f"out of memory ({error}); choose a smaller model, --batch-size or --max-length")
    except OSError as error:
        return fail(1, told(error))
    except KeyboardInterrupt:
        return fail(130, "stopped")


def prepare_output() -> None:
    """Make stdout and stderr such that all may print: where they are closed, or lack the signs of a table."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started this process
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    codecs.register_error("plain", text.plain)
    # Readers of a pipe see each line when it is written.
    sys.stdout.reconfigure(errors="plain", line_buffering=True)  # type: ignore[union-attr]


def fail(status: int, message: object) -> int:
    """Print one line to stderr; returns `status`."""
    try:
        sys.stdout.flush()
    except OSError:  # what can't be written is dropped, else Python tries again, and complains, when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with contextlib.suppress(OSError):
        print(f"train.py: {message}", file=sys.stderr)
    return status


def dispatch(arguments: list[str] | None) -> int:
    """`main` without its errors."""
    given = vars(command_line().parse_args(arguments))
    for mode, allowed in MODES.items():
        others = given.keys() - allowed - {mode}
        if mode in given and others:
            named = " ".join(sorted(flag(name) if name != "task" else given[name] for name in others))
            raise SettingsError(f"{flag(mode)} doesn't go together with {named}")
    if "list" in given:
        return list_tasks()
    if "answer" in given:
        if "task" not in given:
            raise SettingsError("--answer needs a text after the folder of the run; see python train.py --help")
        return answer(given.pop("answer"), given.pop("task"), **given)
    if "resume" in given:
        return resume(given.pop("resume"), given.get("device"))
    return start(given.pop("task", "reverse"), given.pop("out", None), given)


def list_tasks() -> int:
    """Print the tasks."""
    for name, task in sorted(TASKS.items()):
        print(f"{name:<10} {task.description}")
    return 0


def start(task_name: str, out: Path | None, given: dict[str, Any]) -> int:
    """Train anew, with the flags in `given`."""
    layers = given.pop("layers", None)
    if layers is not None:
        given = {"encoder_layers": layers, "decoder_layers": layers, **given}
    options = {name: given.pop(name) for name in TASK_OPTIONS if name in given}
    try:
        task = make_task(task_name, **options)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    trainer = Trainer(task, settings_for(task_name, given))
    try:
        run = start_run(task_name, out, trainer.config(), trainer.state_dict())
    except OSError as error:
        raise TrainingError(
            f"can't make {out or f'a run in {RUNS}'} ({reason(error)}); name another folder by --out"
        ) from error
    with run:
        return go_on(trainer, run)


def resume(folder: Path, device: str | None) -> int:
    """Train on from the checkpoint in `folder`."""
    with Run(folder) as run:
        trainer = Trainer.from_state_dict(run.load(), folder / CHECKPOINT, device)
        run.rewrite_metrics(trainer.history)
        return go_on(trainer, run)


def go_on(trainer: Trainer, run: Run) -> int:
    """Train until the end, then report; or until Ctrl-C."""
    settings = trainer.settings
    parameters = sum(math.prod(parameter.shape) for parameter in trainer.parameters)
    again = f"go on by: {typed('--resume', run.folder)}"
    try:
        print(f"{trainer.task.name}: {trainer.task.description}; {parameters:,} parameters on {settings.device}")
        print(f"{run.folder}: from step {trainer.step} to {settings.steps}; Ctrl-C saves and stops")
        if not train(trainer, run):
            return fail(130, f"stopped and saved at step {trainer.step}; {again}")
        print_report(trainer, run)
    except OSError as error:
        raise TrainingError(f"{told(error)}; the last checkpoint is kept: {again}") from error
    except KeyboardInterrupt:
        return fail(130, f"stopped; the last checkpoint is kept: {again}")
    return 0


def answer(folder: Path, source: str, device: str = "cpu", beam: int | None = None) -> int:
    """Print the answer of the model in `folder` to `source`, and its attention."""
    path = folder / CHECKPOINT
    trainer = Trainer.from_state_dict(checkpoint.load(path), path, device)
    try:
        trainer.task.check_source(source)
    except ValueError as error:
        raise SettingsError(f"--answer: {error}") from error
    settings = trainer.settings if beam is None else dataclasses.replace(trainer.settings, beam=beam)
    (result,) = answers(trainer.model, trainer.task, [source], settings.beam)
    print(result)
    print("\n" + text.attention_map(cross_attention(trainer.model, trainer.task, source, result), source, result))
    return 0


def run_folder(name: str) -> Path:
    """The folder of a run, which may be named by its checkpoint too."""
    path = Path(name)
    return path.parent if path.name == CHECKPOINT else path


class CommandLine(argparse.ArgumentParser):
    """An argument parser whose errors are SettingsErrors: one line."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see python train.py --help")


def command_line() -> CommandLine:
    """The parser. What is not given is not in its result, so that a task's defaults can come in between."""
    parser = CommandLine(
        prog="python train.py",
        description=(__doc__ or "").split("\n\nThe flags")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "task", nargs="?", metavar="TASK", help="what to learn (reverse if not given), or what to answer"
    )
    parser.add_argument("--list", action="store_true", help="name the tasks")
    parser.add_argument("--resume", metavar="RUN", type=run_folder, help="go on with the run in this folder")
    parser.add_argument(
        "--answer",
        metavar="RUN",
        type=run_folder,
        help="answer the text that follows with the model of this run; write -- before a text that begins with a dash",
    )
    parser.add_argument(
        "--out", metavar="RUN", type=Path, help="folder of the new run; runs/<task>-<number> if not given"
    )

    for_task = parser.add_argument_group("the task")
    for name, default in TASK_OPTIONS.items():
        kind, tasks = type(default), [t.name for t in TASKS.values() if name in inspect.signature(t).parameters]
        for_task.add_argument(
            flag(name), type=kind, metavar=METAVARS[kind], help=f"of {', '.join(tasks)} (default {default})"
        )

    for_settings = parser.add_argument_group("the model and its training")
    for_settings.add_argument(
        "--layers", type=int, metavar="N", help="encoder layers and decoder layers, where not given apart"
    )
    for setting in dataclasses.fields(Settings):
        meaning, allowed, default = setting.metadata["meaning"], setting.metadata["allowed"], setting.default
        if isinstance(default, bool):
            for_settings.add_argument(flag(setting.name), action=argparse.BooleanOptionalAction, help=meaning)
            continue
        defaults = [
            str(default),
            *(f"{own[setting.name]} for {task}" for task, own in DEFAULTS.items() if setting.name in own),
        ]
        for_settings.add_argument(
            flag(setting.name),
            type=type(default),
            metavar=METAVARS[type(default)],
            help=f"{meaning} ({allowed.words}; default {', '.join(defaults)})",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
