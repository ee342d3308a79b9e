"""Rearrangements: against finite differences, NumPy and PyTorch; then views and errors."""

import numpy as np
import pytest
from hypothesis import strategies as st

from minigrad import Tensor, grad, ops
from tests.minigrad.ops.factory import ANY_ONE, ONE, Case, make_tests, with_axes
from tests.support import leaf


def fixed(*shapes):
    """Operands of these shapes."""
    return st.just(shapes)


def one_of(*shapes):
    """One operand, of one of these shapes."""
    return st.sampled_from([(shape,) for shape in shapes])


AS_NUMPY = ("shapes",)  # which shapes are refused is NumPy's choice

CASES = [
    Case("reshape", lambda lib, x: lib.reshape(x, (-1,)), ONE, ANY_ONE),
    Case("reshape", lambda lib, x: lib.reshape(x, (3, 2, -1)), fixed((2, 3, 4))),
    Case("reshape", lambda lib, x: lib.reshape(x, ()), fixed((1, 1))),
    Case(
        "transpose", lambda lib, x: lib.transpose(x), ONE, ANY_ONE,
        torch=lambda t, x: x.permute(tuple(range(x.ndim))[::-1]),
    ),
    Case(
        "transpose", lambda lib, x: lib.transpose(x, (1, -1, 0)), with_axes(3),
        torch=lambda t, x: x.permute(1, -1, 0),
    ),
    Case("swapaxes", lambda lib, x: lib.swapaxes(x, -1, 0), with_axes(1)),
    Case("flip", lambda lib, x: lib.flip(x), ONE, ANY_ONE, torch=lambda t, x: t.flip(x, tuple(range(x.ndim)))),
    Case("flip", lambda lib, x: lib.flip(x, -1), with_axes(1), torch=lambda t, x: t.flip(x, (-1,))),
    Case("flip", lambda lib, x: lib.flip(x, (0, -1)), with_axes(2)),
    Case("moveaxis", lambda lib, x: lib.moveaxis(x, 0, -1), with_axes(1)),
    Case("moveaxis", lambda lib, x: lib.moveaxis(x, (0, -1), (1, 0)), with_axes(3), unlike=AS_NUMPY),
    Case(
        "roll", lambda lib, x: lib.roll(x, 4), ONE, [((2, 0, 3),), ((1,),)],
        torch=lambda t, x: t.roll(x.reshape(-1), 4).reshape(x.shape),
    ),
    Case("roll", lambda lib, x: lib.roll(x, -1, -1), with_axes(1)),
    Case("roll", lambda lib, x: lib.roll(x, (1, 2), (0, 1)), with_axes(2)),
    Case("tile", lambda lib, x: lib.tile(x, (2, 3)), ONE, ANY_ONE, torch=lambda t, x: t.tile(x, (2, 3))),
    Case("tile", lambda lib, x: lib.tile(x, (0, 1, 2)), with_axes(1)),
    Case(
        "pad", lambda lib, x: lib.pad(x, ((1, 0), (0, 2)), constant_values=0.5), with_axes(2, 2),
        torch=lambda t, x: t.nn.functional.pad(x, (0, 2, 1, 0), value=0.5), unlike=AS_NUMPY,
    ),
    Case(
        "pad", lambda lib, x: lib.pad(x, ()), fixed(()), numpy=lambda n, x: x, torch=lambda t, x: x.clone(),
        unlike=AS_NUMPY,
    ),
    Case("tril", lambda lib, x: lib.tril(x), with_axes(2)),
    Case("tril", lambda lib, x: lib.tril(x, -1), with_axes(2)),
    Case("triu", lambda lib, x: lib.triu(x), with_axes(2)),
    Case("triu", lambda lib, x: lib.triu(x, 1), with_axes(2)),
    Case("expand_dims", lambda lib, x: lib.expand_dims(x, -1), ONE, ANY_ONE, torch=lambda t, x: x.unsqueeze(-1)),
    Case("expand_dims", lambda lib, x: lib.expand_dims(x, (0, 2)), with_axes(1), torch=lambda t, x: x[None, :, None]),
    Case("squeeze", lambda lib, x: lib.squeeze(x), ONE, ANY_ONE),
    Case("squeeze", lambda lib, x: lib.squeeze(x, axis=(0, -1)), fixed((1, 3, 1)), unlike=AS_NUMPY),
    Case("broadcast_to", lambda lib, x: lib.broadcast_to(x, (4, 2, 3)), one_of((), (2, 1), (1, 1, 1))),
    Case("broadcast_to", lambda lib, x: lib.broadcast_to(x, (2, 0)), one_of((), (1,), (2, 1), (2, 0))),
    Case("concatenate", lambda lib, x, y, z: lib.concatenate([x, y, z]), fixed((1, 2), (3, 2), (0, 2))),
    Case("concatenate", lambda lib, x, y: lib.concatenate([x, y, x], axis=-1), fixed((2, 1), (2, 3))),
    Case("stack", lambda lib, x, y: lib.stack([x, y]), st.sampled_from([((), ()), ((2, 3), (2, 3)), ((0,), (0,))])),
    Case(
        "stack", lambda lib, x, y: lib.stack([x, y, x], axis=-1), fixed((2, 3), (2, 3)),
        torch=lambda t, x, y: t.stack([x, y, x], -1),
    ),
    Case("split", lambda lib, x: lib.split(x, (1, 3)), fixed((4, 2)), torch=lambda t, x: t.tensor_split(x, (1, 3))),
    Case(
        "split", lambda lib, x: lib.split(x, (0, 2), axis=-1), fixed((2, 3)),
        torch=lambda t, x: t.tensor_split(x, (0, 2), -1),
    ),
]  # fmt: skip

