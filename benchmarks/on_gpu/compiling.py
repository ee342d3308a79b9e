"""Compiling all kernels of a run before it begins, many at a time: one by one, as they are needed, would take longer.

CuPy compiles a kernel when it is first called, its own as well as ours, so what needs them is called on small inputs.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product

from benchmarks.on_gpu import attention, fused, training_steps
from benchmarks.on_gpu.attention import TF32, Cases
from benchmarks.on_gpu.measuring import Gpu, Work
from benchmarks.on_gpu.report import Report
from benchmarks.on_gpu.rivals import ModelSize

THREADS = min(16, os.cpu_count() or 1)  # NVRTC compiles without Python's lock


def compile_first(
    gpu: Gpu, report: Report, dtypes: Sequence[str], head_dims: Sequence[int], models: Sequence[ModelSize]
) -> None:
    """A line of the report says how long it took. What cannot be compiled makes the row fail that needs it."""
    start, works = time.perf_counter(), list(_works(gpu, dtypes, head_dims, models))
    with ThreadPoolExecutor(THREADS) as pool:
        failed = sum(pool.map(_fails, works))
    gpu.free()
    words = f"; {failed} of {len(works)} programs failed" if failed else ""
    report.line(f"Kernels were compiled in {time.perf_counter() - start:.0f} s, by {THREADS} threads{words}.")


def _works(gpu: Gpu, dtypes: Sequence[str], head_dims: Sequence[int], models: Sequence[ModelSize]) -> Iterator[Work]:
    """In such an order that two which need the same kernels are not begun at once, or both would compile them."""
    for dtype in dtypes:
        for _, make in Cases(gpu, dtype, n=20, many_heads=1, apart=1).builds(head_dims):
            yield partial(attention.check, make)
    in_arrays = [dtype for dtype in dtypes if dtype != TF32]
    first, *others = fused.FUNCTIONS  # which are all in one module
    for dtype in in_arrays:
        yield partial(fused.check, gpu, first, dtype, (4, 5))
    for size in models:
        small = replace(size, layers=1, vocabulary=50, batch=2, length=6)
        for amp in (False, True):
            yield partial(_train, small, amp)
    for name, dtype in product(others, in_arrays):
        yield partial(fused.check, gpu, name, dtype, (4, 5))


def _train(size: ModelSize, amp: bool) -> None:
    training_steps.training(size, "cuda", amp, *training_steps.random_batch(size))()


def _fails(work: Work) -> bool:
    try:
        work()
    except Exception:  # whatever it is, the others are wanted
        traceback.print_exc()
        return True
    return False
