"""What the engine's own work costs: chains of 50 multiplications of (8, 8) matrices, where it outweighs the arithmetic.

    python benchmarks/bookkeeping.py            # with PyTorch installed: beside it

Two ratios, each the median over pairs that are timed one right after the other, so that a busy machine weighs on both:

- forward and backward, minigrad to PyTorch;
- forward inside `no_grad`, minigrad to bare NumPy.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # a clone's, installed or not

import minigrad as mg
from benchmarks.engines.command import count

LENGTH, SHAPE = 50, (8, 8)


def chain(x: Any, factor: Any) -> Any:
    """x * factor * factor ..., LENGTH times."""
    for _ in range(LENGTH):
        x = x * factor
    return x


def trained(x: Any, factor: Any, ones: Any) -> None:
    """The chain forward and backward, to both of its leaves."""
    chain(x, factor).backward(ones)
    x.grad = factor.grad = None


def compared(ours: Callable[[], None], theirs: Callable[[], None], pairs: int) -> tuple[float, float, float]:
    """The medians of both times, in seconds, and of their ratio."""
    times = []
    for _ in range(pairs):
        start = time.perf_counter()
        ours()
        middle = time.perf_counter()
        theirs()
        times.append((middle - start, time.perf_counter() - middle))
    warm = times[len(times) // 10 :]
    ratio = statistics.median(a / b for a, b in warm)
    return statistics.median(a for a, _ in warm), statistics.median(b for _, b in warm), ratio


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time chains of small operations beside PyTorch and bare NumPy.")
    parser.add_argument("--pairs", type=count, default=2000, help="how many pairs are timed (default: 2000)")
    pairs = parser.parse_args().pairs
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.9, 1.1, (2, *SHAPE)).astype(np.float32)
    x, factor, ones = mg.Tensor(a, requires_grad=True), mg.Tensor(b, requires_grad=True), mg.ones(SHAPE)

    def unrecorded() -> None:
        with mg.no_grad():
            chain(x, factor)

    rows = [("forward in no_grad", "NumPy", *compared(unrecorded, lambda: chain(a, b), pairs))]
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed, so the first comparison is left out: pip install torch", file=sys.stderr)
    else:
        theirs = [torch.tensor(array, requires_grad=True) for array in (a, b)]
        one = torch.ones(SHAPE)
        pair = compared(lambda: trained(x, factor, ones), lambda: trained(*theirs, one), pairs)
        rows.insert(0, ("forward and backward", f"PyTorch {torch.__version__}", *pair))
    print(f"{LENGTH} multiplications of {SHAPE} float32, medians of {pairs} pairs")
    print(f"{'':22}{'minigrad':>12}{'other':>12}{'ratio':>8}")
    for name, other, ours, time_of_other, ratio in rows:
        print(f"{name:22}{ours * 1e6:9.1f} µs{time_of_other * 1e6:9.1f} µs{ratio:8.2f}  {other}")


if __name__ == "__main__":
    main()
