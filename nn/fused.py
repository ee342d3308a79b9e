"""Layer norm, root mean square norm and GELU as one operation each, in few passes over memory.

Each stands after the plain composition that it equals, which is its reference. Here are no checks: they are in
`nn.functional`, from which these are called. Fused attention is in `nn.fused_room`, fused cross entropy in `nn.losses`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.fused import gelu_backward, gelu_forward, layer_norm_backward, layer_norm_forward
from minigrad import op, ops, special
from minigrad.backend import array_module
from minigrad.bfloat import takes_bfloat16
from minigrad.dividing import divide, is_worth_dividing
from minigrad.grad_mode import is_grad_enabled
from minigrad.ops.elementwise import narrowed, widened
from minigrad.sums import ones_like_row, row_dots, row_means, sum_of_rows

# Nanoseconds for each number, roughly, with AVX-512. A norm's passes are so short that two threads often wait for each
# other's Python between them: it counts for half, so that it is divided from where that was measured to pay.
NS_OF_A_NORM, NS_OF_GELU, NS_OF_A_PASS = 0.6, 1.8, 0.3
LONG_ROW = 256  # numbers: the mean of more, by BLAS, is so far off that what is left of it is subtracted once more
AT_ONCE = 1 << 18  # numbers that many passes go over in turn, so that they stay in the cache


def _in_parts(work: Callable[..., Any], nanoseconds: float, *arrays: Any) -> list[Any]:
    """What work(*arrays) returns; or, where that is worth it, what it returns for each part of their rows at once.

    Those are in the order of the rows, whichever was ready first. A row takes so many nanoseconds, roughly.
    """
    rows = len(arrays[0])
    if not is_worth_dividing(rows * nanoseconds):
        return [work(*arrays)]
    found = {}

    def part(start: int, stop: int) -> None:
        found[start] = work(*[array[start:stop] for array in arrays])

    divide(arrays[0], rows, nanoseconds, part)
    return [found[start] for start in sorted(found)]


# ---- layer norm ------------------------------------------------------------------------------------------------------


def plain_layer_norm(x: Any, weight: Any, bias: Any, *, axes: int, eps: float) -> Any:
    """The definition, as a composition of operations: (x - mean) / √(variance + eps) * weight + bias."""
    axis, wide = tuple(range(-axes, 0)), widened(x)
    away = wide - ops.mean(wide, axis=axis, keepdims=True)
    variance = ops.mean(away * away, axis=axis, keepdims=True)
    y = away / ops.sqrt(variance + eps)
    y = y if weight is None else y * weight
    return narrowed(y if bias is None else y + bias, x.dtype)


@op(reference=plain_layer_norm, floating=True, optional=["weight", "bias"])
def fused_layer_norm(x: Any, weight: Any, bias: Any, *, axes: int, eps: float) -> Any:
    """The same in few passes: see `normed`."""
    return normed(x, weight, bias, axes, eps, centred=True)


@takes_bfloat16
@op(reference=plain_layer_norm, floating=True, optional=["weight", "bias"])
def kernel_layer_norm(x: Any, weight: Any, bias: Any, *, axes: int, eps: float) -> Any:
    """The same by kernels, for arrays on a GPU; the gradients' formulas are at `kernels.layer_norm_backward`."""
    n = math.prod(x.shape[x.ndim - axes :])
    rows = (math.prod(x.shape[: x.ndim - axes]), n)  # (M, n)
    w, b = [None if values is None else values.reshape(n) for values in (weight, bias)]
    x_rows, shape, has_bias = x.reshape(rows), x.shape, bias is not None
    y, mean, inverse = layer_norm_forward(x_rows, w, b, eps=eps)

    def pullback(g: Any) -> tuple[Any, Any, Any]:
        d_x, d_w, d_b = layer_norm_backward(g.reshape(rows), x_rows, w, mean, inverse, has_bias=has_bias)
        d_w, d_b = [None if d is None else d.reshape(shape[-axes:]) for d in (d_w, d_b)]
        return d_x.reshape(shape), d_w, d_b

    return y.reshape(shape), pullback


# ---- root mean square norm -------------------------------------------------------------------------------------------


def plain_rms_norm(x: Any, weight: Any, *, axes: int, eps: float) -> Any:
    """The definition, as a composition of operations: x / √(mean x² + eps) * weight."""
    y = x / ops.sqrt(ops.mean(x * x, axis=tuple(range(-axes, 0)), keepdims=True) + eps)
    return y if weight is None else y * weight


