"""CUDA C++ on a CPU: the same source that runs on a GPU, compiled with g++, each of its threads a fiber.

`EmulatedModule` is used like `cupy.RawModule`. It needs no GPU and no CuPy, only a C++ compiler, and it finds what a
GPU passes over: missing barriers, reads of unwritten shared memory, arguments of a wrong size, writes out of bounds.
"""

from kernels.emulator.build import EmulatorError, sanitizer_environment
from kernels.emulator.module import EmulatedKernel, EmulatedModule, running
