"""Fixtures of the tests of layers."""

import pytest

import nn.functional as F
from nn.rooms import ROOMS


@pytest.fixture(params=ROOMS)
def room(request):
    """Each room of attention in turn."""
    with F.attention_room(request.param):
        yield request.param
