"""Gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from minigrad import Tensor
from minigrad.backend import Array, array_module


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
    library = array_module(gradients[0].data)
    with np.errstate(all="ignore"):  # the norm that is returned tells of an overflow
        norm = library.sqrt(sum(_squared_norm(gradient.data) for gradient in gradients))
        scale = library.minimum(float(max_norm) / (norm + 1e-6), 1.0)  # 1e-6 as in PyTorch
        for gradient in gradients:
            array = gradient.data
            array *= scale
            gradient._written()
    return Tensor(norm, device=gradients[0].device)


def _squared_norm(array: Array) -> Array:
    wide = array.astype(np.promote_types(array.dtype, np.float32), copy=False)  # squares soon leave float16's range
    return array_module(wide).vdot(wide, wide)
