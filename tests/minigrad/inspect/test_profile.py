"""profile(): times by a clock that only the operations here move on, so that every number is known exactly."""

import re
import threading

import numpy as np

import minigrad as mg
import nn
import nn.functional as F
from minigrad.autograd import backward
from nn.optim import AdamW
from tests.cupy_standin import installed
from tests.minigrad.inspect.profiles import assert_adds_up, times
from tests.support import leaf

# ---- times -----------------------------------------------------------------------------------------------------------


def test_calls_and_times_of_each_operation(clock, slow, quick):
    with mg.profile() as p:
        clock.passes(4)
        y = quick(slow(leaf(1.0)) * quick(leaf(1.0)))
        clock.passes(6)
        y.backward()
    assert [row.name for row in p.rows] == ["slow", "quick", "multiply"]  # what took longest comes first
    assert times(p) == {"slow": (1, 3, 5), "quick": (2, 2, 4)}
    assert [row.calls for row in p.rows] == [1, 2, 1]
    assert (p.outside_ms, p.total_ms, p.regions) == (10_000, 24_000, {})
    assert_adds_up(p)


def test_the_backward_of_what_was_called_earlier(slow, quick):
    y = slow(quick(leaf(1.0)))
    with mg.profile() as p:
        y.backward()
    assert times(p) == {"slow": (0, 0, 5), "quick": (0, 0, 2)} and p.total_ms == 7000


def test_nothing_is_recorded_and_all_is_told_within_no_grad(slow):
    with mg.profile() as p, mg.no_grad():
        assert slow(leaf(1.0)).node is None
    assert times(p) == {"slow": (1, 3, 0)}


def test_several_values(clock):
    @mg.op
    def two(x):
        def pullback(gradients):
            clock.passes(2)
            return gradients[0] + gradients[1]

        clock.passes(1)
        return (x + 1.0, x + 2.0), pullback

    with mg.profile() as p:
        two(leaf([1.0, 2.0]))[1].sum().backward()
    assert times(p) == {"two": (1, 1, 2)}
    (row,) = [row for row in p.rows if row.name == "two"]
    assert (row.value_bytes, row.gradient_bytes) == (32, 16)


def test_an_operation_within_a_body_has_the_time_and_the_one_around_it_only_the_rest(slow, quick, clock):
    def part(x):
        clock.passes(10)
        return quick(slow(x))

    x = leaf(1.0)
    with mg.profile() as first:
        y = mg.checkpoint(part, x)
    assert times(first) == {"slow": (1, 3, 0), "quick": (1, 1, 0)} and first.outside_ms == 10_000
    with mg.profile() as second:
        y.backward()
    assert times(second) == {"checkpointed": (0, 0, 10), "slow": (1, 3, 5), "quick": (1, 1, 2)}
    assert second.total_ms == 21_000


def test_operations_in_the_body_of_one(clock, slow):
    @mg.op
    def around(x):
        clock.passes(7)
        y = slow(mg.Tensor(x))
        clock.passes(7)
        return y.data, lambda g: g

    with mg.profile() as p:
        around(leaf(1.0))
    assert times(p) == {"around": (1, 14, 0), "slow": (1, 3, 0)}
    assert p.outside_ms == 0


def test_what_a_pullback_calls_on_arrays_is_its_own_time(clock, slow):
    @mg.op
    def around(x):
        return x * 1.0, slow  # as a pullback it is a body, called on an array

    with mg.profile() as p:
        around(leaf(1.0)).backward()
    assert times(p) == {"around": (1, 0, 3)}


def test_with_create_graph_the_operations_of_pullbacks_have_lines_of_their_own(clock, slow, quick):
    @mg.op
    def around(x):
        clock.passes(1)

        def pullback(g):
            clock.passes(4)
            return quick(g)

        return slow(x) * 1.0, pullback

    x = leaf(3.0)
    y = around(x)
    clock.passes(1000)
    with mg.profile() as p:
        mg.grad(y, x, create_graph=True)
    # the body again, on Tensors, and its pullback: 1 + 4 s of around's own
    assert times(p) == {"around": (0, 0, 5), "slow": (1, 3, 0), "quick": (1, 1, 0)}
    assert p.outside_ms == 0


