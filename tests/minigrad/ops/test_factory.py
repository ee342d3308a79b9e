"""The factory's checks see a fault of each kind."""

import numpy as np
import pytest

import minigrad as mg
from minigrad import op, ops
from tests.minigrad.ops import factory
from tests.minigrad.ops.factory import CHECKS, binary, run_check, unary
from tests.support import torch_or_skip


def cube(**more):
    """A case of x³ in every library, as `call` has it in ours."""
    call = more.pop("call")
    return unary("cube", lambda _, x: call(x), numpy=lambda n, x: x**3, torch=lambda t, x: x * x * x, **more)


def total(call, **more):
    """A case of x + y, as `call` has it in ours."""
    return binary("total", lambda _, x, y: call(x, y), numpy=lambda n, x, y: x + y, torch=lambda t, x, y: x + y, **more)


@op
def right(x):
    return x * x * x, lambda g: 3 * g * (x * x)


@op
def wrong_slope(x):
    return x * x * x, lambda g: 3 * g * x


@op
def wrong_second_slope(x):
    return x * x * x, lambda g: 3 * g * ops.constant(x * x)


@op
def widening(x):
    wide = ops.astype(x, dtype=np.float64)
    return wide * wide * wide, lambda g: 3 * g * (x * x)


@op
def widening_float16(x):
    wide = ops.astype(x, dtype=np.float32) if x.dtype == np.float16 else x
    return wide * wide * wide, lambda g: 3 * g * (x * x)


@op
def coarse_in_float16(x):
    return ops.astype(right(ops.astype(x, dtype=np.float16)), dtype=x.dtype), lambda g: 3 * g * (x * x)


@op
def of_numpy_alone(x):
    return np.multiply(np.asarray(x), 1) ** 3, lambda g: 3 * g * (x * x)


@pytest.mark.parametrize("check", CHECKS)
def test_what_is_right_passes(check):
    if check in ("torch", "refusals"):
        torch_or_skip()
    run_check(cube(call=right), check)
    run_check(total(ops.add), check)


@pytest.mark.parametrize(
    ("check", "call", "text"),
    [
        ("gradients", wrong_slope, "its pullback gives"),
        ("gradients", wrong_second_slope, "gradcheck of the gradient of"),
        ("half", widening_float16, "the dtype is float32, expected float16"),
        ("half", lambda x: right(x * 1000.0) * 1e-9, "the value"),
        ("numpy", coarse_in_float16, "the value: off by"),
        ("numpy", widening, "the dtype is float64, expected float32"),
        ("numpy", lambda x: right(x) * (1 + 1e-4), "the value: off by"),
        ("torch", widening, "the dtype is float64, expected torch.float32"),
        ("torch", wrong_slope, "the gradient of operand 0: off by"),
        ("torch", lambda x: right(x).detach(), "the gradient: required here or there, not in both"),
        ("device", of_numpy_alone, "Implicit conversion to a NumPy array is not allowed"),
    ],
)
def test_a_fault_is_seen(check, call, text):
    if check == "torch":
        torch_or_skip()
    with pytest.raises((AssertionError, TypeError), match=text):
        run_check(cube(call=call), check)


def taking_anything(x, y):
    """x + y; where there is no such sum, x."""
    try:
        return ops.add(x, y)
    except (TypeError, ValueError):
        return x


def of_a_wrong_kind(x, y):
    try:
        return ops.add(x, y)
    except (TypeError, ValueError) as error:
        raise ArithmeticError(str(error)) from error


def refusing_matrices(x, y):
    if x.ndim == 2:
        raise ValueError("no matrices")
    return ops.add(x, y)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (taking_anything, AssertionError, "where PyTorch raises TypeError"),
        (of_a_wrong_kind, AssertionError, "ArithmeticError.*, where PyTorch raises"),
        (refusing_matrices, ValueError, "no matrices"),
    ],
)
def test_what_is_wrongly_taken_or_refused_is_seen(call, error, text):
    torch_or_skip()
    with pytest.raises(error, match=text):
        run_check(total(call), "refusals")


def test_booleans_and_integers_are_taken_where_the_page_says_so_and_nowhere_else(monkeypatch):
    """PyTorch has no difference of booleans, and no absolute value of one."""
    torch_or_skip()
    taking = binary("subtract", lambda _, x, y: ops.add(x, ops.multiply(y, -1)), torch=lambda t, x, y: x - y)
    refusing = unary("abs", lambda _, x: ops.negative(x), torch=lambda t, x: abs(x) if x.dtype == t.bool else -x)
    with pytest.raises(AssertionError, match=r"None, where PyTorch raises RuntimeError.*bool"):
        run_check(taking, "refusals")
    with pytest.raises(TypeError, match="negative"):
        run_check(refusing, "refusals")
    monkeypatch.setattr(factory, "taken_more_widely", lambda kind: {"subtract"} if kind == "booleans" else set())
    run_check(taking, "refusals")
    run_check(refusing, "refusals")


def test_refusals_are_counted():
    torch_or_skip()
    assert run_check(total(ops.add), "refusals") >= 4
    assert run_check(cube(call=right), "refusals") == 0


def test_a_call_that_must_fail():
    torch_or_skip()
    assert run_check(unary("exp", refuses=[lambda lib, x: lib.exp(x, no_such_option=1)]), "refusals") == 2
    with pytest.raises(AssertionError, match="PyTorch takes this call"):
        run_check(unary("exp", refuses=[lambda lib, x: lib.exp(x)]), "refusals")
    with pytest.raises(AssertionError, match="None, where PyTorch raises IndexError"):
        run_check(unary("exp", refuses=[lambda lib, x: x if lib is mg else lib.sum(x, 9)]), "refusals")
