"""The functions beside Tensor's methods: joining, choosing, padding; the public names."""

import inspect

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor, factories, functions
from tests.support import assert_close, leaf, torch_or_skip


def test_cat_and_stack():
    x, y = leaf([[1.0, 2.0]]), leaf([[3.0, 4.0]])
    assert mg.cat([x, y]).tolist() == [[1, 2], [3, 4]]
    assert mg.cat((x, y), dim=1).tolist() == [[1, 2, 3, 4]]
    assert mg.stack([x, y]).shape == (2, 1, 2)
    assert mg.stack([x, y], dim=-1).tolist() == [[[1, 3], [2, 4]]]
    mg.cat([x, y, x], 1).backward([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    assert (x.grad.tolist(), y.grad.tolist()) == ([[6, 8]], [[3, 4]])
    for join in (mg.cat, mg.stack):
        with pytest.raises(ValueError, match="needs at least one tensor, got an empty list"):
            join([])
    with pytest.raises(ValueError, match=r"concatenate: .*\(called with \(1, 2\) and \(1, 3\)\)"):
        mg.cat([x, mg.zeros(1, 3)])


def test_where_makes_a_tensor_of_whatever_it_is_given():
    x = leaf([1.0, -2.0])
    mg.where(x > 0, x, 0.1 * x).sum().backward()
    assert x.grad.tolist() == [1, 0.1]
    for condition in (np.array([True, False]), Tensor([True, False]), [True, False]):
        y = mg.where(condition, 1.0, 0.0)
        assert (type(y), y.dtype, y.tolist()) == (Tensor, np.float32, [1, 0])
    assert mg.where(np.array([[True], [False]]), x, 0).shape == (2, 2)


@pytest.mark.parametrize("pad", [(1, 2), (0, 0, 1, 0), (-1, 2, 1, -2), (-1, -2), (), [1, 1, 1, 1]])
def test_pad_is_pytorchs(pad):
    torch = torch_or_skip()
    values = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    x, other = leaf(values, np.float32), torch.tensor(values, requires_grad=True)
    y, wanted = mg.pad(x, pad, value=0.5), torch.nn.functional.pad(other, tuple(pad), value=0.5)
    assert y.dtype == np.float32
    assert_close(y, wanted, 0)
    (y * y).sum().backward()
    (wanted * wanted).sum().backward()
    assert_close(x.grad, other.grad, 0)
    assert mg.gradcheck(lambda x: mg.pad(x, pad), [values], order=2)


def test_pad_that_does_not_fit():
    assert mg.pad(Tensor(2.0), ()).tolist() == 2
    x = mg.zeros(3, 4)
    with pytest.raises(ValueError, match="pad: mode must be 'constant', got 'reflect'"):
        mg.pad(x, (1, 1), "reflect")
    for pad in ((1,), (1, 1, 1, 1, 1, 1)):
        with pytest.raises(ValueError, match=r"pad: .* for shape \(3, 4\); give two numbers a dimension"):
            mg.pad(x, pad)
    with pytest.raises(ValueError, match=r"pad: \(-3, -2\) cuts off more than there is of shape \(3, 4\)"):
        mg.pad(x, (-3, -2))


def test_the_functions_are_the_methods():
    """`mg.exp(x)` is `x.exp()`: one thing under two names."""
    shared = [
        name for name in vars(functions) if hasattr(Tensor, name) and name != "where" and not name.startswith("_")
    ]
    assert {"exp", "sum", "matmul", "reshape", "split", "maximum", "softmax"} <= set(shared)
    for name in shared:
        assert getattr(functions, name) is inspect.getattr_static(Tensor, name), name
        assert getattr(mg, name) is getattr(functions, name), name


@pytest.mark.parametrize("module", [functions, factories])
def test_every_function_is_public(module):
    made = [f for name, f in vars(module).items() if inspect.isfunction(f) and not name.startswith("_")]
    made_here = {f.__name__ for f in made if f.__module__ == module.__name__}
    assert made_here <= set(vars(mg))


def test_public_names():
    assert mg.tensor is Tensor
    for name in (
        "no_grad",
        "enable_grad",
        "grad",
        "op",
        "namespace",
        "gradcheck",
        "manual_seed",
        "cuda_available",
        "DeviceError",
    ):
        assert hasattr(mg, name)


def test_what_a_tensor_is():
    assert mg.is_tensor(Tensor(1.0))
    assert not any(mg.is_tensor(other) for other in (1.0, np.ones(2), [Tensor(1.0)], None))
