"""Gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kernels.parameters import are_taken_together, scale, squared_norm
from minigrad import Tensor
from minigrad.backend import Array, array_module, on_device_of


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
    arrays = [gradient.data for gradient in gradients]
    library, together = array_module(arrays[0]), are_taken_together(arrays)
    with np.errstate(all="ignore"), on_device_of(arrays[0]):  # the norm that is returned tells of an overflow
        norm = library.sqrt(squared_norm(arrays) if together else sum(map(_squared_norm, arrays)))
        factor = library.minimum(float(max_norm) / (norm + 1e-6), 1.0)  # 1e-6 as in PyTorch
        if together:
            scale(arrays, factor)
        else:
            for array in arrays:
                array *= factor
    for gradient in gradients:
        gradient._written()
    return Tensor(norm, device=gradients[0].device)


def _squared_norm(array: Array) -> Array:
    wide = array.astype(np.promote_types(array.dtype, np.float32), copy=False)  # squares soon leave float16's range
    return array_module(wide).vdot(wide, wide)
