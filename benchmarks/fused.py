"""Layer norm, cross entropy, GELU and AdamW's step by their kernels: beside float64, and beside array operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import minigrad as mg
import nn.functional as F
from benchmarks.attention import dtype_of
from benchmarks.attention_reference import relative_error
from benchmarks.measuring import Gpu
from benchmarks.report import Row
from benchmarks.rivals import ModelSize
from benchmarks.training_steps import build
from minigrad import Tensor, ops
from minigrad.ops.elementwise import widened
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
    found, again, exact = (_derivatives(function, arrays, dtype) for dtype in (None, None, np.float64))
    allowed = 1e-6 + ROUNDED[dtype]
    value, *gradients = [relative_error(x, e) / allowed for x, e in zip(found, exact, strict=True)]
    same = all(bool((x == y).all()) for x, y in zip(found, again, strict=True))
    seconds = [gpu.seconds(lambda f=f: _derivatives(f, arrays, None)) for f in (function, by_arrays)]
    cells = [f"{value:.3f}", f"{max(gradients):.3f}", *(f"{1000 * s:.3f}" for s in seconds)]
    return [Row(same and max(value, *gradients) <= 1, cells, "" if same else "other bits the second time")]


def _derivatives(function: Callable[..., Tensor], arrays: Sequence[np.ndarray], dtype: Any) -> list[Any]:
    """The value and the gradients of the inputs, as arrays on the GPU, computed in this dtype or the inputs' own."""
    inputs = [Tensor(x if dtype is None else x.astype(dtype), device="cuda", requires_grad=True) for x in arrays]
    value = function(*inputs)
    weights = (np.arange(value.shape[0]) % 7 - 3) / 2  # which every dtype has
    weights = Tensor(weights.astype(value.dtype), device="cuda")
    weights = weights if value.ndim == 1 else weights[:, None]
    return [value.data, *(g.data for g in mg.grad((value * weights).sum(), inputs))]


def check_adamw(gpu: Gpu, size: ModelSize) -> list[Row]:
    """The error of a model's parameters after three steps, and the time of one."""
    found, exact = (_after_steps(size, dtype) for dtype in (np.float32, np.float64))
    group, right = found.param_groups[0], exact.param_groups[0]
    share = relative_error(_vector(group["params"]), _vector(right["params"])) / 1e-6
    seconds = [gpu.seconds(found.step), gpu.seconds(lambda: Optimizer._move_all(found, group["params"], group))]
    return [Row(share <= 1, [f"{share:.3f}", "", *(f"{1000 * s:.3f}" for s in seconds)])]


def _after_steps(size: ModelSize, dtype: Any) -> AdamW:
    model, rng = build(size).to(dtype).to("cuda"), np.random.default_rng(0)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        for parameter in model.parameters():
            gradient = rng.standard_normal(parameter.shape, np.float32)
            parameter.grad = Tensor(gradient.astype(dtype), device="cuda")
        optimizer.step()
    return optimizer


def _vector(parameters: Sequence[Tensor]) -> np.ndarray:
    return np.concatenate([parameter.numpy().ravel() for parameter in parameters])
