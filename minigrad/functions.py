"""The functions that PyTorch has beside its methods: making tensors, joining and choosing. Exported by `minigrad`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad import backend, ops
from minigrad.backend import DEFAULT_DTYPE
from minigrad.methods import sizes_of
from minigrad.tensor import Tensor


def _made(array: np.ndarray, device: str, requires_grad: bool) -> Tensor:
    tensor = Tensor._of(backend.to_device(array, device))
    return tensor.requires_grad_(requires_grad)


def zeros(*shape: Any, dtype: Any = DEFAULT_DTYPE, device: str = "cpu", requires_grad: bool = False) -> Tensor:
    """A tensor of zeros: `zeros(2, 3)` or `zeros((2, 3))`."""
    return full(sizes_of(shape), 0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones(*shape: Any, dtype: Any = DEFAULT_DTYPE, device: str = "cpu", requires_grad: bool = False) -> Tensor:
    """A tensor of ones: `ones(2, 3)` or `ones((2, 3))`."""
    return full(sizes_of(shape), 1, dtype=dtype, device=device, requires_grad=requires_grad)


def full(
    shape: Sequence[int], fill_value: Any, dtype: Any = None, device: str = "cpu", requires_grad: bool = False
) -> Tensor:
    """A tensor with one value everywhere: of a float in float32, of an int in int64, unless a dtype is given."""
    fill_value = fill_value.item() if isinstance(fill_value, np.generic) else fill_value
    dtype = Tensor(fill_value).dtype if dtype is None else dtype
    return _made(np.full(shape, fill_value, dtype), device, requires_grad)


def arange(start: Any, end: Any = None, step: Any = 1, dtype: Any = None, device: str = "cpu") -> Tensor:
    """start, start + step ... below `end`; from 0 if one number is given. int64 for integers, else float32."""
    start, end = (0, start) if end is None else (start, end)
    array = np.arange(start, end, step)
    return _made(array.astype(dtype or (np.int64 if array.dtype.kind == "i" else DEFAULT_DTYPE)), device, False)


def randn(*shape: Any, dtype: Any = DEFAULT_DTYPE, device: str = "cpu", requires_grad: bool = False) -> Tensor:
    """Standard normal numbers from this thread's stream (see `manual_seed`); the same on every device."""
    array = backend.next_generator().standard_normal(sizes_of(shape), np.float64).astype(dtype)
    return _made(array, device, requires_grad)


def zeros_like(x: Tensor) -> Tensor:
    """Zeros of x's shape, dtype and device."""
    return zeros(x.shape, dtype=x.dtype, device=x.device)


def ones_like(x: Tensor) -> Tensor:
    """Ones of x's shape, dtype and device."""
    return ones(x.shape, dtype=x.dtype, device=x.device)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after another along an existing dimension."""
    return ops.concatenate(tensors, dim)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors, all of one shape, along a new dimension."""
    return ops.stack(tensors, dim)


def where(condition: Any, input: Any, other: Any) -> Tensor:
    """`input` where `condition` holds, else `other`; all three broadcast."""
    return ops.where(condition if isinstance(condition, Tensor) else Tensor(condition), input, other)


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
