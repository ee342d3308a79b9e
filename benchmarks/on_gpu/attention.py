"""Attention on a GPU: its checks against float64, its memory beside the plan's, its speed beside others'."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.on_gpu.attention_reference import NAMES, attention_by_rows, relative_error
from benchmarks.on_gpu.measuring import Gpu
from benchmarks.on_gpu.report import CannotBeTried, Row, mebibytes
from benchmarks.on_gpu.rivals import SCORES_OF_PLAIN, Pair, PyTorch, plain_attention
from kernels import attention_backward, attention_forward
from kernels.dropout import dropout_factor
from kernels.memory import memory_plan
from minigrad.backend import Array, array_module

Inputs = tuple[Array, Array, Array, Array]  # the output's gradient, query, key, value
Options = dict[str, Any]  # of `attention_forward`

CUPY = "plain CuPy"
RIVALS = (*PyTorch.BACKENDS, CUPY)
DIRECTIONS = ("forward", "backward")
TF32 = "3xTF32"  # here the name of a dtype: float32 on tensor cores, in three products
NO_MEMORY = "no memory"  # in place of a number


def dtype_of(name: str) -> np.dtype:
    """NumPy's dtype of this name. ImportError for bfloat16 if ml_dtypes, which has it, is not installed."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype("float32" if name == TF32 else name)


# ---- is it right? ----------------------------------------------------------------------------------------------------


