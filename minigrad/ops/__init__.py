"""Every differentiable operation, with NumPy's names and meanings: one function = its value and its pullbacks.

This is also the array library of Tensors: `namespace(tensor)` is this module, so that the body of an operation runs on
Tensors as it does on arrays. PyTorch's names are the methods of Tensor.
"""

from minigrad.ops.activations import elu, gelu, leaky_relu, relu, sigmoid, silu, softplus
from minigrad.ops.cumulative import cumprod, cumsum
from minigrad.ops.einsum import einsum
from minigrad.ops.elementwise import (
    abs,
    add,
    alias,
    arctan2,
    astype,
    constant,
    copy,
    cos,
    cosh,
    divide,
    erf,
    erfc,
    exp,
    exp2,
    expm1,
    floor_divide,
    lerp,
    log,
    log1p,
    log2,
    masked_fill,
    maximum,
    minimum,
    multiply,
    negative,
    power,
    reciprocal,
    remainder,
    rsqrt,
    sin,
    sinh,
    sqrt,
    square,
    subtract,
    tanh,
    to_device,
    where,
)
from minigrad.ops.gather import (
    gather,
    index_select,
    masked_select,
    one_hot,
    pick,
    scatter,
    scatter_add,
    take_along_axis,
)
from minigrad.ops.index import add_at, getitem, plain_key, put_at
from minigrad.ops.linalg import diagonal, linear, matmul, outer, trace
from minigrad.ops.logic import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    equal,
    greater,
    greater_equal,
    invert,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
)
from minigrad.ops.reduce import all, any, argmax, argmin, max, mean, min, prod, std, sum, var, vector_norm
from minigrad.ops.rounding import ceil, clip, floor, nan_to_num, rint, round, sign
from minigrad.ops.shape import (
    broadcast_to,
    concatenate,
    expand_dims,
    flip,
    moveaxis,
    pad,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    swapaxes,
    tile,
    transpose,
    tril,
    triu,
)
from minigrad.ops.softmax import log_softmax, logsumexp, softmax
from minigrad.ops.sorting import argsort, sort, topk
