"""The operations of a Tensor as methods: PyTorch's names (`dim`, `keepdim`), handed on to `minigrad.ops` in NumPy's.

Those that only reshape or move elements are in `minigrad.shape_methods`, operators and indexing in
`minigrad.operators`, what a Tensor is in `minigrad.tensor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from minigrad import ops
from minigrad.shape_methods import Dim, ShapeMethods, axes_of

if TYPE_CHECKING:
    from minigrad.tensor import Tensor


class Methods(ShapeMethods):
    """What Tensor inherits: operations that make new tensors, each about a line."""

    __slots__ = ()

    # ---- elementwise -------------------------------------------------------------------------------------------------

    def exp(self) -> Tensor:
        """e^x."""
        return ops.exp(self)

    def log(self) -> Tensor:
        """ln x."""
        return ops.log(self)

    def exp2(self) -> Tensor:
        """2^x."""
        return ops.exp2(self)

    def log2(self) -> Tensor:
        """log₂ x."""
        return ops.log2(self)

    def expm1(self) -> Tensor:
        """e^x - 1, exact near 0."""
        return ops.expm1(self)

    def log1p(self) -> Tensor:
        """ln(1 + x), exact near 0."""
        return ops.log1p(self)

    def sqrt(self) -> Tensor:
        """√x."""
        return ops.sqrt(self)

    def rsqrt(self) -> Tensor:
        """1 / √x."""
        return ops.rsqrt(self)

    def square(self) -> Tensor:
        """x²."""
        return ops.square(self)

    def reciprocal(self) -> Tensor:
        """1 / x."""
        return ops.reciprocal(self)

    def sin(self) -> Tensor:
        """The sine of radians."""
        return ops.sin(self)

    def cos(self) -> Tensor:
        """The cosine of radians."""
        return ops.cos(self)

    def atan2(self, other: Any) -> Tensor:
        """The angle of the point (other, self), in radians from -π to π."""
        return ops.arctan2(self, other)

    def sinh(self) -> Tensor:
        """The hyperbolic sine."""
        return ops.sinh(self)

    def cosh(self) -> Tensor:
        """The hyperbolic cosine."""
        return ops.cosh(self)

    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
        return ops.tanh(self)

    def sigmoid(self) -> Tensor:
        """1 / (1 + e^-x)."""
        return ops.sigmoid(self)

    def erf(self) -> Tensor:
        """The error function."""
        return ops.erf(self)

    def erfc(self) -> Tensor:
        """1 - erf x, precise where erf x is nearly 1."""
        return ops.erfc(self)

    def relu(self) -> Tensor:
        """max(0, x)."""
        return ops.relu(self)

    def abs(self) -> Tensor:
        """|x|."""
        return ops.abs(self)

    def sign(self) -> Tensor:
        """-1, 0 or 1."""
        return ops.sign(self)

    def floor(self) -> Tensor:
        """⌊x⌋."""
        return ops.floor(self)

    def ceil(self) -> Tensor:
        """⌈x⌉."""
        return ops.ceil(self)

    def round(self, *, decimals: int = 0) -> Tensor:
        """The nearest number of so many decimals, of two equally near the even one; -3: the nearest thousand."""
        return ops.round(self, decimals)

    def clamp(self, min: Any = None, max: Any = None) -> Tensor:
        """min(max(self, min), max); None for no bound. ValueError without any."""
        return ops.clip(self, min, max)

    def nan_to_num(self, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Tensor:
        """Numbers in place of NaN, ∞ and -∞; by default 0 and the dtype's largest and smallest."""
        return ops.nan_to_num(self, nan=nan, posinf=posinf, neginf=neginf)

    def pow(self, exponent: Any) -> Tensor:
        """self ** exponent, a number or a tensor."""
        return ops.power(self, exponent)

    def lerp(self, end: Any, weight: Any) -> Tensor:
        """self + weight (end - self)."""
        return ops.lerp(self, end, weight)

    def maximum(self, other: Any) -> Tensor:
        """The larger of self and other, element by element."""
        return ops.maximum(self, other)

    def minimum(self, other: Any) -> Tensor:
        """The smaller of self and other, element by element."""
        return ops.minimum(self, other)

    def logical_and(self, other: Any) -> Tensor:
        """Whether neither self nor other is 0."""
        return ops.logical_and(self, other)

    def logical_or(self, other: Any) -> Tensor:
        """Whether self or other is not 0."""
        return ops.logical_or(self, other)

    def logical_xor(self, other: Any) -> Tensor:
        """Whether one of self and other is 0 and the other is not."""
        return ops.logical_xor(self, other)

    def logical_not(self) -> Tensor:
        """Whether x is 0."""
        return ops.logical_not(self)

    def isnan(self) -> Tensor:
        """Whether x is NaN."""
        return ops.isnan(self)

    def isinf(self) -> Tensor:
        """Whether x is ∞ or -∞."""
        return ops.isinf(self)

    def isfinite(self) -> Tensor:
        """Whether x is neither NaN nor infinite."""
        return ops.isfinite(self)

    def where(self, condition: Any, other: Any) -> Tensor:
        """self where `condition` holds, else `other`."""
        return ops.where(condition, self, other)

    def masked_fill(self, mask: Any, value: Any) -> Tensor:
        """`value` where the boolean `mask` holds, self elsewhere."""
        return ops.masked_fill(self, mask, value)

    def softmax(self, dim: int, dtype: Any = None) -> Tensor:
        """e^x / Σ e^x along `dim`, of self in `dtype` if one is given; no overflow. A row of -inf alone is NaN."""
        return _cast(ops.softmax(_cast(self, dtype), axis=dim), dtype)

    def log_softmax(self, dim: int, dtype: Any = None) -> Tensor:
        """x - log Σ e^x along `dim`; of self in `dtype`, if one is given."""
        return _cast(ops.log_softmax(_cast(self, dtype), axis=dim), dtype)

    # ---- reductions --------------------------------------------------------------------------------------------------

    def sum(self, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        """The sum along `dim`, or of all elements; of self in `dtype`, if one is given."""
        return _cast(ops.sum(_cast(self, dtype), axis=axes_of(self, dim), keepdims=keepdim), dtype)

    def mean(self, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        """The mean along `dim`, or of all elements; of self in `dtype`, if one is given."""
        return _cast(ops.mean(_cast(self, dtype), axis=axes_of(self, dim), keepdims=keepdim), dtype)

    def var(
        self, dim: Dim = None, correction: Any = 1, keepdim: bool = False, *, unbiased: bool | None = None
    ) -> Tensor:
        """The variance: Σ (x - mean)² / (n - correction). `unbiased` says the same: True is 1, False is 0."""
        dim, correction = _spread(dim, correction, unbiased)
        return ops.var(self, axis=axes_of(self, dim), correction=correction, keepdims=keepdim)

    def std(
        self, dim: Dim = None, correction: Any = 1, keepdim: bool = False, *, unbiased: bool | None = None
    ) -> Tensor:
        """The standard deviation, √var, which takes the same options; of equal values its gradient is 0."""
        dim, correction = _spread(dim, correction, unbiased)
        return ops.std(self, axis=axes_of(self, dim), correction=correction, keepdims=keepdim)

    def prod(self, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        """The product along `dim`, or of all elements, exact at 0; of self in `dtype`, if one is given."""
        return _cast(ops.prod(_cast(self, dtype), axis=axes_of(self, dim), keepdims=keepdim), dtype)

    def norm(self, p: Any = 2, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """(Σ |x|^p)^(1/p) along `dim`, or of all elements: see `minigrad.ops.vector_norm`; p = "fro" is 2."""
        if isinstance(p, str) and p != "fro":
            raise ValueError(f"norm: p is a number or 'fro', got {p!r}")
        return ops.vector_norm(self, ord=2 if p == "fro" else p, axis=axes_of(self, dim), keepdims=keepdim)

    def logsumexp(self, dim: int | Sequence[int], keepdim: bool = False) -> Tensor:
        """log Σ e^x along `dim`."""
        return ops.logsumexp(self, axis=axes_of(self, dim), keepdims=keepdim)

    def cumsum(self, dim: int, *, dtype: Any = None) -> Tensor:
        """The sum of the elements up to each along `dim`; of self in `dtype`, if one is given."""
        return _cast(ops.cumsum(_cast(self, dtype), axis=dim), dtype)

    def cumprod(self, dim: int, *, dtype: Any = None) -> Tensor:
        """The product of the elements up to each along `dim`; of self in `dtype`, if one is given."""
        return _cast(ops.cumprod(_cast(self, dtype), axis=dim), dtype)

    def amax(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The maximum; tied elements share its gradient equally."""
        return ops.max(self, axis=axes_of(self, dim), keepdims=keepdim)

    def amin(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The minimum; tied elements share its gradient equally."""
        return ops.min(self, axis=axes_of(self, dim), keepdims=keepdim)

    def max(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The maximum of all elements; with `dim`, (values, indices) along it, where one winner gets the gradient.

        With a tensor in place of `dim` it is `maximum`.
        """
        if hasattr(dim, "dtype") and hasattr(dim, "shape"):
            return ops.maximum(self, dim)
        return self.amax() if dim is None else Ranked(*ops.pick(self, ops.argmax(self, axis=dim), dim, keepdim))

    def min(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The minimum of all elements; with `dim`, (values, indices) along it, where one winner gets the gradient.

        With a tensor in place of `dim` it is `minimum`.
        """
        if hasattr(dim, "dtype") and hasattr(dim, "shape"):
            return ops.minimum(self, dim)
        return self.amin() if dim is None else Ranked(*ops.pick(self, ops.argmin(self, axis=dim), dim, keepdim))

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The place of the first largest along `dim`, or in the flattened tensor; int64."""
        return ops.argmax(self, axis=dim, keepdims=keepdim)

    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The place of the first smallest along `dim`, or in the flattened tensor; int64."""
        return ops.argmin(self, axis=dim, keepdims=keepdim)

    def any(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Whether an element along `dim`, or any at all, is not zero."""
        return ops.any(self, axis=axes_of(self, dim), keepdims=keepdim)

    def all(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Whether no element along `dim`, or none at all, is zero."""
        return ops.all(self, axis=axes_of(self, dim), keepdims=keepdim)

    # ---- products and parts of matrices ------------------------------------------------------------------------------

    def matmul(self, other: Any) -> Tensor:
        """The product of vectors, matrices or batches of matrices."""
        return ops.matmul(self, other)

    def dot(self, other: Any) -> Tensor:
        """Σ x_i y_i of two vectors of one length."""
        _check_product("dot", self, other, 1, "two vectors (n) and (n)")
        return ops.matmul(self, other)

    def bmm(self, other: Any) -> Tensor:
        """The products of the matrices of two batches, (b, n, k) and (b, k, m), which do not broadcast."""
        _check_product("bmm", self, other, 3, "two batches of matrices (b, n, k) and (b, k, m)")
        return ops.matmul(self, other)

    def outer(self, other: Any) -> Tensor:
        """The matrix x_i y_j of two vectors."""
        if not hasattr(other, "shape"):
            raise TypeError(f"outer: takes two vectors, got a {type(other).__name__}")
        if self.ndim != 1 or getattr(other, "ndim", 0) != 1:
            raise ValueError(f"outer: takes two vectors, got shapes {self.shape} and {getattr(other, 'shape', ())}")
        return ops.outer(self, other)

    def trace(self) -> Tensor:
        """The sum of a matrix's diagonal."""
        if self.ndim != 2:
            raise ValueError(f"trace: takes a matrix, got shape {self.shape}")
        return ops.trace(self)

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """The elements [i, i + offset] of two dimensions, along a new last one."""
        return ops.diagonal(self, offset=offset, axis1=dim1, axis2=dim2)

    def tril(self, diagonal: int = 0) -> Tensor:
        """The lower triangle of the last two dimensions, up to the given diagonal; 0 elsewhere."""
        return ops.tril(self, k=diagonal)

    def triu(self, diagonal: int = 0) -> Tensor:
        """The upper triangle of the last two dimensions, from the given diagonal; 0 elsewhere."""
        return ops.triu(self, k=diagonal)

    # ---- order and places --------------------------------------------------------------------------------------------

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = False) -> Ranked:
        """(values, indices): the elements along `dim` in order, NaN as the greatest. Always stable."""
        return Ranked(*ops.sort(self, axis=dim, descending=descending))

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
        """The places of the elements along `dim` in the order of their size; int64. Always stable."""
        return ops.argsort(self, axis=dim, descending=descending)

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Ranked:
        """(values, indices): the k largest or smallest along `dim`, always sorted. ValueError for a k beyond it."""
        return Ranked(*ops.topk(self, k, axis=dim, largest=largest))

    def gather(self, dim: int, index: Any) -> Tensor:
        """Along `dim` the elements that `index` names: y[i, j] = x[index[i, j], j] for dim 0. See `ops.gather`."""
        return ops.gather(self, index, axis=dim)

    def scatter(self, dim: int, index: Any, src: Any = None, *, value: Any = None) -> Tensor:
        """A copy with src, a tensor, or value, a number, at y[index[i, j], j] for dim 0. See `ops.scatter`."""
        if (src is None) == (value is None):
            raise TypeError(f"scatter: give src or value, got {'neither' if src is None else 'both'}")
        return ops.scatter(self, index, value if src is None else src, axis=dim)

    def scatter_add(self, dim: int, index: Any, src: Any) -> Tensor:
        """A copy with src added at y[index[i, j], j] for dim 0, as often as it is named. See `ops.scatter_add`."""
        return ops.scatter_add(self, index, src, axis=dim)

    def index_select(self, dim: int, index: Any) -> Tensor:
        """The slices along `dim` that a vector of indices names."""
        return ops.index_select(self, index, axis=dim)

    def take_along_dim(self, indices: Any, dim: int | None = None) -> Tensor:
        """Along `dim` the elements that `indices` name, the other dimensions broadcast; None: of the flattened."""
        return ops.take_along_axis(self, indices, axis=dim)

    def masked_select(self, mask: Any) -> Tensor:
        """The elements where the boolean `mask` holds, as a vector; both broadcast."""
        return ops.masked_select(self, mask)


class Ranked(NamedTuple):
    """What `max`, `min`, `sort` and `topk` along a dimension give."""

    values: Tensor
    indices: Tensor


def _check_product(name: str, x: Any, y: Any, ndim: int, wanted: str) -> None:
    """ValueError unless both have so many dimensions, of which matmul broadcasts none."""
    if not hasattr(y, "shape"):
        raise TypeError(f"{name}: takes {wanted}, got a {type(y).__name__}")
    shape = y.shape
    fit = x.ndim == len(shape) == ndim and x.shape[-1] == shape[-min(2, ndim)] and x.shape[:-2] == shape[:-2]
    if not fit:
        raise ValueError(f"{name}: takes {wanted}, got shapes {x.shape} and {shape}")


def _spread(dim: Any, correction: Any, unbiased: bool | None) -> tuple[Any, Any]:
    """(dim, correction) of PyTorch's ways to call `var`: `var(True)` and `var(unbiased=True)` correct by 1."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    correction = correction if unbiased is None else int(unbiased)
    return dim, 1 if correction is None else correction


def _cast(x: Any, dtype: Any) -> Any:
    """x in the dtype in which an operation is asked for, if any."""
    return x if dtype is None or x.dtype == dtype else ops.astype(x, dtype=dtype)
