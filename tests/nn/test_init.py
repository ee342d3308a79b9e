"""Starting values: their distributions, that they are written in place and noticed, and what is refused."""

import math

import numpy as np
import pytest

import minigrad as mg
from nn import init
from nn.module import Parameter
from tests.cupy_standin import installed
from tests.support import torch_or_skip


@pytest.mark.parametrize(
    ("draw", "low", "high", "std"),
    [
        (lambda t: init.uniform_(t, -1, 3), -1, 3, 4 / math.sqrt(12)),
        (lambda t: init.normal_(t, 2, 0.5), None, None, 0.5),
        (init.xavier_uniform_, -math.sqrt(6 / 500), math.sqrt(6 / 500), math.sqrt(2 / 500)),
        (lambda t: init.xavier_normal_(t, gain=3), None, None, 3 * math.sqrt(2 / 500)),
        (
            lambda t: init.kaiming_uniform_(t, a=math.sqrt(5)),
            -1 / math.sqrt(200),
            1 / math.sqrt(200),
            1 / math.sqrt(600),
        ),
        (lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"), None, None, math.sqrt(2 / 300)),
        (lambda t: init.kaiming_normal_(t, nonlinearity="tanh"), None, None, 5 / 3 / math.sqrt(200)),
    ],
)
def test_distributions(draw, low, high, std):
    mg.manual_seed(1)
    tensor = Parameter(mg.zeros(300, 200))
    assert draw(tensor) is tensor
    values = tensor.numpy()
    assert values.dtype == np.float32 and tensor.requires_grad and tensor.is_leaf
    assert values.std() == pytest.approx(std, rel=0.02)
    if low is not None:
        width = high - low
        assert low <= values.min() < low + 0.001 * width and high - 0.001 * width < values.max() <= high


def test_mean_of_normal():
    assert init.normal_(mg.zeros(10000), mean=7.0, std=0.1).numpy().mean() == pytest.approx(7, abs=0.01)


@pytest.mark.parametrize("name", ["xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_"])
@pytest.mark.parametrize(
    "options", [{}, {"mode": "fan_out"}, {"nonlinearity": "relu"}, {"nonlinearity": "linear"}, {"a": 0.5}]
)
@pytest.mark.parametrize("shape", [(400, 100), (40, 10, 5, 5)])
def test_spread_is_that_of_pytorch(name, options, shape):
    torch = torch_or_skip()
    if name.startswith("xavier"):
        options = {"gain": 2.0} if options else {}
    mg.manual_seed(0)
    ours = getattr(init, name)(mg.zeros(shape), **options).numpy()
    theirs = getattr(torch.nn.init, name)(torch.zeros(shape), **options, generator=torch.manual_seed(0)).numpy()
    assert ours.std() == pytest.approx(theirs.std(), rel=0.02)
    if "uniform" in name:
        assert abs(ours).max() == pytest.approx(abs(theirs).max(), rel=0.002)


def test_constants():
    tensor = Parameter(mg.randn(2, 2))
    assert init.zeros_(tensor).tolist() == [[0, 0], [0, 0]]
    assert init.ones_(tensor).tolist() == [[1, 1], [1, 1]]
    assert init.constant_(tensor, 0.5).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert init.constant_(mg.Tensor([1, 2]), 3).dtype == np.int64


def test_a_seed_gives_the_same_numbers_in_every_dtype():
    tensors = []
    for dtype in (np.float32, np.float64):
        mg.manual_seed(4)
        tensors.append(init.normal_(mg.zeros(5, dtype=dtype)))
    assert tensors[0].tolist() == tensors[1].tolist() and tensors[1].dtype == np.float64
    assert init.normal_(mg.zeros(5)).tolist() != tensors[0].tolist()


def test_a_seed_gives_the_same_numbers_on_every_device():
    with installed():
        tensors = []
        for device in ("cpu", "cuda"):
            mg.manual_seed(4)
            tensors.append(init.xavier_uniform_(Parameter(mg.zeros(2, 3), device=device)))
        assert tensors[1].device == "cuda:0" and tensors[1].tolist() == tensors[0].tolist()


def test_a_graph_notices():
    weight = Parameter(mg.ones(2, 2))
    x = mg.ones(2, 2, requires_grad=True)
    loss = (x @ weight).sum()
    init.zeros_(weight)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_empty_and_0d_tensors():
    assert init.xavier_uniform_(mg.zeros(0, 3)).shape == (0, 3)
    assert init.kaiming_normal_(mg.zeros(3, 0)).shape == (3, 0)
    assert init.normal_(mg.zeros(())).shape == ()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: init.xavier_uniform_(mg.zeros(3)), ValueError, r"xavier_uniform_ needs .*got shape \(3,\)"),
        (lambda: init.kaiming_normal_(mg.zeros(())), ValueError, r"kaiming_normal_ needs a weight .*got shape \(\)"),
        (lambda: init.uniform_(mg.zeros(3), 2, 1), ValueError, "must not be above the upper one, got 2 and 1"),
        (lambda: init.normal_(mg.zeros(3), std=-1), ValueError, "std must be 0 or more, got -1"),
        (lambda: init.normal_(mg.Tensor([1, 2])), TypeError, "normal_ draws fractions, which a tensor of int64"),
        (lambda: init.uniform_(mg.Tensor([True])), TypeError, "uniform_ draws fractions, which a tensor of bool"),
        (lambda: init.kaiming_uniform_(mg.zeros(2, 2), mode="fan"), ValueError, "mode must be .*, got 'fan'"),
        (lambda: init.kaiming_uniform_(mg.zeros(2, 2), nonlinearity="x"), ValueError, "one of linear, .*, got 'x'"),
        (lambda: init.zeros_(mg.ones(2, requires_grad=True) * 2), RuntimeError, "requires grad"),
    ],
)  # fmt: skip
def test_what_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
