"""Dropout on a GPU: drawn by a kernel, the same mask forward and backward, nothing kept; by the stand-in for CuPy.

The kernel itself, on the emulator, is tested in tests/kernels/test_dropout.py.
"""

import gc
import weakref

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from kernels.dropout import element_factor
from minigrad import random
from tests.cupy_standin import installed
from tests.cupy_standin.cuda import counting_launches
from tests.kernels.emulator.compiled import needs_compiler
from tests.support import assert_close

pytestmark = [needs_compiler, pytest.mark.cpu_only(reason="it brings its own stand-in, of two GPUs")]

DTYPES = ("float32", "float16", "bfloat16")
TOLERANCE = {"float32": 1e-6, "float16": 2**-11, "bfloat16": 2**-8}  # a value is rounded once


@pytest.fixture(autouse=True)
def cupy():
    with installed(devices=2) as module:
        yield module


def draw(*shape, dtype="float32"):
    return np.array(np.random.default_rng(0).standard_normal(shape), dtype)


def factor_of_next(shape, p):
    """What the next call multiplies by: the kernel's numbers, made in NumPy."""
    with random.replayed(random.stream_position()):
        key = random.next_key()
    return element_factor(shape, p, key)


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (7,), (3, 5, 100), (2, 0)], ids=str)
def test_value_and_gradient_have_one_mask_in_one_launch_each(shape, dtype, device):
    x = mg.Tensor(draw(*shape, dtype=dtype), device=device, requires_grad=True)
    factor = factor_of_next(shape, 0.3)
    with counting_launches() as launches:
        y = F.dropout(x, 0.3)
    assert launches == ({"dropout": 1} if x.numel() else {})
    g = mg.Tensor(2 * draw(*shape, dtype=dtype), device=device)
    with counting_launches() as launches:
        (d_x,) = mg.grad(y, x, g)
    assert launches["dropout"] == (1 if x.numel() else 0)
    for found, its in ((y, x), (d_x, g)):
        assert (found.device, found.dtype) == (device, x.dtype)
        assert_close(found.numpy(), its.numpy().astype(np.float64) * factor, TOLERANCE[dtype], least=1e-6)


def test_gradients_of_gradients():
    """y = x m, so the loss Σ y³ has the gradient 3 x² m³, and the sum of that one's squares 36 x³ m⁶."""
    x = mg.Tensor(draw(50), device="cuda", requires_grad=True)
    m, values = factor_of_next((50,), 0.4), x.numpy().astype(np.float64)
    (first,) = mg.grad((F.dropout(x, 0.4) ** 3).sum(), x, create_graph=True)
    (second,) = mg.grad((first * first).sum(), x)
    assert_close(first.numpy(), 3 * values**2 * m**3, 1e-6)
    assert_close(second.numpy(), 36 * values**3 * m**6, 1e-6)


def test_gradcheck():
    def dropped(x):
        mg.manual_seed(4)
        return F.dropout(x.float(), 0.5).double()

    x = mg.Tensor(draw(4, 5, dtype="float64"), device="cuda", requires_grad=True)
    assert mg.gradcheck(dropped, [x], eps=1e-2, tolerance=1e-3)


def test_views_are_dropped_by_their_own_places():
    x = mg.Tensor(draw(6, 40), device="cuda", requires_grad=True)
    factor = factor_of_next((40, 3), 0.5)
    y = F.dropout(x.T[:, ::2], 0.5)
    y.sum().backward()
    assert_close(y.numpy(), x.numpy().T[:, ::2] * factor, 1e-6)
    expected = np.zeros((6, 40))
    expected[::2] = factor.T
    assert_close(x.grad.numpy(), expected, 1e-6)


def test_calls_steps_and_seeds_draw_other_masks_which_can_be_drawn_again():
    x = mg.ones(2000, device="cuda")

    def drawn(seed, step):
        mg.manual_seed(seed, step)
        return [F.dropout(x).numpy() for _ in range(2)]

    (first, second), (other_step, _), (other_seed, _) = drawn(1, 2), drawn(1, 3), drawn(2, 2)
    for again, before in zip(drawn(1, 2), (first, second), strict=True):
        np.testing.assert_array_equal(again, before)
    for other in (second, other_step, other_seed):  # independent: half of them agree
        assert abs((first == other).mean() - 0.5) < 5 * 0.5 / np.sqrt(2000)


def test_checkpoints_draw_it_again():
    x = mg.Tensor(draw(300), device="cuda", requires_grad=True)
    gradients = []
    for way in (lambda f, x: f(x), mg.checkpoint):
        mg.manual_seed(3)
        gradients.extend(mg.grad(way(lambda x: F.dropout(x.exp(), 0.5) * x, x).sum(), x))
    np.testing.assert_array_equal(gradients[0].numpy(), gradients[1].numpy())


def test_nothing_of_its_size_is_kept():
    x = mg.Tensor(draw(1000), device="cuda", requires_grad=True)
    hidden = x * 2.0
    array = weakref.ref(hidden.data)
    y = F.dropout(hidden, 0.5)
    del hidden
    gc.collect()
    assert array() is None and y.node is not None


def test_of_nothing_of_all_and_in_evaluation(cupy):
    x = mg.Tensor(draw(5), device="cuda", requires_grad=True)
    assert F.dropout(x, 0.0) is x and F.dropout(x, 0.5, training=False) is x
    y = F.dropout(x, 1.0)
    y.sum().backward()
    assert y.tolist() == x.grad.tolist() == [0] * 5
    assert type(F.dropout(cupy.ones(3, np.float32))) is cupy.ndarray


def test_float64_is_drawn_on_the_cpu_as_ever():
    results = []
    for device in ("cpu", "cuda"):
        mg.manual_seed(0)
        with counting_launches() as launches:
            results.append(F.dropout(mg.Tensor(draw(50, dtype="float64"), device=device), 0.3).numpy())
    np.testing.assert_array_equal(*results)
    assert "dropout" not in launches


def test_nan_is_not_hidden_on_any_device():
    """As in PyTorch: what is dropped is multiplied by 0."""
    for device in ("cpu", "cuda"):
        assert np.isnan(F.dropout(mg.full((4,), np.nan, device=device), 1.0).numpy()).all()


def test_a_layer_drops_in_training():
    layer, x = nn.Dropout(0.5), mg.ones(1000, device="cuda")
    assert abs((layer(x).numpy() == 0).mean() - 0.5) < 5 * 0.5 / np.sqrt(1000)
    assert layer.eval()(x) is x
