"""Large work is divided: each row is done once; results differ by rounding, and are the same bits again."""

import itertools
import os
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from minigrad import dividing
from minigrad.dividing import divide, undivided
from minigrad.ops import linalg
from nn.optim import AdamW, pieces
from tests.support import assert_close

pytestmark = pytest.mark.cpu_only(reason="what is on a GPU is not divided")
A_SECOND = 1e9
LIKE = np.zeros(1)


@pytest.fixture
def three_threads():
    """Operations divide by three; the former number comes back."""
    former = mg.get_num_threads()
    mg.set_num_threads(3)
    yield
    mg.set_num_threads(former)


@pytest.fixture
def everything_divided(three_threads, monkeypatch):
    """Small work too."""
    monkeypatch.setattr(dividing, "LEAST_WORK", 1e-9)
    monkeypatch.setattr(linalg, "BLAS_DIVIDES_BELOW", 0.0)
    monkeypatch.setattr(linalg, "LEAST_DIVIDED", 0.0)


def edges_of(rows, nanoseconds):
    found = []
    divide(LIKE, rows, nanoseconds, lambda start, stop: found.append((start, stop, threading.current_thread())))
    return sorted(found, key=lambda part: part[0])


# ---- divide ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [3, 4, 7, 100])
def test_each_row_is_done_once_in_three_threads(three_threads, rows):
    parts = edges_of(rows, A_SECOND)
    assert [start for start, _, _ in parts] == [0, *[stop for _, stop, _ in parts[:-1]]] and parts[-1][1] == rows
    assert len({thread for *_, thread in parts}) == 3
    assert max(stop - start for start, stop, _ in parts) - min(stop - start for start, stop, _ in parts) <= 1


def test_little_work_stays_in_this_thread(three_threads):
    here = threading.current_thread()
    assert edges_of(10, dividing.LEAST_WORK / 10) == [(0, 10, here)]
    assert len(edges_of(10, dividing.LEAST_WORK / 5)) == 2
    assert edges_of(0, A_SECOND) == [(0, 0, here)] and edges_of(1, A_SECOND) == [(0, 1, here)]
    with undivided():
        assert edges_of(10, A_SECOND) == [(0, 10, here)]
    mg.set_num_threads(1)
    assert edges_of(10, A_SECOND) == [(0, 10, here)]


def test_an_error_of_a_part_is_the_callers(three_threads):
    def work(start, stop):
        if start > 0:
            raise ArithmeticError(f"from {start}")

    with pytest.raises(ArithmeticError, match="from 1"):
        divide(LIKE, 3, A_SECOND, work)


