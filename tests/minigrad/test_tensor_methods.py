"""Every operator and method of Tensor: one expression, run here and in PyTorch; and by finite differences."""

import math
import operator
import warnings

import numpy as np
import pytest
from hypothesis import strategies as st

from minigrad import Tensor
from tests.minigrad.ops.factory import (
    ANY_ONE,
    ANY_TWO,
    ONE,
    TWO,
    Case,
    booleans,
    integers,
    make_tests,
    nonzero,
    normal,
    positive,
    with_axes,
    with_zeros,
)
from tests.support import assert_close, check_kind, torch_or_skip


def any_shape(name, call=None, **more):
    """A case of one operand of any shape: the method without arguments, or as given."""
    return Case(name, call or (lambda _, x: getattr(x, name)()), ONE, ANY_ONE, **more)


def two(name, call, **more):
    """A case of two operands that broadcast."""
    return Case(name, call, TWO, ANY_TWO, **more)


def axes(name, call, least=2, most=3, min_side=1, **more):
    """A case of one operand with at least so many axes."""
    return Case(name, call, with_axes(least, most, min_side), **more)


def of(shape, name, call, **more):
    """A case of one operand of one shape."""
    return Case(name, call, st.just((shape,)), **more)


def by_operator(name):
    """The call of an operator of two operands, by its name in the module `operator`."""
    return lambda _, x, y: getattr(operator, name)(x, y)


def shuffled(rng, shape):
    """Numbers that are far enough from one another for finite differences to keep their order."""
    return np.asarray(rng.permutation(math.prod(shape)).reshape(shape) * 0.5)


def kind_of(x, name):
    """The dtype of that name in the library of the tensor x."""
    return name if isinstance(x, Tensor) else getattr(torch_or_skip(), name)


NO_GRADIENT = {"differentiable": False}

