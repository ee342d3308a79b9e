"""@op: how an operation is written and called, what is checked about it; grad mode."""

import weakref

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor, ops
from tests.support import leaf

# ---- writing an operation --------------------------------------------------------------------------------------------


def test_an_operation_is_its_value_and_its_pullbacks():
    @mg.op
    def product(x, y):
        return x * y, (lambda g: g * y, lambda g: g * x)

    x, y = leaf([[1.0], [2.0]]), leaf([3.0, 4.0])
    z = product(x, y)
    assert z.tolist() == [[3, 4], [6, 8]]
    z.sum().backward()
    assert x.grad.tolist() == [[7], [7]]  # broadcasting is undone by the engine
    assert y.grad.tolist() == [3, 3]
    assert product.__name__ == "product"
    assert "made by product" in repr(z)
    assert mg.gradcheck(product, [np.array([[0.5], [2.0]]), np.array([3.0, 4.0])], order=2)


def test_one_pullback_may_give_all_gradients_and_none_for_an_input_without():
    calls = []

    @mg.op(exempt=["mask"])
    def masked_product(x, mask, y):
        def pullback(g):
            calls.append(1)
            shared = g * mask
            return shared * y, None, shared * x

        return x * y * mask, pullback

    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    masked_product(x, Tensor([True, False]), y).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([3, 0], [1, 0])
    assert len(calls) == 1


def test_without_tensors_an_operation_is_its_bodys_value():
    assert type(ops.exp(np.zeros(2))) is np.ndarray
    assert ops.add(2, 3) == 5
    assert ops.sum(np.ones((2, 3)), 0).tolist() == [2, 2, 2]


def test_the_namespace_of_operands():
    assert mg.namespace(np.ones(2), Tensor(1.0)) is ops
    assert mg.namespace(np.ones(2), 2.0) is np
    assert mg.namespace(2.0) is np


def test_options_may_have_defaults():
    @mg.op
    def scaled(x, *, factor=2.0, offset=0.0):
        return x * factor + offset, lambda g: g * factor

    x = leaf([1.0, 2.0])
    assert scaled(x).tolist() == [2, 4]
    assert scaled(x, offset=1.0).tolist() == [3, 5]
    assert scaled(x, 3.0, 1.0).tolist() == [4, 7]
    assert scaled(x, 3.0, offset=2.0).tolist() == [5, 8]


# ---- several values --------------------------------------------------------------------------------------------------


@mg.op
def largest(x):
    """The maximum of a vector, and its place."""
    place = mg.namespace(x).argmax(x)
    shape = x.shape

    def pullback(g):
        of_value, of_place = g
        assert of_place is None
        return ops.add_at(of_value, key=(place.item() if isinstance(place, Tensor) else int(place),), shape=shape)

    return (mg.namespace(x).max(x), place), pullback


@mg.op
def sum_and_product(x, y):
    def pullback(g):
        of_sum, of_product = g
        return of_sum + of_product * y, of_sum + of_product * x

    return (x + y, x * y), pullback


def test_an_integer_value_among_several_carries_no_gradient():
    x = leaf([1.0, 5.0, 2.0])
    value, place = largest(x)
    assert (value.item(), place.item()) == (5, 1)
    assert value.requires_grad
    assert not place.requires_grad
    assert place.dtype.kind == "i"
    (value * 3.0).backward()
    assert x.grad.tolist() == [0, 3, 0]


def test_gradients_of_unused_values_are_zeros():
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    total, product = sum_and_product(x, y)
    product.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [3, 4]
    total.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [4, 5]
    (total * product).sum().backward()
    assert y.grad.tolist() == [1 + 1 + (3 + 4 * 1), 2 + 1 + (8 + 6 * 2)]


def test_values_of_one_operation_meet_again():
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    total, product = sum_and_product(x, y)
    again, _ = sum_and_product(total, product)
    again.sum().backward()
    assert x.grad.tolist() == [4, 5]
    assert mg.gradcheck(sum_and_product, [x.data, y.data], order=2)