test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (-1, -3, -2), (0, -1, 1)])
def test_transpose_sends_gradients_back_by_the_opposite_order(axes):
    x = leaf(np.zeros((2, 3, 4)))
    weights = np.random.default_rng(0).standard_normal(np.transpose(np.zeros((2, 3, 4)), axes).shape)
    (ops.transpose(x, axes) * Tensor(weights)).sum().backward()
    forth = np.transpose(np.arange(24).reshape(2, 3, 4), axes)
    expected = np.zeros(24)
    expected[forth.ravel()] = weights.ravel()
    np.testing.assert_array_equal(x.grad.numpy(), expected.reshape(2, 3, 4))


def test_rearrangements_are_views_and_gradients_are_not():
    x = leaf(np.zeros((2, 3)))
    for y in (x.reshape(3, 2), x.T, x.unsqueeze(0), x[0:1], x.expand(4, 2, 3), x.split(1)[1]):
        assert np.may_share_memory(x.data, y.data)
        y.sum().backward()
        assert not np.may_share_memory(x.grad.data, x.data)
        x.grad.data[...] = 0.0  # not read-only
        x.grad = None


@pytest.mark.parametrize("join", [ops.concatenate, ops.stack])
def test_joining_takes_a_list_and_not_an_empty_one(join):
    with pytest.raises(TypeError, match=rf"{join.__name__} takes a list of tensors first, got Tensor"):
        join(Tensor([1.0]))
    with pytest.raises(TypeError, match=rf"{join.__name__} takes a list of tensors first, got nothing"):
        join()
    with pytest.raises(ValueError, match=rf"{join.__name__} needs at least one tensor, got an empty list"):
        join([])


@pytest.mark.cpu_only(reason="NumPy's arrays stand beside tensors, and devices do not mix")
def test_joining_takes_arrays_beside_tensors_and_promotes():
    x = leaf([1.0, 2.0], np.float32)
    y = ops.concatenate([np.array([1, 2]), x])
    assert y.dtype == np.float32
    y.backward([1.0, 2.0, 3.0, 4.0])
    assert x.grad.tolist() == [3, 4]


def test_triangles_are_of_matrices_and_hide_what_is_not_in_them():
    x = leaf([[1.0, np.nan], [np.inf, 2.0]])
    y = ops.tril(ops.triu(x))
    y.sum().backward()
    assert (y.tolist(), x.grad.tolist()) == ([[1, 0], [0, 2]], [[1, 0], [0, 1]])
    for name in ("tril", "triu"):
        with pytest.raises(ValueError, match=rf"{name}: takes matrices \(..., n, m\), got shape \(3,\)"):
            getattr(ops, name)(Tensor([1.0, 2.0, 3.0]))


def test_an_empty_row_adds_nothing_to_any_shape_as_in_pytorch():
    empty, x = leaf([]), leaf([[1, 2], [3, 4]])
    for axis in (0, 1):
        y = ops.concatenate([empty, x, empty], axis)
        assert y.tolist() == x.tolist()
        empty_slope, slope = grad((y * y).sum(), [empty, x], create_graph=True)
        assert (empty_slope.shape, slope.tolist()) == ((0,), [[2, 4], [6, 8]])
    assert ops.concatenate([empty, empty]).shape == (0,)
    assert ops.concatenate([Tensor([]).double(), Tensor([[1]])]).dtype == np.float64


def test_joining_what_is_no_tensor():
    for name in ("concatenate", "stack"):
        for wrong in (None, 1.0):
            with pytest.raises(TypeError, match=f"{name}:? takes tensors.* got {type(wrong).__name__}"):
                getattr(ops, name)([Tensor([1.0]), wrong])


def test_padding_of_the_wrong_number_of_axes():
    with pytest.raises(ValueError, match=r"pad: 1 pairs of widths for shape \(2, 3\); give one for each axis"):
        ops.pad(Tensor(np.ones((2, 3))), ((1, 1),))