@op(reference=plain_rms_norm, floating=True, optional=["weight"])
def fused_rms_norm(x: Any, weight: Any, *, axes: int, eps: float) -> Any:
    """The same in few passes: see `normed`."""
    value, pullback = normed(x, weight, None, axes, eps, centred=False)
    return value, lambda g: pullback(g)[:2]


# ---- both norms ------------------------------------------------------------------------------------------------------


def normed(x: Any, weight: Any, bias: Any, axes: int, eps: float, *, centred: bool) -> tuple[Any, Any]:
    """`normed_rows` over so many last axes of x, which are those of weight and bias."""
    if x.ndim == 2 and axes == 1 and x.size:
        return normed_rows(x, weight, bias, eps, centred=centred)
    shape, affine = x.shape, x.shape[-axes:]
    n = math.prod(affine)
    rows = x.size // (n or 1), n  # of length 0 there are none
    w, b = [None if values is None else values.reshape(-1) for values in (weight, bias)]
    y, pullback_of_rows = normed_rows(x.reshape(rows), w, b, eps, centred=centred)

    def pullback(g: Any) -> tuple[Any, Any, Any]:
        d_x, d_w, d_b = pullback_of_rows(g.reshape(rows))
        if axes > 1:  # a view would be copied once more before it becomes a leaf's gradient
            d_w, d_b = [None if d is None else d.reshape(affine) for d in (d_w, d_b)]
        return d_x.reshape(shape), d_w, d_b

    return y.reshape(shape), pullback


def normed_rows(x: Any, weight: Any, bias: Any, eps: float, *, centred: bool) -> tuple[Any, Any]:
    """(value, pullback) of rows a, which are those of x (m, n), less their means if `centred`: y = a r w + b.

    weight and bias are (n,) or None; r = 1 / rms a. With ĝ = g w: ∂x = r (ĝ - mean ĝ) - a r³ mean(ĝ a), without
    mean ĝ if not centred; ∂w = Σ r g a and ∂b = Σ g, over the rows. Sums, and the matrix of all r w, are products by
    BLAS, NumPy's fastest way. A matrix beside a number for each row is its slowest: so these are written into a matrix
    first.
    """
    library, n = array_module(x), x.shape[1]
    count = n or 1
    w = ones_like_row(x, n) if weight is None else weight
    y, inverse = library.empty(x.shape, x.dtype), library.empty(len(x), x.dtype)  # inverse: r
    away = library.empty(x.shape, x.dtype) if centred else x  # a

    def forward(x: Any, away: Any, inverse: Any, y: Any) -> None:
        if centred:
            away[...] = row_means(x)[:, None]
            library.subtract(x, away, out=away)
            if n > LONG_ROW:
                away -= row_means(away)[:, None]
        root = row_dots(away, away)
        root += eps * count
        library.sqrt(root, out=root)
        library.divide(math.sqrt(count), root, out=inverse)
        _outer(inverse, w, out=y)
        y *= away
        if bias is not None:
            y += bias

    _in_parts(forward, NS_OF_A_NORM * n, x, away, inverse, y)
    has_weight, has_bias = weight is not None, bias is not None

    def pullback(g: Any) -> tuple[Any, Any, Any]:
        d_x, w_of_mean = library.empty(g.shape, g.dtype), w * (1.0 / count)

        def backward(g: Any, away: Any, inverse: Any, d_x: Any) -> tuple[Any, Any]:
            product = g * away
            of_product = product.dot(w_of_mean)
            for _ in range(3):
                of_product *= inverse
            d_w = inverse.dot(product) if has_weight else None
            d_b = sum_of_rows(g) if has_bias else None
            _outer(inverse, w, out=d_x)
            d_x *= g
            if centred:
                mean = g.dot(w_of_mean)
                mean *= inverse
                product[...] = mean[:, None]
                d_x -= product
            product[...] = of_product[:, None]
            product *= away
            d_x -= product
            return d_w, d_b

        (d_w, d_b), *more = _in_parts(backward, NS_OF_A_NORM * n, g, away, inverse, d_x)
        for more_w, more_b in more:
            d_w, d_b = d_w + more_w if has_weight else None, d_b + more_b if has_bias else None
        return d_x, d_w, d_b

    return y, pullback