def test_pieces_of_a_split_that_are_not_used():
    x = leaf([1.0, 2.0, 3.0])
    first, *_ = x.split(1)
    (first * 5.0).sum().backward()
    assert x.grad.tolist() == [5, 0, 0]


def test_a_value_of_several_kept_alone_keeps_what_it_needs():
    x = leaf([1.0, 2.0])
    product = sum_and_product(x, x)[1]
    (slope,) = mg.grad(product.sum(), x, create_graph=True)
    assert slope.tolist() == [2, 4]
    assert mg.grad(slope.sum(), x)[0].tolist() == [2, 2]


# ---- calling an operation --------------------------------------------------------------------------------------------


def test_numpys_ways_of_calling():
    x, y = Tensor([[1.0, 2.0]]), Tensor([[3.0, 4.0]])
    assert ops.sum(x, 1).tolist() == ops.sum(x, axis=1).tolist() == ops.sum(x=x, axis=1).tolist() == [3]
    assert ops.sum(x, 1, True).tolist() == ops.sum(x, 1, keepdims=True).tolist() == [[3]]
    assert ops.subtract(x, y=y).tolist() == ops.subtract(y=y, x=x).tolist() == [[-2, -2]]
    assert ops.concatenate([x, y], 1).tolist() == ops.concatenate((x, y), axis=1).tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: ops.add(x), "add() missing 1 required positional argument: 'y'"),
        (lambda x: ops.add(y=x), "add() missing 1 required positional argument: 'x'"),
        (lambda x: ops.add(x, x, x), "add() takes 2 positional arguments but 3 were given"),
        (lambda x: ops.lerp(x, x), "lerp takes the inputs x, y, weight; got 2 of them"),
        (lambda x: ops.exp(), "exp takes the inputs x; got 0 of them"),
        (lambda x: ops.exp(x, 3), "exp takes at most 0 options, got 1"),
        (lambda x: ops.sum(x, 0, True, 1), "sum takes at most 2 options, got 3"),
        (lambda x: ops.sum(x, 0, axis=0), "sum got its option axis twice, by position and by name"),
        (lambda x: ops.sum(x, dim=0), "unexpected keyword argument 'dim'"),
        (lambda x: ops.add(x, x, x=x), "multiple values for argument 'x'"),
        (lambda x: ops.concatenate(x, x), "concatenate takes a list of tensors first, got Tensor"),
    ],
)
def test_wrong_ways_of_calling(call, text):
    with pytest.raises(TypeError) as error:
        call(Tensor([1.0, 2.0]))
    assert text in str(error.value)


@pytest.mark.parametrize("operand", ["a", [1.0, 2.0], 1j, {"a": 1}, object()])
def test_operands_that_are_no_numbers(operand):
    with pytest.raises(TypeError) as error:
        Tensor([1.0, 2.0]) + operand
    assert f"add takes tensors, arrays and numbers, got {type(operand).__name__}" in str(error.value)
    with pytest.raises(TypeError, match="multiply takes tensors"):
        operand * Tensor([1.0, 2.0])


def test_errors_within_a_body_name_the_operation_and_the_shapes():
    with pytest.raises(ValueError, match=r"add: .*\(called with \(2, 3\) and \(4,\)\)"):
        Tensor(np.ones((2, 3))) + Tensor(np.ones(4))
    with pytest.raises(ValueError, match=r"reshape: .*\(called with \(2, 3\)\)"):
        Tensor(np.ones((2, 3))).reshape(4)
    with pytest.raises(IndexError, match=r"getitem: .*\(called with \(2, 3\)\)"):
        Tensor(np.ones((2, 3)))[5]


# ---- what is checked about an operation ------------------------------------------------------------------------------


def make(pullbacks):
    """An operation `faulty(x, y)` = x + y with the given pullbacks."""

    @mg.op
    def faulty(x, y):
        return x + y, pullbacks

    return faulty


