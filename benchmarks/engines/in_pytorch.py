"""The training step in PyTorch, eager, by its own fast parts: native attention and a fused optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.engines.numpy_style import sinusoidal
from benchmarks.engines.sizes import ANSWER_LENGTH, GPTSize, Hyperparameters, Workload, checksum
from training.settings import Settings

PAD, BOS, EOS = 0, 1, 2  # as in training.tasks.base, which would import minigrad


class Attention(nn.Module):
    """Multi-head attention with packed projections; parameters are those of `torch.nn.MultiheadAttention`."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * d_model, d_model))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * d_model))
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """x (B, N, D) reads itself, or `memory`; to (B, N, D)."""
        width = x.shape[-1]
        if memory is None:
            q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).split(width, -1)
        else:
            w_q, w_kv = self.in_proj_weight.split([width, 2 * width])
            b_q, b_kv = self.in_proj_bias.split([width, 2 * width])
            q, (k, v) = F.linear(x, w_q, b_q), F.linear(memory, w_kv, b_kv).split(width, -1)
        q, k, v = [self.heads(t) for t in (q, k, v)]
        return self.attend(q, k, v, mask, is_causal)

    def heads(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, H, N, d)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Heads (B, H, N, d) each to (B, N, D)."""
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)
        return self.out_proj(y.transpose(1, 2).flatten(2))


# ---- GPT -------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.self_attn = Attention(d_model, num_heads)
        self.norm2 = nn.LayerNorm(d_model)
        self.linear1 = nn.Linear(d_model, 4 * d_model)
        self.linear2 = nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.norm1(x), is_causal=True)
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate="tanh"))


class Positions(nn.Module):
    def __init__(self, length: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, d_model))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]


class GPT(nn.Module):
    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.d_model)
        self.positions = Positions(size.length, size.d_model)
        self.blocks = nn.ModuleList(Block(size.d_model, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.d_model)
        self.head = nn.Linear(size.d_model, size.vocabulary, bias=False)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        x = self.positions(self.embedding(inputs))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


# ---- dates -----------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """Of the encoder; of the decoder, with attention to the memory. Post-norm, as in Vaswani et al. 2017."""

    def __init__(self, settings: Settings, of_decoder: bool) -> None:
        super().__init__()
        width = settings.d_model
        self.linear1 = nn.Linear(width, settings.d_ff)
        self.linear2 = nn.Linear(settings.d_ff, width)
        self.self_attn = Attention(width, settings.heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        if of_decoder:
            self.multihead_attn = Attention(width, settings.heads)
            self.norm3 = nn.LayerNorm(width)


class EncoderLayer(Layer):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.self_attn(x, mask=mask))
        return self.norm2(x + self.linear2(F.relu(self.linear1(x))))


class DecoderLayer(Layer):
    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        x = self.norm1(x + self.self_attn(x, is_causal=True))  # what is hidden besides, padding, only padding would see
        x = self.norm2(x + self.multihead_attn(x, memory, memory_mask))
        return self.norm3(x + self.linear2(F.relu(self.linear1(x))))


class Stack(nn.Module):
    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, *others)
        return x


class Transformer(nn.Module):
    """`models.Transformer` with sinusoidal positions."""

    table: Tensor

    def __init__(self, settings: Settings, source_vocabulary: int, target_vocabulary: int) -> None:
        super().__init__()
        width = settings.d_model
        self.source_embedding = nn.Embedding(source_vocabulary, width, padding_idx=PAD)
        self.target_embedding = nn.Embedding(target_vocabulary, width, padding_idx=PAD)
        self.encoder = Stack([EncoderLayer(settings, False) for _ in range(settings.encoder_layers)])
        self.decoder = Stack([DecoderLayer(settings, True) for _ in range(settings.decoder_layers)])
        self.generator = nn.Linear(width, target_vocabulary)
        self.register_buffer("table", torch.tensor(sinusoidal(64, width)), persistent=False)

    def vectors(self, ids: Tensor, embedding: nn.Embedding, first: int = 0) -> Tensor:
        places = self.table[first : first + ids.shape[1]]
        return embedding(ids) * math.sqrt(embedding.embedding_dim) + places

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The memory (B, N_s, D), and what of it may be attended to (B, 1, 1, N_s)."""
        mask = (source != PAD)[:, None, None, :]
        return self.encoder(self.vectors(source, self.source_embedding), mask), mask

    def decode(self, target: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """Logits (B, N_t, V)."""
        return self.generator(self.decoder(self.vectors(target, self.target_embedding), memory, memory_mask))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        logits = self.decode(target[:, :-1], *self.encode(source))
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)


