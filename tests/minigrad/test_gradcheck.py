"""gradcheck finds wrong pullbacks of every kind, passes right ones, and says what is wrong."""

import math
import re

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor, gradcheck
from minigrad.gradcheck import GradcheckError


def cube_with(pullback):
    """x³ as an operation with the given pullback factor: (library, x) -> factor."""

    @mg.op
    def cube(x):
        return x * x * x, lambda g: g * pullback(mg.namespace(x), x)

    return cube


POINT = np.array([[0.5, -1.0, 2.0], [1.5, -0.3, 0.7]])


def test_a_right_pullback_passes_to_any_order():
    cube = cube_with(lambda lib, x: 3.0 * x * x)
    for order in (1, 2, 3):
        assert gradcheck(cube, [POINT], order=order) is True


@pytest.mark.parametrize(
    "wrong",
    [
        lambda lib, x: 3.0 * x,
        lambda lib, x: -3.0 * x * x,
        lambda lib, x: 3.00001 * x * x,
        lambda lib, x: 3.0 * lib.abs(x) * x,
        lambda lib, x: 0.0 * x,
        lambda lib, x: x * math.nan,
        lambda lib, x: 3.0 * x[::-1] * x[::-1],
    ],
    ids=["power", "sign", "factor", "where-negative", "zero", "nan", "permuted"],
)
def test_a_wrong_pullback_is_rejected(wrong):
    cube = cube_with(wrong)
    with pytest.raises(GradcheckError, match=r"gradcheck of cube, inputs of shapes \(2, 3\): along a random direction"):
        gradcheck(cube, [POINT])


def test_the_error_names_the_input_and_both_numbers():
    @mg.op
    def product(x, y):
        return x * y, (lambda g: g * y, lambda g: g * 2.0 * x)

    with pytest.raises(GradcheckError) as error:
        gradcheck(product, [np.array(3.0), np.array(5.0)])
    text = str(error.value)
    found = re.search(r"of input 1 its pullback gives (\S+), finite differences (\S+)", text)
    assert "gradcheck of product, inputs of shapes (), ()" in text
    assert float(found[1]) == pytest.approx(2 * float(found[2]))


def test_a_pullback_that_is_right_once_but_not_twice_is_rejected_at_order_two():
    cube = cube_with(lambda lib, x: Tensor((3.0 * x * x).data) if isinstance(x, Tensor) else 3.0 * x * x)
    assert gradcheck(cube, [POINT])
    with pytest.raises(GradcheckError, match="gradcheck of the gradient of cube"):
        gradcheck(cube, [POINT], order=2)


def test_a_wrong_reference_of_a_fused_operation_is_rejected_at_order_two():
    def plain(x):
        return x * x * x + x

    @mg.op(reference=plain)
    def cube(x):
        return x**3, lambda g: g * 3.0 * x**2

    assert gradcheck(cube, [POINT])
    with pytest.raises(GradcheckError, match="gradcheck of cube"):
        gradcheck(cube, [POINT], order=2)


def test_a_gradient_that_a_plain_sum_would_hide_is_seen():
    """Under a sum, x − mean x has gradient zero, and so has this wrong pullback."""

    @mg.op
    def centred(x):
        return x - x.sum() / x.size, lambda g: g * 0.0

    with pytest.raises(GradcheckError):
        gradcheck(centred, [POINT])


def test_an_operation_outside_the_graph_is_seen():
    with pytest.raises(GradcheckError, match="its pullback gives 0, finite differences"):
        gradcheck(lambda x: Tensor(np.exp(x.numpy())), [POINT])
    with pytest.raises(GradcheckError, match="of input 1 its pullback gives 0"):
        gradcheck(lambda x, y: x * y.detach(), [POINT, POINT])


def test_one_wrong_value_of_several_is_seen():
    cube = cube_with(lambda lib, x: 3.0 * x)
    with pytest.raises(GradcheckError):
        gradcheck(lambda x: (x * 2.0, cube(x)), [POINT])


def test_every_value_of_several_is_checked_and_integer_ones_are_skipped():
    assert gradcheck(lambda x: x.max(dim=1), [POINT], order=2)
    assert gradcheck(lambda x: x.split(1, dim=1), [POINT], order=2)


def test_a_kink_is_not_passed_silently():
    with pytest.raises(GradcheckError):
        gradcheck(lambda x: x.relu(), [np.zeros(3)])


def test_inputs_are_taken_in_float64_whatever_they_are():
    assert gradcheck(lambda x: x.exp(), [POINT.astype(np.float32)], order=2)
    assert gradcheck(lambda x: x.exp(), [Tensor(POINT, dtype=np.float32)], order=2)
    assert gradcheck(lambda x: x * x, [3.0], order=2)


def test_the_same_tensor_twice_and_a_tensor_with_history_are_inputs_like_others():
    x = Tensor(POINT, requires_grad=True)
    assert gradcheck(lambda a, b: a * b.exp(), [x, x], order=2)
    assert gradcheck(lambda a: a * a, [x * 2.0], order=2)
    assert x.grad is None


def test_inputs_that_are_not_floating_are_passed_as_they_are():
    seen = []

    def pick(x, indices, dim, name, nothing):
        seen.append((type(indices), dim, name, nothing))
        return x[indices].sum(dim=dim)

    assert gradcheck(pick, [POINT, np.array([0, 0]), 1, "name", None], order=2)
    assert set(seen) == {(np.ndarray, 1, "name", None)}


def test_nothing_to_check_is_an_error():
    with pytest.raises(ValueError, match="none of the inputs is floating point"):
        gradcheck(lambda x: x + 1, [np.array([1, 2])])
    with pytest.raises(ValueError, match="none of the inputs"):
        gradcheck(lambda: Tensor(1.0), [])


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1, 1)])
def test_any_shape_of_input(shape):
    assert gradcheck(lambda x: x.exp() * x, [np.full(shape, 0.5)], order=2)


def test_the_inputs_are_left_as_they_were():
    values, x = POINT.copy(), Tensor(POINT, requires_grad=True)
    gradcheck(lambda a, b: a * b, [values, x], order=2)
    assert np.array_equal(values, POINT)
    assert np.array_equal(x.numpy(), POINT)
    assert x.grad is None


def test_an_output_that_is_constant_is_checked_too():
    assert mg.gradcheck(lambda x: (x * x, mg.ones(2)), [np.array([1.0, 2.0])], order=2)


def test_nothing_to_check_is_said():
    with pytest.raises(ValueError, match="no output of places is floating point, so there is no gradient to check"):

        def places(x):
            return x.argmax(0)

        mg.gradcheck(places, [np.array([1.0, 2.0])])


def test_it_works_inside_no_grad():
    with mg.no_grad():
        assert gradcheck(lambda x: x.exp(), [np.ones(2)], order=2)
        assert not mg.is_grad_enabled()
