"""The training step in HIPS autograd: gradients by it, the optimizer in NumPy, in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle

import autograd.numpy as anp
import numpy as np
from autograd import value_and_grad

from benchmarks.engines.numpy_style import loss_of, prepared
from benchmarks.engines.sizes import Hyperparameters, Workload


def build(workload: Workload, threads: int) -> Callable[[], float]:
    """One step: a function that returns the loss. NumPy's BLAS takes as many threads as there are cores."""
    size, chosen = workload.size, Hyperparameters.of(workload.size)
    parameters = dict(workload.parameters())
    batches = cycle([prepared(size, batch, parameters) for batch in workload.batches()])
    loss = value_and_grad(loss_of(anp, size))
    means, squares = ({name: np.zeros_like(p) for name, p in parameters.items()} for _ in range(2))
    (beta1, beta2), steps = chosen.betas, 0

    def step() -> float:
        nonlocal steps
        steps += 1
        value, gradients = loss(parameters, *next(batches))
        if chosen.clip:
            norm = math.sqrt(sum(np.vdot(g, g) for g in gradients.values()))
            factor = min(chosen.clip / (norm + 1e-6), 1.0)
            for g in gradients.values():
                g *= factor
        lr, root_share = chosen.lr / (1 - beta1**steps), math.sqrt(1 - beta2**steps)
        for name, g in gradients.items():
            p, mean, square = parameters[name], means[name], squares[name]
            mean *= beta1
            mean += (1 - beta1) * g
            square *= beta2
            square += (1 - beta2) * g * g
            if chosen.weight_decay:
                p *= 1 - chosen.lr * chosen.weight_decay
            p -= lr * mean / (np.sqrt(square) / root_share + chosen.eps)
        return float(value)

    return step