def _outer(x: Any, y: Any, *, out: Any) -> None:
    """Writes x_i y_j, as a product of matrices: for short rows in half of the time that `multiply` takes."""
    x[:, None].dot(y[None, :], out=out)


# ---- gelu ------------------------------------------------------------------------------------------------------------


@op(reference=ops.gelu)
def fused_gelu(x: Any, *, approximate: str) -> Any:
    """`minigrad.ops.gelu` of float32 or float64; keeps one array, its derivative, and only if there will be a walk."""
    value, slope = gelu_and_slope(x, approximate, is_grad_enabled())
    return value, lambda g: times_slope(g, slope, array_module(g).empty(g.shape, g.dtype))


def gelu_and_slope(x: Any, approximate: str, with_slope: bool) -> tuple[Any, Any]:
    """GELU of an array, and its derivative, or None."""
    compute = _gelu if approximate == "none" else _gelu_by_tanh
    library = array_module(x)
    value = library.empty(x.shape, x.dtype)
    slope = library.empty(x.shape, x.dtype) if with_slope else None
    arrays = (x, value) if slope is None else (x, value, slope)

    def in_blocks(*arrays: Any) -> None:
        for first in range(0, arrays[0].size, AT_ONCE):
            compute(*[array[first : first + AT_ONCE] for array in arrays])

    with np.errstate(over="ignore", under="ignore"):  # exponentials of x far from 0, squares
        if x.size <= AT_ONCE and not is_worth_dividing(NS_OF_GELU * x.size):
            compute(*arrays)
        else:
            _in_parts(in_blocks, NS_OF_GELU, *[array.reshape(-1) for array in arrays])
    return value, slope


def times_slope(g: Any, slope: Any, out: Any) -> Any:
    """Writes g * slope to `out`, which may be g, and returns it."""
    library = array_module(g)
    if is_worth_dividing(NS_OF_A_PASS * g.size):
        _in_parts(library.multiply, NS_OF_A_PASS, *[array.reshape(-1) for array in (g, slope, out)])
    else:
        library.multiply(g, slope, out)
    return out


def _gelu(x: Any, value: Any, slope: Any = None) -> None:
    """Writes x Φ(x), and its derivative Φ + x Φ' if that is given."""
    library = array_module(x)
    phi = special.erf(x * math.sqrt(0.5))
    phi += 1.0
    phi *= 0.5
    library.multiply(x, phi, out=value)
    if slope is None:
        return
    library.multiply(x, x, out=slope)
    slope *= -0.5
    library.exp(slope, out=slope)
    slope *= x
    slope *= 1.0 / math.sqrt(2.0 * math.pi)
    slope += phi


_A = 2.0 * math.sqrt(2.0 / math.pi)
_B = 0.044715 * _A


@functools.lru_cache(maxsize=8)
def _without_axes(dtype: np.dtype, *numbers: float) -> list[np.ndarray]:
    """The numbers as arrays without axes, only to be read: NumPy begins sooner with those than with Python's own."""
    return [np.array(number, dtype) for number in numbers]


def _gelu_by_tanh(x: Any, value: Any, slope: Any = None) -> None:
    """Writes x σ(2u) with 2u = a x + b x³, as (1 + tanh u) / 2 = σ(2u): an exponential is faster than tanh.

    Its derivative, if that is given, is σ + x σ (1 - σ) (a + 3 b x²).
    """
    library = array_module(x)
    numbers = (_A, -_B, 3.0 * _B, 1.0)
    a, minus_b, three_b, one = _without_axes(x.dtype, *numbers) if library is np else numbers
    square = library.multiply(x, x, out=value if slope is None else slope)
    library.multiply(square, minus_b, out=value)
    value -= a
    value *= x
    library.exp(value, out=value)  # e^-2u
    value += one
    if slope is None:
        library.divide(x, value, out=value)
        return
    sigma = one / value
    library.divide(x, value, out=value)
    slope *= three_b
    slope += a
    rest = one - sigma
    rest *= value  # 0 for large x, before it meets the square, which overflows sooner
    slope *= rest
    slope += sigma


@takes_bfloat16
@op(reference=ops.gelu)
def kernel_gelu(x: Any, *, approximate: str) -> Any:
    """The same by a kernel, for arrays on a GPU."""
    return gelu_forward(x, approximate=approximate), lambda g: gelu_backward(g, x, approximate=approximate)
