"""Training steps of `models.Transformer`: one that is looked at closely, and many for their speed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

import minigrad as mg
import nn.functional as F
from benchmarks.on_gpu.measuring import Gpu
from benchmarks.on_gpu.report import Row, mebibytes
from benchmarks.on_gpu.rivals import ModelSize, PyTorch
from models import Transformer
from nn.optim import AdamW, GradScaler
from nn.rooms import attention_room


def build(size: ModelSize) -> Transformer:
    """The model, on the CPU in float32; the same parameters each time."""
    mg.manual_seed(0)
    return Transformer(
        size.vocabulary,
        size.vocabulary,
        d_model=size.d_model,
        num_heads=size.heads,
        num_encoder_layers=size.layers,
        num_decoder_layers=size.layers,
        d_ff=size.d_ff,
        dropout=size.dropout,
        activation=size.activation,
        final_norm=True,
        max_length=size.length,
    )


def random_batch(size: ModelSize) -> tuple[np.ndarray, np.ndarray]:
    """(source, target), ids (B, N): rows of random symbols, the last half of the second row padding, which is 0."""
    ids = np.random.default_rng(0).integers(1, size.vocabulary, (2, size.batch, size.length))
    ids[:, 1, size.length // 2 :] = 0
    return ids[0], ids[1]


def _forward(model: Transformer, source: Any, target: Any, amp: bool) -> tuple[mg.Tensor, mg.Tensor]:
    """(logits (B, N - 1, V), loss)"""
    with mg.autocast(enabled=amp):
        logits = model(source, target[:, :-1])
        wanted = target[:, 1:].reshape(-1)
        return logits, F.cross_entropy(logits.reshape(-1, logits.shape[-1]), wanted, ignore_index=0)


def training(size: ModelSize, device: str, amp: bool, source: np.ndarray, target: np.ndarray) -> Callable[[], Any]:
    """A step on one batch: a function that returns the loss."""
    model = build(size).to(device)
    optimizer, scaler = AdamW(model.parameters(), lr=size.lr), GradScaler(enabled=amp)
    source_ids, target_ids = (mg.Tensor(x, device=device) for x in (source, target))

    def step() -> mg.Tensor:
        _, loss = _forward(model, source_ids, target_ids, amp)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step


class Step(NamedTuple):
    """What one training step makes: logits, gradients, and the parameters after it, each as one vector in float64."""

    logits: np.ndarray
    gradients: np.ndarray
    parameters: np.ndarray

    def errors(self, exact: Step) -> list[float]:
        """‖difference‖ / ‖exact‖ of each."""
        return [float(np.linalg.norm(x - e) / np.linalg.norm(e)) for x, e in zip(self, exact, strict=True)]


def one_step(size: ModelSize, device: str, dtype: Any, amp: bool = False) -> Step:
    """The first step without dropout; in float64 by attention's definition, else as anyone gets it."""
    model = build(size).to(dtype).to(device).eval()
    # Adam divides a gradient by its own size: with a small eps one that is 0 but for rounding would move a parameter
    # by ±lr, at random.
    optimizer, scaler = AdamW(model.parameters(), lr=1e-3, eps=1e-3), GradScaler(enabled=amp)
    source, target = (mg.Tensor(ids, device=device) for ids in random_batch(size))
    with attention_room("plain") if dtype == np.float64 else nullcontext():
        logits, loss = _forward(model, source, target, amp)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    gradients = _vector([parameter.grad for parameter in model.parameters()])
    scaler.step(optimizer)
    return Step(_vector([logits]), gradients, _vector(model.parameters()))


def _vector(tensors: Any) -> np.ndarray:
    return np.concatenate([tensor.detach().numpy().astype(np.float64).reshape(-1) for tensor in tensors])


# ---- rows ------------------------------------------------------------------------------------------------------------

CHECK_COLUMNS = ("logits", "gradients", "parameters")
SPEED_COLUMNS = ("steps/s", "PyTorch", "memory", "PyTorch", "first loss", "last loss")


def check(size: ModelSize, amp: bool) -> list[Row]:
    """One step on the GPU against float64 on the CPU; three times the error of the CPU's own step is allowed."""
    exact = one_step(size, "cpu", np.float64)
    on_cpu, on_gpu = (one_step(size, device, np.float32, amp).errors(exact) for device in ("cpu", "cuda"))
    shares = [error / max(1e-6, 3 * plain) for error, plain in zip(on_gpu, on_cpu, strict=True)]
    return [Row(max(shares) <= 1, [f"{share:.3f}" for share in shares])]


def measure(gpu: Gpu, torch: PyTorch | None, size: ModelSize, amp: bool, seconds: float) -> list[Row]:
    """Steps on one batch, on which the loss must fall; memory is that of everything, parameters included."""
    batch = random_batch(size)
    ours = _Begun(lambda: training(size, "cuda", amp, *batch))
    peak = gpu.peak_bytes(ours.begin)
    rate = gpu.rate(ours.step, seconds)
    first, last = ours.first_loss, ours.step().item()
    del ours
    gpu.free()
    theirs, note = ["-", "-"], ""
    if torch is not None:
        other = _Begun(lambda: torch.training(size, amp, *batch))
        their_peak = torch.peak_bytes(other.begin)
        their_rate = gpu.rate(other.step, seconds)
        theirs = [f"{their_rate:.1f}", mebibytes(their_peak)]
        del other
        torch.free()
        note = f"{rate / their_rate:.2f} x PyTorch"
    cells = [f"{rate:.1f}", theirs[0], mebibytes(peak), theirs[1], f"{first:.3f}", f"{last:.3f}"]
    return [Row(last < first, cells, note)]


class _Begun:
    """A training whose first steps are made where memory is counted, and the others where time is."""

    step: Callable[[], Any]
    first_loss: float

    def __init__(self, made: Callable[[], Callable[[], Any]]) -> None:
        self._made = made

    def begin(self) -> None:
        self.step = self._made()
        self.first_loss = self.step().item()
        for _ in range(2):
            self.step()
