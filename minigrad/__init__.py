"""minigrad: a Tensor with reverse-mode automatic differentiation over NumPy or CuPy. The public names, nothing else."""

from minigrad import process  # first: NumPy's BLAS reads a setting while it is loaded

# isort: split
from numpy import bool_, float16, float32, float64, int32, int64

# ops first: with it come tensor and autograd, in the order in which they need one another
from minigrad import ops
from minigrad.autocast import autocast
from minigrad.autograd import grad
from minigrad.backend import DeviceError, cuda_available, get_default_device, set_default_device
from minigrad.checkpoint import checkpoint
from minigrad.dividing import get_num_threads, set_num_threads
from minigrad.dtypes import bfloat16
from minigrad.factories import (
    arange,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
    zeros,
    zeros_like,
)
from minigrad.functions import (
    abs,
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    argsort,
    atan2,
    bmm,
    cat,
    ceil,
    chunk,
    clamp,
    cos,
    cosh,
    cumprod,
    cumsum,
    diagonal,
    dot,
    einsum,
    elu,
    erf,
    erfc,
    exp,
    exp2,
    expm1,
    flatten,
    flip,
    floor,
    gather,
    index_select,
    is_tensor,
    isfinite,
    isinf,
    isnan,
    leaky_relu,
    lerp,
    log,
    log1p,
    log2,
    log_softmax,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    logsumexp,
    masked_fill,
    masked_select,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    movedim,
    nan_to_num,
    narrow,
    norm,
    one_hot,
    outer,
    pad,
    permute,
    pow,
    prod,
    reciprocal,
    relu,
    reshape,
    roll,
    round,
    rsqrt,
    scatter,
    scatter_add,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    softmax,
    softplus,
    sort,
    split,
    sqrt,
    square,
    squeeze,
    stack,
    std,
    sum,
    take_along_dim,
    tanh,
    topk,
    trace,
    transpose,
    tril,
    triu,
    unbind,
    unflatten,
    unsqueeze,
    var,
    where,
)
from minigrad.grad_mode import enable_grad, is_grad_enabled, no_grad
from minigrad.gradcheck import gradcheck
from minigrad.inspect.anomaly import AnomalyError, detect_anomaly
from minigrad.inspect.profile import profile
from minigrad.inspect.recorded import graph
from minigrad.inspect.trace import tracing
from minigrad.operation import namespace, op
from minigrad.promotion import get_default_dtype, set_default_dtype
from minigrad.random import Generator, manual_seed
from minigrad.tensor import Tensor
from minigrad.tensor import Tensor as tensor
from minigrad.transforms import hessian, hvp, jacobian, jvp, vhp, vjp
