"""`set_default_device`: where tensors are made unless it is said otherwise."""

import numpy as np
import pytest

import minigrad as mg
import nn
from minigrad.backend import to_device
from tests.cupy_standin import installed


@pytest.fixture
def on_second_gpu():
    former = mg.get_default_device()
    with installed(devices=2):
        mg.set_default_device("cuda:1")
        try:
            yield
        finally:
            mg.set_default_device(former)


@pytest.mark.usefixtures("on_second_gpu")
def test_factories_tensors_and_layers_are_made_there():
    assert mg.get_default_device() == "cuda:1"
    made = [mg.Tensor([1.0]), mg.Tensor(np.ones(2)), mg.zeros(2), mg.randn(2), mg.arange(3), nn.Linear(2, 2).weight]
    assert {tensor.device for tensor in made} == {"cuda:1"}


@pytest.mark.usefixtures("on_second_gpu")
def test_what_has_a_device_keeps_it():
    here, there = mg.ones(2, device="cpu"), to_device(np.ones(2), "cuda:0")
    assert mg.Tensor(here).device == mg.zeros_like(here).device == mg.Tensor([1.0], device="cpu").device == "cpu"
    assert mg.Tensor(there).device == "cuda:0"


def test_a_device_that_is_not_there_is_refused_and_changes_nothing():
    former = mg.get_default_device()
    with installed(devices=1), pytest.raises(mg.DeviceError, match=r"device 'cuda:3': CuPy sees 1 GPU\(s\)"):
        mg.set_default_device("cuda:3")
    with pytest.raises(mg.DeviceError, match="unknown device 'gpu'"):
        mg.set_default_device("gpu")
    assert mg.get_default_device() == former
