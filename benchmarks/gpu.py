"""Attention and training on a GPU: are they right, how fast are they, and what memory do they take?

    python benchmarks/gpu.py               # meant for 4 minutes, the first time as well
    python benchmarks/gpu.py --full        # all lengths and head dimensions, and bfloat16
    python benchmarks/gpu.py --dry-run     # without a GPU: the whole program on tiny sizes, run by the emulator

Needs CuPy and a GPU. Where PyTorch is installed, its attention and its Transformer are timed beside ours; where
matplotlib is, the speeds are drawn. Every row of the table says pass, fail or skipped: docs/gpu.md says for what.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import date
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # a clone's, installed or not

from benchmarks.on_gpu import attention, fused, training_steps
from benchmarks.on_gpu.attention import TF32, Case, Cases, Speed, Timing, dtype_of, normal_numbers
from benchmarks.on_gpu.attention_reference import NAMES
from benchmarks.on_gpu.compiling import compile_first
from benchmarks.on_gpu.drawing import draw_speeds
from benchmarks.on_gpu.measuring import Deadline, Gpu
from benchmarks.on_gpu.report import Report
from benchmarks.on_gpu.rivals import ModelSize, PyTorch
from kernels.emulator import EmulatorError
from kernels.emulator.build import compiler
from minigrad.backend import DeviceError, cuda_device

SECONDS = 220  # after which no row is begun, counted from the start; none takes more than a few


@dataclass(frozen=True)
class Sizes:
    """What a run tries. Timed attention has the papers' shapes: the same tokens B N and width H d, whatever N and d."""

    dtypes: tuple[str, ...]
    checked_dims: tuple[int, ...]  # d
    checked_rows: int  # N
    many_heads: int
    apart: int  # numbers from one batch to the next
    rows: tuple[tuple[int, int], ...]  # (M, n) of layer norm, cross entropy and GELU
    timed_dims: tuple[int, ...]
    lengths: tuple[int, ...]  # N
    tokens: int
    width: int
    checked_model: ModelSize
    models: tuple[ModelSize, ...]
    repeat_for: float  # seconds of a measurement, at most, unless a single run takes longer
    train_for: float
    speed_counts: bool = True

    def case(self, dtype: str, d: int, n: int, is_causal: bool) -> Case:
        return Case(dtype, (self.tokens // n, self.width // d, n, d), is_causal)


CORE = Sizes(
    dtypes=("float16", "float32", TF32),
    checked_dims=(64, 128),
    checked_rows=700,
    many_heads=70_000,
    apart=2**31,
    rows=((16384, 512), (2048, 8192)),  # a warp for each row, and a block
    timed_dims=(64, 128),
    lengths=(1024, 4096, 16384),
    tokens=16384,
    width=2048,
    # ReLU would not do: where it is 0 or not by rounding, the gradient jumps.
    checked_model=ModelSize("D=256, 2+2 layers, 8 x 128 ids", 256, 4, 2, 512, 100, 8, 128, activation="gelu"),
    models=(
        ModelSize("toy: D=64, 2+2 layers, 64 x 32 ids", 64, 4, 2, 256, 32, batch=64, length=32, lr=1e-3),
        ModelSize("base: D=512, 6+6 layers, 32 x 128 ids", 512, 8, 6, 2048, 8192, batch=32, length=128),
    ),
    repeat_for=0.05,
    train_for=1.0,
)
FULL = replace(
    CORE,
    dtypes=("float16", "bfloat16", "float32", TF32),
    checked_dims=(16, 32, 64, 128, 256),
    timed_dims=(32, 64, 128, 256),
    lengths=(512, 1024, 2048, 4096, 8192, 16384),
)
_TINY = ModelSize("D=16, 1+1 layers, 2 x 6 ids", 16, 1, 1, 16, 8, batch=2, length=6, activation="gelu", lr=1e-2)
DRY = Sizes(
    dtypes=("float16", "float32", TF32),
    checked_dims=(16,),
    checked_rows=20,
    many_heads=5,
    apart=16 * 50,
    rows=((20, 33),),
    timed_dims=(16,),
    lengths=(16, 32),
    tokens=32,
    width=16,
    checked_model=_TINY,
    models=(_TINY,),
    repeat_for=0.0,
    train_for=0.0,
    speed_counts=False,
)


def run(cupy: ModuleType, sizes: Sizes, report: Report, torch: PyTorch | None) -> list[Speed]:
    """All rows, the most important first. Returns what was measured of attention's speed."""
    gpu = Gpu(cupy, sizes.repeat_for)
    report.section("Is attention right? Error over what is allowed:", NAMES)
    for dtype in sizes.dtypes:
        cases = Cases(gpu, dtype, sizes.checked_rows, sizes.many_heads, sizes.apart)
        for name, make in cases.all(sizes.checked_dims):
            report.add(f"{dtype} {name}", attention.check, make)

    precisions = {"float32": False, "mixed precision": True}
    report.section("Is a training step right? Error over what is allowed:", training_steps.CHECK_COLUMNS)
    for words, amp in precisions.items():
        size = sizes.checked_model
        report.add(f"{size.name}, {words}", training_steps.check, size, amp)

    report.section("Are the fused kernels right? Error over what is allowed; ms forward and backward:", fused.COLUMNS)
    for dtype, name, shape in product(sizes.dtypes, fused.FUNCTIONS, sizes.rows):
        if dtype != TF32:
            report.add(f"{dtype} {name} {shape}", fused.check, gpu, name, dtype, shape)
    for dtype in sizes.dtypes:
        if dtype != TF32:
            report.add(f"{dtype} dropout {sizes.rows[0]}", fused.check_dropout, gpu, dtype, sizes.rows[0])
    report.add(f"float32 AdamW, {sizes.models[-1].name}", fused.check_adamw, gpu, sizes.models[-1])

    numbers = normal_numbers(cupy, sizes.tokens * sizes.width)
    report.section("Speed of attention in TFLOP/s; ms: milliseconds of the kernels:", attention.SPEED_COLUMNS)
    timing = Timing(gpu, torch, sizes.speed_counts)
    for dtype, d, is_causal, n in product(sizes.dtypes, sizes.timed_dims, (False, True), sizes.lengths):
        case = sizes.case(dtype, d, n, is_causal)
        report.add(case.name, timing.rows, case, numbers)

    report.section("Training, and PyTorch's eager mode:", training_steps.SPEED_COLUMNS)
    for size, (words, amp) in product(sizes.models, precisions.items()):
        report.add(f"{size.name}, {words}", training_steps.measure, gpu, torch, size, amp, sizes.train_for)

    report.section("Memory of attention forward and backward, beyond inputs:", attention.MEMORY_COLUMNS)
    for dtype, n in product(sizes.dtypes, sizes.lengths):
        case = sizes.case(dtype, sizes.timed_dims[0], n, is_causal=True)
        report.add(case.name, attention.measure_memory, gpu, torch, case, numbers)

    return timing.speeds


def stand_in() -> AbstractContextManager[ModuleType]:
    """CuPy as the tests have it, whose kernels the emulator runs. ImportError, EmulatorError: what is missing."""
    from tests.cupy_standin import installed

    compiler()
    return installed()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if no row failed, and there was time for all."""
    parser = argparse.ArgumentParser(description="Check and time attention and training on a GPU.")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--full", action="store_true", help="all lengths and head dimensions, and bfloat16")
    kind.add_argument("--dry-run", action="store_true", help="tiny sizes without a GPU, by the emulator (needs g++)")
    parser.add_argument(
        "--seconds", type=float, help=f"after which no row is begun (default: {SECONDS}; with --full: no limit)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for gpu.txt and gpu.png (default: runs)")
    given = parser.parse_args(arguments)
    deadline = Deadline(SECONDS if given.seconds is None and not given.full else given.seconds)
    try:
        library = stand_in() if given.dry_run else nullcontext(cuda_device("cuda")[0])
    except (DeviceError, EmulatorError, ImportError) as error:
        hint = "" if given.dry_run else "; --dry-run needs no GPU"
        print(f"gpu.py: {error}{hint}", file=sys.stderr)
        return 1
    with library as cupy:
        gpu = Gpu(cupy, 0)
        torch = PyTorch.found("cpu" if given.dry_run else "cuda")
        report = Report(given.out / "gpu.txt", deadline)
        versions = f"CuPy {cupy.__version__}, PyTorch {torch.version if torch else 'not found'}"
        title = f"{gpu.name}, {versions}, {date.today()}"
        report.line(title)
        if given.dry_run:
            report.line("A dry run: times are the emulator's, they say nothing and do not count.")
        sizes = with_dtypes_there(cupy, DRY if given.dry_run else FULL if given.full else CORE, report)
        if not deadline.passed:
            compile_first(gpu, report, sizes.dtypes, sizes.checked_dims, (sizes.checked_model, *sizes.models))
        speeds = run(cupy, sizes, report, torch)
        draw(speeds, given.out / "gpu.png", title, report)
        return report.close()


def with_dtypes_there(cupy: ModuleType, sizes: Sizes, report: Report) -> Sizes:
    """The sizes without bfloat16, if CuPy does not have it here."""
    try:
        for dtype in sizes.dtypes:
            cupy.zeros(1, np.float32).astype(dtype_of(dtype))
    except (ImportError, TypeError, ValueError) as error:
        report.line(f"bfloat16 is left out: {error}")
        return replace(sizes, dtypes=tuple(dtype for dtype in sizes.dtypes if dtype != "bfloat16"))
    return sizes


def draw(speeds: Sequence[Speed], path: Path, title: str, report: Report) -> None:
    """The picture, if there is something to draw and to draw with."""
    if speeds:
        try:
            draw_speeds(speeds, path, title)
        except ImportError as error:
            report.line(f"\nThere is no picture: {error}")


if __name__ == "__main__":
    sys.exit(main())
