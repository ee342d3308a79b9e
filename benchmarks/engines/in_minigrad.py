"""The training step in minigrad, as a user writes it: layers, `loss.backward()`, `optimizer.step()`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

import minigrad as mg
import nn
import nn.functional as F
from benchmarks.engines.sizes import ANSWER_LENGTH, Batch, GPTSize, Size, Workload, checksum
from models import EncoderLayer, Transformer, greedy_decode
from nn.optim import AdamW, clip_grad_norm_
from training.build import build_model, build_optimizer
from training.tasks import make_task
from training.tasks.base import BOS, EOS, PAD


class GPT(nn.Module):
    """Ids (B, N) to the logits (B, N, V) of the symbol after each."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.d_model)
        self.positions = nn.LearnedPositionalEncoding(size.d_model, size.length)
        width, options = size.d_model, {"dropout": 0.0, "activation": "gelu_tanh", "norm_first": True}
        self.blocks = nn.ModuleList(EncoderLayer(width, size.heads, 4 * width, **options) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.d_model)
        self.head = nn.Linear(size.d_model, size.vocabulary, bias=False)

    def forward(self, ids: mg.Tensor) -> mg.Tensor:
        x = self.positions(self.embedding(ids))  # (B, N, D)
        for block in self.blocks:
            x = block(x, is_causal=True)
        return self.head(self.norm(x))


def gpt_loss(model: GPT, inputs: mg.Tensor, targets: mg.Tensor) -> mg.Tensor:
    logits = model(inputs)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def gpt_count(inputs: mg.Tensor, targets: mg.Tensor) -> int:
    return targets.numel()


def dates_loss(model: Transformer, source: mg.Tensor, target: mg.Tensor) -> mg.Tensor:
    logits = model(source, target[:, :-1])  # (B, N_t - 1, V)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target[:, 1:].reshape(-1), ignore_index=PAD)


def dates_count(source: mg.Tensor, target: mg.Tensor) -> int:
    return int(np.count_nonzero(target.data[:, 1:] != PAD))


def make(size: Size) -> GPT | Transformer:
    """The model with freshly drawn parameters, the same each time."""
    mg.manual_seed(0)
    return GPT(size) if isinstance(size, GPTSize) else build_model(make_task("dates"), size.settings)


def draw(size: Size) -> list[Batch]:
    """The batches. Raises MissingDependency if the dates task lacks a package."""
    if isinstance(size, GPTSize):
        shape = size.batches, 2, size.batch, size.length
        return [(inputs, targets) for inputs, targets in np.random.default_rng(0).integers(0, size.vocabulary, shape)]
    task = make_task("dates")
    streams = [np.random.default_rng((size.settings.seed, step)) for step in range(1, size.batches + 1)]
    return [task.batch([task.sample(rng) for _ in range(size.settings.batch_size)]) for rng in streams]


def load(workload: Workload) -> Any:
    """The model with the workload's parameters."""
    model = make(workload.size)
    model.load_state_dict(dict(workload.parameters()))
    return model


class Training:
    """A model, its optimizer and its batches, as `workload` has them.

    Attributes:
        loss_of: the loss (a mean) of a batch, or of a part of one.
        count_of: over how many ids it is the mean.
    """

    def __init__(self, workload: Workload) -> None:
        size, model = workload.size, load(workload)
        self.parameters = list(model.parameters())
        self.batches = cycle([tuple(map(mg.Tensor, batch)) for batch in workload.batches()])
        if isinstance(size, GPTSize):
            self.optimizer = AdamW(self.parameters, lr=size.lr, weight_decay=size.weight_decay)
            self.loss_of, self.count_of, self.clip = partial(gpt_loss, model), gpt_count, 0.0
        else:
            self.optimizer = build_optimizer(self.parameters, size.settings)
            self.loss_of, self.count_of, self.clip = partial(dates_loss, model), dates_count, size.settings.clip

    def step(self) -> mg.Tensor:
        """The plain loop. Returns the loss."""
        loss = self.loss_of(*next(self.batches))
        self.optimizer.zero_grad()
        loss.backward()
        if self.clip:
            clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        return loss


def build(workload: Workload, threads: int) -> Callable[[], mg.Tensor]:
    """One step: a function that returns the loss. Operations take as many threads as there are cores."""
    return Training(workload).step


def build_decoding(workload: Workload, threads: int) -> Callable[[], int]:
    """The answers to one batch, by greedy decoding: a function that returns their checksum."""
    model, sources = load(workload), cycle([source for source, _ in workload.batches()])
    return lambda: checksum(greedy_decode(model, next(sources), BOS, EOS, ANSWER_LENGTH))