def dates_model(workload: Workload) -> Transformer:
    """With the workload's parameters."""
    values = {name: torch.tensor(array) for name, array in workload.parameters()}
    vocabularies = (len(values[f"{side}_embedding.weight"]) for side in ("source", "target"))
    model = Transformer(workload.size.settings, *vocabularies)
    model.load_state_dict(values)
    return model


def gpt_model(workload: Workload) -> GPT:
    model = GPT(workload.size)
    model.load_state_dict({name: torch.tensor(array) for name, array in workload.parameters()})
    return model


def build(workload: Workload, threads: int) -> Callable[[], Tensor]:
    """One step: a function that returns the loss."""
    torch.set_num_threads(threads)
    chosen = Hyperparameters.of(workload.size)
    model: nn.Module = gpt_model(workload) if isinstance(workload.size, GPTSize) else dates_model(workload)
    parameters = list(model.parameters())
    options: dict[str, Any] = {"lr": chosen.lr, "betas": chosen.betas, "eps": chosen.eps}
    optimizer = torch.optim.AdamW(parameters, **options, weight_decay=chosen.weight_decay, fused=True)
    batches = cycle([tuple(map(torch.tensor, batch)) for batch in workload.batches()])

    def step() -> Tensor:
        loss = model(*next(batches))
        optimizer.zero_grad()
        loss.backward()
        if chosen.clip:
            nn.utils.clip_grad_norm_(parameters, chosen.clip, foreach=True)
        optimizer.step()
        return loss.detach()

    return step


class Cache:
    """What a decoder layer keeps of the memory and of the symbols so far: as `nn.cached_attention`.

    Keys and values are in one tensor (2, B, H, N, d) for each of the two attentions.
    """

    def __init__(self, layer: Layer, memory: Tensor, length: int) -> None:
        own, other = layer.self_attn, layer.multihead_attn
        width, batch = memory.shape[-1], len(memory)
        self.layer, self.length = layer, 0
        self.own = memory.new_empty(2, batch, own.num_heads, length, width // own.num_heads)
        self.w_q, w_kv = other.in_proj_weight.split([width, 2 * width])
        self.b_q, b_kv = other.in_proj_bias.split([width, 2 * width])
        self.memory = torch.stack([other.heads(t) for t in F.linear(memory, w_kv, b_kv).split(width, -1)])

    def step(self, x: Tensor, memory_mask: Tensor) -> Tensor:
        """DecoderLayer's forward, for the next symbol: (B, 1, D) to the same shape."""
        layer, own, other = self.layer, self.layer.self_attn, self.layer.multihead_attn
        packed = F.linear(x, own.in_proj_weight, own.in_proj_bias)
        q, k, v = packed.view(len(x), 1, 3, own.num_heads, -1).permute(2, 0, 3, 1, 4).unbind()  # (B, H, 1, d)
        keys, values = self.own.unbind()
        keys[:, :, self.length], values[:, :, self.length] = k[:, :, 0], v[:, :, 0]
        self.length += 1
        x = layer.norm1(x + own.attend(q, keys[:, :, : self.length], values[:, :, : self.length]))
        keys, values = self.memory.unbind()
        q = other.heads(F.linear(x, self.w_q, self.b_q))
        x = layer.norm2(x + other.attend(q, keys, values, memory_mask))
        return layer.norm3(x + layer.linear2(F.relu(layer.linear1(x))))

    def take(self, rows: Tensor) -> None:
        self.own, self.memory = self.own[:, rows], self.memory[:, rows]


@torch.inference_mode()
def greedy_decode(model: Transformer, source: Tensor, length: int) -> Tensor:
    """Answers (B, N) of at most `length` symbols, found as `models.greedy_decode` does."""
    memory, mask = model.encode(source)
    caches = [Cache(layer, memory, length) for layer in model.decoder.layers]
    answers = torch.zeros(len(source), length, dtype=torch.long)
    rows = torch.arange(len(source))  # the answers that have not ended
    symbols = torch.full((len(source),), BOS)
    for place in range(length):
        x = model.vectors(symbols[:, None], model.target_embedding, place)
        for cache in caches:
            x = cache.step(x, mask)
        logits = model.generator(x[:, 0])
        logits[:, PAD] = -math.inf
        symbols = logits.argmax(-1)
        answers[rows, place] = symbols
        going_on = symbols != EOS
        if not going_on.any():
            break
        if not going_on.all():
            rows, symbols, mask = rows[going_on], symbols[going_on], mask[going_on]
            for cache in caches:
                cache.take(going_on)
    return answers


def build_decoding(workload: Workload, threads: int) -> Callable[[], int]:
    """The answers to one batch, by greedy decoding: a function that returns their checksum."""
    torch.set_num_threads(threads)
    model, sources = dates_model(workload), cycle([torch.tensor(source) for source, _ in workload.batches()])
    return lambda: checksum(greedy_decode(model, next(sources), ANSWER_LENGTH).numpy())
