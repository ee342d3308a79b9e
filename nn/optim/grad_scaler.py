"""GradScaler: a loss that is scaled up, so that gradients too small for float16 are not lost in a backward pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.parameters import are_taken_together, unscale
from minigrad import Tensor
from minigrad.backend import Array, array_module, on_device_of
from minigrad.memory import written
from minigrad.ops.elementwise import widened
from nn.optim.clip import by_device
from nn.optim.optimizer import Optimizer

_LARGEST = float(np.finfo(np.float32).max)


class GradScaler:
    """Loss scaling for `mg.autocast`: Micikevicius et al. 2018, "Mixed precision training", section 3.2, as in PyTorch.

    The loss is multiplied by a scale, and the gradients divided by it in float32. A step whose gradients are not finite
    is left out, and the scale falls; after `growth_interval` good steps in a row it grows.

        with mg.autocast():
            loss = F.cross_entropy(model(x), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # only if the gradients are looked at before the step, as for clipping
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    Args:
        init_scale: the first scale, finite and above 0.
        growth_factor: what the scale is multiplied by to grow, above 1.
        backoff_factor: what it is multiplied by to fall, between 0 and 1.
        growth_interval: how many steps without inf or NaN come before it grows, at least 1.
        enabled: False for a scaler that does nothing: its `step` is the optimizer's.

    Raises ValueError for a number out of range.
    """

    _scale: float
    _growth_factor: float
    _backoff_factor: float
    _growth_interval: int
    _good_steps: int  # since the scale changed

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._enabled = bool(enabled)
        self._finite: dict[Optimizer, bool] = {}  # of those whose gradients were unscaled since the last update
        self._stepped: set[Optimizer] = set()  # of these, those that had their step
        self._set(
            {
                "scale": init_scale,
                "growth_factor": growth_factor,
                "backoff_factor": backoff_factor,
                "growth_interval": growth_interval,
                "_growth_tracker": 0,
            }
        )

    # ---- a step ------------------------------------------------------------------------------------------------------

    def scale(self, loss: Tensor) -> Tensor:
        """The loss (of any shape; 16 bits become float32) times the scale, to call `backward()` on."""
        return widened(loss) * self._scale if self._enabled else loss

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of the optimizer's parameters by the scale, in place, and see whether they are finite.

        `step` does it if it has not been done. Raises RuntimeError if it has, since the last `update`, or if no
        parameter has a gradient; ValueError for gradients in float16, which would lose what scaling has saved.
        """
        if not self._enabled:
            return
        if optimizer in self._finite:
            raise RuntimeError("unscale_: these gradients were unscaled since the last update(); call that first")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients:
            raise RuntimeError("unscale_: no parameter has a gradient; call scale(loss).backward() first")
        for gradient in gradients:
            if gradient.dtype == np.float16:
                raise ValueError(
                    f"unscale_: a gradient of shape {gradient.shape} is float16; keep parameters in float32, autocast "
                    "casts them where float16 will do"
                )
        factor = 1.0 / self._scale if self._scale else math.inf
        finite = [_unscaled(arrays, factor) for arrays in by_device(gradient.data for gradient in gradients)]
        self._finite[optimizer] = all(map(bool, finite))  # here alone a GPU is waited for
        written([gradient.memory for gradient in gradients])

    def step(self, optimizer: Optimizer) -> None:
        """The optimizer's step, on unscaled gradients; none if one of them is infinite or NaN.

        Raises RuntimeError if it was called since the last `update`, and as `unscale_`.
        """
        if not self._enabled:
            optimizer.step()
            return
        if optimizer in self._stepped:
            raise RuntimeError("step: this optimizer had its step since the last update(); call that first")
        if optimizer not in self._finite:
            self.unscale_(optimizer)
        if self._finite[optimizer]:
            optimizer.step()
        self._stepped.add(optimizer)

    def update(self) -> None:
        """Let the scale fall if a gradient since the last `update` was not finite; grow if that is long ago.

        Raises RuntimeError if none was unscaled since.
        """
        if not self._enabled:
            return
        if not self._finite:
            raise RuntimeError("update: no gradients were unscaled since the last one; call step(optimizer) first")
        if not all(self._finite.values()):
            self._scale *= self._backoff_factor
            self._good_steps = 0
        else:
            self._good_steps += 1
            if self._good_steps == self._growth_interval:
                grown = self._scale * self._growth_factor
                self._scale = grown if grown <= _LARGEST else self._scale
                self._good_steps = 0
        self._finite.clear()
        self._stepped.clear()

    def get_scale(self) -> float:
        """What the loss is multiplied by now: 1 if not enabled."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether it scales at all."""
        return self._enabled

    # ---- saving and restoring ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The scale, the three constants and the good steps since it changed, under PyTorch's names; {} if not enabled.

        Call it after `update`: what comes before within a step is not in it.
        """
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._good_steps,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; nothing if not enabled.

        Raises ValueError for what is no such state, with nothing changed: that of a scaler that was not enabled, too.
        """
        if not self._enabled:
            return
        if set(state_dict) != set(self.state_dict()):
            raise ValueError(
                f"load_state_dict: a scaler's state is {', '.join(self.state_dict())}; got {sorted(state_dict)}"
                + ("" if state_dict else ", which is that of a scaler that is not enabled")
            )
        self._set(state_dict)

    def _set(self, state: Mapping[str, Any]) -> None:
        scale = float(state["scale"])
        growth_factor, backoff_factor = float(state["growth_factor"]), float(state["backoff_factor"])
        growth_interval, good_steps = int(state["growth_interval"]), int(state["_growth_tracker"])
        if not (0 < scale <= _LARGEST and 1 < growth_factor < math.inf and 0 < backoff_factor < 1):
            raise ValueError(
                "GradScaler: the scale must be above 0, growth_factor above 1, both finite, and backoff_factor between "
                f"0 and 1; got {scale}, {growth_factor} and {backoff_factor}"
            )
        if not 0 <= good_steps < growth_interval:
            raise ValueError(
                f"GradScaler: growth_interval must be at least 1 and above the number of good steps, got "
                f"{growth_interval} and {good_steps}"
            )
        self._scale, self._growth_factor, self._backoff_factor = scale, growth_factor, backoff_factor
        self._growth_interval, self._good_steps = growth_interval, good_steps


def _unscaled(arrays: list[Array], factor: float) -> Any:
    """Multiplies arrays of one device in place. Whether they are all finite then, there: who looks waits for a GPU."""
    finite: Any = True
    with np.errstate(all="ignore"), on_device_of(arrays[0]):  # what a scale below 1 makes infinite is found
        if are_taken_together(arrays):
            return unscale(arrays, factor)
        for array in arrays:
            array *= factor
            finite = array_module(array).isfinite(array).all() & finite
    return finite
