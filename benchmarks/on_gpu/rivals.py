"""What the kernels and the models are timed against: PyTorch, if it is installed, and attention in plain CuPy."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.on_gpu.measuring import Work
from minigrad.backend import Array, array_module

Pair = tuple[Work, Work]  # forward, backward


# ---- plain CuPy ------------------------------------------------------------------------------------------------------

SCORES_OF_PLAIN = 3  # how many matrices of all scores are there at once: in `backward` below


def plain_attention(inputs: Sequence[Array], is_causal: bool) -> Pair:
    """Attention as one would write it without kernels of one's own: the weights (B, H, N, N) are made, and kept.

    inputs: the output's gradient, query, key, value, each (B, H, N, d).
    """
    g, q, k, v = inputs
    library, scale = array_module(q), q.shape[-1] ** -0.5
    hidden = None
    if is_causal:
        hidden = library.where(library.tril(library.ones(q.shape[2:3] * 2, np.bool_)), 0, -math.inf).astype(q.dtype)

    def weights() -> Array:
        scores = q @ k.swapaxes(-1, -2)
        scores *= scale
        if hidden is not None:
            scores += hidden
        scores -= scores.max(axis=-1, keepdims=True)
        library.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        return scores

    kept = weights()

    def backward() -> tuple[Array, Array, Array]:
        d_scores = g @ v.swapaxes(-1, -2)
        d_scores -= (d_scores * kept).sum(axis=-1, keepdims=True)
        d_scores *= kept
        d_scores *= scale
        return d_scores @ k, d_scores.swapaxes(-1, -2) @ q, kept.swapaxes(-1, -2) @ g

    return lambda: weights() @ v, backward


@dataclass(frozen=True)
class ModelSize:
    """A model as of Vaswani et al. 2017, with post-norm and a final layer norm, and a batch for it."""

    name: str
    d_model: int
    heads: int
    layers: int  # of the encoder, and as many of the decoder
    d_ff: int
    vocabulary: int
    batch: int
    length: int  # of the sources, and of the targets, which are read but for their last symbol
    activation: str = "relu"
    dropout: float = 0.1
    lr: float = 1e-4


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


class PyTorch:
    """PyTorch on `device`. `PyTorch.found` makes one where it can."""

    BACKENDS = {  # noqa: RUF012 - read only
        "flash": "FLASH_ATTENTION",
        "efficient": "EFFICIENT_ATTENTION",
        "cuDNN": "CUDNN_ATTENTION",
        "math": "MATH",
    }

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, device
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # nor does CuPy

    @classmethod
    def found(cls, device: str) -> PyTorch | None:
        """None if it is not installed, or has no such device."""
        try:
            torch = importlib.import_module("torch")
        except ImportError:
            return None
        return cls(torch, device) if device == "cpu" or torch.cuda.is_available() else None

    @property
    def version(self) -> str:
        return self._torch.__version__

    def attention(self, backend: str, shape: tuple[int, ...], dtype: str, is_causal: bool) -> Pair:
        """Forward and backward of one backend on normal random numbers. RuntimeError where it does not compute that."""
        torch, functional = self._torch, self._torch.nn.functional
        chosen = getattr(torch.nn.attention.SDPBackend, self.BACKENDS[backend])
        q, k, v = (self._random(shape, dtype).requires_grad_() for _ in range(3))
        g = self._random(shape, dtype)

        def forward() -> Any:
            with torch.nn.attention.sdpa_kernel(chosen), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns of each other backend that it may not use
                return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

        output = forward()
        return forward, lambda: torch.autograd.grad(output, (q, k, v), g, retain_graph=True)

    def training(self, size: ModelSize, amp: bool, source: np.ndarray, target: np.ndarray) -> Callable[[], Any]:
        """A step on one batch of the model of `benchmarks.on_gpu.training_steps`: a function that returns the loss."""
        torch = self._torch
        model = _transformer(torch, size).to(self._device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=size.lr)
        scaler = torch.amp.GradScaler(self._device, enabled=amp)
        ids, read, wanted = (torch.tensor(x, device=self._device) for x in (source, target[:, :-1], target[:, 1:]))

        def step() -> Any:
            with torch.autocast(self._device, dtype=torch.float16, enabled=amp):
                logits = model(ids, read)
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=0)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        return step

    def peak_bytes(self, work: Work) -> int | None:
        """How much memory PyTorch holds at most while `work` runs, beyond what it held; None on a CPU."""
        if self._device == "cpu":
            work()
            return None
        cuda = self._torch.cuda
        self.free()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        work()
        return cuda.max_memory_allocated() - before

    def free(self) -> None:
        """Gives unused memory back, for others on the same GPU."""
        if self._device != "cpu":
            self._torch.cuda.empty_cache()

    def is_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, self._torch.OutOfMemoryError)

    def _random(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self._torch.randn(shape, device=self._device, dtype=getattr(self._torch, dtype))


def _transformer(torch: Any, size: ModelSize) -> Any:
    """`models.Transformer` in PyTorch: its own Transformer between embeddings and a projection to the vocabulary."""
    nn = torch.nn

    class Transformer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target = (nn.Embedding(size.vocabulary, size.d_model, padding_idx=0) for _ in range(2))
            self.body = nn.Transformer(
                size.d_model,
                size.heads,
                size.layers,
                size.layers,
                size.d_ff,
                size.dropout,
                size.activation,
                batch_first=True,
            )
            self.generator = nn.Linear(size.d_model, size.vocabulary)
            self.dropout = nn.Dropout(size.dropout)
            for embedding in (self.source, self.target):
                nn.init.normal_(embedding.weight, std=size.d_model**-0.5)
            place, column = torch.arange(size.length)[:, None], torch.arange(size.d_model)
            angle = place * 10000.0 ** (-(column - column % 2) / size.d_model)
            table = torch.where(column % 2 == 0, angle.sin(), angle.cos())
            self.register_buffer("table", table)
            hidden = torch.ones(size.length, size.length, dtype=torch.bool).triu(1)
            self.register_buffer("hidden", hidden)

        def vectors(self, ids: Any, embedding: Any) -> Any:
            return self.dropout(embedding(ids) * math.sqrt(size.d_model) + self.table[: ids.shape[1]])

        def forward(self, source: Any, target: Any) -> Any:
            length = target.shape[1]
            output = self.body(
                self.vectors(source, self.source),
                self.vectors(target, self.target),
                tgt_mask=self.hidden[:length, :length],
                src_key_padding_mask=source == 0,
                tgt_key_padding_mask=target == 0,
                memory_key_padding_mask=source == 0,
                tgt_is_causal=True,
            )
            return self.generator(output)

    return Transformer()
