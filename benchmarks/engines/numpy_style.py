"""The models as functions of a dict of arrays, for engines that have NumPy's functions: JAX and HIPS autograd.

`np` is such an engine's own `numpy`. Embeddings and the loss take one-hot rows, whose products have faster gradients
than indexing has in either engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy

from benchmarks.engines.sizes import Batch, DatesSize, GPTSize, Size

Parameters = dict[str, Any]
HIDDEN = -1e9  # added to a score


class Model:
    """One engine's functions, and the parameters below a path: `self["norm1"]("weight")` is "norm1.weight"."""

    def __init__(self, np: Any, parameters: Mapping[str, Any], path: str = "") -> None:
        self.np, self._parameters, self._path = np, parameters, path

    def __getitem__(self, name: str) -> Model:
        return Model(self.np, self._parameters, f"{self._path}{name}.")

    def __call__(self, name: str) -> Any:
        return self._parameters[self._path + name]


def linear(layer: Model, x: Any) -> Any:
    return layer.np.matmul(x, layer("weight").T) + layer("bias")


def layer_norm(layer: Model, x: Any) -> Any:
    np = layer.np
    away = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(away * away, axis=-1, keepdims=True)
    return away / np.sqrt(variance + 1e-5) * layer("weight") + layer("bias")


def gelu(np: Any, x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def attention(layer: Model, heads: int, x: Any, memory: Any, bias: Any) -> Any:
    """x (B, N_q, D) reads `memory` (B, N_k, D), which may be itself; `bias` is added to the scores."""
    np, width = layer.np, x.shape[-1]
    weight, b = layer("in_proj_weight"), layer("in_proj_bias")
    if memory is x:
        packed = np.matmul(x, weight.T) + b
        q, k, v = (packed[..., i * width : (i + 1) * width] for i in range(3))
    else:
        q = np.matmul(x, weight[:width].T) + b[:width]
        packed = np.matmul(memory, weight[width:].T) + b[width:]
        k, v = packed[..., :width], packed[..., width:]
    q, k, v = (np.swapaxes(np.reshape(t, (*t.shape[:2], heads, -1)), 1, 2) for t in (q, k, v))  # (B, H, N, d)
    scores = np.matmul(q * (width // heads) ** -0.5, np.swapaxes(k, -1, -2)) + bias
    e = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    mixed = np.matmul(e / np.sum(e, axis=-1, keepdims=True), v)
    return linear(layer["out_proj"], np.reshape(np.swapaxes(mixed, 1, 2), x.shape))


def cross_entropy(np: Any, logits: Any, wanted: Any) -> Any:
    """The mean over the rows that are not all 0 of `wanted`, one-hot (B, N, V)."""
    away = logits - np.max(logits, axis=-1, keepdims=True)
    log_total = np.log(np.sum(np.exp(away), axis=-1, keepdims=True))
    return np.sum((log_total - away) * wanted) / np.sum(wanted)


def causal(length: int) -> numpy.ndarray:
    """(N, N), what hides the keys after each query."""
    return numpy.triu(numpy.full((length, length), HIDDEN, numpy.float32), 1)


def one_hot(ids: numpy.ndarray, count: int) -> numpy.ndarray:
    return numpy.eye(count, dtype=numpy.float32)[ids]


# ---- the two models --------------------------------------------------------------------------------------------------


def gpt_loss(np: Any, size: GPTSize, parameters: Parameters, inputs: Any, targets: Any) -> Any:
    """inputs, targets: one-hot (B, N, V)."""
    model = Model(np, parameters)
    x = np.matmul(inputs, model["embedding"]("weight")) + model["positions"]("table")
    bias = causal(size.length)
    for i in range(size.layers):
        block = model[f"blocks.{i}"]
        h = layer_norm(block["norm1"], x)
        x = x + attention(block["self_attn"], size.heads, h, h, bias)
        x = x + linear(block["linear2"], gelu(np, linear(block["linear1"], layer_norm(block["norm2"], x))))
    logits = np.matmul(layer_norm(model["norm"], x), model["head"]("weight").T)
    return cross_entropy(np, logits, targets)


def dates_loss(
    np: Any, size: DatesSize, parameters: Parameters, source: Any, read: Any, wanted: Any, hidden: Any
) -> Any:
    """One-hot source (B, N_s, V_s), target as read and as wanted (B, N_t, V_t); `hidden` (B, 1, 1, N_s), added."""
    model, s = Model(np, parameters), size.settings

    def vectors(rows: Any, embedding: Model) -> Any:
        return np.matmul(rows, embedding("weight")) * math.sqrt(s.d_model) + sinusoidal(rows.shape[1], s.d_model)

    def feed_forward(layer: Model, x: Any) -> Any:
        return linear(layer["linear2"], np.maximum(linear(layer["linear1"], x), 0))

    memory = vectors(source, model["source_embedding"])
    for i in range(s.encoder_layers):
        layer = model[f"encoder.layers.{i}"]
        memory = layer_norm(layer["norm1"], memory + attention(layer["self_attn"], s.heads, memory, memory, hidden))
        memory = layer_norm(layer["norm2"], memory + feed_forward(layer, memory))
    x = vectors(read, model["target_embedding"])
    bias = causal(read.shape[1])
    for i in range(s.decoder_layers):
        layer = model[f"decoder.layers.{i}"]
        x = layer_norm(layer["norm1"], x + attention(layer["self_attn"], s.heads, x, x, bias))
        x = layer_norm(layer["norm2"], x + attention(layer["multihead_attn"], s.heads, x, memory, hidden))
        x = layer_norm(layer["norm3"], x + feed_forward(layer, x))
    return cross_entropy(np, linear(model["generator"], x), wanted)


def sinusoidal(length: int, width: int) -> numpy.ndarray:
    """(N, D): Vaswani et al. 2017, section 3.5."""
    column = numpy.arange(width)
    angle = numpy.arange(length)[:, None] * 10000.0 ** (-(column - column % 2) / width)
    return numpy.where(column % 2 == 0, numpy.sin(angle), numpy.cos(angle)).astype(numpy.float32)


def loss_of(np: Any, size: Size) -> Callable[..., Any]:
    """The loss of (parameters, *batch), for a batch of `prepared`."""
    of_size: Any = gpt_loss if isinstance(size, GPTSize) else dates_loss
    return lambda parameters, *batch: of_size(np, size, parameters, *batch)


def prepared(size: Size, batch: Batch, parameters: Parameters) -> tuple[numpy.ndarray, ...]:
    """What the losses read, of ids."""
    first, second = batch
    if isinstance(size, GPTSize):
        return one_hot(first, size.vocabulary), one_hot(second, size.vocabulary)
    counts = (len(parameters[f"{side}_embedding.weight"]) for side in ("source", "target"))
    source, target = (one_hot(ids, count) for ids, count in zip(batch, counts, strict=True))
    for rows in (source, target):
        rows[..., 0] = 0  # padding's embedding is 0, and nothing is wanted where the target is padding
    hidden = numpy.where(first == 0, numpy.float32(HIDDEN), numpy.float32(0))[:, None, None, :]
    return source, target[:, :-1], target[:, 1:], hidden
