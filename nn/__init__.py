"""Layers and what trains them. The public names, nothing else."""

import minigrad  # before NumPy, whose BLAS reads a setting while it is loaded

# isort: split
from nn import functional, init, optim
from nn.attention import MultiHeadAttention
from nn.containers import ModuleList, Sequential
from nn.dropout import Dropout
from nn.embedding import Embedding, LearnedPositionalEncoding, PositionalEncoding
from nn.feed_forward import FeedForward
from nn.functional_call import functional_call
from nn.linear import Linear
from nn.module import Module, Parameter
from nn.norm import LayerNorm, RMSNorm
from nn.parallel import ParallelLoss

__all__ = [
    "Dropout",
    "Embedding",
    "FeedForward",
    "LayerNorm",
    "LearnedPositionalEncoding",
    "Linear",
    "Module",
    "ModuleList",
    "MultiHeadAttention",
    "ParallelLoss",
    "Parameter",
    "PositionalEncoding",
    "RMSNorm",
    "Sequential",
    "functional",
    "functional_call",
    "init",
    "optim",
]
