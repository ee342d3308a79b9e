"""The loop: what asks it to stop. That it saves and goes on is tested from outside: test_kill.py, test_train_cli.py."""

import os
import signal

import pytest

from training.loop import StopRequest


def test_a_signal_asks_and_a_second_one_ends():
    former = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == former
