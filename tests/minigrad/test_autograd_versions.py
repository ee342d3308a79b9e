"""Values in a graph are not written over: whatever the engine writes is noticed, through every view."""

import copy

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor
from tests.support import assert_close, leaf


def values_of(*numbers):
    return Tensor(numbers, dtype=np.float64)


# ---- writing between forward and backward ----------------------------------------------------------------------------


def add_in_place(x):
    with mg.no_grad():
        x += 1.0


def subtract_in_place(x):
    with mg.no_grad():
        x -= 1.0


def multiply_in_place(x):
    with mg.no_grad():
        x *= 2.0


def divide_in_place(x):
    with mg.no_grad():
        x /= 2.0


def set_items(x):
    with mg.no_grad():
        x[0] = 5.0


def copy_into(x):
    with mg.no_grad():
        x.copy_(7.0)


def copy_through_detached(x):
    x.detach().copy_([5.0, 6.0])


def set_item_through_detached(x):
    x.detach()[1] = 5.0


def assign_data(x):
    x.data = np.array([5.0, 6.0])


def assign_data_through_detached(x):
    x.detach().data = np.array([5.0, 6.0])


def write_through_a_slice(x):
    x.detach()[1:][...] = 5.0


def write_through_a_reshape(x):
    x.detach().reshape(1, 2)[0, 0] = 5.0


def write_through_a_transpose(x):
    x.detach().reshape(1, 2).T[0, 0] = 5.0


def write_through_a_piece(x):
    x.detach().split(1)[1].copy_(5.0)


def write_through_squeezes(x):
    x.detach().unsqueeze(0).squeeze(0).view(2)[0] = 5.0


def write_through_a_view_within_no_grad(x):
    with mg.no_grad():
        x[1:].copy_(5.0)


IN_LEAVES = [
    add_in_place, subtract_in_place, multiply_in_place, divide_in_place, set_items, copy_into,
    write_through_a_view_within_no_grad,
]  # fmt: skip
ANYWHERE = [
    copy_through_detached, set_item_through_detached, assign_data, assign_data_through_detached, write_through_a_slice,
    write_through_a_reshape, write_through_a_transpose, write_through_a_piece, write_through_squeezes,
]  # fmt: skip


@pytest.mark.parametrize("write", IN_LEAVES + ANYWHERE)
def test_a_saved_leaf_that_is_written_over_is_noticed(write):
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    write(x)
    with pytest.raises(RuntimeError, match=r"multiply: its input 0 \(of shape \(2,\)\) was changed in place"):
        y.backward()
    with pytest.raises(RuntimeError, match="multiply: its input 0"):
        mg.grad(y, x, create_graph=True)
    assert x.grad is None
    (x * x).sum().backward()  # a new graph uses the new values
    assert_close(x.grad, 2 * x.numpy(), 0)


@pytest.mark.parametrize("write", ANYWHERE)
def test_a_saved_constant_that_is_written_over_is_noticed(write):
    """In the middle of a graph: neither the oldest nor the newest operation."""
    x, constant = leaf([1.0, 2.0]), values_of(3, 4)
    y = (x.exp() * constant).sum()
    write(constant)
    with pytest.raises(RuntimeError, match=r"multiply: its input 1 \(of shape \(2,\)\)"):
        y.backward()


@pytest.mark.parametrize("write", ANYWHERE)
def test_a_saved_result_that_is_written_over_is_noticed(write):
    """exp saves its result, not its input; what is made of the new values does not hide that."""
    x = leaf([1.0, 2.0])
    e = x.exp()
    write(e)
    for y in (e, e * 1.0, e.sum()):
        with pytest.raises(RuntimeError, match=r"exp: its value \(of shape \(2,\)\)"):
            y.backward(np.ones(y.shape))


def test_a_saved_result_among_several_that_is_written_over_is_noticed():
    @mg.op
    def with_double(x):
        e = mg.namespace(x).exp(x)
        return (e, e * 2.0), lambda g: (g[0] + 2.0 * g[1]) * e

    @mg.op
    def parted(x):
        e = mg.namespace(x).exp(x)
        return (e.sum(), e * 2.0), lambda g: g[0] * e + 2.0 * g[1] * e

    values = parted(leaf([1.0, 2.0]))
    values[1].detach()[0] = 5.0
    with pytest.raises(RuntimeError, match=r"parted: its value \(of shape \(2,\)\)"):
        values[0].backward()
    for place in (0, 1):
        values = with_double(leaf([1.0, 2.0]))
        values[place].detach()[0] = 5.0
        with pytest.raises(RuntimeError, match=r"with_double: its value \(of shape \(2,\)\)"):
            values[1 - place].sum().backward()


