"""backward(): what gradients add up to, whose arrays they are, and which calls are refused."""

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigrad as mg
from minigrad import Tensor
from tests.support import assert_close, leaf, torch_or_skip

# ---- paths that meet -------------------------------------------------------------------------------------------------


def test_a_tensor_used_twice_gets_both_gradients():
    a, b = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    ((a + b) + a).sum().backward()
    assert a.grad.tolist() == [2, 2]
    assert b.grad.tolist() == [1, 1]


def test_a_tensor_used_as_both_operands():
    a = leaf(3.0)
    (a * a + a + a / a).backward()
    assert a.grad.item() == 7


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_tensor_of_one_element_used_four_times(shape):
    x = leaf(np.full(shape, 2.0))
    y = x * 1.0
    (y * 2 + y * 3 + y * 4 + y).sum().backward()
    assert x.grad.shape == shape and x.grad.item() == 10


def test_a_value_used_directly_and_through_another():
    """(h + h @ w).sum(): h's gradient is complete before it is passed on."""
    rng = np.random.default_rng(0)
    x, w = leaf(rng.standard_normal((2, 3))), leaf(rng.standard_normal((3, 3)))
    h = x * 2.0
    (h + h @ w).sum().backward()
    upstream = np.ones((2, 3)) + np.ones((2, 3)) @ w.numpy().T
    assert_close(x.grad, 2 * upstream, 1e-14)
    assert_close(w.grad, (2 * x.numpy()).T @ np.ones((2, 3)), 1e-14)


def test_paths_of_different_lengths_meet_before_they_go_on():
    x = leaf(2.0)
    y = x * 3.0
    z = y
    for _ in range(5):
        z = z * 1.0
    (y * z + y).backward()  # 9 x² + 3 x
    assert x.grad.item() == 39


@settings(max_examples=20)
@given(st.lists(st.tuples(st.sampled_from("+*-m"), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=15))
def test_random_graphs_have_pytorchs_gradients(steps):
    """Any order of uses and reuses: each step takes two earlier values."""
    torch = torch_or_skip()
    starts = np.random.default_rng(0).uniform(0.5, 1.5, (3, 2))
    ours, theirs = [leaf(v) for v in starts], [torch.tensor(v, requires_grad=True) for v in starts]
    leaves = list(zip(ours, theirs, strict=True))
    for kind, i, j in steps:
        for values, maximum in ((ours, mg.maximum), (theirs, torch.maximum)):
            a, b = values[i % len(values)], values[j % len(values)]
            values.append({"+": a + b, "*": a * b * 0.5, "-": a - b, "m": maximum(a, b)}[kind])
    ours[-1].sum().backward()
    theirs[-1].sum().backward()
    for one, other in leaves:
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            assert_close(one.grad, other.grad, 1e-12)


# ---- broadcasting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "other", "expected"),
    [
        ((3, 1), (4,), 4),
        ((4,), (3, 1), 3),
        ((), (3, 4), 12),
        ((1,), (3, 4), 12),
        ((1, 3, 1), (2, 1, 4), 8),
        ((2, 1, 4), (1, 3, 1), 3),
        ((1, 1), (1, 1), 1),
        ((), (), 1),
        ((1,), (), 1),
        ((), (1,), 1),
        ((2, 3), (2, 0, 3), None),
        ((1,), (0,), 0),
        ((), (0, 3), 0),
    ],
)
def test_a_broadcast_operand_gets_a_gradient_of_its_own_shape(shape, other, expected):
    for combine in (lambda x, y: x + y, lambda x, y: y * x, lambda x, y: mg.where(y > 0, x, y)):
        x, y = leaf(np.ones(shape)), Tensor(np.ones(other))
        if expected is None:
            with pytest.raises(ValueError, match="broadcast"):
                combine(x, y)
            continue
        combine(x, y).sum().backward()
        assert x.grad.shape == shape
        assert_close(x.grad, np.full(shape, expected), 0)


def test_a_broadcast_mask_and_fill_value_get_summed_gradients():
    x, fill = leaf(np.ones((2, 3))), leaf(5.0)
    x.masked_fill(Tensor([True, False, True]), fill).sum().backward()
    assert x.grad.tolist() == [[0, 1, 0], [0, 1, 0]]
    assert (fill.grad.shape, fill.grad.item()) == ((), 4)


# ---- accumulation ----------------------------------------------------------------------------------------------------


def test_gradients_add_up_over_calls_until_they_are_cleared():
    a = leaf(1.0)
    (a * 3).backward()
    (a * 5).backward()
    assert a.grad.item() == 8
    a.grad = None
    (a * 5).backward()
    assert a.grad.item() == 5


