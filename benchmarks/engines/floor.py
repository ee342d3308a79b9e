"""The floor: the matrix products of a training step alone, forward and backward.

They are computed in two ways, of which the faster at a size is the floor there. "floor-blas" is bare NumPy, whose
OpenBLAS divides large products over threads of its own and keeps small ones whole. "floor-divided" has each product
divided as minigrad does it in a training step: large ones, and batches of small matrices, by threads of minigrad's.
An engine on NumPy can be faster only where it leaves products out: attention that skips what causality hides does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np

from benchmarks.engines.sizes import Batch, DatesSize, GPTSize, Workload

Shape = tuple[int, ...]
Product = tuple[Shape, Shape]  # of the operands


def linear(rows: int, inputs: int, outputs: int) -> list[Product]:
    """X Wᵀ, and back: dX = dY W, dW = dYᵀ X."""
    return [
        ((rows, inputs), (inputs, outputs)),
        ((rows, outputs), (outputs, inputs)),
        ((outputs, rows), (rows, inputs)),
    ]


def attention(batch: int, heads: int, n_q: int, n_k: int, d: int) -> list[Product]:
    """Q Kᵀ and P V, and back: dP = dO Vᵀ, dV = Pᵀ dO, dQ = dS K, dK = dSᵀ Q."""
    queries, keys, transposed = (batch, heads, n_q, d), (batch, heads, n_k, d), (batch, heads, d, n_k)
    scores, scores_transposed = (batch, heads, n_q, n_k), (batch, heads, n_k, n_q)
    return [
        (queries, transposed),
        (scores, keys),
        (queries, transposed),
        (scores_transposed, queries),
        (scores, keys),
        (scores_transposed, queries),
    ]


def self_attention(batch: int, length: int, width: int, heads: int) -> list[Product]:
    """With its projections."""
    rows = batch * length
    return [
        *linear(rows, width, 3 * width),
        *attention(batch, heads, length, length, width // heads),
        *linear(rows, width, width),
    ]


def feed_forward(rows: int, width: int, inner: int) -> list[Product]:
    return [*linear(rows, width, inner), *linear(rows, inner, width)]


def of_gpt(size: GPTSize) -> list[Product]:
    rows, width = size.batch * size.length, size.d_model
    layer = [*self_attention(size.batch, size.length, width, size.heads), *feed_forward(rows, width, 4 * width)]
    return [*layer * size.layers, *linear(rows, width, size.vocabulary)]


def of_dates(size: DatesSize, batch: Batch, vocabulary: int) -> list[Product]:
    source, target = batch
    s, examples = size.settings, len(source)
    n_s, n_t, width = source.shape[1], target.shape[1] - 1, s.d_model
    encoder_layer = [
        *self_attention(examples, n_s, width, s.heads),
        *feed_forward(examples * n_s, width, s.d_ff),
    ]
    decoder_layer = [
        *self_attention(examples, n_t, width, s.heads),
        *linear(examples * n_t, width, width),  # of the queries to the memory
        *linear(examples * n_s, width, 2 * width),  # of its keys and values
        *attention(examples, s.heads, n_t, n_s, width // s.heads),
        *linear(examples * n_t, width, width),
        *feed_forward(examples * n_t, width, s.d_ff),
    ]
    layers = [*encoder_layer * s.encoder_layers, *decoder_layer * s.decoder_layers]
    return [*layers, *linear(examples * n_t, width, vocabulary)]


def multiplications(size: GPTSize) -> int:
    """Of numbers, in the products of one step."""
    return sum(math.prod(a) * b[-1] for a, b in of_gpt(size))


Operands = tuple[np.ndarray, np.ndarray, np.ndarray]


def operands(products: list[Product]) -> list[Operands]:
    """Batch for each product, and one for its result. Those of one shape are shared: this is a floor."""
    shapes = {shape for product in products for shape in product}
    given = {shape: np.full(shape, 0.1, np.float32) for shape in shapes}
    results: dict[Shape, np.ndarray] = {}
    triples = []
    for a, b in products:
        shape = (*a[:-1], b[-1])
        out = results.setdefault(shape, np.empty(shape, np.float32))
        triples.append((given[a], given[b], out))
    return triples


def build(workload: Workload, threads: int) -> Callable[[], None]:
    """One step's products in NumPy. Its BLAS uses as many threads as there are cores."""
    turns = operands_of_steps(workload)

    def step() -> None:
        for a, b, out in next(turns):
            np.matmul(a, b, out=out)

    return step


def build_divided(workload: Workload, threads: int) -> Callable[[], None]:
    """One step's products as minigrad divides them, into as many parts as there are cores."""
    from minigrad.ops.linalg import times  # sets BLAS, and so is not imported for the other way

    turns = operands_of_steps(workload)

    def step() -> None:
        for a, b, _ in next(turns):
            times(a, b)

    return step


def operands_of_steps(workload: Workload) -> Iterator[list[Operands]]:
    """Of a step on each of the batches, again and again."""
    size = workload.size
    if isinstance(size, GPTSize):
        steps = [of_gpt(size)]
    else:
        vocabulary = next(len(array) for name, array in workload.parameters() if name == "generator.weight")
        steps = [of_dates(size, batch, vocabulary) for batch in workload.batches()]
    return cycle([operands(products) for products in steps])
