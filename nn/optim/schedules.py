"""Learning-rate schedules: the paper's warm-up, and cosine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nn.optim.optimizer import Optimizer


class Schedule:
    """The base of schedules, which set every group's "lr" for the optimizer's next step. A subclass has `_lr`.

    Steps count from 1: the rate of the first is set at once, that of each further one by `step()`, which is called
    after `optimizer.step()`.

    Attributes:
        last_step: the step whose rate the optimizer has now.
        base_lrs: the groups' rates as they were when the schedule was made.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self._set(1)

    def _lr(self, step: int, base_lr: float) -> float:
        """The rate of a step, from 1, for a group."""
        raise NotImplementedError

    def _set(self, step: int) -> None:
        self.last_step = step
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = self._lr(step, base_lr)

    def step(self) -> None:
        """Set the rates of the step after this one."""
        self._set(self.last_step + 1)

    def state_dict(self) -> dict[str, Any]:
        """The step, and the groups' rates as they were at first."""
        return {"last_step": self.last_step, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` of a schedule with the same arguments gave; sets the rates.

        Raises ValueError if it is of another number of groups, or no such state; nothing has been changed then.
        """
        if set(state_dict) != {"last_step", "base_lrs"}:
            raise ValueError(f"load_state_dict: a schedule's state is last_step and base_lrs, got {sorted(state_dict)}")
        last_step, base_lrs = int(state_dict["last_step"]), [float(lr) for lr in state_dict["base_lrs"]]
        if last_step < 1 or len(base_lrs) != len(self.base_lrs):
            raise ValueError(
                f"load_state_dict: step {last_step} with rates for {len(base_lrs)} groups does not fit this schedule: "
                f"steps count from 1, and the optimizer has {len(self.base_lrs)} groups"
            )
        self.base_lrs = base_lrs
        self._set(last_step)


class WarmupSchedule(Schedule):
    """lr = factor D^-0.5 min(t^-0.5, t warmup_steps^-1.5) at step t (Vaswani et al. 2017, eq. 3), for all groups alike.

    It rises in a line for `warmup_steps` steps, then falls as 1/√t. The optimizer's own lr has no part in it.

    Args:
        optimizer: whose groups' "lr" is set.
        d_model: the length D of the model's rows.
        warmup_steps: 0 for no rise.
        factor: 1 in the paper.
    """

    def __init__(self, optimizer: Optimizer, d_model: int, warmup_steps: int, factor: float = 1.0) -> None:
        if d_model < 1 or warmup_steps < 0 or not factor >= 0:
            raise ValueError(
                "WarmupSchedule: d_model must be at least 1, warmup_steps and factor 0 or more; "
                f"got {d_model}, {warmup_steps} and {factor}"
            )
        self.d_model, self.warmup_steps, self.factor = d_model, warmup_steps, float(factor)
        super().__init__(optimizer)

    def _lr(self, step: int, base_lr: float) -> float:
        rising = step * self.warmup_steps**-1.5 if self.warmup_steps else math.inf
        return self.factor * self.d_model**-0.5 * min(step**-0.5, rising)


class CosineSchedule(Schedule):
    """A rise in a line to each group's own lr at step `warmup_steps`, then half a cosine down to `min_lr`.

    Loshchilov & Hutter 2017, "SGDR", eq. 5, without restarts. Without warm-up the first step has the full rate. The
    floor is reached with step total_steps + 1, so that none of `total_steps` steps is made at a rate of 0; it stays
    from then on. A warm-up longer than `total_steps` is cut short by the floor.

    Args:
        optimizer: whose groups' "lr" is set.
        total_steps: how many steps the training has, at least 1.
        warmup_steps: 0 or more.
        min_lr: the floor, from 0 to each group's lr.
    """

    def __init__(self, optimizer: Optimizer, total_steps: int, warmup_steps: int = 0, min_lr: float = 0.0) -> None:
        if total_steps < 1 or warmup_steps < 0:
            raise ValueError(
                "CosineSchedule: total_steps must be at least 1 and warmup_steps 0 or more, "
                f"got {total_steps} and {warmup_steps}"
            )
        for group in optimizer.param_groups:
            if not 0 <= min_lr <= group["lr"]:
                raise ValueError(f"CosineSchedule: min_lr must be from 0 to the lr {group['lr']}, got {min_lr}")
        self.total_steps, self.warmup_steps, self.min_lr = total_steps, warmup_steps, float(min_lr)
        super().__init__(optimizer)

    def _lr(self, step: int, base_lr: float) -> float:
        peak, floor = max(1, self.warmup_steps), self.total_steps + 1
        if step >= floor:
            return self.min_lr
        if step <= peak:
            return base_lr * (step / peak)
        fallen = (step - peak) / (floor - peak)
        return self.min_lr + (base_lr - self.min_lr) * (1 + math.cos(math.pi * fallen)) / 2
