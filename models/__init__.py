"""Whole models composed of layers, and how they answer. The public names, nothing else."""

import minigrad  # before NumPy, whose BLAS reads a setting while it is loaded

# isort: split
from models.decode import beam_decode, greedy_decode
from models.stack import Decoder, DecoderLayer, Encoder, EncoderDecoder, EncoderLayer
from models.transformer import Transformer

__all__ = [
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderDecoder",
    "EncoderLayer",
    "Transformer",
    "beam_decode",
    "greedy_decode",
]
