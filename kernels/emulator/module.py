"""EmulatedModule: a compiled source whose kernels are called like those of cupy.RawModule."""

from __future__ import annotations

import ctypes
import operator
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from kernels.emulator import build
from kernels.emulator.arguments import Parameter, packed
from kernels.emulator.build import EmulatorError
from kernels.emulator.source import Source

# Limits of a GPU (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; shared memory of 9.0).
MOST_THREADS = 1024
BLOCK_LIMITS = (1024, 1024, 64)
GRID_LIMITS = (2**31 - 1, 65535, 65535)
SHARED_WITHOUT_ASKING = 48 << 10  # bytes
MOST_SHARED = 227 << 10

ORDERS = {"fifo": 0, "lifo": 1, "random": 2}
COPIES = {"early": 0, "late": 1}


# ---- how threads take turns ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Turns:
    order: int = ORDERS["fifo"]
    seed: int = 0
    late_copies: int = COPIES["late"]


_FIFO = _Turns()
_turns: ContextVar[_Turns] = ContextVar("_turns", default=_FIFO)


@contextmanager
def running(order: str = "fifo", seed: int = 0, copies: str = "late") -> Iterator[None]:
    """Within it, kernels run with their threads in this order. A correct kernel gives the same results in any.

    order: which of the threads that could go on does, after a barrier or a warp operation, and which block is next: the
    one that has waited longest ("fifo"), shortest ("lifo"), or any ("random", drawn from `seed`).
    copies: when cp.async copies: not before it is waited for ("late"), which shows a wait that is missing, or at once
    ("early"), which shows a buffer that others still read.
    """
    for name, value, known in (("order", order, ORDERS), ("copies", copies, COPIES)):
        if value not in known:
            raise ValueError(f"running: {name}={value!r}, it is one of {', '.join(map(repr, known))}")
    token = _turns.set(_Turns(ORDERS[order], seed & 0xFFFFFFFF, COPIES[copies]))
    try:
        yield
    finally:
        _turns.reset(token)


# ---- modules and kernels ---------------------------------------------------------------------------------------------


class _Launch(ctypes.Structure):  # runtime.h has the same fields
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("order", ctypes.c_uint),
        ("seed", ctypes.c_uint),
        ("late_copies", ctypes.c_uint),
        ("shared_bytes", ctypes.c_uint),
    )


_one_launch_at_a_time = threading.RLock()  # the runtime has one block, and shared memory for one


class EmulatedModule:
    """A CUDA C++ source, compiled for the CPU when its first kernel is asked for; used like `cupy.RawModule`.

    code: the whole source; kernels are declared `extern "C" __global__ void`.
    options: CuPy's, of which -Dname=value and -std count (older standards than C++17 are compiled as that); others that
    CuPy knows are passed over.
    sanitize: "address" also finds reads and writes out of bounds, misaligned float4 and undefined arithmetic (ASan and
    UBSan), "thread" finds races: accesses of two threads that no barrier separates (ThreadSanitizer). Both are several
    times slower and need a process of their own, see `sanitizer_environment`.

    `bank_conflicts` counts, over all launches, how often ldmatrix had to read rows one after the other that it could
    have read at once.
    """

    def __init__(self, code: str, options: Sequence[str] = (), *, sanitize: str | None = None) -> None:
        self._source, self._sanitize = Source(code, options), sanitize
        self._kernels: dict[str, EmulatedKernel] | None = None
        self.bank_conflicts = 0
        if sanitize is not None:
            build.check_sanitizer_is_loaded(sanitize)

    def get_function(self, name: str) -> EmulatedKernel:
        """The kernel of this name. EmulatorError if the source has none, or does not compile."""
        if self._kernels is None:
            self._kernels = self._compiled()
        if name not in self._kernels:
            known = ", ".join(self._kernels) or "none"
            what = f'no kernel {name}, declared extern "C" __global__ void'
            raise EmulatorError(f"the source has {what}; it has: {known}")
        return self._kernels[name]

    def _compiled(self) -> dict[str, EmulatedKernel]:
        source = self._source
        path = build.kernel_library(source.code, source.options, source.wrapper, self._sanitize)
        library = ctypes.CDLL(str(path))
        for function in (library.cuda_cpu_name, library.cuda_cpu_parameters, library.cuda_cpu_message):
            function.restype = ctypes.c_char_p
        library.cuda_cpu_take_conflicts.restype = ctypes.c_long
        names: list[str] = []
        while name := library.cuda_cpu_name(len(names)):
            names.append(name.decode())
        if library.cuda_cpu_shared_has_values():
            raise EmulatorError("a __shared__ variable cannot be declared with a value: assign it in the kernel")
        # Which of several kernels uses which __shared__ variables is not known.
        static_shared = library.cuda_cpu_static_shared() if len(names) == 1 else 0
        if static_shared > SHARED_WITHOUT_ASKING:
            raise EmulatorError(
                f"{names[0]}: its __shared__ variables take {static_shared} bytes, {SHARED_WITHOUT_ASKING} are "
                "possible; more is to be had as dynamic shared memory: extern __shared__ float values[];"
            )
        return {name: EmulatedKernel(self, library, place, name, static_shared) for place, name in enumerate(names)}


