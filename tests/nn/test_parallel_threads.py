"""ParallelLoss: random numbers of the parts, the same bits each time, and what each thread has of its own."""

import threading

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from minigrad import dividing
from tests.nn.parallel import FIVE, Loss, assert_same_gradients, same_bits

pytestmark = pytest.mark.cpu_only(reason="a GPU takes each batch as a whole")


# ---- random numbers --------------------------------------------------------------------------------------------------


def dropped_gradients(loss_of, threads, step, before=0):
    mg.manual_seed(7, step)
    for _ in range(before):
        mg.rand(1)
    nn.ParallelLoss(loss_of, threads)(*FIVE).backward()
    return loss_of.gradients()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_dropout_repeats_bit_for_bit(threads):
    loss_of = Loss("float32", dropout=0.3)
    first = dropped_gradients(loss_of, threads, step=1)
    for _ in range(3):
        assert same_bits(dropped_gradients(loss_of, threads, step=1), first)
    assert not same_bits(dropped_gradients(loss_of, threads, step=2), first)
    assert not same_bits(dropped_gradients(loss_of, threads, step=1, before=1), first)


def test_each_part_draws_numbers_of_its_own():
    drawn = {}

    def loss_and_count(x):
        drawn[x[0]] = [mg.rand(4).numpy().tobytes() for _ in range(2)]
        return mg.Tensor(0.0), len(x)

    loss_of = nn.ParallelLoss(loss_and_count, threads=3)
    mg.manual_seed(5)
    loss_of(np.arange(3))
    first = dict(drawn)
    loss_of(np.arange(3))
    after = mg.rand(4).numpy().tobytes()
    numbers = [x for draws in (*first.values(), *drawn.values()) for x in draws] + [after]
    assert len(set(numbers)) == len(numbers) == 13
    mg.manual_seed(5)
    loss_of(np.arange(3))
    assert drawn == first
    loss_of(np.arange(3))
    assert mg.rand(4).numpy().tobytes() == after


def test_without_dropout_other_numbers_of_threads_differ_by_rounding_alone():
    loss_of = Loss()
    found = [dropped_gradients(loss_of, threads, step=1) for threads in (1, 2, 3, 5)]
    for other in found[1:]:
        assert_same_gradients(other, found[0], 1e-12)


# ---- what a thread has of its own ------------------------------------------------------------------------------------


def noted(note, threads=3):
    """What `note` returns in each part of a call."""
    notes = []

    def loss_and_count(x):
        notes.append((threading.current_thread(), note()))
        return mg.Tensor(0.0), 1

    nn.ParallelLoss(loss_and_count, threads)(np.arange(threads))
    assert len({thread for thread, _ in notes}) == threads
    return [value for _, value in notes]


def test_parts_have_the_callers_state():
    x = mg.Tensor(np.ones((2, 2), np.float32))
    q = mg.Tensor(np.ones((1, 2, 4), np.float32), requires_grad=True)

    def node_names():
        return F.scaled_dot_product_attention(q, q, q).node.operation.name

    assert noted(mg.is_grad_enabled) == [True] * 3
    with mg.no_grad():
        assert noted(mg.is_grad_enabled) == [False] * 3
    assert noted(lambda: (x @ x).dtype) == [np.float32] * 3
    with mg.autocast():
        assert noted(lambda: (x @ x).dtype) == [np.float16] * 3
    assert noted(lambda: (x @ x).dtype) == [np.float32] * 3  # the same threads again
    with np.errstate(over="raise", under="ignore"):
        assert noted(lambda: np.geterr()["over"]) == ["raise"] * 3
    fused = noted(node_names)
    with F.attention_room("plain"):
        plain = noted(node_names)
    assert len(set(plain)) == len(set(fused)) == 1 and plain != fused


def test_operations_are_not_divided_again(monkeypatch):
    monkeypatch.setattr(dividing, "_count", 2)

    def rows_at_a_time():
        rows = []
        dividing.divide(np.zeros(4), 4, 1e9, lambda start, stop: rows.append((start, stop)))
        return sorted(rows)

    assert rows_at_a_time() == [(0, 2), (2, 4)]
    assert noted(rows_at_a_time) == [[(0, 4)]] * 3
    assert rows_at_a_time() == [(0, 2), (2, 4)]


def test_mixed_precision():
    loss_of = Loss("float32")

    def loss_and_count(source, target):
        with mg.autocast():
            return loss_of(source, target)

    loss_and_count(*FIVE)[0].backward()
    expected = loss_of.gradients()
    nn.ParallelLoss(loss_and_count, threads=2)(*FIVE).backward()
    inside = loss_of.gradients()
    assert_same_gradients(inside, expected, 1e-2)
    with mg.autocast():
        loss = nn.ParallelLoss(loss_of, threads=2)(*FIVE)
    loss.backward()
    assert same_bits(loss_of.gradients(), inside)


@pytest.mark.parametrize("block", [mg.tracing, mg.detect_anomaly], ids=lambda block: block.__name__)
def test_who_watches_sees_all_parts_and_the_same_bits(block):
    loss_of = Loss("float32", dropout=0.3)
    expected = dropped_gradients(loss_of, 2, step=1)
    threads = set()

    def loss_and_count(source, target):
        threads.add(threading.current_thread())
        loss, count = loss_of(source, target)
        assert loss.node.origin is not None
        return loss, count

    mg.manual_seed(7, 1)
    with block():
        nn.ParallelLoss(loss_and_count, threads=2)(*FIVE).backward()
    assert threads == {threading.current_thread()}
    assert same_bits(loss_of.gradients(), expected)
