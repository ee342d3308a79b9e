"""minigrad: a Tensor with reverse-mode automatic differentiation over NumPy or CuPy. The public names, nothing else."""

from numpy import bool_, float16, float32, float64, int32, int64

from minigrad import ops  # first: with it come tensor and autograd, in the order in which they need one another
from minigrad.autograd import grad
from minigrad.backend import DeviceError, cuda_available, manual_seed
from minigrad.functions import (
    abs,
    all,
    amax,
    amin,
    any,
    arange,
    argmax,
    argmin,
    cat,
    erf,
    exp,
    flatten,
    full,
    log,
    log_softmax,
    masked_fill,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    ones,
    ones_like,
    permute,
    pow,
    randn,
    relu,
    reshape,
    sigmoid,
    softmax,
    split,
    sqrt,
    squeeze,
    stack,
    sum,
    tanh,
    transpose,
    unsqueeze,
    var,
    where,
    zeros,
    zeros_like,
)
from minigrad.gradcheck import gradcheck
from minigrad.operation import enable_grad, is_grad_enabled, namespace, no_grad, op
from minigrad.tensor import Tensor
from minigrad.tensor import Tensor as tensor
