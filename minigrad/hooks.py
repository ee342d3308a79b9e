"""Hooks: functions that see the gradient of one tensor as it passes, and may put another in its place."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minigrad.operation import Node
    from minigrad.tensor import Tensor

Hook = Callable[["Tensor"], "Tensor | None"]


class Hooked:
    """What Tensor inherits: watching its own gradient."""

    __slots__ = ()

    if TYPE_CHECKING:
        node: Node | None
        _requires_grad: bool

        @property
        def shape(self) -> tuple[int, ...]: ...

    def register_hook(self, hook: Hook) -> RemovableHandle:
        """Have `hook` called with the gradient of this tensor in each walk; what it returns, if anything, replaces it.

        The gradient is complete (all that flowed to this tensor is added up) and is handed as a copy. Returns a handle
        whose `remove()` takes the hook away. Raises RuntimeError if this tensor requires no grad, TypeError if `hook`
        is no function; a hook that returns another shape, dtype or device is an error in the walk.
        """
        if not callable(hook):
            raise TypeError(f"register_hook takes a function of the gradient, not {type(hook).__name__}")
        return self._hooks_for("register_hook").add(hook)

    def retain_grad(self) -> None:
        """Keep the gradient of this tensor in `.grad`, as a leaf does. RuntimeError if it requires no grad."""
        self._hooks_for("retain_grad").retained = self.node is not None

    def _hooks_for(self, caller: str) -> Hooks:
        if not self._requires_grad:
            raise RuntimeError(
                f"{caller}: this tensor of shape {self.shape} requires no grad, so no gradient passes it"
            )
        owner: Any = self.node or self
        if owner.hooks is None:
            owner.hooks = Hooks()
        return owner.hooks


class Hooks:
    """The hooks of one tensor, kept where its gradient is added up: with its node, or with a leaf itself."""

    def __init__(self) -> None:
        self.functions: dict[int, Hook] = {}
        self.retained = False  # whether the gradient is kept as the tensor's `.grad`
        self._numbers = itertools.count()

    def add(self, function: Hook) -> RemovableHandle:
        number = next(self._numbers)
        self.functions[number] = function
        return RemovableHandle(self, number)


class RemovableHandle:
    """What `register_hook` returns: `remove()` takes the hook away, as leaving a `with` block does."""

    def __init__(self, hooks: Hooks, number: int) -> None:
        self._hooks, self._number = weakref.ref(hooks), number

    def remove(self) -> None:
        """Take the hook away; nothing happens if it is gone already."""
        hooks = self._hooks()
        if hooks is not None:
            hooks.functions.pop(self._number, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.remove()