def test_a_written_view_is_noticed_by_the_graph_of_its_base_and_the_other_way_round():
    x, base = leaf(2.0), values_of(1, 2, 3)
    view = base[1:]
    through_base, through_view = (x * base).sum(), (x * view).sum()
    view[0] = 9.0
    for y in (through_base, through_view):
        with pytest.raises(RuntimeError, match="was changed in place"):
            y.backward()
    y = (x * view).sum()
    base[0] = 9.0  # a false alarm: it lies outside the view
    with pytest.raises(RuntimeError, match="was changed in place"):
        y.backward()


@pytest.mark.parametrize("written", range(4))
@pytest.mark.parametrize("used", range(4))
def test_a_view_of_a_view_has_the_memory_of_both(used, written):
    x, base = leaf(2.0), values_of(1, 2, 3, 4)
    views = [base, base[1:], base[1:][1:], base.reshape(2, 2)[1:]]
    y = (x * views[used]).sum()
    views[written].mul_(3)
    with pytest.raises(RuntimeError, match="was changed in place"):
        y.backward()


def test_a_value_that_is_an_input_or_a_view_of_one_has_its_memory():
    @mg.op
    def second_of(x, y):
        return y[1:], (lambda g: mg.ops.zeros_like(x), lambda g: mg.ops.pad(g, ((1, 0),)))

    x, base = leaf([1.0, 2.0]), values_of(1, 2, 3)
    for given in (base, base[1:]):
        value = second_of(mg.ones(5), given)
        y = (x[: len(value)] * value).sum()
        given.mul_(2)
        with pytest.raises(RuntimeError, match="was changed in place"):
            y.backward()


def test_writing_before_use_or_after_backward_or_elsewhere_is_no_error():
    x, other = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    add_in_place(x)
    y = (x * x).sum()
    add_in_place(other)
    x.clone().detach()[0] = 9.0
    Tensor(x)[0] = 9.0
    y.backward()
    assert x.grad.tolist() == [4, 6]
    add_in_place(x)
    (x * x).sum().backward()
    assert x.grad.tolist() == [4 + 6, 6 + 8]


def test_a_kept_graph_is_checked_at_each_walk():
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    y.backward(retain_graph=True)
    add_in_place(x)
    with pytest.raises(RuntimeError, match="was changed in place"):
        y.backward()
    assert x.grad.tolist() == [2, 4]


def test_a_condition_that_is_written_over_is_noticed():
    x, mask = leaf([1.0, 2.0]), Tensor([True, False])
    chosen = mg.where(mask, x, 0.0).sum()
    mask[0] = False
    with pytest.raises(RuntimeError, match=r"where: its input 0 \(of shape \(2,\)\)"):
        chosen.backward()


# ---- arrays of the user's --------------------------------------------------------------------------------------------


def test_a_tensor_copies_its_data():
    array = np.ones(2)
    x = Tensor(array, requires_grad=True)
    y = (x * x).sum()
    array[...] = 5.0
    y.backward()
    assert x.grad.tolist() == [2, 2]
    assert Tensor(x).data is not x.data
    nested = Tensor(np.ones(2)[:])
    assert nested.data.base is None


@pytest.mark.cpu_only(reason="an operand is an array of NumPy that its owner changes")
@pytest.mark.parametrize(
    "use",
    [
        lambda x, a: x * a,
        lambda x, a: a / x,
        lambda x, a: mg.where(a > 1, x, a * x),
        lambda x, a: x @ a,
        lambda x, a: x.maximum(a),
    ],
)
def test_an_array_that_was_an_operand_may_be_changed_afterwards(use):
    x, array = leaf([1.0, 2.0]), np.array([1.0, 3.0])
    (expected,) = mg.grad(use(x, array).sum(), x)
    y = use(x, array).sum()
    array[...] = -7.0
    y.backward()
    assert_close(x.grad, expected, 0)


def test_assigned_data_is_copied():
    x, array = leaf([1.0, 2.0]), np.array([3.0, 4.0])
    x.data = array
    y = (x * x).sum()
    array[...] = 9.0
    y.backward()
    assert x.grad.tolist() == [6, 8]