def test_a_kept_graph_gives_the_same_gradients_again():
    """y = (x²)² at 2: 32, and 64 after twice; intermediate gradients are not kept (96)."""
    x = leaf(2.0)
    y = (x**2) ** 2
    y.backward(retain_graph=True)
    assert x.grad.item() == 32
    y.backward()
    assert x.grad.item() == 64


def test_a_nan_gradient_is_gone_once_it_is_cleared():
    x = leaf([1.0, 2.0])
    x.grad = Tensor([np.nan, np.nan], dtype=np.float64)
    x.grad = None
    x.sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_gradients_of_intermediate_values_are_not_kept():
    x = leaf([1.0, 2.0])
    y = x * 2
    y.sum().backward()
    assert y.grad is None
    assert not y.is_leaf
    assert x.is_leaf


# ---- whose array a gradient is ---------------------------------------------------------------------------------------


def test_two_leaves_never_share_a_gradient():
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    gradient = np.ones(2)
    (x + y).backward(gradient)
    assert not np.may_share_memory(x.grad.data, y.grad.data)
    x.grad.data[...] = 7.0
    assert y.grad.tolist() == [1, 1]
    assert gradient.tolist() == [1, 1]


@pytest.mark.parametrize("make", [np.array, lambda v: Tensor(v, dtype=np.float64)])
def test_a_gradient_that_is_passed_in_is_never_changed_or_kept(make):
    x, gradient = leaf([1.0, 2.0]), make([1.0, 10.0])
    for y in (x, x + 0.0, x + x, x.reshape(1, 2)[0], x * 2.0 + x, mg.cat([x, x])[:2] + x):
        x.grad = None
        y.backward(gradient)
        y.backward(gradient) if y is x else (x + 0.0).backward(gradient)
        assert gradient.tolist() == [1, 10]
        x.grad.data[...] = 0.0
        assert gradient.tolist() == [1, 10]


@pytest.mark.parametrize(
    "spread",
    [
        lambda x: x.sum(),
        lambda x: x.expand(3, 2).sum(),
        lambda x: x.mean(),
        lambda x: x.reshape(2, 1).T.sum(),
        lambda x: x[::-1].sum(),
    ],
    ids=["sum", "expand", "mean", "transpose", "reverse"],
)
def test_a_gradient_is_a_writable_array_of_its_own(spread):
    x = leaf([1.0, 2.0])
    spread(x).backward()
    array = x.grad.data
    assert getattr(array.flags, "writeable", True)  # CuPy's always are
    array[0] = 5.0
    assert array[1] != 5.0


def test_adding_to_a_gradient_does_not_change_the_one_read_before():
    x = leaf([1.0, 2.0])
    x.sum().backward()
    before = x.grad
    x.sum().backward()
    assert before.tolist() == [1, 1]
    assert x.grad.tolist() == [2, 2]


def test_buffers_that_pullbacks_hand_to_several_inputs_are_not_written_into():
    """One array for both inputs, of which one gets more gradients: what is added to it must not reach the other."""

    @mg.op
    def both(x, y):
        return x + y, lambda g: (g, g)

    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    a, b = x * 1.0, y * 1.0
    (both(a, b) + a * 10.0 + a * 100.0).sum().backward()
    assert x.grad.tolist() == [111, 111]
    assert y.grad.tolist() == [1, 1]


def test_a_buffer_that_a_pullback_keeps_is_not_written_into():
    kept = mg.ones(2, dtype=np.float64).data

    @mg.op
    def fixed(x):
        return x * 1.0, lambda g: kept

    x = leaf([1.0, 2.0])
    (fixed(x) + x * 5.0 + fixed(x)).sum().backward()
    x.grad.data[...] = 0.0
    assert kept.tolist() == [1, 1]


@pytest.mark.cpu_only(reason="it looks at NumPy arrays")
def test_an_array_that_a_pullback_has_just_made_is_taken_without_a_copy():
    made = []

    @mg.op
    def doubled(x):
        def pullback(g):
            result = g * 2.0
            made.append(weakref.ref(result))
            return result

        return x * 2.0, pullback

    x = leaf([1.0, 2.0])
    doubled(x).sum().backward()
    assert x.grad.data is made[0]() and x.grad.tolist() == [2, 2]
    doubled(x).sum().backward()
    assert x.grad.tolist() == [4, 4]


@pytest.mark.cpu_only(reason="it looks at NumPy arrays")
@pytest.mark.parametrize("made", [np.asfortranarray, np.transpose, lambda g: np.broadcast_to(1.0, g.shape)])
def test_an_array_that_cannot_be_a_gradient_as_it_is_is_copied(made):
    @mg.op
    def same(x):
        return x * 1.0, made

    x = leaf(np.ones((2, 2)))
    same(x).backward(mg.Tensor(np.ones((2, 2))))
    assert x.grad.data.flags.carray and x.grad.data.base is None and x.grad.tolist() == [[1, 1], [1, 1]]


