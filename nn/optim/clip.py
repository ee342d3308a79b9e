"""Gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kernels.parameters import are_taken_together, scale, squared_norm
from minigrad import Tensor
from minigrad.backend import Array, array_module, device_of, on_device_of, to_device
from minigrad.memory import written


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients, in place, so that their common norm is at most `max_norm` (Pascanu et al. 2013, algorithm
    1).

    Args:
        parameters: those without a gradient are passed over.
        max_norm: the longest allowed Euclidean norm of all gradients taken as one vector, 0 or more.

    Returns:
        The norm before, a 0-d Tensor; 0 if there is no gradient. If it is infinite or NaN, the gradients are of no use
        afterwards (0 or NaN), as in PyTorch: look at it before the step. Raises ValueError for a negative max_norm.
    """
    if not max_norm >= 0:
        raise ValueError(f"clip_grad_norm_: max_norm must be 0 or more, got {max_norm}")
    tensors = [parameters] if isinstance(parameters, Tensor) else parameters
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    if not gradients:
        return Tensor(0.0)
    device, groups = gradients[0].device, by_device([gradient.data for gradient in gradients])
    library = array_module(gradients[0].data)
    with np.errstate(all="ignore"):  # the norm that is returned tells of an overflow
        squares = [to_device(_squared_norm(arrays), device) for arrays in groups]
        with on_device_of(gradients[0].data):
            norm = library.sqrt(sum(squares))
            factor = library.minimum(float(max_norm) / (norm + 1e-6), 1.0)  # 1e-6 as in PyTorch
        for arrays in groups:
            _scale(arrays, to_device(factor, device_of(arrays[0])))
    written([gradient.memory for gradient in gradients])
    return Tensor(norm, device=device)


def by_device(arrays: Iterable[Array]) -> list[list[Array]]:
    """The arrays of each device, in one list each."""
    groups: dict[str, list[Array]] = {}
    for array in arrays:
        groups.setdefault(device_of(array), []).append(array)
    return list(groups.values())


def _scale(arrays: list[Array], factor: Array) -> None:
    """Multiply arrays of one device in place."""
    with on_device_of(arrays[0]):
        if are_taken_together(arrays):
            scale(arrays, factor.astype(np.float32, copy=False))
        else:
            for array in arrays:
                array *= factor


def _squared_norm(arrays: list[Array]) -> Array:
    """Σ x² over all elements of arrays of one device, an array without axes."""
    with on_device_of(arrays[0]):
        if are_taken_together(arrays):
            return squared_norm(arrays)
        return array_module(arrays[0]).asarray(sum(map(_squared_norm_of, arrays)))


def _squared_norm_of(array: Array) -> Array:
    wide = array.astype(np.promote_types(array.dtype, np.float32), copy=False)  # squares soon leave float16's range
    return array_module(wide).vdot(wide, wide)
