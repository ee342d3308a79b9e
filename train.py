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
from training.loop import train
from training.report import print_report
from training.run import CHECKPOINT, Run, start_run
from training.settings import DEFAULTS, Settings, SettingsError, flag, settings_for
from training.tasks import TASKS, make_task
from training.trainer import Trainer, TrainingError

MODES = {"list": set(), "resume": {"device"}, "answer": {"device", "beam"}}
"""What may be asked for instead of a new training, and the other flags that go with it."""

TASK_OPTIONS = {
    name: type(option.default) for task in TASKS.values() for name, option in inspect.signature(task).parameters.items()
}
"""The options that any task has, with their types."""

METAVARS = {int: "N", float: "X", str: "TEXT"}
"""What stands for a flag's value in --help."""


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; returns the exit status."""
    # For terminals without block characters, and for readers of a pipe: they see each line when it is written.
    sys.stdout.reconfigure(errors="replace", line_buffering=True)  # type: ignore[union-attr]
    try:
        return dispatch(arguments)
    except SettingsError as error:
        return fail(2, error)
    except (CheckpointError, TrainingError, mg.DeviceError, ImportError) as error:
        return fail(1, error)
    except MemoryError as error:
        return fail(1, f"out of memory ({error}); choose a smaller model or a smaller --batch-size")
    except BrokenPipeError:  # of `train.py | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it flushes at exit
        return 1
    except OSError as error:
        return fail(1, f"{error.filename or 'output'}: {error.strerror}; make room there, or use another folder")
    except KeyboardInterrupt:
        return fail(130, "stopped; a run goes on from its last checkpoint by --resume")


def fail(status: int, message: object) -> int:
    """Print one line to stderr; returns `status`."""
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
        return answer(*given.pop("answer"), **given)
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
    with start_run(task_name, out, trainer.config(), trainer.state_dict()) as run:
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
    print(f"{trainer.task.name}: {trainer.task.description}; {parameters:,} parameters on {settings.device}")
    print(f"{run.folder}: from step {trainer.step} to {settings.steps}; Ctrl-C saves and stops")
    if not train(trainer, run):
        return fail(130, f"stopped and saved at step {trainer.step}; go on by: python train.py --resume {run.folder}")
    print_report(trainer, run)
    return 0


def answer(folder: str, source: str, device: str = "cpu", beam: int | None = None) -> int:
    """Print the answer of the model in `folder` to `source`, and its attention."""
    path = Path(folder) / CHECKPOINT
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
    parser.add_argument("task", nargs="?", metavar="TASK", help="what to learn; reverse if not given")
    parser.add_argument("--list", action="store_true", help="name the tasks")
    parser.add_argument("--resume", metavar="RUN", type=Path, help="go on with the run in this folder")
    parser.add_argument("--answer", metavar=("RUN", "TEXT"), nargs=2, help="answer TEXT with the model of this run")
    parser.add_argument(
        "--out", metavar="RUN", type=Path, help="folder of the new run; runs/<task>-<number> if not given"
    )

    for_task = parser.add_argument_group("the task")
    for name, kind in TASK_OPTIONS.items():
        tasks = [task.name for task in TASKS.values() if name in inspect.signature(task).parameters]
        for_task.add_argument(flag(name), type=kind, metavar=METAVARS[kind], help=f"of {', '.join(tasks)}")

    for_settings = parser.add_argument_group("the model and its training")
    for_settings.add_argument("--layers", type=int, metavar="N", help="encoder layers and decoder layers")
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
