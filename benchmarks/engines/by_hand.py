"""A GPT's training step by minigrad's operations on arrays, without the engine: what modules, checks and graphs cost.

They are called one after another, and their pullbacks in the opposite order: a tape made by hand for this one model.
The optimizer is minigrad's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

import nn.functional as F
from benchmarks.engines.in_minigrad import GPT, load
from benchmarks.engines.sizes import GPTSize, NotInstalled, Workload
from minigrad import Tensor, ops
from models import EncoderLayer
from nn.fused import fused_layer_norm
from nn.fused_room import How
from nn.fused_sublayers import (
    AttentionPasses,
    FeedForwardPasses,
    fused_attention_sublayer,
    fused_feed_forward_sublayer,
)
from nn.losses import fused_cross_entropy
from nn.masks import read_masks
from nn.optim import AdamW

take_rows, linear = F.take_rows.operation.body, ops.linear.operation.body
layer_norm, cross_entropy = fused_layer_norm.operation.body, fused_cross_entropy.operation.body
attend, feed_forward = fused_attention_sublayer.operation.body, fused_feed_forward_sublayer.operation.body


def parameters_of(layer: EncoderLayer) -> tuple[list[Tensor], list[Tensor]]:
    """Those of the layer's attention, and of its feed-forward network, in the order in which operations take them."""
    attention, out = layer.self_attn, layer.self_attn.out_proj
    of_attention = layer.norm1.weight, layer.norm1.bias, attention.in_proj_weight, attention.in_proj_bias
    of_network = layer.norm2.weight, layer.norm2.bias, layer.linear1.weight, layer.linear1.bias
    return [*of_attention, out.weight, out.bias], [*of_network, layer.linear2.weight, layer.linear2.bias]


class Step:
    """Called, it trains `model` by one batch, and returns the loss."""

    def __init__(self, model: GPT, size: GPTSize, batches: Any) -> None:
        self.model, self.batches = model, cycle(batches)
        self.optimizer = AdamW(model.parameters(), lr=size.lr, weight_decay=size.weight_decay)
        visible, _ = read_masks(model.head.weight, (size.length, size.length), None, True, 0, None)
        how = How(visible, 1.0 / math.sqrt(size.d_model // size.heads))
        sublayers = (attend, AttentionPasses(size.heads, how)), (feed_forward, FeedForwardPasses("gelu_tanh"))
        self.steps = [
            (body, passes, parameters)
            for block in model.blocks
            for (body, passes), parameters in zip(sublayers, parameters_of(block), strict=True)
        ]

    def __call__(self) -> np.ndarray:
        model, (inputs, targets) = self.model, next(self.batches)
        rows, (back_to_embedding, _) = take_rows(model.embedding.weight.data, inputs, padding=None)
        x = rows + model.positions.table.data  # (B, N, D)
        pullbacks = []
        for body, passes, parameters in self.steps:
            arrays = [parameter.data for parameter in parameters]
            x, pullback = body(x, *arrays, sublayer=passes, norm_first=True, eps=1e-5)
            pullbacks.append((pullback, parameters))
        weight, bias = model.norm.weight, model.norm.bias
        x, back_to_x = layer_norm(x, weight.data, bias.data, axes=1, eps=1e-5)
        logits, (back_to_norm, back_to_head, _) = linear(x, model.head.weight.data, None)  # (B, N, V)
        options = {"ignore_index": -100, "label_smoothing": 0.0, "divisor": float(targets.size)}
        loss, back_to_logits = cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), **options)

        g = back_to_logits(np.ones((), loss.dtype))[0].reshape(logits.shape)
        keep([model.head.weight], [back_to_head(g)])
        g, *of_norm = back_to_x(back_to_norm(g))
        keep([weight, bias], of_norm)
        while pullbacks:  # each is dropped with what it kept, as the engine does
            pullback, parameters = pullbacks.pop()
            g, *of_parameters = pullback(g)
            keep(parameters, of_parameters)
        keep([model.positions.table, model.embedding.weight], [g.sum(axis=0), back_to_embedding(g)])
        self.optimizer.step()
        return loss


def keep(parameters: Any, gradients: Any) -> None:
    """Puts each gradient where the optimizer looks for it."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = Tensor._of(gradient)


def build(workload: Workload, threads: int) -> Callable[[], np.ndarray]:
    """One step: a function that returns the loss. Raises NotInstalled for another model."""
    if not isinstance(workload.size, GPTSize):
        raise NotInstalled("by-hand is written for the GPT alone")
    return Step(load(workload), workload.size, list(workload.batches()))
