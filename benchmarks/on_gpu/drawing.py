"""The speeds of attention as a picture: one small plot for each dtype, direction, head dimension and mask."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.on_gpu.attention import RIVALS, Speed


def draw_speeds(speeds: Sequence[Speed], path: Path, title: str) -> None:
    """TFLOP/s over N into a PNG file. ImportError if matplotlib is not installed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = sorted({(speed.case.dtype, speed.direction) for speed in speeds}, reverse=True)
    columns = sorted({(speed.case.shape[-1], speed.case.is_causal) for speed in speeds})
    figure, grid = pyplot.subplots(
        len(rows), len(columns), squeeze=False, sharex=True, figsize=(3.2 * len(columns), 2.6 * len(rows))
    )
    for axes_of_row, (dtype, direction) in zip(grid, rows, strict=True):
        for axes, (d, is_causal) in zip(axes_of_row, columns, strict=True):
            here = [
                speed for speed in speeds
                if (speed.case.dtype, speed.direction, speed.case.shape[-1], speed.case.is_causal)
                == (dtype, direction, d, is_causal)
            ]  # fmt: skip
            for place, name in enumerate(("minigrad", *RIVALS)):
                points = sorted((s.case.shape[2], s.by_name[name]) for s in here if name in s.by_name)
                if points:
                    axes.plot(*zip(*points, strict=True), marker="o", label=name, color=f"C{place}")
            axes.set_title(f"{dtype} {direction}, d={d} {'causal' if is_causal else 'full'}", fontsize=8)
            axes.set_xscale("log", base=2)
            axes.set_ylim(bottom=0)
    for axes in grid[-1]:
        axes.set_xlabel("N")
    for axes in grid[:, 0]:
        axes.set_ylabel("TFLOP/s")
    handles = {label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.suptitle(title, fontsize=9)
    figure.legend(handles.values(), handles, loc="lower center", ncols=3, fontsize=8)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