WRONG = [
    (
        lambda g: np.ones(3),
        r"faulty: a pullback gave a gradient of shape \(3,\) for an input of shape \(2,\); it must have",
    ),
    (lambda g: np.ones(()), r"faulty: a pullback gave a gradient of shape \(\) for an input of shape \(2,\)"),
    (lambda g: g[:1], r"faulty: a pullback gave a gradient of shape \(1,\) for an input of shape \(2,\)"),
    (lambda g: 0.0, r"faulty: a pullback gave a gradient of shape \(\)"),
    (lambda g: np.ones(2, np.int64), "faulty: a pullback gave a gradient of dtype int64; gradients are floating point"),
    (lambda g: np.ones(2, bool), "faulty: a pullback gave a gradient of dtype bool"),
    (lambda g: np.ones(2, complex), "faulty: a pullback gave a gradient of dtype complex128"),
]


@pytest.mark.cpu_only(reason="its pullbacks answer in NumPy's arrays")
@pytest.mark.parametrize("all_in_one", [False, True])
@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_a_pullback_of_wrong_shape_or_dtype_is_named(wrong, text, all_in_one):
    faulty = make((lambda g: (g, wrong(g))) if all_in_one else (lambda g: g, wrong))
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    with pytest.raises(RuntimeError, match=text):
        faulty(x, y).sum().backward()
    assert x.grad is None
    with pytest.raises(RuntimeError, match=text):
        mg.grad(faulty(x, y).sum(), [x, y], create_graph=True)
    assert y.grad is None


@pytest.mark.parametrize("results", [(), (1,), (1, 1, 1)], ids=len)
def test_a_pullback_that_gives_a_wrong_number_of_gradients_is_named(results):
    faulty = make(lambda g: tuple(g for _ in results))
    with pytest.raises(RuntimeError, match=f"faulty: its pullback gave {len(results)} gradients for 2 inputs"):
        faulty(leaf([1.0]), leaf([2.0])).sum().backward()


def test_a_single_pullback_for_two_inputs_is_named():
    with pytest.raises(RuntimeError, match="faulty: its pullback gave 1 gradients for 2 inputs"):
        make(lambda g: g)(leaf([1.0]), leaf([2.0])).sum().backward()


def test_a_wrong_number_of_pullbacks_is_named_when_the_operation_is_called():
    with pytest.raises(TypeError, match="faulty has 2 inputs and returned 3 pullbacks"):
        make((lambda g: g,) * 3)(leaf([1.0]), leaf([2.0]))


@pytest.mark.cpu_only(reason="NumPy's arrays stand beside tensors, and devices do not mix")
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_body_without_pullbacks_is_named(length):
    @mg.op
    def forgetful(x):
        return x * 2.0

    for operand in (leaf(np.ones((length, 2))), Tensor(np.ones(length)), np.ones(length)):
        with pytest.raises(
            TypeError, match=r"forgetful: its body must return \(value, pullbacks\), it returned ndarray"
        ):
            forgetful(operand)


@pytest.mark.cpu_only(reason="its pullbacks answer in NumPy's arrays")
def test_a_float64_gradient_is_cast_and_a_broadcast_one_is_summed():
    @mg.op
    def wide(x, y):
        return x + y, lambda g: (np.ones((3, 2)), np.ones((3, 2)))

    x, y = leaf([1.0, 2.0], np.float32), leaf(np.ones((3, 1)), np.float32)
    wide(x, y).sum().backward()
    assert (x.grad.dtype, x.grad.tolist()) == (np.float32, [3, 3])
    assert (y.grad.dtype, y.grad.tolist()) == (np.float32, [[2], [2], [2]])


def test_an_input_may_have_no_pullback():
    x, y = leaf([1.0]), leaf([2.0])
    make((lambda g: g, None))(x, y).backward()
    assert x.grad.tolist() == [1]
    assert y.grad is None


