"""The tasks by name. Each task is a file of its own here; `base.py` says what a task must offer."""

import difflib
import inspect
from collections.abc import Callable

from training.settings import flag
from training.tasks.addition import AdditionTask
from training.tasks.base import Task
from training.tasks.copy import CopyTask
from training.tasks.dates import DatesTask
from training.tasks.reverse import ReverseTask
from training.tasks.sort import SortTask

TASKS: dict[str, type[Task]] = {task.name: task for task in (AdditionTask, CopyTask, DatesTask, ReverseTask, SortTask)}


def make_task(name: str, **options: int | str) -> Task:
    """The task called `name`, built with `options`; `make_task(task.name, **task.options)` builds `task` again.

    Raises ValueError for an unknown name, for an option that the task does not have, and for a bad value of one.
    """
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown task {name!r}: the tasks are {', '.join(sorted(TASKS))}{hint}")
    build: Callable[..., Task] = TASKS[name]
    known = inspect.signature(build).parameters
    for option in options:
        if option not in known:
            raise ValueError(
                f"{name}: no option {flag(option)}; "
                f"the options of this task are: {', '.join(map(flag, known)) or 'none'}"
            )
    return build(**options)
