"""The functions that PyTorch has beside its methods: joining, choosing, padding. Exported by `minigrad`.

Those that make tensors are in `minigrad.factories`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad import ops
from minigrad.tensor import Tensor


def is_tensor(obj: Any) -> bool:
    """Whether it is a Tensor, and not an array or a number."""
    return isinstance(obj, Tensor)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after another along an existing dimension."""
    return ops.concatenate(tensors, dim)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors, all of one shape, along a new dimension."""
    return ops.stack(tensors, dim)


def where(condition: Any, input: Any, other: Any) -> Tensor:
    """`input` where `condition` holds, else `other`; all three broadcast."""
    return ops.where(condition if isinstance(condition, Tensor) else Tensor(condition), input, other)


def einsum(equation: str, *operands: Any) -> Tensor:
    """Σ of products by the letters of axes: `einsum("bnd,bmd->bnm", q, k)`. See `minigrad.ops.einsum`."""
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    return ops.einsum(equation, *given)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Tensor:
    """`value` (None: 0) around `input`: `pad` has two numbers for the last dimension, two for the last but one, ...

    Negative numbers cut off instead. `mode` must be "constant". ValueError for numbers that are not pairs, or too many.
    """
    if mode != "constant":
        raise ValueError(f"pad: mode must be 'constant', got {mode!r}")
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ValueError(
            f"pad: {tuple(pad)} for shape {input.shape}; give two numbers a dimension, the last dimension first"
        )
    pairs = [(0, 0)] * (input.ndim - len(pad) // 2) + list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    kept, widths = [], []
    for n, (before, behind) in zip(input.shape, pairs, strict=True):
        start, end = -before if before < 0 else 0, n + behind if behind < 0 else n
        if start > end:
            raise ValueError(f"pad: {tuple(pad)} cuts off more than there is of shape {input.shape}")
        kept.append(slice(start, end))
        widths.append((before if before > 0 else 0, behind if behind > 0 else 0))
    return ops.pad(input[tuple(kept)], tuple(widths), 0 if value is None else value)


exp = Tensor.exp
log = Tensor.log
exp2 = Tensor.exp2
log2 = Tensor.log2
expm1 = Tensor.expm1
log1p = Tensor.log1p
sqrt = Tensor.sqrt
rsqrt = Tensor.rsqrt
square = Tensor.square
reciprocal = Tensor.reciprocal
sin = Tensor.sin
cos = Tensor.cos
atan2 = Tensor.atan2
sinh = Tensor.sinh
cosh = Tensor.cosh
tanh = Tensor.tanh
sigmoid = Tensor.sigmoid
erf = Tensor.erf
erfc = Tensor.erfc
relu = Tensor.relu
leaky_relu = ops.leaky_relu
elu = ops.elu
softplus = ops.softplus
silu = ops.silu
abs = Tensor.abs
sign = Tensor.sign
floor = Tensor.floor
ceil = Tensor.ceil
round = Tensor.round
clamp = Tensor.clamp
nan_to_num = Tensor.nan_to_num
pow = Tensor.pow
lerp = Tensor.lerp
maximum = Tensor.maximum
minimum = Tensor.minimum
logical_and = Tensor.logical_and
logical_or = Tensor.logical_or
logical_xor = Tensor.logical_xor
logical_not = Tensor.logical_not
isnan = Tensor.isnan
isinf = Tensor.isinf
isfinite = Tensor.isfinite
masked_fill = Tensor.masked_fill
softmax = Tensor.softmax
log_softmax = Tensor.log_softmax
sum = Tensor.sum
mean = Tensor.mean
var = Tensor.var
std = Tensor.std
prod = Tensor.prod
norm = Tensor.norm
logsumexp = Tensor.logsumexp
cumsum = Tensor.cumsum
cumprod = Tensor.cumprod
max = Tensor.max
min = Tensor.min
amax = Tensor.amax
amin = Tensor.amin
argmax = Tensor.argmax
argmin = Tensor.argmin
any = Tensor.any
all = Tensor.all
matmul = Tensor.matmul
reshape = Tensor.reshape
transpose = Tensor.transpose
permute = Tensor.permute
squeeze = Tensor.squeeze
unsqueeze = Tensor.unsqueeze
flatten = Tensor.flatten
split = Tensor.split
dot = Tensor.dot
outer = Tensor.outer
bmm = Tensor.bmm
trace = Tensor.trace
diagonal = Tensor.diagonal
tril = Tensor.tril
triu = Tensor.triu
movedim = Tensor.movedim
flip = Tensor.flip
roll = Tensor.roll
unflatten = Tensor.unflatten
narrow = Tensor.narrow
chunk = Tensor.chunk
unbind = Tensor.unbind
sort = Tensor.sort
argsort = Tensor.argsort
topk = Tensor.topk
gather = Tensor.gather
scatter = Tensor.scatter
scatter_add = Tensor.scatter_add
index_select = Tensor.index_select
take_along_dim = Tensor.take_along_dim
masked_select = Tensor.masked_select
one_hot = ops.one_hot
