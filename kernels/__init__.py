"""Exact attention as CUDA C++ kernels, forward and backward, and the emulator that runs them without a GPU.

This package knows arrays, not Tensors. Importing it needs no GPU, no CuPy and no compiler.
"""

from kernels.emulator import EmulatedModule, EmulatorError
from kernels.launch import attention_backward, attention_forward, has_kernels