class EmulatedKernel:
    """A kernel of an EmulatedModule: `kernel(grid, block, args, shared_mem=0)`, as of `cupy.RawKernel`."""

    def __init__(self, module: EmulatedModule, library: ctypes.CDLL, place: int, name: str, static_shared: int) -> None:
        self.name = name
        self._module, self._library, self._place = module, library, place
        self._most_threads = library.cuda_cpu_most_threads(place)
        lines = library.cuda_cpu_parameters(place).decode().splitlines()
        self._parameters = [Parameter.read(line) for line in lines]
        self._static_shared = static_shared
        self._max_dynamic_shared_size_bytes = max(0, SHARED_WITHOUT_ASKING - static_shared)

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """What a launch may ask for as `shared_mem`; more than 48 KiB, less the static, must be set before."""
        return self._max_dynamic_shared_size_bytes

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        if not 0 <= size <= (most := MOST_SHARED - self._static_shared):
            raise EmulatorError(
                f"{self.name}: max_dynamic_shared_size_bytes = {size}, a block has at most {most} on sm_90"
                + self._besides_static()
            )
        self._max_dynamic_shared_size_bytes = size

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_mem: int = 0) -> None:
        """Runs the kernel once for each thread of each block; returns when all are done.

        grid, block: up to three sizes each; 0 counts as 1, as CuPy has it.
        args: arrays (which pass their pointer), NumPy scalars and structs, Python numbers (of 8 bytes), None.
        shared_mem: bytes of dynamic shared memory.
        EmulatorError if the launch is not possible, or for what the kernel does wrong; arrays may then be half written.
        So they are after Ctrl-C, which ends the kernel and raises KeyboardInterrupt.
        """
        launch = self._launch(_three(grid, "grid"), _three(block, "block"), operator.index(shared_mem))
        values = packed(args, self._parameters, self.name)
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        with _one_launch_at_a_time:
            failed = self._library.cuda_cpu_run(self._place, ctypes.byref(launch), addresses)
            self._module.bank_conflicts += self._library.cuda_cpu_take_conflicts()
            message = self._library.cuda_cpu_message().decode(errors="replace")
        if failed:
            raise EmulatorError(f"{self.name}: {message}")

    def _launch(self, grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int) -> _Launch:
        _check_limits(self.name, "grid", grid, GRID_LIMITS)
        _check_limits(self.name, "block", block, BLOCK_LIMITS)
        threads = block[0] * block[1] * block[2]
        if threads > MOST_THREADS:
            raise EmulatorError(f"{self.name}: block {block} has {threads} threads, {MOST_THREADS} are possible")
        if threads > (most := self._most_threads):
            raise EmulatorError(
                f"{self.name}: block {block} has {threads} threads, __launch_bounds__ promises at most {most}"
            )
        allowed = max(SHARED_WITHOUT_ASKING - self._static_shared, self._max_dynamic_shared_size_bytes)
        if not 0 <= shared_mem <= allowed:
            raise EmulatorError(
                f"{self.name}: shared_mem={shared_mem} bytes, {allowed} are allowed{self._besides_static()}; for more "
                f"first set kernel.max_dynamic_shared_size_bytes, up to {MOST_SHARED - self._static_shared}"
            )
        turns = _turns.get()
        three = ctypes.c_uint * 3
        return _Launch(three(*grid), three(*block), turns.order, turns.seed, turns.late_copies, shared_mem)

    def _besides_static(self) -> str:
        return f" besides the {self._static_shared} of its __shared__ variables" if self._static_shared else ""


def _three(sizes: tuple[int, ...], name: str) -> tuple[int, ...]:
    """The sizes with those that are not given: 1."""
    if not isinstance(sizes, tuple) or not 1 <= len(sizes) <= 3:
        raise TypeError(f"{name}={sizes!r}: a tuple of one to three integers, such as (4,)")
    return tuple(max(1, operator.index(size)) for size in (*sizes, 1, 1)[:3])


def _check_limits(kernel: str, name: str, sizes: tuple[int, ...], limits: tuple[int, ...]) -> None:
    if any(size > limit for size, limit in zip(sizes, limits, strict=True)):
        raise EmulatorError(f"{kernel}: {name} {sizes} is too large, a GPU takes up to {limits}")