def test_the_reference_of_a_fused_operation_is_walked_within_its_pullback(clock, slow):
    def reference(x):
        clock.passes(11)
        return slow(x)

    @mg.op(reference=reference)
    def fused(x):
        return x * 1.0, lambda g: g * 1.0

    x = leaf(1.0)
    with mg.profile() as p:
        mg.grad(fused(x), x, create_graph=True)
    # slow: called, then called again on Tensors as its node is walked, and its pullback
    assert times(p) == {"fused": (1, 0, 11), "slow": (1, 3, 8)}
    assert_adds_up(p)


def test_hooks_and_what_they_call(clock, slow, quick):
    x = leaf(1.0)

    def hook(g):
        clock.passes(20)
        return quick(g)

    with mg.profile() as p:
        y = slow(x)
        y.register_hook(hook)
        y.backward()
    assert times(p) == {"slow": (1, 3, 5), "quick": (1, 1, 0)} and p.outside_ms == 20_000


def test_the_casts_of_autocast_are_operations():
    with mg.profile() as p, mg.autocast(mg.float16):
        mg.ones(2, 2) @ mg.ones(2, 2)
    assert {row.name: row.calls for row in p.rows} == {"astype": 2, "matmul": 1}


# ---- regions ---------------------------------------------------------------------------------------------------------


def test_regions_have_the_time_that_is_no_operations(clock, slow):
    with mg.profile() as p:
        for _ in range(2):
            with p.region("a"):
                clock.passes(2)
                slow(leaf(1.0))
                with p.region("b"):
                    clock.passes(1)
            clock.passes(5)
    assert p.regions == {"a": 4000, "b": 2000} and p.outside_ms == 10_000
    assert times(p) == {"slow": (2, 6, 0)}
    assert_adds_up(p)


def test_a_region_within_an_operation_takes_nothing_twice(clock):
    with mg.profile() as p:

        @mg.op
        def around(x):
            clock.passes(1)
            with p.region("inner"):
                clock.passes(2)
            return x * 1.0, lambda g: g

        around(leaf(1.0))
    assert times(p) == {"around": (1, 1, 0)} and p.regions == {"inner": 2000}


def test_regions_lie_within_the_block_and_its_thread():
    errors = []

    def elsewhere(p):
        try:
            with p.region("data"):
                pass
        except RuntimeError as error:
            errors.append(str(error))

    with mg.profile() as p:
        thread = threading.Thread(target=elsewhere, args=[p])
        thread.start()
        thread.join()
    elsewhere(p)
    assert errors == ["profile: region('data') must lie within the block, in the same thread"] * 2


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_bytes_are_those_of_memory_that_was_made():
    x = mg.ones(4, 6, requires_grad=True)  # 96 bytes
    with mg.profile() as p:
        y = x.exp()  # 96 bytes, and its gradient
        y = y.reshape(2, 12).T.reshape(2, 12)  # two views, then a copy of 96 bytes
        backward((y * y).sum())  # 96 bytes, twice as gradients; a sum of 4
    made = {row.name: (row.calls, row.value_bytes, row.gradient_bytes) for row in p.rows}
    assert made == {
        "exp": (1, 96, 96),
        "reshape": (2, 96, 96),  # the copy's gradient has to be copied, too; that of a view is a view
        "transpose": (1, 0, 0),
        "multiply": (1, 96, 192),
        "sum": (1, 4, 0),  # a view of one number, stretched
    }


