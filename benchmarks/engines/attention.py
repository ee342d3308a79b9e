"""Attention alone, forward and backward, in a room of minigrad or in PyTorch: the process of `benchmarks/attention.py`.

    python -m benchmarks.engines.attention ENGINE N MASK THREADS

It answers as `benchmarks.engines.worker` does. What a step gives are four numbers, made of its output and of the
gradients of query, key and value. Memory is counted from after the inputs were made and a small step was done, since
a first call loads things; a whole step is done before the first answer, so that it ends here if there is no room.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.engines.worker import Step, serve

HEADS, WIDTH = 8, 64
ROOMS = ("plain", "fused", "tiled")  # not "kernel": on a CPU an emulator runs it, for study
ENGINES = (*ROOMS, "torch")
MASKS = ("causal", "full")
CHECKED = 16  # the last rows of all results


class Number:
    """A number made of the last rows of an array (1, H, N, d), once it is asked for."""

    weights = np.random.default_rng(1).standard_normal(WIDTH)

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __float__(self) -> float:
        """Depends on each number of the rows, and is never near 0 by chance."""
        return float(np.abs(self._array[:, :, -CHECKED:] @ self.weights).sum())


def in_minigrad(room: str, arrays: Sequence[np.ndarray], is_causal: bool, threads: int) -> Step:
    """arrays: query, key, value and the gradient of the output, (1, H, N, d)."""
    import minigrad as mg
    import nn.functional as F

    inputs = [mg.Tensor(array, requires_grad=True) for array in arrays[:3]]
    g = mg.Tensor(arrays[3])

    def step() -> list[Number]:
        with F.attention_room(room):
            output = F.scaled_dot_product_attention(*inputs, is_causal=is_causal)
        return [Number(x.data) for x in (output, *mg.grad(output, inputs, g))]

    return step


def in_pytorch(engine: str, arrays: Sequence[np.ndarray], is_causal: bool, threads: int) -> Step:
    """By its `scaled_dot_product_attention`."""
    import torch

    torch.set_num_threads(threads)
    inputs = [torch.tensor(array, requires_grad=True) for array in arrays[:3]]
    g = torch.tensor(arrays[3])

    def step() -> list[Number]:
        output = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=is_causal)
        return [Number(x.detach().numpy()) for x in (output, *torch.autograd.grad(output, inputs, g))]

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description="Run attention in one engine for benchmarks/attention.py.")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("length", type=int)
    parser.add_argument("mask", choices=MASKS)
    parser.add_argument("threads", type=int)
    given = parser.parse_args()

    def load() -> Callable[[], Step]:
        make = in_pytorch if given.engine == "torch" else in_minigrad
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal((1, HEADS, given.length, WIDTH), np.float32) for _ in range(4)]
        short = [array[:, :, :CHECKED].copy() for array in arrays]
        make(given.engine, short, given.mask == "causal", given.threads)()
        step = make(given.engine, arrays, given.mask == "causal", given.threads)

        def build() -> Step:
            step()
            return step

        return build

    serve("torch" if given.engine == "torch" else "numpy", load)


if __name__ == "__main__":
    main()
