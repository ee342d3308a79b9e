"""Grad mode: nested, after errors, in threads, around functions and generators."""

import contextlib
import gc
import threading
import weakref

import pytest

import minigrad as mg
from tests.support import leaf


def test_no_grad_and_enable_grad_nest_and_are_restored():
    x = leaf(1.0)
    with mg.no_grad():
        assert not (x * 2).requires_grad
        with mg.enable_grad():
            assert (x * 2).requires_grad
            with mg.no_grad():
                assert not mg.is_grad_enabled()
            assert mg.is_grad_enabled()
        assert not mg.is_grad_enabled()
    assert mg.is_grad_enabled()


def test_grad_mode_is_restored_after_an_error():
    with pytest.raises(KeyError), mg.no_grad():
        raise KeyError
    assert mg.is_grad_enabled()


def test_one_no_grad_entered_within_itself():
    mode = mg.no_grad()
    with mode:
        with mode:
            pass
        assert not mg.is_grad_enabled()
    assert mg.is_grad_enabled()


def test_no_grad_as_a_decorator_also_of_a_function_that_calls_itself():
    x = leaf(1.0)

    @mg.no_grad()
    def depth(n):
        assert not mg.is_grad_enabled()
        return x * 2 if n == 0 else depth(n - 1)

    assert not depth(3).requires_grad
    assert mg.is_grad_enabled()
    with mg.no_grad():
        depth(1)
        assert not mg.is_grad_enabled()


def test_a_decorated_function_in_two_threads_leaves_each_its_own_mode():
    """One thread enters first and leaves first, while the other, in another mode, is within the function."""
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()
    seen = []

    @mg.no_grad()
    def meet(here, there):
        here.set()
        assert there.wait(5)

    def first():
        meet(first_in, second_in)
        seen.append(mg.is_grad_enabled())
        first_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert first_in.wait(5)
    with mg.no_grad():
        meet(second_in, first_out)
        assert not mg.is_grad_enabled()
    thread.join()
    assert seen == [True]
    assert mg.is_grad_enabled()


def test_grad_mode_is_each_threads_own():
    seen = []

    def work():
        seen.append(mg.is_grad_enabled())
        with mg.no_grad():
            entered.set()
            left.wait(5)
            seen.append(mg.is_grad_enabled())

    entered, left = threading.Event(), threading.Event()
    with mg.no_grad():
        thread = threading.Thread(target=work)
        thread.start()
        entered.wait(5)
        assert not mg.is_grad_enabled()
    assert mg.is_grad_enabled()
    assert (leaf(1.0) * 2).requires_grad
    left.set()
    thread.join()
    assert seen == [True, False]


def test_one_no_grad_object_may_serve_two_threads_and_itself():
    block = mg.no_grad()
    with block, block:
        pass
    assert mg.is_grad_enabled()
    inside, go_on = threading.Event(), threading.Event()

    def other():
        with block:
            inside.set()
            go_on.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    with block:
        go_on.set()
        thread.join()
    assert mg.is_grad_enabled()


@pytest.mark.parametrize("decorate", [mg.no_grad, mg.no_grad(), mg.no_grad()])
def test_no_grad_decorates_with_and_without_parentheses(decorate):
    @decorate
    def recorded(x):
        """Doubled."""
        return (x * 2).requires_grad, mg.is_grad_enabled()

    assert recorded(leaf(1.0)) == (False, False)
    assert recorded.__doc__ == "Doubled." and mg.is_grad_enabled()


def test_grad_mode_decorates_nothing_but_functions():
    with pytest.raises(TypeError, match="grad mode decorates a function, not a Tensor"):
        mg.no_grad(leaf(1.0))
    with pytest.raises(TypeError, match="grad mode decorates a function, not a class"):
        mg.no_grad(dict)


def test_grad_mode_does_not_decorate_what_runs_later_than_it_is_called():
    async def later():
        pass

    async def steps():
        yield

    for function in (later, steps):
        with pytest.raises(TypeError, match=f"cannot decorate the async function {function.__name__}: use a block"):
            mg.no_grad(function)


def test_a_decorated_generator_gives_its_caller_the_callers_mode_at_each_yield():
    @mg.no_grad()
    def numbers():
        received = []
        for number in range(2):
            received.append((mg.is_grad_enabled(), (yield number, mg.is_grad_enabled())))
        with mg.enable_grad():
            received.append((mg.is_grad_enabled(), (yield "inside", mg.is_grad_enabled())))
        return received

    steps = numbers()
    assert next(steps) == (0, False) and mg.is_grad_enabled()
    assert steps.send("a") == (1, False) and mg.is_grad_enabled()
    assert steps.send("b") == ("inside", True) and mg.is_grad_enabled()
    with mg.no_grad(), pytest.raises(StopIteration) as stop:
        steps.send("c")
    assert stop.value.value == [(False, "a"), (False, "b"), (True, "c")]
    assert mg.is_grad_enabled()


@pytest.mark.parametrize("end", ["close", "throw", "drop"])
def test_a_decorated_generator_that_has_ended_is_gone_without_the_collector(end):
    class Held:
        pass

    @mg.no_grad()
    def steps(held):
        yield held

    held = Held()
    gone = weakref.ref(held)
    gc.disable()
    try:
        generator = steps(held)
        next(generator)
        if end == "close":
            generator.close()
        elif end == "throw":
            with contextlib.suppress(KeyError):
                generator.throw(KeyError)
        del generator, held
        assert gone() is None
    finally:
        gc.enable()


def test_a_decorated_generator_is_thrown_into_and_closed_in_its_mode():
    seen = []

    @mg.no_grad()
    def numbers():
        try:
            yield 1
        except KeyError:
            seen.append(("thrown", mg.is_grad_enabled()))
        try:
            yield 2
        finally:
            seen.append(("closed", mg.is_grad_enabled()))

    steps = numbers()
    next(steps)
    assert steps.throw(KeyError()) == 2 and mg.is_grad_enabled()
    steps.close()
    assert seen == [("thrown", False), ("closed", False)] and mg.is_grad_enabled()