class Cases:
    """Every kernel, mask and layout, in one dtype. `n`: rows; `apart`: numbers between two batches in memory."""

    def __init__(self, gpu: Gpu, dtype: str, n: int, many_heads: int, apart: int) -> None:
        self._gpu, self._cupy, self._dtype, self._n = gpu, gpu.cupy, dtype_of(dtype), n
        self._tensor_cores = dtype == TF32
        self._many_heads, self._apart = many_heads, apart
        self._rng = np.random.default_rng(0)

    def all(self, head_dims: Sequence[int]) -> Iterator[tuple[str, Callable[[], tuple[Inputs, Options]]]]:
        """(name, a function that makes the inputs and options)"""
        yield from self.builds(head_dims)
        for d in head_dims:
            yield f"d={d} causal, views of one projection", partial(self._made, self._views, d)
        d = self._main(head_dims)
        yield f"d={d} causal, offset, lengths, shared heads", partial(self._made, self._masked, d)
        yield f"d={d} {self._many_heads:,} heads", partial(self._made, self._many, d)
        yield f"d={d} batches {self._apart:,} numbers apart", partial(self._made, self._far, d)

    def builds(self, head_dims: Sequence[int]) -> Iterator[tuple[str, Callable[[], tuple[Inputs, Options]]]]:
        """Those of all for which kernels are compiled of their own."""
        for d in head_dims:
            yield f"d={d}", partial(self._made, self._plain, d)
        d = self._main(head_dims)
        yield f"d={d} boolean mask, dropout", partial(self._made, self._dropped, d)
        yield f"d={d} bias and its gradient, causal", partial(self._made, self._biased, d)
        yield f"d={d - 14} rows that are not aligned", partial(self._made, self._plain, d - 14)

    def _main(self, head_dims: Sequence[int]) -> int:
        return 64 if 64 in head_dims else head_dims[0]

    def _made(self, make: Callable[[int], tuple[Inputs, Options]], d: int) -> tuple[Inputs, Options]:
        inputs, options = make(d)
        return inputs, options | {"tensor_cores": self._tensor_cores}

    def _normal(self, *shape: int) -> Array:
        return self._cupy.asarray(self._rng.standard_normal(shape, np.float32)).astype(self._dtype)

    def _inputs(self, heads: int, queries: int, keys: int, width: int, key_heads: int | None = None) -> Inputs:
        shape, key_shape = (2, heads, queries, width), (2, key_heads or heads, keys, width)
        return self._normal(*shape), self._normal(*shape), self._normal(*key_shape), self._normal(*key_shape)

    def _plain(self, d: int) -> tuple[Inputs, Options]:
        return self._inputs(2, self._n, self._n * 3 // 4, d), {}

    def _views(self, d: int) -> tuple[Inputs, Options]:
        whole = self._normal(2, self._n, 4, 2, d)  # (B, N, 4, H, d)
        g, q, k, v = (whole[:, :, i].swapaxes(1, 2) for i in range(4))
        return (g, q, k, v), {"is_causal": True}

    def _masked(self, d: int) -> tuple[Inputs, Options]:
        n = self._n
        lengths = self._cupy.asarray(np.array([n // 2, n * 3 // 4], np.int32))
        options = {"is_causal": True, "causal_offset": -n // 4, "key_lengths": lengths}  # the first queries see nothing
        return self._inputs(4, n, n * 3 // 4, d, key_heads=2), options

    def _dropped(self, d: int) -> tuple[Inputs, Options]:
        mask = self._cupy.asarray(self._rng.random((2, 1, self._n, self._n)) < 0.9)
        return self._inputs(2, self._n, self._n, d), {"bias": mask, "dropout_p": 0.2, "dropout_key": (1, 2, 3)}

    def _biased(self, d: int) -> tuple[Inputs, Options]:
        bias = self._cupy.asarray(self._rng.standard_normal((1, 2, self._n, self._n), np.float32))
        return self._inputs(2, self._n, self._n, d), {"bias": bias, "is_causal": True}

    def _many(self, d: int) -> tuple[Inputs, Options]:
        g, q, k, v = (self._normal(self._many_heads, 1, 4, d) for _ in range(4))
        return (g, q, k, v), {}

    def _far(self, d: int) -> tuple[Inputs, Options]:
        needed, free = 2 * self._apart * self._dtype.itemsize, self._gpu.free_bytes()
        if needed > free:
            raise CannotBeTried(f"needs {mebibytes(needed)} of memory, {mebibytes(free)} are free")
        g, q, k, v = self._inputs(1, self._n, self._n, d)
        far = self._cupy.zeros((2, 1, self._apart // d, d), self._dtype)[:, :, : self._n]
        far[...] = q
        return (g, far, k, v), {}


def check(make: Callable[[], tuple[Inputs, Options]]) -> list[Row]:
    """The error of each array over what is allowed, and whether a second call gives the same bits."""
    inputs, options = make()
    results, again = _attention(inputs, options), _attention(inputs, options)
    same = all(x is None or bool((x == y).all()) for x, y in zip(results, again, strict=True))
    shares = _shares_of_error(results, inputs, options)
    cells = [f"{shares[name]:.3f}" if name in shares else "" for name in NAMES]
    return [Row(same and max(shares.values()) <= 1, cells, "" if same else "other bits the second time")]


def _attention(inputs: Inputs, options: Options) -> tuple[Array | None, ...]:
    """The arrays of NAMES, by the kernels."""
    g, q, k, v = inputs
    output, lse = attention_forward(q, k, v, **options)
    return output, *attention_backward(g, q, k, v, output, lse, **options)


def _shares_of_error(results: Sequence[Array | None], inputs: Inputs, options: Options) -> dict[str, float]:
    """By name, the error of each array over what is allowed: twice (gradients: three times) the error of plain
    attention in the same dtype, and never less than 1e-6.
    """
    options = dict(options)
    options.pop("tensor_cores", None)
    if "dropout_p" in options:
        options["kept"] = _kept(inputs, options.pop("dropout_p"), options.pop("dropout_key"))
    exact = attention_by_rows(*inputs, **options)
    plain = attention_by_rows(*inputs, **options, dtype=inputs[1].dtype)
    shares = {}
    for name, found, e, p in zip(NAMES, results, exact, plain, strict=True):
        if found is not None:
            allowed = (2 if name == "output" else 3) * relative_error(p, e)
            shares[name] = relative_error(found, e) / max(1e-6, allowed)
    return shares


def _kept(inputs: Inputs, p: float, key: tuple[int, int, int]) -> Array:
    """(B, H, N_q, N_k), what dropout multiplies weights by: drawn by NumPy."""
    _, query, keys, _ = inputs
    return array_module(query).asarray(dropout_factor((*query.shape[:3], keys.shape[2]), p, key))


# ---- memory ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Attention of one shape (B, H, N, d), as it is measured."""

    dtype: str
    shape: tuple[int, int, int, int]
    is_causal: bool

    @property
    def name(self) -> str:
        batches, heads, n, d = self.shape
        return f"{self.dtype} d={d} N={n} B={batches} H={heads} {'causal' if self.is_causal else 'full'}"

    @property
    def itemsize(self) -> int:
        return dtype_of(self.dtype).itemsize

    @property
    def bytes_of_scores(self) -> int:
        batches, heads, n, _ = self.shape
        return batches * heads * n * n * self.itemsize

    @property
    def options(self) -> Options:
        return {"is_causal": self.is_causal, "tensor_cores": self.dtype == TF32}

    def inputs(self, numbers: Sequence[Array]) -> Inputs:
        g, q, k, v = (x.reshape(self.shape).astype(dtype_of(self.dtype)) for x in numbers)
        return g, q, k, v

    def flops(self, direction: str) -> float:
        """As the papers count: two products forward, five backward, half of them if causal."""
        batches, heads, n, d = self.shape
        return 4 * batches * heads * n * n * d * (2.5 if direction == "backward" else 1) / (2 if self.is_causal else 1)


def normal_numbers(cupy: ModuleType, size: int) -> list[Array]:
    """Four arrays of so many numbers of float32, of which all inputs of cases are made."""
    rng = np.random.default_rng(0)
    return [cupy.asarray(rng.standard_normal(size, np.float32)) for _ in range(4)]


MEMORY_COLUMNS = ("minigrad", "the plan", "flash", "efficient", "math", "scores alone")


def measure_memory(gpu: Gpu, torch: PyTorch | None, case: Case, numbers: Sequence[Array]) -> list[Row]:
    """What forward and backward take beyond their inputs: no more than planned, but for the pool's rounding."""
    inputs = case.inputs(numbers)
    taken = gpu.peak_bytes(lambda: _attention(inputs, case.options))
    plan = memory_plan(case.shape, case.shape, str(dtype_of(case.dtype)))
    planned = sum(array.bytes for array in plan if array.made_by != "caller")
    gpu.free()
    theirs = [_torch_memory(torch, backend, case) for backend in ("flash", "efficient", "math")]
    sizes = (taken, planned, *theirs, case.bytes_of_scores)
    return [Row(taken <= 1.02 * planned + 2**20, list(map(mebibytes, sizes)))]


def _torch_memory(torch: PyTorch | None, backend: str, case: Case) -> int | str | None:
    if torch is None:
        return None

    def work() -> Any:
        _, backward = torch.attention(backend, case.shape, str(dtype_of(case.dtype)), case.is_causal)
        return backward()

    inputs = 4 * int(np.prod(case.shape)) * case.itemsize  # which it makes itself
    try:
        peak = torch.peak_bytes(work)
    except RuntimeError as error:
        return _reason(error, torch)
    return None if peak is None else peak - inputs


def _reason(error: Exception, torch: PyTorch | None) -> str:
    """Why a rival has no number."""
    no_memory = isinstance(error, MemoryError) or (torch is not None and torch.is_out_of_memory(error))
    return NO_MEMORY if no_memory else "-"


# ---- speed -----------------------------------------------------------------------------------------------------------

SPEED_COLUMNS = ("error", "ms", "TFLOP/s", *RIVALS)


@dataclass(frozen=True)
class Speed:
    """TFLOP/s of one case in one direction, by name."""

    case: Case
    direction: str
    by_name: dict[str, float]


def required_speeds(dtype: str, direction: str) -> dict[str, float]:
    """How many times as fast as these the kernels must be."""
    if dtype in ("float32", TF32):
        return {"math": 1.0, CUPY: 1.0}
    return {"flash": 0.75 if direction == "forward" else 0.5, CUPY: 1.0}


class Timing:
    """Times cases, and keeps the speeds. Without `counts` no row fails for being slow."""

    def __init__(self, gpu: Gpu, torch: PyTorch | None, counts: bool) -> None:
        self._gpu, self._torch, self._counts = gpu, torch, counts
        self._of_rivals: dict[tuple[str, Case], dict[str, float] | str] = {}  # seconds, or why there are none
        self.speeds: list[Speed] = []

    def rows(self, case: Case, numbers: Sequence[Array]) -> list[Row]:
        """Forward and backward; `error` is that of the last head, over what is allowed."""
        inputs, options = case.inputs(numbers), case.options
        last = np.s_[-1:, -1:]
        results = [None if x is None else x[last] for x in _attention(inputs, options)]
        g, q, k, v = (x[last] for x in inputs)
        shares = _shares_of_error(results, (g, q, k, v), options)
        errors = {"forward": shares.pop("output"), "backward": max(shares.values())}
        times: dict[str, dict[str, float] | str] = {"minigrad": self._times(_our_attention(inputs, options))}
        del results
        self._gpu.free()
        for name in RIVALS:
            key = name, replace(case, dtype=str(dtype_of(case.dtype)))  # theirs are the same for float32 and 3xTF32
            if key not in self._of_rivals:
                self._of_rivals[key] = self._rival_times(name, case, inputs)
            times[name] = self._of_rivals[key]
        return [self._row(case, direction, errors[direction], times) for direction in DIRECTIONS]

    def _row(self, case: Case, direction: str, error: float, times: dict[str, dict[str, float] | str]) -> Row:
        """Passes if the error is within what is allowed and the kernels are as fast as required."""
        seconds = {name: found[direction] for name, found in times.items() if not isinstance(found, str)}
        speeds = {name: case.flops(direction) / found / 1e12 for name, found in seconds.items()}
        self.speeds.append(Speed(case, direction, speeds))
        ratios, required = {}, required_speeds(case.dtype, direction)
        for name in required:
            if name in speeds:
                ratios[name] = speeds["minigrad"] / speeds[name]
        slow = self._counts and any(ratio < required[name] for name, ratio in ratios.items())
        cells = [f"{error:.3f}", f"{seconds['minigrad'] * 1e3:.4g}"]
        cells += [f"{speeds[name]:.4g}" if name in speeds else str(found) for name, found in times.items()]
        note = ", ".join(f"{ratio:.2f} x {name} (at least {required[name]:g})" for name, ratio in ratios.items())
        return Row(error <= 1 and not slow, cells, note, direction)

    def _times(self, pair: Pair) -> dict[str, float]:
        return dict(zip(DIRECTIONS, map(self._gpu.seconds, pair), strict=True))

    def _rival_times(self, name: str, case: Case, inputs: Inputs) -> dict[str, float] | str:
        """Seconds, or why there are none."""
        if name != CUPY and self._torch is None:
            return "-"
        try:
            if self._torch is None or name == CUPY:
                if SCORES_OF_PLAIN * case.bytes_of_scores > self._gpu.free_bytes():
                    return NO_MEMORY
                return self._times(plain_attention(inputs, case.is_causal))
            dtype = str(dtype_of(case.dtype))
            return self._times(self._torch.attention(name, case.shape, dtype, case.is_causal))
        except (MemoryError, RuntimeError, TypeError, ValueError) as error:  # so they refuse what they do not compute
            print(f"{name}, {case.name}: {error}", file=sys.stderr)
            return _reason(error, self._torch)
        finally:
            self._gpu.free()
            if self._torch is not None:
                self._torch.free()


def _our_attention(inputs: Inputs, options: Options) -> Pair:
    g, q, k, v = inputs
    output, lse = attention_forward(q, k, v, **options)
    return (
        lambda: attention_forward(q, k, v, **options),
        lambda: attention_backward(g, q, k, v, output, lse, **options),
    )