def test_errstate_holds_in_all_parts(three_threads):
    x = np.zeros(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with np.errstate(divide="ignore"):
            divide(x, 3, A_SECOND, lambda start, stop: np.divide(1.0, x[start:stop]))
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
            divide(x, 3, A_SECOND, lambda start, stop: np.divide(1.0, x[start:stop]))


@pytest.mark.parametrize("number", [0, -1, 129, 2.0, True, "2", None])
def test_a_number_of_threads_that_makes_no_sense(number):
    with pytest.raises(ValueError, match="set_num_threads: the number must be an integer from 1 to 128, got"):
        mg.set_num_threads(number)


def imported(**given):
    """What an import says with these numbers of threads in the environment: the number then, and the warnings."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    code = "import minigrad; print(minigrad.get_num_threads())"
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment | given, capture_output=True, text=True, check=True
    )
    return int(found.stdout), found.stderr


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"MINIGRAD_NUM_THREADS": "5", "OMP_NUM_THREADS": "2"}, 5),
        ({"MINIGRAD_NUM_THREADS": "", "OMP_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "4,2"}, CORES),  # a list, one for each level: not ours to judge
        ({"OMP_NUM_THREADS": "many"}, CORES),
        ({}, CORES),
    ],
)
def test_the_number_as_long_as_nobody_sets_it(given, expected):
    assert imported(**given) == (expected, "")


@pytest.mark.parametrize("given", ["abc", "0", "-1", "2.0", "4,2"])
def test_a_number_in_the_environment_that_makes_no_sense_is_named(given):
    number, said = imported(MINIGRAD_NUM_THREADS=given, OMP_NUM_THREADS="3")
    assert number == 3
    assert (
        f"UserWarning: MINIGRAD_NUM_THREADS='{given}' is passed over: it must be an integer from 1 on. "
        "Operations divide large work into 3, as if it were not set\n"
    ) in said


# ---- operations ------------------------------------------------------------------------------------------------------


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape)


OPERATIONS = {
    "linear": (lambda x, w, b: F.linear(x, w, b), [(5, 7, 4), (6, 4), (6,)]),
    "matmul": (lambda x, y: x @ y, [(7, 4), (4, 5)]),
    "matmul of batches": (lambda x, y: x @ y, [(5, 2, 3, 4), (5, 2, 4, 6)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, 6, w, b), [(5, 7, 6), (6,), (6,)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, 6, w), [(5, 7, 6), (6,)]),
    "gelu": (F.gelu, [(5, 7)]),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), [(5, 7)]),
    "attention of one example": (F.scaled_dot_product_attention, [*[(1, 5, 6, 4)] * 3, (1, 1, 6, 6)]),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [(5, 2, 6, 4)] * 3),
    "attention with a bias for each": (F.scaled_dot_product_attention, [*[(5, 2, 6, 4)] * 3, (5, 2, 6, 6)]),
    "attention with a bias of fewer axes": (F.scaled_dot_product_attention, [*[(1, 2, 5, 6, 4)] * 3, (2, 5, 6, 6)]),
    "attention with one bias": (F.scaled_dot_product_attention, [*[(5, 2, 6, 4)] * 3, (6, 6)]),
    "attention without a batch": (F.scaled_dot_product_attention, [(6, 4)] * 3),
    "attention in blocks": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [(4, 150, 4)] * 3),
}


def with_gradients(function, arrays):
    inputs = [mg.Tensor(x, requires_grad=True) for x in arrays]
    value = function(*inputs)
    return [
        value.numpy(),
        *[g.numpy() for g in mg.grad(value, inputs, np.cos(np.arange(value.numel())).reshape(value.shape))],
    ]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float64", 1e-14)])
def test_operations_give_the_same(name, dtype, tolerance, everything_divided):
    function, shapes = OPERATIONS[name]
    arrays = [draw(*shape).astype(dtype) for shape in shapes]
    found, again = with_gradients(function, arrays), with_gradients(function, arrays)
    with undivided():
        whole = with_gradients(function, arrays)
    for mine, twin, its in zip(found, again, whole, strict=True):
        assert mine.dtype == dtype and mine.tobytes() == twin.tobytes()
        assert_close(mine, its, tolerance)


def test_products_of_16_bits_are_divided_as_those_of_float32(everything_divided, monkeypatch):
    divided = []
    run_at_once = dividing.run_at_once
    monkeypatch.setattr(dividing, "run_at_once", lambda calls: divided.append(len(calls)) or run_at_once(calls))
    x, y = draw(7, 4).astype(np.float16), draw(4, 5).astype(np.float16)
    assert_close((mg.Tensor(x) @ mg.Tensor(y)).numpy(), x.astype(float) @ y.astype(float), 1e-3)
    assert divided == [3]


@pytest.mark.parametrize("name", ["linear", "matmul"])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float64", 1e-14)])
def test_products_by_threads_of_blas_give_the_same(name, dtype, tolerance, three_threads, monkeypatch):
    function, shapes = OPERATIONS[name]
    arrays = [draw(*shape).astype(dtype) for shape in shapes]
    whole, asked = with_gradients(function, arrays), []

    def multiply(x, y, out, threads):
        asked.append(threads)
        np.matmul(x, y, out=out)

    monkeypatch.setattr(linalg, "multiply_by_blas", multiply)
    monkeypatch.setattr(linalg, "BLAS_DIVIDES_BELOW", np.inf)
    monkeypatch.setattr(linalg, "NS_OF_A_BLAS_THREAD", 1e-9)
    monkeypatch.setattr(linalg, "LEAST_DIVIDED", 0.0)
    monkeypatch.setattr(linalg, "NS_OF_A_PRODUCT", 0.005)
    monkeypatch.setattr(linalg, "CORES", 8)
    for mine, its in zip(with_gradients(function, arrays), whole, strict=True):
        assert_close(mine, its, tolerance)
    assert asked == [3] * 3  # forward, and the gradients of both matrices


def test_blas_takes_no_more_threads_than_there_are_cores_and_work(monkeypatch):
    monkeypatch.setattr(linalg, "BLAS_DIVIDES_BELOW", 1e6)
    monkeypatch.setattr(linalg, "parts_at_most", lambda: 128)
    monkeypatch.setattr(linalg, "CORES", 4)
    assert [linalg._threads_of_blas(ns) for ns in (39e3, 40e3, 70e3, 900e3, 1e6)] == [1, 2, 3, 4, 1]
    monkeypatch.setattr(linalg, "parts_at_most", lambda: 2)
    assert linalg._threads_of_blas(900e3) == 2


def test_a_step_of_an_optimizer_gives_the_same_bits(everything_divided, monkeypatch):
    monkeypatch.setattr(pieces, "PART", 10)

    def moved():
        parameters = [nn.Parameter(draw(9000).astype(np.float32)), nn.Parameter(draw(100, 99).astype(np.float32))]
        optimizer = AdamW(parameters, lr=0.1)
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = mg.Tensor(np.sin(parameter.numpy()))
            optimizer.step()
        return [parameter.numpy().tobytes() for parameter in parameters]

    found = moved()
    with undivided():
        assert moved() == found


def test_sums_over_parts_do_not_depend_on_which_is_ready_first(everything_divided, monkeypatch):
    """Of a layer norm's weight and bias, whose gradients each part has a share of."""
    function, shapes = OPERATIONS["layer_norm"]
    arrays = [draw(*shape).astype(np.float32) for shape in shapes]
    found = []
    for order in (list, reversed):
        monkeypatch.setattr(dividing, "run_at_once", lambda calls, order=order: [call() for call in order(calls)])
        found.append([array.tobytes() for array in with_gradients(function, arrays)])
    assert found[0] == found[1]


def test_operations_are_really_divided(everything_divided, monkeypatch):
    divided = []
    monkeypatch.setattr(dividing, "run_at_once", lambda calls: divided.append(len(calls)) or [call() for call in calls])
    for function, shapes in itertools.islice(OPERATIONS.values(), 9):
        divided.clear()
        with_gradients(function, [draw(*shape) for shape in shapes])
        assert divided and set(divided) == {3}, function
