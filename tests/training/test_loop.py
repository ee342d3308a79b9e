"""The loop: what asks it to stop. That it saves and goes on is tested from outside: test_kill.py, test_train_cli.py."""

import os
import signal

import pytest

from training.loop import StopRequest


@pytest.fixture
def own_sigint():
    """Python's own handler of Ctrl-C, which a shell that starts the tests in the background has switched off."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def test_a_signal_that_was_ignored_stays_ignored(own_sigint):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
    assert not stop.requested


def test_a_signal_asks_and_a_second_one_ends(own_sigint):
    former = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == former
