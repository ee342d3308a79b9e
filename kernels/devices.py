"""What a device can do, as far as kernels ask: instructions, and shared memory. A CPU can all that the emulator can."""

from __future__ import annotations

from typing import Any

from minigrad.backend import cuda_device

EMULATED_SHARED_MEMORY = 227 << 10  # bytes, as of an H100 or H200


def shared_memory_limit(device: str) -> int:
    """Bytes of shared memory that one block may have on `device`."""
    return EMULATED_SHARED_MEMORY if device == "cpu" else _gpu(device).attributes["MaxSharedMemoryPerBlockOptin"]


def computes(kind: str, device: str) -> bool:
    """Whether it has the instructions: those of tensor cores, and those that round to 16 bits, came with the A100.

    kind: an array's dtype, or `kernels.tiles.ON_TENSOR_CORES`.
    """
    return kind == "float32" or device == "cpu" or int(_gpu(device).compute_capability) >= 80


def check_computes(name: str, kind: str, device: str) -> None:
    """TypeError if it has not."""
    if not computes(kind, device):
        version = _gpu(device).compute_capability  # "75"
        raise TypeError(f"{name}: {kind} needs compute capability 8.0, {device} has {version[:-1]}.{version[-1]}")


def _gpu(device: str) -> Any:
    cupy, index = cuda_device(device)
    return cupy.cuda.Device(index)
