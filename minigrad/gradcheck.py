"""gradcheck: pullbacks held against finite differences, in float64 and random directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.autograd import grad
from minigrad.backend import array_module, device_of, is_array, to_device
from minigrad.dtypes import is_floating
from minigrad.grad_mode import enable_grad
from minigrad.tensor import Tensor


class GradcheckError(AssertionError):
    """A gradient that differs from the finite difference."""


@enable_grad()
def gradcheck(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    order: int = 1,
    eps: float = 1e-6,
    tolerance: float = 1e-6,
    directions: int = 2,
    seed: int = 0,
) -> bool:
    """Check the gradients of `fn(*inputs)`, and the gradients of these up to `order`, against central differences.

    With random weights v of the outputs and a random direction u in each input, the two sides are
    vᵀ (f(x + eps u) - f(x - eps u)) / (2 eps) and (Jᵀv)·u. A random v sees what a plain sum hides: the gradient of a
    softmax's sum is zero. Away from kinks only: a difference across one has no meaning.

    Args:
        fn: of Tensors, returning a Tensor or a tuple of them; called several times, so it must draw nothing at random.
        inputs: arrays, Tensors or numbers; floating ones are taken in float64 and checked, others passed as they are.
        order: 2 checks gradients of gradients as well.
        eps: the step of the difference.
        tolerance: allowed |a - b| relative to max(1, |a|, |b|).
        directions: how many random directions for each input.

    Returns True. Raises GradcheckError naming the input, both numbers, the shapes and the order; ValueError if there is
    nothing to check.
    """
    plain = [x.data if isinstance(x, Tensor) else x for x in inputs]
    values = [np.array(to_device(x, "cpu") if is_array(x) else x) for x in plain]
    checked = [place for place, value in enumerate(values) if is_floating(value.dtype)]
    if not checked:
        raise ValueError("gradcheck: none of the inputs is floating point, so there is no gradient to check")
    devices = [
        device_of(x) if isinstance(inputs[place], Tensor) or array_module(x) is not np else None
        for place, x in enumerate(plain)
    ]
    rng = np.random.default_rng(seed)

    def tensors_of(arrays: Sequence[Any], requires_grad: bool) -> list[Any]:
        return [
            Tensor(array, requires_grad, np.float64, devices[place]) if place in checked else inputs[place]
            for place, array in enumerate(arrays)
        ]

    tensors = tensors_of(values, True)
    sources = [tensors[place] for place in checked]
    outputs = _floating_outputs(fn, tensors)
    if not outputs:
        raise ValueError(f"gradcheck: no output of {_name(fn)} is floating point, so there is no gradient to check")
    weights = [np.asarray(rng.standard_normal(y.shape)) for y in outputs]
    walks = [_gradients(outputs, sources, weights, create_graph=False)]
    if order > 1:  # the walk that the next order goes on from: by a fused operation's reference, not its own pullback
        walks.append(_gradients(outputs, sources, weights, create_graph=True))
    for place, *gradients in zip(checked, *walks, strict=True):
        for _ in range(directions):
            direction = rng.standard_normal(values[place].shape)
            ends = []
            for step in (eps, -eps):
                moved = list(values)
                moved[place] = values[place].astype(np.float64) + step * direction
                shifted = _floating_outputs(fn, tensors_of(moved, False))
                ends.append(sum(float(np.sum(w * y.numpy())) for w, y in zip(weights, shifted, strict=True)))
            expected = (ends[0] - ends[1]) / (2 * eps)
            for gradient in gradients:
                found = 0.0 if gradient is None else float(np.sum(gradient.numpy() * direction))
                if not abs(found - expected) <= tolerance * max(1.0, abs(expected), abs(found)):
                    shapes = ", ".join(str(v.shape) for v in values)
                    raise GradcheckError(
                        f"gradcheck of {_name(fn)}, inputs of shapes {shapes}: along a random direction of input "
                        f"{place} its pullback gives {found:.9g}, finite differences {expected:.9g}"
                    )
    if order > 1:

        def gradient_of(*arguments: Any) -> tuple[Tensor, ...]:
            """The gradients as a function of the inputs and of the outputs' weights."""
            given = [
                Tensor(x, requires_grad=True) if place in checked and not x.requires_grad else x
                for place, x in enumerate(arguments[: len(inputs)])
            ]
            seeds = arguments[len(inputs) :]
            sources = [given[place] for place in checked]
            found = _gradients(_floating_outputs(fn, given), sources, seeds, create_graph=True)
            return tuple(x * 0.0 if g is None else g for x, g in zip(sources, found, strict=True))

        gradient_of.__name__ = f"the gradient of {_name(fn)}"
        arguments = [*inputs, *[Tensor(w, device=y.device) for w, y in zip(weights, outputs, strict=True)]]
        gradcheck(
            gradient_of, arguments, order=order - 1, eps=eps, tolerance=tolerance, directions=directions, seed=seed + 1
        )
    return True


def _floating_outputs(fn: Callable[..., Any], arguments: Sequence[Any]) -> list[Tensor]:
    outputs = fn(*arguments)
    return [y for y in (outputs if isinstance(outputs, (tuple, list)) else (outputs,)) if is_floating(y.dtype)]


def _gradients(outputs: list[Tensor], sources: list[Tensor], weights: Sequence[Any], create_graph: bool) -> Any:
    """The gradients of the outputs' weighted sum; an output that no gradient reaches counts as a constant."""
    reached = [(y, w) for y, w in zip(outputs, weights, strict=True) if y.requires_grad]
    ends, seeds = [y for y, _ in reached], [w for _, w in reached]
    return grad(ends, sources, seeds, retain_graph=True, create_graph=create_graph, allow_unused=True)


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
