"""A clock for the profiler, and operations that move it on."""

import pytest

import minigrad as mg


class Clock:
    """`perf_counter` of the profiler."""

    seconds = 100.0

    def __call__(self):
        return self.seconds

    def passes(self, seconds):
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("minigrad.inspect.profile.perf_counter", clock)
    return clock


@pytest.fixture
def slow(clock):
    """x, in 3 s forward and 5 s backward."""

    @mg.op
    def slow(x):
        def pullback(g):
            clock.passes(5)
            return g * 1.0

        clock.passes(3)
        return x * 1.0, pullback

    return slow


@pytest.fixture
def quick(clock):
    """2 x, in 1 s forward and 2 s backward."""

    @mg.op
    def quick(x):
        def pullback(g):
            clock.passes(2)
            return g * 2.0

        clock.passes(1)
        return x * 2.0, pullback

    return quick
