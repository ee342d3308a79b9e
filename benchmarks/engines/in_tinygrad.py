"""The training step in tinygrad, on its CPU device: layers of its own, and the whole step in a TinyJit.

tinygrad writes its own loops in C, and compiles them with clang: without that it is left out. It would put GELU and its
derivative into the loops of the products that read them, and so compute each number as many times as a product uses it;
so `kept` marks where a step gets several times as fast if numbers are written down first.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from itertools import cycle
from typing import Any

os.environ["DEV"] = "CPU"  # read when tinygrad is imported

from tinygrad import Context, Tensor, TinyJit, nn

from benchmarks.engines.numpy_style import sinusoidal
from benchmarks.engines.sizes import DatesSize, GPTSize, Hyperparameters, NotInstalled, Workload


def kept(x: Tensor) -> Tensor:
    """x, computed once, and so is its gradient."""
    return x.contiguous().contiguous_backward()


class Attention:
    """Multi-head attention with packed projections; parameters are those of `nn.MultiHeadAttention`."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        self.num_heads = num_heads
        self.in_proj_weight, self.in_proj_bias = Tensor.empty(3 * d_model, d_model), Tensor.empty(3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def __call__(self, x: Tensor, memory: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x (B, N, D) reads `memory`, which may be itself; to (B, N, D)."""
        width = x.shape[-1]
        if memory is x:
            q, k, v = x.linear(self.in_proj_weight.T, self.in_proj_bias).split(width, -1)
        else:
            q = x.linear(self.in_proj_weight[:width].T, self.in_proj_bias[:width])
            k, v = memory.linear(self.in_proj_weight[width:].T, self.in_proj_bias[width:]).split(width, -1)
        q, k, v = (kept(t.reshape(*t.shape[:2], self.num_heads, -1).transpose(1, 2)) for t in (q, k, v))  # (B, H, N, d)
        y = kept(q.scaled_dot_product_attention(k, v, mask, is_causal=is_causal))
        return self.out_proj(y.transpose(1, 2).reshape(x.shape))


# ---- GPT -------------------------------------------------------------------------------------------------------------


class Block:
    def __init__(self, d_model: int, num_heads: int) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.self_attn = Attention(d_model, num_heads)
        self.linear1, self.linear2 = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)

    def __call__(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.self_attn(h, h, is_causal=True)
        return x + self.linear2(kept(kept(self.linear1(self.norm2(x))).gelu()))  # tinygrad's GELU is by tanh


class Positions:
    def __init__(self, length: int, d_model: int) -> None:
        self.table = Tensor.empty(length, d_model)


class GPT:
    def __init__(self, size: GPTSize) -> None:
        self.embedding = nn.Embedding(size.vocabulary, size.d_model)
        self.positions = Positions(size.length, size.d_model)
        self.blocks = [Block(size.d_model, size.heads) for _ in range(size.layers)]
        self.norm = nn.LayerNorm(size.d_model)
        self.head = nn.Linear(size.d_model, size.vocabulary, bias=False)

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        x = self.embedding(inputs) + self.positions.table
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).sparse_categorical_crossentropy(targets)


# ---- dates -----------------------------------------------------------------------------------------------------------


class EncoderLayer:
    def __init__(self, d_model: int, num_heads: int, d_ff: int) -> None:
        self.self_attn = Attention(d_model, num_heads)
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(kept(kept(self.linear1(x)).relu()))

    def __call__(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.self_attn(x, x, mask))
        return self.norm2(x + self.feed_forward(x))


class DecoderLayer(EncoderLayer):
    def __init__(self, d_model: int, num_heads: int, d_ff: int) -> None:
        super().__init__(d_model, num_heads, d_ff)
        self.multihead_attn = Attention(d_model, num_heads)
        self.norm3 = nn.LayerNorm(d_model)

    def read(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.self_attn(x, x, is_causal=True))  # of the padding, only padding would see anything
        x = self.norm2(x + self.multihead_attn(x, memory, mask))
        return self.norm3(x + self.feed_forward(x))


class Stack:
    def __init__(self, layers: list[Any]) -> None:
        self.layers = layers


class Transformer:
    """`models.Transformer` with sinusoidal positions; 0 is the padding's id."""

    def __init__(self, size: DatesSize, source_vocabulary: int, target_vocabulary: int) -> None:
        s = size.settings
        sizes = s.d_model, s.heads, s.d_ff
        self.source_embedding = nn.Embedding(source_vocabulary, s.d_model)
        self.target_embedding = nn.Embedding(target_vocabulary, s.d_model)
        self.encoder = Stack([EncoderLayer(*sizes) for _ in range(s.encoder_layers)])
        self.decoder = Stack([DecoderLayer(*sizes) for _ in range(s.decoder_layers)])
        self.generator = nn.Linear(s.d_model, target_vocabulary)

    def vectors(self, ids: Tensor, embedding: nn.Embedding) -> Tensor:
        width = embedding.weight.shape[1]
        rows = embedding(ids) * (ids != 0).unsqueeze(-1)  # padding's row is 0, and gets no gradient
        return rows * math.sqrt(width) + Tensor(sinusoidal(ids.shape[1], width))

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        mask = (source != 0).reshape(source.shape[0], 1, 1, -1)
        memory = self.vectors(source, self.source_embedding)
        for layer in self.encoder.layers:
            memory = layer(memory, mask)
        x = self.vectors(target[:, :-1], self.target_embedding)
        for layer in self.decoder.layers:
            x = layer.read(x, memory, mask)
        return self.generator(x).sparse_categorical_crossentropy(target[:, 1:], ignore_index=0)


def build(workload: Workload, threads: int) -> Callable[[], float]:
    """One step: a function that returns the loss. Raises NotInstalled if the compiler that tinygrad uses is not."""
    if shutil.which("clang") is None:
        raise NotInstalled("clang, which tinygrad compiles with, is not installed")
    size, chosen = workload.size, Hyperparameters.of(workload.size)
    values = {name: Tensor(array) for name, array in workload.parameters()}
    if isinstance(size, GPTSize):
        model: Any = GPT(size)
    else:
        model = Transformer(size, *(values[f"{side}_embedding.weight"].shape[0] for side in ("source", "target")))
    nn.state.load_state_dict(model, values, verbose=False)
    parameters = nn.state.get_parameters(model)
    b1, b2 = chosen.betas
    optimizer = nn.optim.AdamW(parameters, chosen.lr, b1, b2, chosen.eps, chosen.weight_decay)

    def compiled(*batch: Tensor) -> Callable[[], Tensor]:
        @TinyJit
        def step() -> Tensor:
            optimizer.zero_grad()
            loss = model(*batch).backward()
            if chosen.clip:
                norm = sum(p.grad.square().sum() for p in parameters).sqrt()
                factor = (chosen.clip / (norm + 1e-6)).minimum(1.0)
                for p in parameters:
                    p.grad = p.grad * factor
            return loss.realize(*optimizer.schedule_step())

        return step

    steps = cycle([compiled(*(Tensor(ids).realize() for ids in batch)) for batch in workload.batches()])

    def step() -> float:
        with Context(TRAINING=1, NUM_CPU_THREADS=threads):
            return next(steps)().item()

    return step
