"""What is trained: the sizes of the models, and the file that gives every engine the same parameters and batches.

Engines other than ours read this file too, so nothing here imports minigrad, which sets the process's allocator and
BLAS.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from training.settings import Settings, settings_for


class NotInstalled(Exception):
    """What an engine needs is not there, or it has not got this model; the text says what, in a line."""


Batch = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class GPTSize:
    """A decoder-only model as of GPT-2 (Radford et al. 2019), pre-norm, trained by AdamW on one batch of random ids."""

    name: str
    vocabulary: int  # V
    length: int  # N
    d_model: int  # D
    heads: int  # H
    layers: int
    batch: int  # B
    lr: float = 1e-3
    weight_decay: float = 0.01
    batches: int = 1

    def __str__(self) -> str:
        return (
            f"GPT, V={self.vocabulary}, N={self.length}, D={self.d_model}, {self.heads} heads, {self.layers} layers, "
            f"batch {self.batch}, AdamW"
        )


@dataclass(frozen=True)
class DatesSize:
    """The encoder-decoder of `train.py dates`, trained as there: Adam, and gradients clipped to a norm of 1.

    The learning rate stays at its highest; the batches are the first that the task draws. As the task sets no dropout,
    the engines' models have none.
    """

    name: str = "dates"
    settings: Settings = field(default_factory=lambda: settings_for("dates", {}))
    batches: int = 4

    def __post_init__(self) -> None:
        if self.settings.dropout:
            raise ValueError("the dates task has got dropout, which the models of benchmarks/engines do not have")

    def __str__(self) -> str:
        s = self.settings
        return (
            f"encoder-decoder, D={s.d_model}, {s.heads} heads, {s.encoder_layers}+{s.decoder_layers} layers, "
            f"d_ff={s.d_ff}, batch {s.batch_size} with padding, Adam and clipping"
        )


Size = GPTSize | DatesSize

SIZES: dict[str, Size] = {
    size.name: size
    for size in (
        GPTSize("tiny", vocabulary=32, length=16, d_model=32, heads=2, layers=2, batch=16),
        GPTSize("nanogpt-cpu", vocabulary=65, length=64, d_model=128, heads=4, layers=4, batch=12),
        GPTSize("mid", vocabulary=65, length=128, d_model=256, heads=8, layers=6, batch=8),
        GPTSize("baby", vocabulary=65, length=256, d_model=384, heads=6, layers=6, batch=8),
        DatesSize(),
    )
}


ANSWER_LENGTH = len("YYYY-MM-DD") + 1
"""Of an answer in the dates task, with its end symbol."""


def checksum(answers: np.ndarray) -> int:
    """A number that depends on every symbol of the answers (B, N) and on its place, but on no padding after them."""
    row, column = np.indices(answers.shape)
    return int((answers * (row * ANSWER_LENGTH + column + 1)).sum())


@dataclass(frozen=True)
class Hyperparameters:
    """Of Adam, with decay apart from the gradient, for engines without such an optimizer; `clip` as in the settings."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    clip: float

    @classmethod
    def of(cls, size: Size) -> Hyperparameters:
        if isinstance(size, GPTSize):
            return cls(size.lr, (0.9, 0.999), 1e-8, size.weight_decay, 0.0)
        return cls(size.settings.lr, (0.9, 0.98), 1e-9, 0.0, size.settings.clip)


class Workload:
    """A file with a size, the parameters that training starts from, and batches to go through again and again.

    A batch is ids: (inputs, targets), (B, N) each, of a GPT; (source, target) of the dates task. Parameters have
    minigrad's names and PyTorch's layouts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, size: Size, parameters: dict[str, np.ndarray], batches: list[Batch]) -> None:
        arrays = {f"parameters/{name}": array for name, array in parameters.items()}
        arrays |= {f"batches/{i}/{j}": ids for i, batch in enumerate(batches) for j, ids in enumerate(batch)}
        np.savez(self.path, size=json.dumps(asdict(size)), **arrays)  # type: ignore[arg-type]

    @property
    def size(self) -> Size:
        with np.load(self.path) as file:
            fields = json.loads(str(file["size"]))
        if "settings" in fields:
            return DatesSize(**{**fields, "settings": Settings(**fields["settings"])})
        return GPTSize(**fields)

    def parameters(self) -> Iterator[tuple[str, np.ndarray]]:
        """Names and values, read one at a time, so that an engine's memory is not mixed with the file's."""
        with np.load(self.path) as file:
            for name in file.files:
                if name.startswith("parameters/"):
                    yield name.removeprefix("parameters/"), file[name]

    def batches(self) -> list[Batch]:
        with np.load(self.path) as file:
            count = sum(name.startswith("batches/") for name in file.files) // 2
            return [(file[f"batches/{i}/0"], file[f"batches/{i}/1"]) for i in range(count)]