def test_a_copied_tensor_is_independent_of_the_graph():
    x, constant = leaf([1.0, 2.0]), values_of(3, 4)
    y = (x * constant).sum()
    for duplicate in (copy.copy(constant), copy.deepcopy(constant)):
        duplicate[...] = 9.0
    y.backward()
    assert x.grad.tolist() == [3, 4]


# ---- rebinding and writing in place ----------------------------------------------------------------------------------


def test_augmented_assignment_to_a_result_makes_a_new_tensor():
    x = leaf([0.0, 0.0])
    y = x.exp()
    before = y
    y += 1
    y *= 2
    assert before.tolist() == [1, 1]
    y.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_augmented_assignment_to_a_constant_makes_a_new_tensor():
    constant, x = values_of(1, 2), leaf([3.0, 4.0])
    before, y = constant, (constant * x).sum()
    constant -= 1
    assert before.tolist() == [1, 2]
    assert constant.tolist() == [0, 1]
    y.backward()
    assert x.grad.tolist() == [1, 2]


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.__iadd__(1.0),
        lambda x: x.__isub__(1.0),
        lambda x: x.__imul__(2.0),
        lambda x: x.__itruediv__(2.0),
        lambda x: x.copy_(0.0),
        lambda x: x.__setitem__(0, 0.0),
    ],
)
def test_a_leaf_that_requires_grad_is_written_only_within_no_grad(write):
    x = leaf([1.0, 2.0])
    with pytest.raises(RuntimeError, match="this tensor requires grad, so its values are not written over"):
        write(x)
    assert x.tolist() == [1, 2]
    data = x.data
    with mg.no_grad():
        result = write(x)
    assert result is None or result is x
    assert x.data is data
    assert x.requires_grad
    assert x.is_leaf
    assert x.tolist() != [1, 2]


def test_a_result_with_history_is_never_written():
    y = leaf([1.0, 2.0]) * 1.0
    for write in (lambda: y.copy_(0.0), lambda: y.__setitem__(0, 0.0)):
        with pytest.raises(RuntimeError, match=r"mg\.where\(condition, a, b\)"):
            write()
        with mg.no_grad(), pytest.raises(RuntimeError, match="requires grad"):
            write()
    assert y.tolist() == [1, 2]


@pytest.mark.parametrize(
    "write", [lambda y, w: y.__setitem__(0, w), lambda y, w: y.copy_(w), lambda y, w: y[1:].copy_(w)]
)
def test_a_value_with_a_gradient_is_not_written_silently_into_a_constant(write):
    """Its gradient would be lost: an error, but within no_grad, where none is asked for."""
    y, w = values_of(1, 2), leaf(5.0)
    with pytest.raises(RuntimeError, match="where"):
        write(y, w)
    assert y.tolist() == [1, 2]
    with mg.no_grad():
        write(y, w)
    assert 5 in y.tolist()


def test_an_expanded_view_is_not_written():
    with pytest.raises(
        RuntimeError, match=r"this tensor of shape \(3, 2\) is an expanded view; write to a \.clone\(\) of it"
    ):
        values_of(1, 2).expand(3, 2).copy_(0.0)
    wide = values_of(1, 2).expand(3, 2).clone()
    wide[0] = 0.0
    assert wide.tolist() == [[0, 0], [1, 2], [1, 2]]


def test_written_values_are_cast_and_broadcast():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    x[0] = np.float64(7)
    x[:, 1] = Tensor([8, 9])
    x[Tensor([[False, False], [True, False]])] = -1
    assert x.dtype == np.float32
    assert x.tolist() == [[7, 8], [-1, 9]]
    assert x.copy_(2).tolist() == [[2, 2], [2, 2]]
    with pytest.raises(ValueError, match="broadcast"):
        x.copy_([1.0, 2.0, 3.0])


def test_assigned_data_keeps_dtype_and_device():
    x = Tensor([1.0, 2.0])
    x.data = np.array([3, 4])
    assert (x.dtype, x.tolist()) == (np.float32, [3, 4])
    x.data = Tensor([5.0, 6.0], dtype=np.float64)
    assert (x.dtype, x.tolist()) == (np.float32, [5, 6])


def test_a_value_is_not_computed_again_from_what_was_written_over():
    """x * 2 is gone and no gradient for x is asked for; the gradient for w needs it, and x is another by now."""
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    loss = (((x * 2.0) * w) ** 2).sum()
    with mg.no_grad():
        x.copy_([5.0, 6.0])
    with pytest.raises(RuntimeError, match=r"multiply: its input 0 .* was changed in place"):
        mg.grad(loss, [w], create_graph=True)
