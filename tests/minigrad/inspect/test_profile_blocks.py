"""profile(): errors within a block, blocks of other threads and blocks in blocks, by the clock of test_profile.py."""

import threading

import pytest

import minigrad as mg
from minigrad.watchers import is_watched
from tests.minigrad.inspect.profiles import assert_adds_up, times
from tests.support import leaf

# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def failing(clock):
    @mg.op
    def failing(x):
        clock.passes(9)
        raise ValueError("no")

    return failing


def test_an_error_leaves_no_watcher_behind_and_a_table_to_read(clock, slow):
    with pytest.raises(KeyError), mg.profile() as p:
        slow(leaf(1.0))
        clock.passes(1)
        raise KeyError
    assert not is_watched()
    slow(leaf(1.0))
    assert times(p) == {"slow": (1, 3, 0)} and p.total_ms == 4000


def test_an_operation_that_fails_leaves_its_time_to_what_is_around_it(clock, slow, failing):
    with mg.profile() as p:
        with p.region("tries"):
            for _ in range(2):
                with pytest.raises(ValueError):
                    failing(leaf(1.0))
        clock.passes(2)
        with pytest.raises(ValueError):
            failing(leaf(1.0))
        slow(leaf(1.0)).backward()
        clock.passes(1)
    assert times(p) == {"slow": (1, 3, 5)}
    assert p.regions == {"tries": 18_000} and p.outside_ms == 12_000
    assert_adds_up(p)


def test_an_operation_that_fails_within_another(clock, slow, failing):
    @mg.op
    def around(x):
        with pytest.raises(ValueError):
            failing(mg.Tensor(x))
        slow(mg.Tensor(x))
        return x * 1.0, lambda g: g

    with mg.profile() as p:
        around(leaf(1.0))
        clock.passes(2)
    assert times(p) == {"around": (1, 9, 0), "slow": (1, 3, 0)} and p.outside_ms == 2000


def test_a_pullback_that_fails(clock, slow):
    @mg.op
    def failing(x):
        def pullback(g):
            clock.passes(4)
            raise ValueError("no")

        return x * 1.0, pullback

    with mg.profile() as p:
        with pytest.raises(ValueError):
            slow(failing(leaf(1.0))).backward()
        clock.passes(2)
    assert times(p) == {"slow": (1, 3, 5), "failing": (1, 0, 4)} and p.outside_ms == 2000


def test_it_is_read_after_the_block():
    with mg.profile() as p:
        for read in (lambda: p.rows, lambda: p.regions, lambda: p.outside_ms, lambda: p.total_ms, lambda: str(p)):
            with pytest.raises(
                RuntimeError, match=r"^profile: the block still runs; read what it tells after its end$"
            ):
                read()
    assert p.rows == []


# ---- threads, and blocks in blocks -----------------------------------------------------------------------------------


def test_other_threads_are_not_seen(clock, slow, quick):
    tables = []

    def other():
        quick(leaf(1.0)).backward()
        with mg.profile() as p:
            quick(leaf(1.0))
        tables.append(p)

    with mg.profile() as p:
        slow(leaf(1.0))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert times(p) == {"slow": (1, 3, 0)} and p.outside_ms == 4000
    assert times(tables[0]) == {"quick": (1, 1, 0)} and tables[0].outside_ms == 0


def test_blocks_in_blocks(clock, slow, quick):
    with mg.profile() as outer:
        y = slow(leaf(1.0))
        with mg.profile() as inner:
            z = quick(y)
        z.backward()
    assert times(inner) == {"quick": (1, 1, 0)} and inner.total_ms == 1000
    assert times(outer) == {"slow": (1, 3, 5), "quick": (1, 1, 2)} and outer.total_ms == 11_000


@pytest.mark.parametrize("begins", ["body", "hook"])
def test_a_block_within_what_has_begun_before(clock, slow, quick, begins):
    tables = []

    def inside(x):
        with mg.profile() as p:
            quick(x)
        tables.append(p)

    @mg.op
    def around(x):
        inside(mg.Tensor(x))
        return x * 1.0, lambda g: g

    if begins == "body":
        around(leaf(1.0))
    else:
        y = slow(leaf(1.0))
        y.register_hook(inside)
        y.backward()
    assert times(tables[0]) == {"quick": (1, 1, 0)} and tables[0].outside_ms == 0


def test_a_block_that_begins_within_an_operation_and_ends_after_it(clock, quick):
    block, tables = mg.profile(), []

    @mg.op
    def around(x):
        clock.passes(50)
        tables.append(block.__enter__())
        clock.passes(2)
        return x * 1.0, lambda g: g

    around(leaf(1.0))
    quick(leaf(1.0))
    block.__exit__(None, None, None)
    (p,) = tables
    (row,) = p.rows
    assert (row.name, row.calls, row.forward_ms, p.outside_ms) == ("quick", 1, 1000, 2000)
