"""`cupy.cuda` of the stand-in: devices that nobody has, streams on which nothing waits, kernels on the emulator."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest


class _Thread(threading.local):
    device = 0  # CUDA too has a current device for each thread


_thread = _Thread()


def current_device() -> int:
    """The number of the GPU that this thread's operations run on."""
    return _thread.device


# ---- counting --------------------------------------------------------------------------------------------------------


class _Events:
    """What happens by name, counted for whoever looks on."""

    def __init__(self) -> None:
        self._counters: list[Counter[str]] = []

    def note(self, name: str) -> None:
        for counter in self._counters:
            counter[name] += 1

    @contextlib.contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        self._counters.append(Counter())
        try:
            yield self._counters[-1]
        finally:
            self._counters.pop()


_launches, _waits = _Events(), _Events()
note_launch = _launches.note  # a GPU would be given something to do now
note_wait = _waits.note  # the program would wait now until a GPU has done all that it was given


def counting_launches() -> contextlib.AbstractContextManager[Counter[str]]:
    """Counts within it, by name: kernels of `RawModule`, and functions and operators of arrays, but for views.

    A function counts once, though CuPy makes several launches of some: of `mean`, or `argsort`.
    """
    return _launches.counting()


def counting_waits() -> contextlib.AbstractContextManager[Counter[str]]:
    """Counts within it, by name, what a program does that it cannot go on from until the GPU has done all before it.

    That is to ask for numbers, as by `item`, `get` or `bool`, and what makes an array whose length depends on numbers,
    as `nonzero` and masks as indices do, read or written.
    """
    return _waits.counting()


# ---- devices ---------------------------------------------------------------------------------------------------------


class Device:
    """A GPU by its number, the current one by default; within `with device:` it is the current one."""

    def __init__(self, device: Any = None) -> None:
        self.id = current_device() if device is None else int(device)
        self._former: list[int] = []

    def __enter__(self) -> Self:
        self._former.append(_thread.device)
        _thread.device = self.id
        return self

    def __exit__(self, *exception: object) -> None:
        _thread.device = self._former.pop()

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def use(self) -> None:
        _thread.device = self.id

    def synchronize(self) -> None:
        pass

    compute_capability = "90"
    attributes = {"MaxSharedMemoryPerBlockOptin": 227 << 10, "MultiProcessorCount": 132}  # noqa: RUF012 - CuPy's own


class Stream:
    """An order of work; here everything is done when the call returns."""

    ptr = 0

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def use(self) -> Self:
        return self

    def synchronize(self) -> None:
        pass


# ---- kernels ---------------------------------------------------------------------------------------------------------


class RawModule:
    """CUDA C++ by its text, run by the emulator. Where that cannot compile, the calling test is skipped."""

    def __init__(self, *, code: str, options: Sequence[str] = (), backend: str = "nvrtc", **more: Any) -> None:
        from kernels.emulator import EmulatedModule  # only tests of kernels need these
        from tests.kernels.emulator.compiled import why_nothing_compiles

        if not isinstance(options, tuple):
            raise TypeError(f"options must be a tuple, got {type(options).__name__}")
        if reason := why_nothing_compiles():
            pytest.skip(reason)
        self._module = EmulatedModule(code, options)

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(self._module.get_function(name))

    def compile(self, log_stream: Any = None) -> None:
        pass


class RawKernel:
    """One kernel: `kernel(grid, block, args, shared_mem=0)`."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self._kernel.max_dynamic_shared_size_bytes

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        self._kernel.max_dynamic_shared_size_bytes = size

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0, stream: Any = None) -> None:
        note_launch(self._kernel.name)
        self._kernel(grid, block, [_argument(value) for value in args], shared_mem=shared_mem)


def _argument(value: Any) -> Any:
    """Arrays of CuPy pass their memory; one of NumPy can only pass its single element, by value."""
    from tests.cupy_standin.array import Array, check_reachable  # which is made of devices

    if isinstance(value, Array):
        check_reachable(value)
        return value.host
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise TypeError(f"Unsupported type {type(value)}")
        return value if value.dtype.names else value.reshape(())[()]
    return value


def module(count_devices: Callable[[], int]) -> Any:
    """`cupy.cuda`, which sees as many GPUs as `count_devices` says."""
    runtime = SimpleNamespace(
        getDeviceCount=count_devices, getDevice=current_device, deviceSynchronize=lambda: None, CUDARuntimeError=OSError
    )
    return SimpleNamespace(
        Device=Device, Stream=Stream, runtime=runtime, is_available=lambda: count_devices() > 0,
        get_current_stream=Stream,
    )  # fmt: skip
