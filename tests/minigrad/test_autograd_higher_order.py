"""create_graph: gradients of gradients, against exact formulas and PyTorch; fused operations by their references."""

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor, ops
from tests.support import assert_close, leaf, torch_or_skip


def derivatives(y, x, order):
    """y', y'' ... of y summed."""
    found = []
    for _ in range(order):
        (y,) = mg.grad(y.sum(), x, create_graph=True)
        found.append(y)
    return found


# ---- exact formulas --------------------------------------------------------------------------------------------------

X = np.array([0.3, 0.7, 1.3])
FORMULAS = {
    "x⁴": (lambda x: x**4, [4 * X**3, 12 * X**2, 24 * X]),
    "x·x·x": (lambda x: x * x * x, [3 * X**2, 6 * X, 6 + 0 * X]),
    "exp": (lambda x: x.exp(), [np.exp(X)] * 3),
    "log": (lambda x: x.log(), [1 / X, -1 / X**2, 2 / X**3]),
    "1/x": (lambda x: 1 / x, [-1 / X**2, 2 / X**3, -6 / X**4]),
    "√x": (lambda x: x.sqrt(), [0.5 * X**-0.5, -0.25 * X**-1.5, 0.375 * X**-2.5]),
    "2ˣ": (lambda x: 2**x, [math.log(2) ** n * 2**X for n in (1, 2, 3)]),
    "tanh": (lambda x: x.tanh(), [1 - np.tanh(X) ** 2, -2 * np.tanh(X) * (1 - np.tanh(X) ** 2),
                                  (6 * np.tanh(X) ** 2 - 2) * (1 - np.tanh(X) ** 2)]),
    "x exp x²": (lambda x: x * (x * x).exp(), [(1 + 2 * X**2) * np.exp(X**2), (6 * X + 4 * X**3) * np.exp(X**2),
                                               (6 + 24 * X**2 + 8 * X**4) * np.exp(X**2)]),
    "erf": (lambda x: x.erf(), [2 / math.sqrt(math.pi) * np.exp(-X**2) * f for f in (1, -2 * X, 4 * X**2 - 2)]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_third_derivatives_are_exact(name):
    function, expected = FORMULAS[name]
    x = leaf(X)
    for order, (found, wanted) in enumerate(zip(derivatives(function(x), x, 3), expected, strict=True), start=1):
        assert_close(found, wanted, 1e-13, f"derivative {order}")


def test_mixed_derivatives():
    x, y = leaf(2.0), leaf(3.0)
    by_x, by_y = mg.grad(x**2 * y**3, [x, y], create_graph=True)
    assert mg.grad(by_x, y, retain_graph=True)[0].item() == 2 * 2 * 3 * 9
    assert mg.grad(by_y, x)[0].item() == 2 * 2 * 3 * 9


def test_backward_with_create_graph_leaves_a_gradient_with_a_graph():
    x = leaf(2.0)
    (x**3).backward(create_graph=True)
    assert x.grad.requires_grad
    slope, x.grad = x.grad, None
    slope.backward()
    assert x.grad.item() == 12


def test_gradients_of_gradients_add_to_those_that_are_there():
    """A gradient penalty: the loss and the square of its gradient in one backward."""
    x = leaf([1.0, 2.0])
    loss = (x**3).sum()
    (slope,) = mg.grad(loss, x, create_graph=True)
    (loss + (slope**2).sum()).backward()
    assert x.grad.tolist() == [3 + 36, 12 + 36 * 8]


def test_weights_with_a_graph_of_their_own():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    (slope,) = mg.grad(x * x, x, w * w, create_graph=True)
    assert mg.grad(slope.sum(), w)[0].tolist() == [2 * 2 * 3 * 1, 2 * 2 * 4 * 2]


# ---- against PyTorch -------------------------------------------------------------------------------------------------


def gelu_of(library):
    return ops.gelu if library is mg else library.nn.functional.gelu


WITH_PYTORCH = {
    "matmul": lambda lib, x: (x @ x.mT @ x),
    "matmul of a vector": lambda lib, x: (x @ x[0]) * x[:, 1],
    "softmax": lambda lib, x: x.softmax(-1) * x,
    "log_softmax": lambda lib, x: x.log_softmax(0) * x.softmax(1),
    "softmax twice": lambda lib, x: x.softmax(-1).softmax(0) ** 2,
    "softmax of a function of x, times x": lambda lib, x: (x * x).softmax(-1) * x + x.softmax(-1),
    "var": lambda lib, x: x.var(dim=1) * x.mean(dim=1) + x.var(),
    "layer norm": lambda lib, x: ((x - x.mean(-1, True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()) ** 3,
    "sigmoid, tanh": lambda lib, x: x.sigmoid() * x.tanh(),
    "maximum": lambda lib, x: lib.maximum(x, x * x) * x,
    "amax": lambda lib, x: x.amax(dim=1, keepdim=True) * x**2,
    "max along a dimension": lambda lib, x: x.max(dim=1)[0] ** 3,
    "where": lambda lib, x: lib.where(x > 0, x**3, x**2),
    "indexing": lambda lib, x: x[[0, 0, 1]] ** 3 * x[1:, None] ** 2,
    "cat, split": lambda lib, x: lib.cat([piece**n for n, piece in enumerate(x.split([1, 2], 1), start=2)], 1) * x,
    "stack": lambda lib, x: lib.stack([x**2, x, x**3], 1) * x[:, None],
    "broadcasting": lambda lib, x: (x[:, :1] * x[:1]) ** 2 + x.sum() ** 3,
    "expand, permute": lambda lib, x: (x.expand(2, *x.shape).permute(2, 0, 1) ** 2) @ x,
    "gelu": lambda lib, x: gelu_of(lib)(x),
    "gelu tanh": lambda lib, x: gelu_of(lib)(x, approximate="tanh"),
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_PYTORCH)
def test_three_derivatives_are_pytorchs(name):
    torch = torch_or_skip()
    values = np.random.default_rng(0).uniform(-1, 1, (3, 3))
    x, other = leaf(values), torch.tensor(values, requires_grad=True)
    ours, theirs = WITH_PYTORCH[name](mg, x), WITH_PYTORCH[name](torch, other)
    rng = np.random.default_rng(1)
    for order in range(3):
        weights = np.asarray(rng.standard_normal(ours.shape))
        (ours,) = mg.grad(ours, x, weights, create_graph=True)
        (theirs,) = torch.autograd.grad(theirs, other, torch.tensor(weights), create_graph=True)
        assert_close(ours, theirs, 1e-10, f"derivative {order + 1}")


# ---- fused operations ------------------------------------------------------------------------------------------------


def plain_product(x, y):
    return x * y.exp()


@mg.op(reference=lambda x, y: x * ops.exp(y))
def fused_product(x, y):
    """x exp(y), in place as only arrays can."""
    value = np.exp(y)
    np.multiply(value, x, out=value)
    e = np.exp(y)
    return value, lambda g: (g * e, g * value)


@pytest.mark.parametrize(
    "arguments",
    [
        lambda x: (x, x),
        lambda x: (x, x * x),
        lambda x: (x * x, x),
        lambda x: (x.tanh(), x.tanh() * x),
        lambda x: (x, plain_product(x, x) * 0.1),
        lambda x: (x.exp(), Tensor([0.5, -0.5], dtype=np.float64)),
        lambda x: (Tensor([0.5, -0.5], dtype=np.float64), x),
        lambda x: (x[0], x),
        lambda x: (2.0, x),
    ],
)
def test_a_fused_operation_counts_each_way_to_an_argument_once(arguments):
    """fused(x, f(x)): the reference runs on aliases of its arguments, so the way through f is not counted twice."""
    values = [0.3, -0.7]
    x, other = leaf(values), leaf(values)
    fused, plain = (
        fused_product(*arguments(x)),
        plain_product(*[Tensor(a) if isinstance(a, float) else a for a in arguments(other)]),
    )
    for one, two in zip([fused, *derivatives(fused, x, 3)], [plain, *derivatives(plain, other, 3)], strict=True):
        assert_close(one, two, 1e-13)


def test_a_fused_operation_of_fused_values():
    values = [0.3, -0.7]
    x, other = leaf(values), leaf(values)
    fused = fused_product(fused_product(x, x), fused_product(x, x * 0.5))
    plain = plain_product(plain_product(other, other), plain_product(other, other * 0.5))
    for one, two in zip([fused, *derivatives(fused, x, 3)], [plain, *derivatives(plain, other, 3)], strict=True):
        assert_close(one, two, 1e-12)


def test_a_fused_operation_with_several_values_and_options():
    def plain(x, *, power):
        e = ops.exp(x)
        return e, e**power

    @mg.op(reference=plain)
    def both(x, *, power):
        e = np.exp(x)
        raised = e**power
        return (e, raised), lambda g: g[0] * e + g[1] * power * raised

    for use in (lambda a, b: a * b, lambda a, b: a, lambda a, b: b, lambda a, b: b + b * a):
        x, other = leaf([0.3, -0.7]), leaf([0.3, -0.7])
        fused, expected = use(*both(x, power=3.0)), use(*plain(other, power=3.0))
        for one, two in zip(
            [fused, *derivatives(fused, x, 3)], [expected, *derivatives(expected, other, 3)], strict=True
        ):
            assert_close(one, two, 1e-13)
    assert mg.gradcheck(lambda x: both(x, power=3.0), [np.array([0.3, -0.7])], order=2)


def test_the_pullback_of_a_fused_operation_is_its_own_and_only_the_tape_is_the_references():
    calls = []

    def plain(x):
        calls.append("reference")
        return x * x

    @mg.op(reference=plain)
    def square(x):
        return x**2, lambda g: calls.append("pullback") or g * 2.0 * x

    x = leaf([1.0, 2.0])
    square(x).sum().backward()
    assert calls == ["pullback"]
    mg.grad(square(x).sum(), x, create_graph=True)
    assert calls == ["pullback", "reference"]


# ---- values that are gone --------------------------------------------------------------------------------------------


def network(x, w):
    h = (x @ w).tanh()
    a, b = h.split(1, dim=1)
    return ((a * b).softmax(dim=0) * h[:, [0, 0]].exp() + x.max(dim=1)[0].unsqueeze(1)).sum()


def test_released_values_are_computed_again_and_living_ones_are_used():
    """The same second derivatives whether the intermediate values are alive or not."""
    rng = np.random.default_rng(0)
    x, w = leaf(rng.standard_normal((3, 2))), leaf(rng.standard_normal((2, 2)))
    (slope,) = mg.grad(network(x, w), w, create_graph=True)
    (released,) = mg.grad((slope**2).sum(), w)
    h = (x @ w).tanh()
    a, b = h.split(1, dim=1)
    s, e, m = (a * b).softmax(dim=0), h[:, [0, 0]].exp(), x.max(dim=1)[0].unsqueeze(1)
    (slope,) = mg.grad((s * e + m).sum(), w, create_graph=True)
    (living,) = mg.grad((slope**2).sum(), w)
    assert_close(released, living, 1e-14)
    assert mg.gradcheck(network, [x, w], order=2)


def test_a_changed_value_is_noticed_in_the_graph_of_a_gradient():
    x = leaf([1.0, 2.0])
    (slope,) = mg.grad((x**3).sum(), x, create_graph=True)
    with mg.no_grad():
        x += 1.0
    with pytest.raises(RuntimeError, match="was changed in place"):
        slope.sum().backward()


def test_a_gradient_that_depends_on_nothing_requires_no_gradient():
    """As in PyTorch: the slope of a linear function is a constant."""
    x = leaf([1.0, 2.0])
    (slope,) = mg.grad((x * 3.0).sum(), x, create_graph=True)
    assert slope.tolist() == [3, 3]
    assert not slope.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        mg.grad(slope.sum(), x)


def test_without_create_graph_gradients_have_no_graph():
    x = leaf([1.0, 2.0])
    (slope,) = mg.grad((x**3).sum(), x)
    assert slope.is_leaf
    assert not slope.requires_grad
    (x**3).sum().backward()
    assert x.grad.is_leaf
    assert not x.grad.requires_grad


def test_a_graph_that_is_not_kept_is_freed_though_the_gradients_have_one():
    x = leaf(2.0)
    y = x**3
    (slope,) = mg.grad(y, x, create_graph=True, retain_graph=False)
    with pytest.raises(RuntimeError, match="power: this part of the graph was freed"):
        y.backward()
    assert mg.grad(slope, x)[0].item() == 12
