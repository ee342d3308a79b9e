"""The same training step with the batch split over threads: `nn.parallel`, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import minigrad as mg
from benchmarks.engines.in_minigrad import Training
from benchmarks.engines.sizes import Workload
from nn.parallel import ParallelLoss


def build(workload: Workload, threads: int) -> Callable[[], mg.Tensor]:
    """One step: a function that returns the loss."""
    training = Training(workload)
    loss_of, count_of = training.loss_of, training.count_of

    def loss_and_count(*part: mg.Tensor) -> tuple[mg.Tensor, int]:
        return loss_of(*part), count_of(*part)

    training.loss_of = ParallelLoss(loss_and_count, threads=threads)
    return training.step