def test_a_pullback_that_forgets_its_return_is_an_error():
    x, y = leaf([1.0]), leaf([2.0])
    for pullbacks in ((lambda g: g, lambda g: None), lambda g: None):
        with pytest.raises(RuntimeError, match="faulty: a pullback returned None; is its return missing"):
            make(pullbacks)(x, y).backward()


def test_what_is_no_pullback_is_refused():
    with pytest.raises(TypeError, match="faulty: its pullbacks must be functions, not str"):
        make("ab")(leaf([1.0]), leaf([2.0]))


def test_an_error_inside_a_pullback_says_whose_it_is():
    def broken(g):
        raise ZeroDivisionError("somewhere inside")

    with pytest.raises(ZeroDivisionError) as caught:
        make((broken, None))(leaf([1.0]), leaf([2.0])).backward()
    assert caught.value.__notes__ == ["in the pullback of faulty, for its value of shape (1,)"]


def test_a_number_too_large_for_the_operands_dtype_is_an_error_that_says_where():
    with pytest.raises(OverflowError, match=r"add: .* \(called with \(2,\) and 1180591620717411303424\)"):
        Tensor([1, 2]) + 2**70


def test_none_is_taken_only_for_an_input_that_may_be_none():
    @mg.op(optional=["bias"])
    def shifted(x, bias):
        return x * 1.0 if bias is None else x + bias, (lambda g: g, None if bias is None else lambda g: g)

    x = leaf([1.0, 2.0])
    assert shifted(x, None).tolist() == [1.0, 2.0] and shifted(x, x).tolist() == [2.0, 4.0]
    for call in (lambda: shifted(None, x), lambda: ops.add(x, None), lambda: ops.logical_and(None, x)):
        with pytest.raises(TypeError, match="takes tensors, arrays and numbers, got NoneType"):
            call()
    with pytest.raises(ValueError, match=r"op: optional \['scale'\] of shifted must name some of its inputs"):
        mg.op(shifted.__wrapped__, optional=["scale"])


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (lambda x, y: x * y, "must return (value, pullbacks), it returned ndarray"),
        (lambda x, y: (x * y, None, None), "must return (value, pullbacks), it returned a tuple of 3"),
        (lambda x, y: (None, None), "the value of an operation must be an array, not NoneType"),
    ],
)
def test_what_a_body_must_return_whatever_its_operands(returned, text, requires_grad):
    @mg.op
    def product(x, y):
        return returned(x, y)

    x = Tensor(np.ones((2, 2)), requires_grad=requires_grad)
    with pytest.raises(TypeError) as error:
        product(x, x)
    assert text in str(error.value)


def test_an_error_of_a_body_of_two_inputs_names_the_operation():
    @mg.op
    def beyond(x, y):
        return x[5] + y, None

    with pytest.raises(IndexError, match=r"beyond: index 5 is out of bounds .* \(called with \(2,\) and \(2,\)\)"):
        beyond(leaf([1.0, 2.0]), leaf([1.0, 2.0]))


def test_a_message_that_begins_with_the_operation_is_not_given_its_name_again():
    with pytest.raises(TypeError) as error:
        ops.add(leaf(1.0), "text")
    assert str(error.value).startswith("add takes tensors, arrays and numbers, got str")


def test_one_of_several_values_holds_no_options_once_the_graph_is_freed():
    class Held:
        pass

    @mg.op
    def both(x, *, held):
        return (x * 1.0, x * 2.0), lambda g: g[0] + 2 * g[1]

    held, x = Held(), leaf(1.0)
    gone = weakref.ref(held)
    first, second = both(x, held=held)
    (first + second).backward()
    del held
    assert gone() is None


def test_a_message_that_only_begins_like_the_operation_is_given_its_name():
    @mg.op
    def exp(x):
        raise ValueError("expected more of it")

    with pytest.raises(ValueError, match=r"^exp: expected more of it \(called with \(2,\)\)"):
        exp(leaf([1.0, 2.0]))
