"""Checks of ids, lengths and places read all that they want to know of a GPU at once, and still find what is wrong.

The GPU is the stand-in for CuPy, which counts; how often a training step waits is in tests/test_gpu_page.py.
"""

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from minigrad.backend import numbers_of
from tests.cupy_standin import installed
from tests.cupy_standin.cuda import counting_waits


@pytest.fixture(autouse=True)
def cupy():
    with installed(devices=2) as module:
        yield module


def ids(*values, device="cuda"):
    return mg.Tensor(np.array(values), device=device)


def on_gpu(*shape):
    return mg.ones(*shape, device="cuda")


def attend(lengths):
    with F.attention_room("fused"):
        return F.scaled_dot_product_attention(on_gpu(2, 1, 3, 4), on_gpu(2, 1, 3, 4), on_gpu(2, 1, 3, 4),
                                              key_lengths=lengths)  # fmt: skip


# What is called with places, places that will do, wrong ones, and the error.
CALLS = [
    (lambda i: F.embedding(i, on_gpu(5, 2)), (0, 4, 2), (0, 5, -1), IndexError, "embedding: id -1 is out of range"),
    (lambda i: F.embedding(i, on_gpu(5, 2)), (0, 4), (0, 5), IndexError, "id 5 is out of range for a weight of 5"),
    (lambda i: F.cross_entropy(on_gpu(3, 4), i), (0, -100, 3), (0, -100, 4), IndexError, "target 4 is out of range"),
    (lambda i: F.cross_entropy(on_gpu(3, 4), i), (0, 1, 3), (0, -1, 2), IndexError, "target -1 is out of range"),
    (lambda i: F.one_hot(i, 4), (0, 3), (0, 4), IndexError, "index 4 is out of range"),
    (attend, (0, 3), (1, 4), ValueError, "key_lengths must be from 0 to 3 .*, got 1 to 4"),
    (lambda i: on_gpu(3, 4)[i], (-3, 2), (-4, 2), IndexError, "index -4 is out of bounds for axis 0 with size 3"),
    (lambda i: on_gpu(3, 4)[i, i], (-3, 2), (0, 3), IndexError, "index 3 is out of bounds for axis 0 with size 3"),
    (lambda i: on_gpu(4, 3)[..., i], (-3, 2), (0, 3), IndexError, "index 3 is out of bounds for axis 1 with size 3"),
    (lambda i: on_gpu(4, 3)[[0, 1], i], (-3, 2), (0, 3), IndexError, "index 3 is out of bounds for axis 1 with size 3"),
]


@pytest.mark.parametrize("call, right, wrong, error, text", CALLS)
def test_one_wait_finds_what_is_wrong(call, right, wrong, error, text):
    right = ids(*right)
    with counting_waits() as waits:
        call(right)
    assert waits.total() == 1
    with pytest.raises(error, match=text):
        call(ids(*wrong))


def test_no_ids_need_no_wait():
    with counting_waits() as waits:
        F.embedding(on_gpu(0).long(), on_gpu(5, 2))
        on_gpu(3)[on_gpu(0).long()]
    assert not waits


def test_numbers_are_read_where_they_are(cupy):
    assert numbers_of(np.int64(3), np.array(True)) == [3, True]
    with counting_waits() as waits:
        assert numbers_of(cupy.asarray(3), np.int64(-4), cupy.asarray(2, np.uint8)) == [3, -4, 2]
    assert waits == {"get": 1}
    with mg.backend.on_device_of(on_gpu(1).to("cuda:1").data):
        assert F.embedding(ids(1, 0, device="cuda:1"), on_gpu(5, 2).to("cuda:1")).device == "cuda:1"