@pytest.mark.cpu_only(reason="it looks at NumPy arrays")
def test_an_array_that_is_kept_elsewhere_is_copied():
    constant, kept = np.ones(2), []

    @mg.op
    def stepped(x):
        def pullback(g):
            kept.append(g * 1.0)
            return kept[-1]

        return x * 1.0, pullback

    @mg.op
    def shifted(x):
        return x + 1.0, lambda g: constant

    for operation in (stepped, shifted):
        x = leaf([1.0, 2.0])
        operation(x).sum().backward()
        x.grad.data[...] = 7
        assert constant.tolist() == [1, 1] and all(array.tolist() == [1, 1] for array in kept)


# ---- what needs no gradient ------------------------------------------------------------------------------------------


def test_constants_get_no_gradient_and_no_node():
    data, w = Tensor([[1.0, 2.0]]), leaf(np.ones((2, 1)), np.float32)
    (data @ w).sum().backward()
    assert data.grad is None
    assert w.grad is not None
    y = data * 2.0 + mg.ones(2)
    assert y.node is None
    assert not y.requires_grad


def test_pullbacks_of_constants_are_not_called():
    calls = []

    @mg.op
    def noted(x, y):
        return x * y, (lambda g: calls.append("x") or g * y, lambda g: calls.append("y") or g * x)

    x = leaf([1.0, 2.0])
    noted(x, Tensor([3.0, 4.0])).sum().backward()
    mg.grad(noted(mg.ones(2), x).sum(), x, create_graph=True)
    assert calls == ["x", "y"]


def test_nothing_is_recorded_behind_detach_and_within_no_grad():
    x = leaf([1.0, 2.0])
    y = (x * 2).detach()
    assert not y.requires_grad
    with mg.no_grad():
        z = x * 2
    assert z.node is None
    (x * y).sum().backward()
    assert x.grad.tolist() == [2, 4]


def test_comparisons_and_integers_carry_no_gradient():
    x = leaf([1.0, 2.0])
    for y in (x > 1, x == 1, x.argmax(), x.max(dim=0)[1], x.long(), x.bool(), mg.any(x), x != x):
        assert not y.requires_grad
        assert y.node is None


# ---- calls that are refused, and those that are not ------------------------------------------------------------------


def test_more_than_one_element_needs_a_gradient():
    with pytest.raises(RuntimeError, match=r"backward: an output of shape \(2,\) needs a gradient of that shape"):
        (leaf([1.0, 2.0]) * 2).backward()
    with pytest.raises(RuntimeError, match=r"an output of shape \(0,\) needs a gradient"):
        (leaf([]) * 2).backward()


@pytest.mark.parametrize("shape", [(), (1,), (2, 1), (3,), (1, 2)])
def test_a_gradient_of_another_shape_is_refused(shape):
    with pytest.raises(RuntimeError) as error:
        (leaf([1.0, 2.0]) * 2).backward(np.ones(shape))
    assert f"backward: the gradient has shape {shape}, the output (2,); they must be equal" in str(error.value)


def test_an_output_that_requires_no_gradient_is_refused():
    x = leaf([1.0, 2.0])
    for y in (Tensor(1.0), Tensor(1.0) * 2, x.detach().sum(), (x > 1).sum(), x.argmax()):
        with pytest.raises(RuntimeError, match=r"backward: the output of shape \(\) does not require grad"):
            y.backward()


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_single_element_has_gradient_one_whatever_its_shape(shape):
    x = leaf(np.full(shape, 3.0))
    x.backward()
    assert (x.grad.shape, x.grad.item()) == (shape, 1)
    (x * x).backward()
    assert x.grad.item() == 7


@pytest.mark.parametrize(
    "gradient", [[1.0, 10.0], (1, 10), np.array([1, 10]), np.array([1.0, 10.0], np.float32), Tensor([1.0, 10.0])]
)
def test_a_gradient_may_be_anything_that_makes_a_tensor_and_is_cast(gradient):
    x = leaf([1.0, 2.0])
    (x * 2).backward(gradient)
    assert x.grad.tolist() == [2, 20]
    assert x.grad.dtype == np.float64


def test_a_python_number_as_gradient_is_taken_in_the_outputs_precision():
    x = leaf(1.0)
    (x * 1.0).backward(0.1)
    assert x.grad.item() == 0.1


def test_zero_size_outputs_and_leaves():
    x = leaf(np.ones((0, 3)))
    (x * 2).backward(np.ones((0, 3)))
    assert x.grad.shape == (0, 3)
    x.sum().backward()
    assert x.grad.shape == (0, 3)
