"""Layer norm, cross entropy, GELU, dropout and AdamW's step by kernels: beside float64, and beside array operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import minigrad as mg
import nn.functional as F
from benchmarks.on_gpu.attention import dtype_of
from benchmarks.on_gpu.attention_reference import relative_error
from benchmarks.on_gpu.measuring import Gpu
from benchmarks.on_gpu.report import Row
from benchmarks.on_gpu.rivals import ModelSize
from benchmarks.on_gpu.training_steps import build
from kernels.dropout import element_factor
from minigrad import Tensor, ops
from minigrad.ops.elementwise import widened
from nn.common import dropout_mask
from nn.losses import fused_cross_entropy
from nn.optim import AdamW
from nn.optim.optimizer import Optimizer

COLUMNS = ("value", "gradients", "ms", "arrays' ms")
ROUNDED = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # what rounding once costs at most


def _ids(x: Tensor) -> Tensor:
    return Tensor(np.arange(x.shape[0]) % x.shape[1], device=x.device)


# By name: the function as it is used, by array operations, and how many inputs (n,) it has beside x (M, n).
FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], int]] = {
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, x.shape[1], w, b),
        lambda x, w, b: F.fused_layer_norm(widened(x), widened(w), widened(b), axes=1, eps=1e-5),
        2,
    ),
    "cross entropy": (
        lambda x: F.cross_entropy(x, _ids(x), label_smoothing=0.1, reduction="none"),
        lambda x: fused_cross_entropy(widened(x), _ids(x), ignore_index=-100, label_smoothing=0.1),
        0,
    ),
    "GELU": (F.gelu, ops.gelu, 0),
}


def check(gpu: Gpu, name: str, dtype: str, shape: tuple[int, int]) -> list[Row]:
    """The error of the value and of the worst gradient over what is allowed; time of forward and backward."""
    function, by_arrays, more = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, np.float32).astype(dtype_of(dtype)) for s in (shape, *[shape[1:]] * more)]
    inputs = _on_gpu(arrays)
    found, again = (_derivatives(function, inputs) for _ in range(2))
    exact = _derivatives(function, _on_gpu([x.astype(np.float64) for x in arrays]))
    times = [gpu.seconds(lambda f=f: _derivatives(f, inputs)) for f in (function, by_arrays)]
    return [_row(dtype, found, again, exact, times)]


def check_dropout(gpu: Gpu, dtype: str, shape: tuple[int, int]) -> list[Row]:
    """The same of dropout; the error is that of the first rows, since NumPy takes its time to draw the mask."""
    p, key, rows = 0.1, (1, 2, 3), min(shape[0], 256)
    x = np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype_of(dtype))
    inputs = _on_gpu([x])

    def function(x: Tensor) -> Tensor:
        return F.kernel_dropout(x, p=p, key=key)

    def by_arrays(x: Tensor) -> Tensor:
        return ops.multiply(x, dropout_mask(x, x.shape, p))

    found, again = (_derivatives(function, inputs) for _ in range(2))
    factor = element_factor((rows, shape[1]), p, key)
    exact = [gpu.cupy.asarray(e) for e in (x[:rows] * factor, _weights(rows)[:, None] * factor)]
    times = [gpu.seconds(lambda f=f: _derivatives(f, inputs)) for f in (function, by_arrays)]
    return [_row(dtype, [x[:rows] for x in found], [x[:rows] for x in again], exact, times)]


def _row(dtype: str, found: Sequence[Any], again: Sequence[Any], exact: Sequence[Any], seconds: Sequence[float]) -> Row:
    allowed = 1e-6 + ROUNDED[dtype]
    value, *gradients = [relative_error(x, e) / allowed for x, e in zip(found, exact, strict=True)]
    same = all(bool((x == y).all()) for x, y in zip(found, again, strict=True))
    cells = [f"{value:.3f}", f"{max(gradients):.3f}", *(f"{1000 * s:.3f}" for s in seconds)]
    return Row(same and max(value, *gradients) <= 1, cells, "" if same else "other bits the second time")


def _on_gpu(arrays: Sequence[np.ndarray]) -> list[Tensor]:
    return [Tensor(x, device="cuda", requires_grad=True) for x in arrays]


def _derivatives(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Any]:
    """The value and the gradients of the inputs, as arrays on the GPU."""
    value = function(*inputs)
    weights = Tensor(_weights(value.shape[0]).astype(value.dtype), device="cuda")
    weights = weights if value.ndim == 1 else weights[:, None]
    return [value.data, *(g.data for g in mg.grad((value * weights).sum(), inputs))]


def _weights(rows: int) -> np.ndarray:
    """By what the rows of a value are multiplied before it is summed: numbers that every dtype has."""
    return (np.arange(rows) % 7 - 3) / 2


def check_adamw(gpu: Gpu, size: ModelSize) -> list[Row]:
    """The error of a model's parameters after three steps, and the time of one."""
    found, exact = (_after_steps(size, dtype) for dtype in (np.float32, np.float64))
    group, right = found.param_groups[0], exact.param_groups[0]
    share = relative_error(_vector(group["params"]), _vector(right["params"])) / 1e-6
    seconds = [gpu.seconds(found.step), gpu.seconds(lambda: Optimizer._move_all(found, group["params"], group, []))]
    return [Row(share <= 1, [f"{share:.3f}", "", *(f"{1000 * s:.3f}" for s in seconds)])]


def _after_steps(size: ModelSize, dtype: Any) -> AdamW:
    model = build(size).to(dtype).to("cuda")
    parameters = list(model.parameters())
    optimizer = AdamW(parameters, lr=1e-2)
    largest = max(parameter.numel() for parameter in parameters)
    for step in range(3):
        numbers = np.random.default_rng(step).standard_normal(largest, np.float32).astype(dtype)
        for parameter in parameters:
            parameter.grad = Tensor(numbers[: parameter.numel()].reshape(parameter.shape), device="cuda")
        optimizer.step()
    return optimizer


def _vector(parameters: Sequence[Tensor]) -> np.ndarray:
    return np.concatenate([parameter.numpy().ravel() for parameter in parameters])