OPERATORS = [
    *[two(f"__{name}__", by_operator(name)) for name in ("add", "sub", "mul")],
    two("__truediv__", lambda _, x, y: x / y, values=(normal, nonzero)),
    two(
        "__floordiv__",
        lambda _, x, y: x // y,
        values=(normal, nonzero),
        torch=lambda t, x, y: (x // y).detach(),
        **NO_GRADIENT,
    ),
    any_shape(
        "__rfloordiv__", lambda _, x: 2.5 // x, values=nonzero, torch=lambda t, x: (2.5 // x).detach(), **NO_GRADIENT
    ),
    two("__mod__", lambda _, x, y: x % y, values=(normal, nonzero)),
    any_shape(
        "__rmod__",
        lambda _, x: 2.5 % x,
        values=nonzero,
        torch=lambda t, x: t.full_like(x, 2.5) % x,
        unlike=["integers"],
    ),
    two("__pow__", lambda _, x, y: x**y, values=(positive, normal), unlike=["integers"]),
    any_shape("__radd__", lambda _, x: 2 + x),
    any_shape("__rsub__", lambda _, x: 2.5 - x),
    any_shape("__rmul__", lambda _, x: True * x),
    any_shape("__rtruediv__", lambda _, x: 2 / x, values=nonzero),
    any_shape("__rpow__", lambda _, x: 2**x),
    Case("__matmul__", lambda _, x, y: x @ y, st.just(((2, 3), (3, 4)))),
    of((2, 3), "__rmatmul__", lambda _, x: x.__rmatmul__(x.T)),
    any_shape("__neg__", lambda _, x: -x),
    any_shape("__pos__", lambda _, x: +x),
    any_shape("__abs__", lambda _, x: abs(x), values=nonzero),
    any_shape("__invert__", lambda _, x: ~x, values=booleans, **NO_GRADIENT),
    any_shape("__invert__", lambda _, x: ~x, values=integers, **NO_GRADIENT),
    two("__and__", lambda _, x, y: x & y, values=booleans, **NO_GRADIENT),
    two("__or__", lambda _, x, y: x | y, values=integers, **NO_GRADIENT),
    two("__xor__", lambda _, x, y: x ^ y, values=booleans, **NO_GRADIENT),
    two("__xor__", lambda _, x, y: x ^ y, values=integers, **NO_GRADIENT),
    any_shape("__rand__", lambda _, x: True & x, values=booleans, **NO_GRADIENT),
    any_shape("__rxor__", lambda _, x: True ^ x, values=booleans, **NO_GRADIENT),
    any_shape("__ror__", lambda _, x: 2 | x, values=integers, **NO_GRADIENT),
    *[
        two(f"__{name}__", by_operator(name), values=integers, **NO_GRADIENT)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    ],
    of((3, 4), "__getitem__", lambda _, x: x[[0, 0, 2], 1:]),
    axes("__iter__", lambda _, x: tuple(x), least=1),
    *[
        two(f"__i{name}__", lambda _, x, y, name=name: by_operator(f"i{name}")(_, x + y * 0, y), values=nonzero)
        for name in ("add", "sub", "mul", "truediv")
    ],
]

METHODS = [
    *[any_shape(name) for name in ("exp", "exp2", "expm1", "sin", "cos", "sinh", "cosh", "tanh")],
    *[any_shape(name) for name in ("sigmoid", "erf", "erfc", "square", "floor", "ceil", "round", "nan_to_num")],
    *[any_shape(name, values=positive) for name in ("log", "log2", "log1p", "sqrt", "rsqrt")],
    *[any_shape(name, values=nonzero) for name in ("abs", "relu", "sign", "reciprocal")],
    two("atan2", lambda _, y, x: y.atan2(x), values=(normal, nonzero)),
    two("lerp", lambda _, x, end: x.lerp(end, 0.25)),
    two("clamp", lambda _, x, low: x.clamp(low)),
    two("clamp", lambda _, x, high: x.clamp(max=high)),
    any_shape("clamp", lambda _, x: x.clamp(-0.5, 0.5)),
    *[any_shape(name, values=integers, **NO_GRADIENT) for name in ("isnan", "isinf", "isfinite", "logical_not")],
    two("logical_and", lambda _, x, y: x.logical_and(y), values=integers, **NO_GRADIENT),
    two("logical_or", lambda _, x, y: x.logical_or(y), values=integers, **NO_GRADIENT),
    two("logical_xor", lambda _, x, y: x.logical_xor(y), values=integers, **NO_GRADIENT),
    two("pow", lambda _, x, y: x.pow(y), values=(positive, normal), unlike=["integers"]),
    any_shape("pow", lambda _, x: x.pow(2)),
    two("maximum", lambda _, x, y: x.maximum(y)),
    two("minimum", lambda _, x, y: x.minimum(y)),
    two("where", lambda _, x, y: x.where(x > 0, y)),
    any_shape("round", lambda _, x: x.round(decimals=1), values=lambda rng, shape: integers(rng, shape) / 10 + 0.03),
    any_shape("round", lambda _, x: x.round(decimals=-1), values=lambda rng, shape: integers(rng, shape) * 10.0 + 3),
    two("max", lambda _, x, y: x.max(y), unlike=["None"]),
    two("min", lambda _, x, y: x.min(y), unlike=["None"]),
    two("masked_fill", lambda _, x, mask: x.masked_fill(mask, -2.0), values=(normal, booleans)),
    axes("softmax", lambda _, x: x.softmax(dim=-1)),
    axes("log_softmax", lambda _, x: x.log_softmax(0)),
    # reductions
    any_shape("sum"),
    axes("sum", lambda _, x: x.sum(0), least=1, min_side=0),
    axes("sum", lambda _, x: x.sum(dim=(0, -1), keepdim=True), min_side=0),
    axes("sum", lambda _, x: x.sum([0, 1])),
    any_shape("sum", values=integers, **NO_GRADIENT),
    axes("sum", lambda _, x: x.sum(1, dtype=kind_of(x, "float64"))),
    axes("mean", lambda _, x: x.mean(0, dtype=kind_of(x, "float64"))),
    axes("prod", lambda _, x: x.prod(0, dtype=kind_of(x, "float64")), values=with_zeros),
    axes("cumsum", lambda _, x: x.cumsum(0, dtype=kind_of(x, "float64"))),
    axes("cumprod", lambda _, x: x.cumprod(1, dtype=kind_of(x, "float64")), values=with_zeros),
    axes("softmax", lambda _, x: x.softmax(0, dtype=kind_of(x, "float64"))),
    axes("log_softmax", lambda _, x: x.log_softmax(1, dtype=kind_of(x, "float64"))),
    axes("mean", lambda _, x: x.mean(), least=0),
    axes("mean", lambda _, x: x.mean(-1, keepdim=True)),
    axes("var", lambda _, x: x.var(), min_side=2),
    axes("var", lambda _, x: x.var(dim=1, correction=0), min_side=2),
    axes("var", lambda _, x: x.var((0, 1), keepdim=True), min_side=2),
    axes("std", lambda _, x: x.std(), min_side=2),
    axes("std", lambda _, x: x.std(dim=1, correction=0, keepdim=True), min_side=2),
    axes("var", lambda _, x: x.var(False), min_side=2),
    axes("var", lambda _, x: x.var(1, True), min_side=2),
    axes("std", lambda _, x: x.std(unbiased=False), min_side=2),
    axes("std", lambda _, x: x.std(dim=(0, 1), unbiased=True, keepdim=True), min_side=2),
    any_shape("prod", values=with_zeros),
    axes("prod", lambda _, x: x.prod(1, keepdim=True), values=with_zeros),
    axes("norm", lambda _, x: x.norm(), values=nonzero),
    axes("norm", lambda _, x: x.norm(p=1, dim=(0, 1), keepdim=True), values=nonzero),
    axes("norm", lambda _, x: x.norm(float("inf"), -1)),
    axes("norm", lambda _, x: x.norm(3, dim=0), values=nonzero),
    axes("norm", lambda _, x: x.norm("fro", dim=[0, 1]), values=nonzero),
    axes("logsumexp", lambda _, x: x.logsumexp(1)),
    axes("logsumexp", lambda _, x: x.logsumexp(dim=[0, -1], keepdim=True)),
    axes("cumsum", lambda _, x: x.cumsum(dim=-1), min_side=0),
    axes("cumprod", lambda _, x: x.cumprod(0), min_side=0, values=with_zeros),
    of((), "cumsum", lambda _, x: x.cumsum(0)),
    of((), "cumprod", lambda _, x: x.cumprod(-1)),
    axes("amax", lambda _, x: x.amax(dim=(0, 1))),
    axes("amin", lambda _, x: x.amin(dim=-1, keepdim=True)),
    axes("max", lambda _, x: x.max(), least=0),
    axes("max", lambda _, x: x.max(dim=1)),
    axes("max", lambda _, x: x.max(-1, keepdim=True)),
    of((), "max", lambda _, x: x.max(dim=-1)),
    axes("min", lambda _, x: x.min(), least=0),
    axes("min", lambda _, x: x.min(0, True)),
    axes("argmax", lambda _, x: x.argmax(), **NO_GRADIENT),
    axes("argmax", lambda _, x: x.argmax(dim=-1), **NO_GRADIENT),
    axes("argmin", lambda _, x: x.argmin(0, keepdim=True), **NO_GRADIENT),
    any_shape("any", values=booleans, **NO_GRADIENT),
    axes("any", lambda _, x: x.any(dim=1), values=booleans, **NO_GRADIENT),
    any_shape("all", values=booleans, **NO_GRADIENT),
    axes("all", lambda _, x: x.all(dim=0, keepdim=True), values=booleans, **NO_GRADIENT),
    # order and places
    axes("sort", lambda _, x: x.sort(), values=shuffled),
    axes("sort", lambda _, x: x.sort(0, descending=True), values=shuffled, least=1, min_side=0),
    axes("sort", lambda _, x: x.sort(dim=1, stable=True), values=integers, **NO_GRADIENT),
    of((), "sort", lambda _, x: x.sort()),
    axes("argsort", lambda _, x: x.argsort(), values=shuffled, **NO_GRADIENT),
    axes("argsort", lambda _, x: x.argsort(0, True), values=shuffled, **NO_GRADIENT),
    of((3, 4), "topk", lambda _, x: x.topk(2), values=shuffled, unlike=["integers"]),
    of((3, 4), "topk", lambda _, x: x.topk(k=3, dim=0, largest=False), values=shuffled, unlike=["integers"]),
    of((3, 4), "gather", lambda _, x: x.gather(1, x.argsort(1)[:2])),
    of((3, 4), "scatter", lambda _, x: x.scatter(1, x.argsort(1)[:2], x[1:])),
    of((3, 4), "scatter", lambda _, x: x.scatter(dim=0, index=x.argsort(0)[:, 1:], value=2.5)),
    of((3, 4), "scatter_add", lambda _, x: x.scatter_add(0, x.argsort(0), x)),
    of((3, 4), "index_select", lambda _, x: x.index_select(1, x[0].argsort()[:3])),
    of((3, 4), "take_along_dim", lambda _, x: x.take_along_dim(x.argsort(0)[:, :1], 0)),
    of((3, 4), "take_along_dim", lambda _, x: x.take_along_dim(x.argsort())),
    axes("masked_select", lambda _, x: x.masked_select(x > 0), least=0),
    # shape
    axes("T", lambda _, x: x.T, most=2, min_side=0),
    axes("mT", lambda _, x: x.mT, min_side=0),
    Case("matmul", lambda _, x, y: x.matmul(y), st.just(((5, 2, 3), (3,)))),
    Case("dot", lambda _, x, y: x.dot(y), st.sampled_from([((3,), (3,)), ((0,), (0,))])),
    Case("outer", lambda _, x, y: x.outer(y), st.sampled_from([((2,), (3,)), ((0,), (3,))])),
    Case("bmm", lambda _, x, y: x.bmm(y), st.sampled_from([((5, 2, 3), (5, 3, 4)), ((0, 2, 3), (0, 3, 4))])),
    axes("trace", lambda _, x: x.trace(), most=2, min_side=0),
    axes("diagonal", lambda _, x: x.diagonal(), min_side=0),
    axes("diagonal", lambda _, x: x.diagonal(offset=-1, dim1=-1, dim2=1), least=3),
    axes("tril", lambda _, x: x.tril(), min_side=0),
    axes("triu", lambda _, x: x.triu(diagonal=1), min_side=0),
    axes("movedim", lambda _, x: x.movedim(0, -1), least=1, min_side=0),
    axes("movedim", lambda _, x: x.movedim([0, 1], (-1, 0)), least=3, min_side=0),
    axes("flip", lambda _, x: x.flip(0, -1), min_side=0),
    axes("flip", lambda _, x: x.flip([1]), min_side=0),
    any_shape("flip", lambda _, x: x.flip(())),
    axes("flip", lambda _, x: x.flip(dims=(0, -1))),
    axes("roll", lambda _, x: x.roll(4)),
    axes("roll", lambda _, x: x.roll(-1, dims=-1)),
    axes("roll", lambda _, x: x.roll([1, 2], [0, 1])),
    any_shape("repeat", lambda _, x: x.repeat(2, 1, 3, 1)),
    of((2, 3), "repeat", lambda _, x: x.repeat((2, 0))),
    of((), "repeat", lambda _, x: x.repeat(())),
    of((2, 6), "unflatten", lambda _, x: x.unflatten(-1, (3, -1))),
    of((6, 0), "unflatten", lambda _, x: x.unflatten(0, [2, 3])),
    of((4, 3), "narrow", lambda _, x: x.narrow(0, 1, 2)),
    of((4, 3), "narrow", lambda _, x: x.narrow(-1, -2, 2)),
    of((4, 3), "narrow", lambda _, x: x.narrow(0, 4, 0)),
    of((7, 2), "chunk", lambda _, x: x.chunk(3)),
    of((5, 2), "chunk", lambda _, x: x.chunk(4, dim=-2)),
    of((0, 2), "chunk", lambda _, x: x.chunk(2)),
    axes("unbind", lambda _, x: x.unbind(), least=1),
    axes("unbind", lambda _, x: x.unbind(dim=-1)),
    any_shape("reshape", lambda _, x: x.reshape(-1)),
    of((2, 6), "reshape", lambda _, x: x.reshape(3, -1)),
    of((2, 6), "reshape", lambda _, x: x.reshape((4, 3))),
    of((2, 6), "view", lambda _, x: x.view(2, 3, 2)),
    axes("transpose", lambda _, x: x.transpose(0, -1), min_side=0),
    axes("permute", lambda _, x: x.permute(2, 0, 1), least=3, min_side=0),
    axes("permute", lambda _, x: x.permute((-1, 0, 1)), least=3),
    axes("permute", lambda _, x: x.permute(dims=(-1, 0, 1)), least=3),
    of((2, 1, 3), "expand", lambda _, x: x.expand(-1, 4, 3)),
    of((3,), "expand", lambda _, x: x.expand((2, 0, 3))),
    any_shape("expand", lambda _, x: x.expand(2, *x.shape)),
    of((2, 6), "view_as", lambda _, x: x.view_as(x.transpose(0, 1))),
    of((2, 1, 3), "expand_as", lambda _, x: x.expand_as(x + x.transpose(0, 1))),
    any_shape("squeeze"),
    of((1, 3, 1), "squeeze", lambda _, x: x.squeeze(0)),
    of((1, 3, 1), "squeeze", lambda _, x: x.squeeze(1)),
    of((1, 3, 1), "squeeze", lambda _, x: x.squeeze((0, 1, -1))),
    any_shape("unsqueeze", lambda _, x: x.unsqueeze(-1)),
    any_shape("unsqueeze", lambda _, x: x.unsqueeze(0)),
    any_shape("flatten"),
    axes("flatten", lambda _, x: x.flatten(1), min_side=0),
    axes("flatten", lambda _, x: x.flatten(0, -2), least=3, min_side=0),
    of((5, 2), "split", lambda _, x: x.split(2)),
    of((5, 2), "split", lambda _, x: x.split(7, dim=-1)),
    of((5, 2), "split", lambda _, x: x.split([1, 0, 4], 0)),
    of((0, 2), "split", lambda _, x: x.split(2)),
    # copies and casts
    any_shape("clone"),
    any_shape("detach", **NO_GRADIENT),
    any_shape("double"),
    any_shape("long", values=positive, **NO_GRADIENT),
    any_shape("bool", values=integers, **NO_GRADIENT),
    any_shape("float", values=integers, **NO_GRADIENT),
    any_shape("half", values=integers, **NO_GRADIENT),
    any_shape("bfloat16", values=integers, **NO_GRADIENT),
    any_shape("int", values=positive, **NO_GRADIENT),
    any_shape("type_as", lambda _, x: x.type_as(x.double())),
    axes("contiguous", lambda _, x: x.T.contiguous(), most=2, min_side=0),
    any_shape("to", lambda _, x: x.to("cpu")),
]

CASES = OPERATORS + METHODS

test_gradients, _, test_against_pytorch, _ = make_tests(CASES)

# What is no operation: what a tensor is and says, what it becomes outside, gradients, writing. Tested in other files.
OTHERS = {
    "data", "grad", "requires_grad", "requires_grad_", "is_leaf", "node", "shape", "ndim", "dtype", "device", "size",
    "dim", "numel", "numpy", "item", "tolist", "backward", "__init__", "__hash__", "__repr__", "__bool__", "memory",
    "hooks", "register_hook", "retain_grad",
    "__float__", "__int__", "__index__", "__len__", "__array__", "__copy__", "__deepcopy__", "__reduce__",
    "__setitem__", "__format__", "__ipow__", "__ifloordiv__", "__imod__", "__imatmul__", "__contains__", "__dlpack__",
    "__dlpack_device__", "__reversed__", "is_floating_point", "add_", "sub_", "mul_", "div_", "fill_", "zero_", "copy_",
}  # fmt: skip


def methods_of_tensor():
    """Its public attributes, and the special methods that it defines itself."""
    own = {name: value for kind in Tensor.__mro__[:-1] for name, value in vars(kind).items()}
    special = {name for name, value in own.items() if name.startswith("__") and callable(value)}
    return sorted(special | {name for name in own if not name.startswith("_")})


@pytest.mark.parametrize("name", methods_of_tensor())
def test_every_method_is_tested(name):
    assert (name in {case.name for case in CASES}) != (name in OTHERS), f"add a Case for {name}, or name it in OTHERS"


def test_casts_to_lower_precision_are_pytorchs():
    values = np.array([1.9, -1.9, 0.0, 2.5])
    x = Tensor(values, requires_grad=True)
    assert x.long().tolist() == [1, -1, 0, 2]
    assert x.bool().tolist() == [True, True, False, True]
    y = x.float()
    assert y.dtype == np.float32
    y.backward([1.0, 2.0, 3.0, 4.0])
    assert (x.grad.dtype, x.grad.tolist()) == (np.float64, [1, 2, 3, 4])
    assert x.to(np.float16).dtype == x.to("float16").dtype == np.float16
    assert x.double() is x
    with pytest.raises(TypeError, match="to: name a device such as 'cuda' or a dtype such as 'float64', not None"):
        x.to(None)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: x.split([1, 1]), ValueError, r"split: sizes \(1, 1\) add up to 2, dimension 0 has length 3"),
        (lambda x: x.expand(3), ValueError, r"expand: shape \(3, 4\) to \(3,\); name every dimension"),
        (lambda x: x.expand(2, 4), ValueError, "broadcast"),
        (lambda x: x.reshape(5, -1), ValueError, "reshape"),
        (lambda x: x.permute(0), ValueError, "axes don't match"),
        (lambda x: x.permute(0, 0), ValueError, "repeated axis"),
        (lambda x: x.transpose(0, 2), IndexError, "swapaxes: .*axis 2 is out of bounds"),
        (lambda x: x.squeeze(2), IndexError, r"dimension 2 of a tensor with 2 dimensions, shape \(3, 4\)"),
        (lambda x: x.size(-3), IndexError, "dimension -3 of a tensor with 2 dimensions"),
        (lambda x: x.flatten(0, 2), IndexError, "dimension 2 of a tensor with 2 dimensions"),
        (lambda x: x.sum(dim=2), IndexError, "sum: axis 2 is out of bounds"),
        (lambda x: x.var(5), IndexError, r"var: axis 5 is out of bounds for the shape \(3, 4\)"),
        (lambda x: x.std((0, -3)), IndexError, "std: axis -3 is out of bounds"),
        (lambda x: x.softmax(5), IndexError, "softmax: axis 5 is out of bounds"),
        (lambda x: x.repeat(2), ValueError, r"repeat: \(2,\) of a tensor of shape \(3, 4\); give each dimension"),
        (lambda x: x.repeat(2, -1), ValueError, r"repeat: \(2, -1\) of a tensor"),
        (lambda x: x.unflatten(1, (3, 2)), ValueError, r"unflatten: sizes \(3, 2\) do not make up dimension 1, shape"),
        (lambda x: x.unflatten(1, (3, -1)), ValueError, r"unflatten: sizes \(3, -1\) do not make up dimension 1"),
        (lambda x: x.unflatten(2, (1,)), IndexError, "dimension 2 of a tensor with 2 dimensions"),
        (lambda x: x.narrow(0, 2, 2), IndexError, r"narrow: 2 elements from 2 on, dimension 0 of shape \(3, 4\) has 3"),
        (lambda x: x.narrow(0, -4, 1), IndexError, "narrow: 1 elements from -4 on"),
        (lambda x: x.chunk(0), ValueError, "chunk: at least one piece must be asked for, not 0"),
        (lambda x: x.unbind(2), IndexError, "dimension 2 of a tensor with 2 dimensions"),
        (lambda x: x.movedim(0, 2), IndexError, "moveaxis: .*axis 2 is out of bounds"),
        (lambda x: x.flip(2), IndexError, "flip: axis 2 is out of bounds"),
        (lambda x: x.roll(1, 2), IndexError, "roll: axis 2 is out of bounds"),
        (lambda x: x.dot(x), ValueError, r"dot: takes two vectors .*, got shapes \(3, 4\) and \(3, 4\)"),
        (lambda x: x[0].dot(x[0, :3]), ValueError, r"dot: takes two vectors .*, got shapes \(4,\) and \(3,\)"),
        (lambda x: x.outer(x[0]), ValueError, r"outer: takes two vectors, got shapes \(3, 4\) and \(4,\)"),
        (lambda x: x[0].outer(2.0), TypeError, "outer: takes two vectors, got a float"),
        (lambda x: x[0].dot("x"), TypeError, "dot: takes two vectors .*, got a str"),
        (lambda x: x[0].diagonal(), IndexError, r"diagonal: takes tensors of two dimensions or more, got shape \(4,\)"),
        (lambda x: x.softmax(None), TypeError, "softmax: 'NoneType' object cannot be interpreted as an integer"),
        (lambda x: x.log_softmax(0.5), TypeError, "log_softmax: 'float' object cannot be interpreted as an integer"),
        (lambda x: x.cumsum(None), TypeError, "cumsum: 'NoneType' object cannot be interpreted as an integer"),
        (lambda x: x.chunk(0.5), TypeError, "'float' object cannot be interpreted as an integer"),
        (lambda x: x.split(0.5), TypeError, "'float' object cannot be interpreted as an integer"),
        (lambda x: x[:, :1].squeeze((1, -1)), ValueError, r"squeeze: a dimension stands twice in \(1, -1\), shape"),
        (lambda x: x.sum().sum((0, -1)), ValueError, r"dimensions \(0, -1\) are one and the same of a tensor with 0"),
        (lambda x: x.sum().transpose(0, 1), IndexError, "dimension 1 of a tensor with 0 dimensions"),
        (lambda x: x.sum().squeeze(1), IndexError, "dimension 1 of a tensor with 0 dimensions"),
        (lambda x: x.sum().flatten(1), IndexError, "dimension 1 of a tensor with 0 dimensions"),
        (lambda x: x.bmm(x), ValueError, r"bmm: takes two batches .*, got shapes \(3, 4\) and \(3, 4\)"),
        (lambda x: x[None].bmm(x[None]), ValueError, r"bmm: takes two batches .*\(1, 3, 4\) and \(1, 3, 4\)"),
        (lambda x: x[None].bmm(x.T.expand(2, 4, 3)), ValueError, r"bmm: .*\(1, 3, 4\) and \(2, 4, 3\)"),
        (lambda x: x[0].trace(), ValueError, r"trace: takes a matrix, got shape \(4,\)"),
        (lambda x: x.max(dim=2), IndexError, "argmax: axis 2 is out of bounds"),
    ],
)
def test_dimensions_and_shapes_that_do_not_fit(call, error, text):
    with pytest.raises(error, match=text):
        call(Tensor(np.zeros((3, 4))))


