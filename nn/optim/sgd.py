"""SGD: stochastic gradient descent, with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from minigrad.backend import Array
from nn.optim.optimizer import Optimizer, check_not_negative
from nn.optim.pieces import remembered


class SGD(Optimizer):
    """p ← p - lr v with v ← momentum v + g, as in PyTorch (v is g itself without momentum).

    g is the gradient plus weight_decay p: L2 regularization.

    Args:
        params: parameters, or dicts, one per group (see `Optimizer`).
        lr: learning rate, 0 or more.
        momentum: share of the last step's v that is kept, 0 or more.
        weight_decay: 0 or more.
    """

    arrays: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def _check(self, options: dict[str, Any]) -> None:
        check_not_negative(options, "lr", "momentum", "weight_decay")

    def _used(self, options: dict[str, Any]) -> tuple[str, ...]:
        return self.arrays if options["momentum"] else ()

    def _move(self, values: Array, gradient: Array, state: dict[str, Any], options: dict[str, Any]) -> None:
        lr, momentum, weight_decay = (float(options[name]) for name in ("lr", "momentum", "weight_decay"))
        if weight_decay:
            gradient = gradient + weight_decay * values
        if momentum:
            velocity = remembered(state, "momentum_buffer", values)
            velocity *= momentum
            velocity += gradient
            gradient = velocity
        values -= lr * gradient
