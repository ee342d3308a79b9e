"""The training step in JAX: one function, compiled, that writes the new parameters over the old ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.engines.numpy_style import loss_of, prepared
from benchmarks.engines.sizes import Hyperparameters, Workload


def build(workload: Workload, threads: int) -> Callable[[], Any]:
    """One step: a function that returns the loss, perhaps before it is computed. XLA takes the cores that there are."""
    size, chosen = workload.size, Hyperparameters.of(workload.size)
    loss = loss_of(jnp, size)
    beta1, beta2 = chosen.betas

    @partial(jax.jit, donate_argnums=0)
    def update(state: Any, batch: Any) -> Any:
        parameters, means, squares, t = state
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        if chosen.clip:
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients.values()))
            factor = jnp.minimum(chosen.clip / (norm + 1e-6), 1)
            gradients = {name: g * factor for name, g in gradients.items()}
        t = t + 1
        lr, share = chosen.lr / (1 - beta1**t), 1 - beta2**t
        for name, g in gradients.items():
            means[name] = beta1 * means[name] + (1 - beta1) * g
            squares[name] = beta2 * squares[name] + (1 - beta2) * g * g
            kept = parameters[name] * (1 - chosen.lr * chosen.weight_decay)
            parameters[name] = kept - lr * means[name] / (jnp.sqrt(squares[name] / share) + chosen.eps)
        return (parameters, means, squares, t), value

    parameters = {name: jnp.asarray(array) for name, array in workload.parameters()}
    means, squares = ({name: jnp.zeros_like(p) for name, p in parameters.items()} for _ in range(2))
    state = parameters, means, squares, jnp.float32(0)
    made = [prepared(size, batch, parameters) for batch in workload.batches()]
    batches = cycle([tuple(map(jnp.asarray, batch)) for batch in made])

    def step() -> Any:
        nonlocal state
        state, value = update(state, next(batches))
        return value

    return step