def test_a_gradient_that_is_handed_on_takes_no_memory():
    x, y = mg.ones(8, requires_grad=True), mg.ones(8, requires_grad=True)
    with mg.profile() as p:
        (x + y).backward(mg.ones(8))
    (row,) = p.rows
    assert (row.name, row.value_bytes, row.gradient_bytes) == ("add", 32, 0)


def test_one_array_for_two_inputs_counts_once():
    @mg.op
    def fused(x, y):
        def pullback(g):
            both = g * 2.0
            return both, both

        return x * 2.0 + y * 2.0, pullback

    x, y = mg.ones(8, requires_grad=True), mg.ones(8, requires_grad=True)
    with mg.profile() as p:
        fused(x, y).backward(mg.ones(8))
    assert [(row.value_bytes, row.gradient_bytes) for row in p.rows] == [(32, 32)]


# ---- the table -------------------------------------------------------------------------------------------------------


def test_the_table(clock, slow, quick):
    x = mg.ones(2**18, requires_grad=True)  # 1 MiB
    with mg.profile() as p:
        y = slow(quick(x))
        y.backward(mg.ones(2**18))
        with p.region("optimizer"):
            clock.passes(1.25)
        clock.passes(1000)
    expected = """
operation             calls  forward ms  backward ms      total ms   share  value MiB  grad MiB
slow                      1    3,000.00     5,000.00      8,000.00    0.8%        1.0       1.0
quick                     1    1,000.00     2,000.00      3,000.00    0.3%        1.0       1.0
(optimizer)                                               1,250.00    0.1%
(outside operations)                                  1,000,000.00   98.8%
total                                                 1,012,250.00  100.0%
"""
    assert str(p) == expected.strip("\n")


def test_the_table_of_nothing(clock):
    with mg.profile() as p:
        pass
    assert [line.split() for line in str(p).splitlines()[1:]] == [
        ["(outside", "operations)", "0.00", "-"],
        ["total", "0.00", "-"],
    ]


# ---- a model, by the clock on the wall -------------------------------------------------------------------------------


def test_training_steps_add_up_and_are_not_changed():
    def trained(steps):
        mg.manual_seed(1)
        layer, head = nn.MultiHeadAttention(8, 2), nn.Linear(8, 3)
        optimizer = AdamW([*layer.parameters(), *head.parameters()])
        for step in range(steps):
            x = mg.randn(2, 5, 8)
            loss = F.cross_entropy(head(layer(x, x, x, is_causal=True)).reshape(-1, 3), [step % 3] * 10)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [*layer.parameters(), *head.parameters()]

    expected = trained(3)
    with mg.profile() as p:
        found = trained(3)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    (row,) = [row for row in p.rows if row.name == "linear"]
    assert row.calls == 9 and row.forward_ms > 0 and row.backward_ms > 0  # in_proj, out_proj and head
    assert_adds_up(p)
    assert max(map(len, str(p).splitlines())) <= 100
    assert re.search(r"^linear +9 ", str(p), re.MULTILINE)


# ---- a GPU -----------------------------------------------------------------------------------------------------------


def test_work_of_a_gpu_counts_for_the_operation_that_gave_it(clock, monkeypatch):
    """Launches return at once, and who waits has the time: it must be nobody else."""
    with installed() as cupy:
        waiting = []

        def synchronize(device):
            clock.passes(sum(waiting))
            waiting.clear()

        monkeypatch.setattr(cupy.cuda.Device, "synchronize", synchronize)

        @mg.op
        def launched(x):
            def pullback(g):
                waiting.append(5)
                return g * 1.0

            waiting.append(3)
            return x * 1.0, pullback

        with mg.profile() as p:
            y = launched(leaf(1.0).to("cuda"))
            waiting.append(2)
            launched(leaf(1.0).to("cuda"))
        with mg.profile() as back:
            y.backward()
    assert times(p) == {"launched": (2, 6, 0)} and p.outside_ms == 2000
    assert times(back) == {"launched": (0, 0, 5)}
