"""Derivatives of a whole function: vjp, jvp, jacobian, hessian, hvp, vhp, as in `torch.autograd.functional`.

All of them are calls of `grad()`; how gradients flow is in `minigrad.autograd`. They share these arguments:

    func: takes one Tensor an input, and returns a Tensor or a tuple of Tensors, its outputs.
    inputs: a floating-point Tensor or array, or a tuple of them. They need not require grad, and no `.grad` is touched.
        func is given aliases of them, so each place is an input of its own, even if one tensor stands in two places.
    v: a tensor or array, or a tuple of them, of the shapes that each transform names. For a single element it may be
        left out: it is 1 then.
    create_graph: make the results differentiable with respect to the inputs and to v, where these require grad.

Results are single tensors where a single tensor was given or returned, tuples where a tuple was. What does not depend
on an input has the derivative 0. Below, y = func(x), and J = dy/dx is the Jacobian, of shape (*y.shape, *x.shape).

All raise TypeError for inputs or outputs that are no tensors and for inputs that are not floating-point, RuntimeError
for a v that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minigrad import ops
from minigrad.autograd import grad
from minigrad.backend import is_array
from minigrad.dtypes import is_floating
from minigrad.factories import zeros, zeros_like
from minigrad.grad_mode import enable_grad
from minigrad.promotion import get_default_dtype
from minigrad.tensor import Tensor

Tensors = tuple[Tensor, ...]

# ---- first derivatives -----------------------------------------------------------------------------------------------


def vjp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Any, Any]:
    """(y, vᵀJ): the gradient of the outputs weighted by v. v has the outputs' shapes, vᵀJ the inputs'.

    One walk back, whatever the sizes: reverse mode.
    """
    with enable_grad():
        points = _points("vjp", inputs, create_graph)
        outputs, result = _outputs("vjp", func, points)
        weights = _vectors("vjp", v, outputs, "output")
        found = _pulled_back(outputs, points, weights, create_graph)
    return _like(result, _finished(outputs, create_graph)), _like(inputs, found)


def jvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Any, Any]:
    """(y, Jv): how the outputs change when the inputs move along v. v has the inputs' shapes, Jv the outputs'.

    Two walks back, whatever the sizes: w ↦ wᵀJ is linear, so the gradient of (wᵀJ)v with respect to the dummy w is Jv
    (Townsend 2017, "A new trick for calculating Jacobian vector products").
    """
    with enable_grad():
        points = _points("jvp", inputs, create_graph)
        outputs, result = _outputs("jvp", func, points)
        vectors = _vectors("jvp", v, points, "input")
        found = _pushed_forward(outputs, points, vectors, create_graph)
    return _like(result, _finished(outputs, create_graph)), _like(result, found)


def jacobian(func: Callable[..., Any], inputs: Any, create_graph: bool = False) -> Any:
    """J, (*y.shape, *x.shape): a walk back for each element of y.

    With several outputs a tuple of what one gives; what one gives is, with several inputs, a tuple: J[output][input].
    """
    with enable_grad():
        points = _points("jacobian", inputs, create_graph)
        outputs, result = _outputs("jacobian", func, points)
        found = [_rows(output, points, create_graph) for output in outputs]
    return _like(result, tuple(_like(inputs, row) for row in found))


# ---- second derivatives of a single number ---------------------------------------------------------------------------


def hessian(func: Callable[..., Any], inputs: Any, create_graph: bool = False) -> Any:
    """H = d²y/dx², (*x.shape, *x.shape), of a func with one element: the Jacobian of the gradient.

    With several inputs a tuple of tuples: H[i][j], (*x_i.shape, *x_j.shape), is d²y / dx_i dx_j. RuntimeError for a
    func whose output has more than one element; so in `hvp` and `vhp`.
    """
    with enable_grad():
        points = _points("hessian", inputs, create_graph)
        _, gradients = _gradients("hessian", func, points)
        found = [_rows(gradient, points, create_graph) for gradient in gradients]
    return _like(inputs, tuple(_like(inputs, row) for row in found))


def hvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Any, Any]:
    """(y, Hv) of a func with one element: how its gradient changes along v; v and Hv have the inputs' shapes.

    The `jvp` of the gradient, three walks in all; H itself is never made (Pearlmutter 1994, "Fast exact multiplication
    by the Hessian"). Where func is twice continuously differentiable, H is symmetric and `vhp` gives the same in two.
    """
    with enable_grad():
        points = _points("hvp", inputs, create_graph)
        output, gradients = _gradients("hvp", func, points)
        vectors = _vectors("hvp", v, points, "input")
        found = _pushed_forward(gradients, points, vectors, create_graph)
    return _finished(output, create_graph)[0], _like(inputs, found)


def vhp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Any, Any]:
    """(y, vᵀH) of a func with one element: the gradient of vᵀ dy/dx; v and vᵀH have the inputs' shapes."""
    with enable_grad():
        points = _points("vhp", inputs, create_graph)
        output, gradients = _gradients("vhp", func, points)
        weights = _vectors("vhp", v, points, "input")
        found = _pulled_back(gradients, points, weights, create_graph)
    return _finished(output, create_graph)[0], _like(inputs, found)


# ---- what they are made of -------------------------------------------------------------------------------------------


def _pulled_back(outputs: Tensors, points: Tensors, weights: Sequence[Any], create_graph: bool) -> Tensors:
    """For each point its part of wᵀJ. The graph is kept: it goes when its outputs do."""
    reached = [(y, w) for y, w in zip(outputs, weights, strict=True) if y.requires_grad]
    found = grad(
        [y for y, _ in reached],
        points,
        [w for _, w in reached],
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    return tuple(zeros_like(x) if g is None else g for x, g in zip(points, found, strict=True))


def _pushed_forward(outputs: Tensors, points: Tensors, vectors: Sequence[Any], create_graph: bool) -> Tensors:
    """For each output its part of Jv, through a dummy w."""
    dummies = tuple(
        zeros_like(y, dtype=y.dtype if is_floating(y.dtype) else get_default_dtype(), requires_grad=True)
        for y in outputs
    )
    linear = _pulled_back(outputs, points, dummies, create_graph=True)
    return _pulled_back(linear, dummies, vectors, create_graph)


def _rows(output: Tensor, points: Tensors, create_graph: bool) -> Tensors:
    """For each point the derivatives of all elements of the output, (*output.shape, *point.shape)."""
    elements = output.reshape(-1)
    rows = [_pulled_back((elements[n],), points, [None], create_graph) for n in range(elements.numel())]
    if not rows:
        return tuple(zeros(output.shape + x.shape, dtype=x.dtype, device=x.device) for x in points)
    return tuple(
        ops.reshape(ops.stack(column), output.shape + x.shape)
        for x, column in zip(points, zip(*rows, strict=True), strict=True)
    )


def _gradients(name: str, func: Callable[..., Any], points: Tensors) -> tuple[Tensors, Tensors]:
    """func's only output, of one element, and its gradient with a graph."""
    outputs, _ = _outputs(name, func, points)
    if len(outputs) != 1 or outputs[0].numel() != 1:
        shapes = ", ".join(str(y.shape) for y in outputs)
        raise RuntimeError(
            f"{name}: func must return one tensor with one element, got shape {shapes}; take .sum() or .mean()"
        )
    return outputs, _pulled_back(outputs, points, [None], create_graph=True)


# ---- what is given, and given back -----------------------------------------------------------------------------------


def _points(name: str, inputs: Any, create_graph: bool) -> Tensors:
    """What func is called with: leaves with the inputs' values, or aliases, through which gradients reach these."""
    points = []
    for place, x in enumerate(inputs if isinstance(inputs, tuple) else (inputs,)):
        if not isinstance(x, Tensor) and not is_array(x):
            raise TypeError(
                f"{name}: inputs must be a Tensor, an array or a tuple of them; input {place} is {type(x).__name__}"
            )
        x = x if isinstance(x, Tensor) else Tensor(x)
        if not is_floating(x.dtype):
            raise TypeError(
                f"{name}: input {place} is {x.dtype}, which has no derivative; make it floating-point, or leave it out "
                "of the inputs and let func refer to it"
            )
        points.append(ops.alias(x) if create_graph and x.requires_grad else x.detach().requires_grad_())
    return tuple(points)


def _outputs(name: str, func: Callable[..., Any], points: Tensors) -> tuple[Tensors, Any]:
    """What func returns, as a tuple and as it is."""
    result = func(*points)
    outputs = result if isinstance(result, tuple) else (result,)
    for place, y in enumerate(outputs):
        if not isinstance(y, Tensor):
            raise TypeError(
                f"{name}: func must return a Tensor or a tuple of Tensors; its output {place} is {type(y).__name__}"
            )
    return outputs, result


def _vectors(name: str, v: Any, others: Tensors, what: str) -> Sequence[Any]:
    """v as a tuple that fits the others; None stands for 1."""
    if v is None:
        if len(others) != 1 or others[0].numel() != 1:
            raise RuntimeError(f"{name}: give v, of the {what}'s shape; only a single element has a v by default")
        return [None]
    vectors = v if isinstance(v, tuple) else (v,)
    if len(vectors) != len(others):
        raise RuntimeError(f"{name}: v must be {len(others)} tensors, one an {what}; got {len(vectors)}")
    for place, (vector, other) in enumerate(zip(vectors, others, strict=True)):
        if not isinstance(vector, Tensor) and not is_array(vector):
            raise TypeError(f"{name}: v must be a Tensor, an array or a tuple of them, got {type(vector).__name__}")
        if vector.shape != other.shape:
            raise RuntimeError(f"{name}: v has shape {vector.shape}, {what} {place} {other.shape}; they must be equal")
    return vectors


def _finished(outputs: Tensors, create_graph: bool) -> Tensors:
    return outputs if create_graph else tuple(y.detach() for y in outputs)


def _like(model: Any, values: Tensors) -> Any:
    """The values as a tuple if `model` is one, else the only value."""
    return values if isinstance(model, tuple) else values[0]
