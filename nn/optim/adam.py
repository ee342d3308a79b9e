"""Adam, and AdamW, which differs in how weights decay."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from kernels.arrays import address_of, contiguous
from kernels.elements import are_taken
from kernels.parameters import Parameter, adam_step
from minigrad import Tensor
from minigrad.backend import Array, array_module, device_of, on_device_of
from nn.optim.optimizer import Optimizer, check_not_negative
from nn.optim.pieces import Joined, remembered


class Adam(Optimizer):
    """Steps of about lr for each element, from running means of g and g² (Kingma & Ba 2015, algorithm 1), as in
    PyTorch.

    g is the gradient plus weight_decay p: L2 regularization. On a GPU a group's parameters of 16 and 32 bits, if they
    are contiguous, are moved together in one launch, in float32.

    Args:
        params: parameters, or dicts, one per group (see `Optimizer`).
        lr: learning rate, 0 or more.
        betas: the shares of the running means of g and of g² that a step keeps, each in [0, 1).
        eps: added to the root of the mean of g², 0 or more.
        weight_decay: 0 or more.
    """

    arrays: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _check(self, options: dict[str, Any]) -> None:
        check_not_negative(options, "lr", "eps", "weight_decay")
        betas = options["betas"]
        if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers from 0 to below 1, got {betas}")

    def _move_all(self, parameters: list[Tensor], options: dict[str, Any], joined: list[Joined]) -> None:
        """On a GPU one launch for all parameters of one device and dtype that have moved equally often."""
        if all([type(parameter._data) is np.ndarray for parameter in parameters]):
            super()._move_all(parameters, options, joined)
            return
        alone: list[Tensor] = []
        together: dict[Any, list[Parameter]] = {}
        places: set[int] = set()
        for parameter in parameters:
            values, moved = parameter.data, self._for_the_kernel(parameter)
            if moved is None or address_of(values) in places:  # of the same values: two threads would write to them
                alone.append(parameter)
            else:
                places.add(address_of(values))
                alike = device_of(values), values.dtype, self.state[parameter]["step"]
                together.setdefault(alike, []).append(moved)
        beta1, beta2 = map(float, options["betas"])
        numbers = {name: float(options[name]) for name in ("lr", "eps")}
        for (_, _, step), members in together.items():
            adam_step(members, step=step, betas=(beta1, beta2), **numbers, **self._kind_of_decay(options))
        super()._move_all(alone, options, joined)

    def _for_the_kernel(self, parameter: Tensor) -> Parameter | None:
        """The arrays of a step; None if the kernel does not take them: on a CPU, of float64, not contiguous."""
        values, gradient = parameter.data, parameter.grad.data  # type: ignore[union-attr]
        if not are_taken(values, gradient) or device_of(gradient) != device_of(values):
            return None
        with on_device_of(values):
            state = self.state[parameter]
            mean, mean_square = remembered(state, "exp_avg", values), remembered(state, "exp_avg_sq", values)
            arrays = values, contiguous(gradient), mean, mean_square
        return Parameter(*arrays) if all(array.flags.c_contiguous for array in arrays) else None

    def _kind_of_decay(self, options: dict[str, Any]) -> dict[str, float]:
        """The weight decay as `kernels.adam_step` takes it."""
        return {"l2": float(options["weight_decay"])}

    def _move(self, values: Array, gradient: Array, state: dict[str, Any], options: dict[str, Any]) -> None:
        weight_decay = float(options["weight_decay"])
        if weight_decay:
            gradient = gradient + weight_decay * values
        self._move_by_moments(values, gradient, state, options)

    def _move_by_moments(self, values: Array, gradient: Array, state: dict[str, Any], options: dict[str, Any]) -> None:
        """Algorithm 1 in the faster order that the end of the paper's section 2 gives.

        All arrays are in the parameter's dtype: the factors are Python floats.
        """
        library = array_module(values)
        lr, eps = float(options["lr"]), float(options["eps"])
        beta1, beta2 = map(float, options["betas"])
        mean, mean_square = remembered(state, "exp_avg", values), remembered(state, "exp_avg_sq", values)
        work = library.multiply(gradient, 1 - beta1, out=library.empty_like(values))
        mean *= beta1
        mean += work
        library.multiply(gradient, 1 - beta2, out=work)
        work *= gradient  # in this order, as a square soon leaves float16's range
        mean_square *= beta2
        mean_square += work
        # Both means started at 0, so they are too small, by these factors.
        share, root_share = 1 - beta1 ** state["step"], math.sqrt(1 - beta2 ** state["step"])
        library.sqrt(mean_square, out=work)
        work += eps * root_share
        library.divide(mean, work, out=work)
        work *= lr * root_share / share
        values -= work


class AdamW(Adam):
    """Adam whose weight decay is apart from the gradient: p ← p - lr weight_decay p before each step.

    Loshchilov & Hutter 2019, "Decoupled weight decay regularization", algorithm 2, as in PyTorch. Arguments as for
    Adam.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)

    def _move(self, values: Array, gradient: Array, state: dict[str, Any], options: dict[str, Any]) -> None:
        weight_decay = float(options["weight_decay"])
        if weight_decay:
            values *= 1 - float(options["lr"]) * weight_decay
        self._move_by_moments(values, gradient, state, options)

    def _kind_of_decay(self, options: dict[str, Any]) -> dict[str, float]:
        return {"decay": float(options["weight_decay"])}
