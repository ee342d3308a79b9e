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

# NumPy's BLAS and minigrad read this when they are first imported. In one thread a small model is hardly slower, other
# programs on the machine can't make it many times slower, and its bits don't depend on the number of cores.
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
from training.files import explain, reason
from training.loop import train
from training.report import print_report
from training.run import CHECKPOINT, RUNS, Run, start_run
from training.settings import DEFAULTS, Settings, SettingsError, flag, settings_for, typed
from training.tasks import TASKS, make_task
from training.tasks.base import MissingDependency
from training.trainer import Trainer, TrainingError

MODES = {"list": set(), "resume": {"device", "threads"}, "answer": {"task", "device", "beam"}}
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
    except (CheckpointError, TrainingError, MissingDependency, mg.DeviceError) as error:
        return fail(1, error)
    except MemoryError as error:
        return fail(1, f"out of memory ({error}); choose a smaller model, --batch-size or --max-length")
    except OSError as error:
        return fail(1, explain(error))
    except KeyboardInterrupt:
        return fail(130, "stopped")


def prepare_output() -> None:
    """Let everything print, even if stdout or stderr is closed, or can't encode the signs of a table."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # this process was started with it closed
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    codecs.register_error("plain", text.plain)
    # Line by line, so that who reads a pipe sees progress.
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
    """Do what the command line says, errors raised; returns the exit status."""
    given = vars(command_line().parse_args(arguments))
    for mode, allowed in MODES.items():
        others = given.keys() - allowed - {mode}
        if mode in given and others:
            named = " ".join(sorted(flag(name) if name != "task" else given[name] for name in others))
            raise SettingsError(f"{flag(mode)} doesn't go together with {named}")
    if given.get("threads", 1) > 1 and given.get("device", "cpu") != "cpu":
        raise SettingsError(
            f"--threads {given['threads']} says nothing beside --device {given['device']}; leave it out"
        )
    if "list" in given:
        return list_tasks()
    if "answer" in given:
        if "task" not in given:
            raise SettingsError("--answer needs a text after the folder of the run; see python train.py --help")
        return answer(given.pop("answer"), given.pop("task"), given)
    if "resume" in given:
        return resume(given.pop("resume"), given)
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
            f"can't make {out or f'a run in {RUNS}'} ({reason(error)}); name another folder with --out"
        ) from error
    with run:
        return go_on(trainer, run)


def resume(folder: Path, given: dict[str, Any]) -> int:
    """Train on from the checkpoint in `folder`, on the device and threads that it was on unless others are given."""
    with Run(folder) as run:
        trainer = Trainer.from_state_dict(run.load(), folder / CHECKPOINT, **given)
        run.rewrite_metrics(trainer.history)
        return go_on(trainer, run)


def go_on(trainer: Trainer, run: Run) -> int:
    """Train until the end, then report; or until Ctrl-C."""
    settings = trainer.settings
    parameters = sum(math.prod(parameter.shape) for parameter in trainer.parameters)
    again = f"go on with: {typed('--resume', run.folder)}"
    try:
        where = settings.device + (f", {trainer.threads} threads" if trainer.threads > 1 else "")
        print(f"{trainer.task.name}: {trainer.task.description}; {parameters:,} parameters on {where}")
        print(f"{run.folder}: from step {trainer.step} to {settings.steps}; Ctrl-C saves and stops")
        if not train(trainer, run):
            return fail(130, f"stopped and saved at step {trainer.step}; {again}")
        print_report(trainer, run)
    except OSError as error:
        raise TrainingError(f"{explain(error)}; the last checkpoint is kept: {again}") from error
    except KeyboardInterrupt:
        return fail(130, f"stopped; the last checkpoint is kept: {again}")
    return 0


def answer(folder: Path, source: str, given: dict[str, Any]) -> int:
    """Print the answer of the model in `folder` to `source`, and its attention; on the CPU unless a device is given."""
    path = folder / CHECKPOINT
    trainer = Trainer.from_state_dict(checkpoint.load(path), path, **{"device": "cpu", **given})
    try:
        trainer.task.check_source(source)
    except ValueError as error:
        raise SettingsError(f"--answer: {error}") from error
    (result,) = answers(trainer.model, trainer.task, [source], trainer.settings.beam)
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
    """The parser. Flags that are not given are absent from its result, so that a task's own defaults can apply."""
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

    add_task_flags(parser.add_argument_group("the task"))
    add_setting_flags(parser.add_argument_group("the model and its training"))
    return parser


def add_task_flags(group: argparse._ArgumentGroup) -> None:
    """A flag for each option that some task has."""
    for name, default in TASK_OPTIONS.items():
        tasks = [task.name for task in TASKS.values() if name in inspect.signature(task).parameters]
        add_flag(group, name, default, f"of {', '.join(tasks)} (default {default})")


def add_setting_flags(group: argparse._ArgumentGroup) -> None:
    """A flag for each field of Settings, and --layers for two of them."""
    group.add_argument(
        "--layers", type=int, metavar="N", help="encoder layers and decoder layers, unless given one by one"
    )
    for setting in dataclasses.fields(Settings):
        name, meaning, allowed = setting.name, setting.metadata["meaning"], setting.metadata["allowed"]
        if isinstance(setting.default, bool):
            group.add_argument(flag(name), action=argparse.BooleanOptionalAction, help=meaning)
            continue
        others = [f", {defaults[name]} for {task}" for task, defaults in DEFAULTS.items() if name in defaults]
        add_flag(
            group, name, setting.default, f"{meaning} ({allowed.words}; default {setting.default}{''.join(others)})"
        )


def add_flag(group: argparse._ArgumentGroup, name: str, default: Any, meaning: str) -> None:
    """A flag for a value of the same type as `default`."""
    kind = type(default)
    group.add_argument(flag(name), type=kind, metavar=METAVARS[kind], help=meaning)


if __name__ == "__main__":
    sys.exit(main())
