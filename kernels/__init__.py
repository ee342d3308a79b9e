"""Exact attention and other fused operations as CUDA C++ kernels, and the emulator that runs them without a GPU.

This package knows arrays, not Tensors. Importing it needs no GPU, no CuPy and no compiler.
"""

from kernels.emulator import EmulatedModule, EmulatorError
from kernels.fused import (
    apply_dropout,
    cross_entropy_backward,
    cross_entropy_forward,
    gelu_backward,
    gelu_forward,
    layer_norm_backward,
    layer_norm_forward,
)
from kernels.launch import attention_backward, attention_forward, has_kernels
