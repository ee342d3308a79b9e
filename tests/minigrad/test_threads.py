"""Threads beside the caller's: all have ended when the call does, and none is left over."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from functools import partial

import pytest

from minigrad.threads import run_at_once

pytestmark = pytest.mark.cpu_only(reason="it is about threads")


def current():
    return threading.current_thread()


def test_results_come_in_the_order_of_the_calls():
    def result(number):
        time.sleep(0.01 * (3 - number))
        return number

    assert run_at_once([partial(result, number) for number in range(3)]) == [0, 1, 2]


def test_the_calls_run_at_the_same_time():
    barrier = threading.Barrier(3, timeout=60)
    assert sorted(run_at_once([barrier.wait] * 3)) == [0, 1, 2]


def test_the_first_call_is_this_threads_and_threads_are_kept():
    first = run_at_once([current] * 3)
    assert first[0] is current() and len(set(first)) == 3
    for _ in range(20):
        assert set(run_at_once([current] * 3)) == set(first)
    assert all(thread.daemon for thread in first[1:])


def test_one_call_needs_no_other_thread():
    before = threading.active_count()
    assert run_at_once([current]) == [current()] and threading.active_count() == before


@pytest.mark.parametrize("failing", [[0], [2], [1, 2], [0, 2]])
def test_the_first_error_is_raised_when_all_have_ended(failing):
    ended = []

    def call(number):
        if number in failing:
            raise ValueError(number)
        time.sleep(0.02)
        ended.append(number)

    with pytest.raises(ValueError, match=f"^{failing[0]}$"):
        run_at_once([partial(call, number) for number in range(4)])
    assert sorted(ended) == [number for number in range(4) if number not in failing]


def test_callers_in_several_threads():
    def call(number):
        for _ in range(50):
            assert run_at_once([partial(int, number + k) for k in range(3)]) == [number, number + 1, number + 2]
        return number

    assert run_at_once([partial(call, 10 * number) for number in range(4)]) == [0, 10, 20, 30]


def test_nothing_of_a_call_is_kept():
    class Thing:
        pass

    def use(thing):
        pass

    def fail(thing):
        raise ValueError

    gc.collect()
    gc.disable()
    try:
        for calls in ([use] * 3, [fail] * 3, [use, fail, fail]):
            things = [Thing() for _ in range(3)]
            references = [weakref.ref(thing) for thing in things]
            with contextlib.suppress(ValueError):
                run_at_once([partial(call, thing) for call, thing in zip(calls, things, strict=True)])
            things.clear()
            assert [reference() for reference in references] == [None] * 3
    finally:
        gc.enable()


def test_ctrl_c_waits_for_the_other_threads():
    ended = []

    def interrupt():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.1)
        ended.append("interrupting")

    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):  # which comes while this thread waits
            run_at_once([int, interrupt])
        assert ended == ["interrupting"]
        with pytest.raises(KeyboardInterrupt):  # while it works
            run_at_once([interrupt, lambda: (time.sleep(0.2), ended.append("other"))])
        assert ended == ["interrupting", "other"]
    finally:
        signal.signal(signal.SIGINT, former)
    assert run_at_once([int, int]) == [0, 0]


IN_A_CHILD = """
import os
from minigrad.threads import run_at_once
run_at_once([int] * 3)
child = os.fork()
if child == 0:
    os._exit(0 if run_at_once([lambda: 1, lambda: 2]) == [1, 2] else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), run_at_once([lambda: 3, lambda: 4]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_threads_of_its_own_and_a_process_ends():
    done = subprocess.run([sys.executable, "-c", IN_A_CHILD], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 [3, 4]\n", "")
