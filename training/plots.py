"""Pictures of a run: curves.png and attention.png. Only this file knows matplotlib, which need not be installed."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.files import write_whole
from training.tasks.base import END


class PlotsMissing(ImportError):
    """matplotlib can't be imported. The message says how to get it."""


def draw_curves(path: Path, history: Sequence[Mapping[str, float]]) -> None:
    """Training loss and held-out exact match against steps, as PNG. Raises PlotsMissing, OSError."""
    figure = _figure(figsize=(7, 4))
    steps = [line["step"] for line in history]
    left = figure.add_subplot()
    left.plot(steps, [line["loss"] for line in history], color="tab:blue", marker=".")
    left.set_yscale("log")
    left.set_xlabel("step")
    left.set_ylabel("training loss (nats per symbol)", color="tab:blue")
    right = left.twinx()
    right.plot(steps, [line["exact_match"] for line in history], color="tab:orange", marker=".")
    right.set_ylim(-0.02, 1.02)
    right.set_ylabel("held-out exact match", color="tab:orange")
    _save(figure, path)


def draw_attention(path: Path, weights: Mapping[str, np.ndarray], source: str, answer: str) -> None:
    """Each head of each cross-attention (H, N_q, N_k), a row of maps a layer, as PNG. Raises PlotsMissing, OSError."""
    heads = max(len(w) for w in weights.values())
    rows, columns = list(answer + END), list(source + END)
    rows = rows[: next(iter(weights.values())).shape[1]]  # no END if the answer has none
    size = (1 + heads * (0.6 + 0.16 * len(columns)), len(weights) * (0.9 + 0.2 * len(rows)))
    figure = _figure(figsize=size)
    axes = figure.subplots(len(weights), heads, squeeze=False)
    for number, (line, layer) in enumerate(zip(axes, weights.values(), strict=True)):
        for head, (axis, map_) in enumerate(zip(line, layer, strict=True)):
            axis.imshow(map_, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axis.set_xticks(range(len(columns)), columns)
            axis.set_yticks(range(len(rows)), rows)
            axis.set_title(f"layer {number}, head {head}", fontsize=7)
    figure.supxlabel("source")
    figure.supylabel("answer")
    _save(figure, path)


def _figure(**options: Any) -> Any:
    try:
        from matplotlib.figure import Figure  # not pyplot: no window, no global state
    except ImportError as error:
        raise PlotsMissing(
            f"pictures need matplotlib ({error}): pip install -e '.[plot]', or pip install matplotlib"
        ) from error
    return Figure(layout="constrained", **options)


def _save(figure: Any, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a symbol that the font lacks is drawn as a box
        write_whole(path, lambda file: figure.savefig(file, format="png", dpi=150))