def test_roll_takes_one_shift_for_each_dimension():
    with pytest.raises(ValueError, match=r"roll: 2 shifts \(1, 2\) for 1 dimensions 0; give one for each"):
        Tensor([[1.0, 2.0]]).roll((1, 2), 0)


@pytest.mark.parametrize(
    "call",
    [
        *[
            lambda x, name=name, dim=dim: getattr(x, name)(dim)
            for name in ("sum", "mean", "prod", "amax", "amin", "logsumexp", "any", "all", "squeeze", "flip")
            for dim in (0, -1, (0,), (-1,), ())
            if not (name == "prod" and isinstance(dim, tuple))
        ],
        *[
            lambda x, name=name, dim=dim: getattr(x, name)(dim)
            for name in ("var", "std", "softmax", "log_softmax", "cumsum", "cumprod", "argmax", "argmin", "max", "min")
            for dim in (0, -1)
        ],
        lambda x: x.norm(1, 0),
        lambda x: x.norm(2, (0,)),
        lambda x: x.amax((0,), True),
        lambda x: x.argmin(0, keepdim=True),
        lambda x: x.max(0, keepdim=True),
        lambda x: x.transpose(0, -1),
        lambda x: x.movedim(0, -1),
        lambda x: x.movedim((), ()),
        lambda x: x.flatten(0, -1),
        lambda x: x.roll(1),
        lambda x: x.permute(()),
        lambda x: x.sum(1),
        lambda x: x.softmax(1),
        lambda x: x.logsumexp((1,)),
        lambda x: x.movedim(0, 1),
        lambda x: x.flip(1),
        lambda x: x.roll(1, 0),
        lambda x: x.size(0),
        lambda x: x.unbind(0),
        lambda x: x.split(1),
        lambda x: x.narrow(0, 0, 1),
        lambda x: x.diagonal(),
    ],
)
def test_the_only_dimension_of_a_0_d_tensor_is_pytorchs(call):
    """0 and -1 may be named, though there is none; where nothing can be done along it both refuse."""
    torch = torch_or_skip()
    x, other = Tensor(2.5, requires_grad=True), torch.tensor(2.5, requires_grad=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the variance of one element
            expected = call(other)
    except Exception:
        check_kind(lambda: call(other), lambda: call(x))
        return
    with np.errstate(invalid="ignore"):
        found = call(x)
    pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    for value, wanted in pairs:
        assert (str(value.dtype), value.requires_grad) == (str(wanted.dtype)[6:], wanted.requires_grad)
        assert_close(value, wanted, 1e-6)
        if value.requires_grad:
            with np.errstate(invalid="ignore"):
                value.sum().backward()
            wanted.sum().backward()
            assert_close(x.grad, other.grad, 1e-6)


def test_round_of_float16_leaves_its_range_on_no_way():
    x = Tensor([70.0, 123.4], dtype="float16", requires_grad=True)
    y = x.round(decimals=3)  # 1000 x is beyond float16
    y.sum().backward()
    assert (y.dtype, y.tolist(), x.grad.tolist()) == (np.float16, [70, 123.375], [0, 0])
    assert Tensor([60000.0, 1234.0], dtype="float16").round(decimals=-3).tolist() == [60000, 1000]


def test_the_dtype_that_is_asked_for_is_the_results():
    x = Tensor([True, True, False])
    assert (x.sum(dtype="bool").dtype, x.prod(0, dtype="bool").item()) == (np.bool_, False)
    assert x.sum(dtype="int32").dtype == x.cumsum(0, dtype="int32").dtype == np.int32
    assert Tensor([1.9, 1.9]).sum(dtype=np.int64).item() == 2  # cast first, as in PyTorch
