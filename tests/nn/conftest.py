"""Fixtures of the tests of layers."""

import pytest

import nn.functional as F
from nn.rooms import NAMES
from tests.kernels.emulator.compiled import needs_compiler


@pytest.fixture(params=[name for name in NAMES if name != "kernel"])
def room(request):
    """Each room of attention that takes float64 in turn."""
    with F.attention_room(request.param):
        yield request.param


@pytest.fixture(params=[*[name for name in NAMES if name != "kernel"], pytest.param("kernel", marks=needs_compiler)])
def any_room(request):
    """Each room of attention in turn."""
    with F.attention_room(request.param):
        yield request.param
