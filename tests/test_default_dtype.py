"""The default dtype: what follows it, in the engine, in layers, and through a whole training step."""

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from minigrad import Tensor
from minigrad.backend import is_array
from models import Transformer
from nn import optim
from tests.support import torch_or_skip

FLOATING = ["float16", "float32", "float64"]


@pytest.fixture(autouse=True)
def float32_afterwards():
    yield
    mg.set_default_dtype(np.float32)


@pytest.fixture(params=FLOATING)
def default(request):
    mg.set_default_dtype(request.param)
    return np.dtype(request.param)


def test_it_is_float32_until_it_is_set():
    assert mg.get_default_dtype() == np.float32
    for dtype in (np.float64, "float16", np.dtype("float32"), mg.float64):
        mg.set_default_dtype(dtype)
        assert mg.get_default_dtype() == np.dtype(dtype)


@pytest.mark.parametrize("dtype", [np.int64, "int32", bool, np.complex64, np.longdouble, None])
def test_only_floating_dtypes_are_defaults(dtype):
    with pytest.raises(TypeError, match="set_default_dtype: the default is float16, float32 or float64, not"):
        mg.set_default_dtype(dtype)
    with pytest.raises(TypeError):
        mg.set_default_dtype("nonsense")
    assert mg.get_default_dtype() == np.float32


MADE = [
    lambda t: t.tensor(1.5),
    lambda t: t.tensor([1.0, 2]),
    lambda t: t.tensor([1, 2]),
    lambda t: t.tensor([True]),
    lambda t: t.zeros(2),
    lambda t: t.ones((2, 3)),
    lambda t: t.full((2,), 1.5),
    lambda t: t.full((2,), 1),
    lambda t: t.eye(2),
    lambda t: t.arange(3),
    lambda t: t.arange(0, 1, 0.25),
    lambda t: t.linspace(0, 1, 3),
    lambda t: t.rand(2),
    lambda t: t.randn(2),
    lambda t: t.randint(3, (2,)),
    lambda t: t.randperm(3),
    lambda t: t.zeros(2, dtype=t.float32),
    lambda t: t.ones_like(t.tensor([1.0], dtype=t.float32)),
    lambda t: t.tensor([1, 2]) * 2.5,
    lambda t: t.tensor([1, 2]) / 2,
    lambda t: t.tensor([True, False]) + 0.5,
    lambda t: t.tensor([1, 2]).exp(),
    lambda t: t.tensor([1, 2]).sqrt(),
    lambda t: t.tensor([1.0], dtype=t.float32) * 2.5,
    lambda t: t.tensor([1.0], dtype=t.float64) * t.tensor(2.5),
    lambda t: t.tensor([1, 2]) * t.tensor(2.5),
    lambda t: t.where(t.tensor([True, False]), 1.0, 2.0),
    lambda t: t.tensor([1, 2]).float(),
    lambda t: t.tensor([1.0]).double(),
]


@pytest.mark.parametrize("make", MADE)
def test_dtypes_are_those_of_pytorch_with_the_same_default(make, default):
    torch = torch_or_skip()
    torch.set_default_dtype(getattr(torch, default.name))
    try:
        expected = str(make(torch).dtype).removeprefix("torch.")
    finally:
        torch.set_default_dtype(torch.float32)
    assert str(make(mg).dtype) == expected


@pytest.mark.cpu_only(reason="the texts of tensors on a GPU name it")
def test_what_a_tensor_says_of_itself(default):
    assert repr(mg.zeros(1)) == "tensor([0.])"
    for other in FLOATING:
        noted = "" if other == default.name else f", dtype={other}"
        assert repr(mg.zeros(1, dtype=other)) == f"tensor([0.]{noted})"


def test_arrays_keep_their_dtype(default):
    for other in FLOATING:
        assert Tensor(np.ones(2, other)).dtype == other
        assert mg.ones(2, dtype=other).exp().dtype == other


def test_layers_made_under_a_default_have_it(default):
    layers = [
        nn.Linear(4, 4),
        nn.LayerNorm(4),
        nn.Embedding(5, 4),
        nn.MultiHeadAttention(4, 2),
        nn.PositionalEncoding(4),
        nn.LearnedPositionalEncoding(4),
    ]
    for layer in layers:
        for tensor in (*layer.parameters(), *layer.buffers()):
            assert tensor.dtype == default
    model = Transformer(source_vocab_size=7, target_vocab_size=7, d_model=8, num_heads=2)
    assert {t.dtype for t in (*model.parameters(), *model.buffers())} == {default}


def dtypes_in_graph(loss):
    """The dtypes of all values that were computed on the way, and of what they were computed from."""
    waiting, seen = [loss.node], {}
    while waiting:
        source = waiting.pop()
        if id(source) not in seen and hasattr(source, "dtype"):
            seen[id(source)] = source.dtype
            waiting += getattr(source, "inputs", [])
    return {dtype for dtype in seen.values() if dtype.kind == "f"}


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: optim.Adam(p, lr=0.1, eps=1e-3),
        lambda p: optim.AdamW(p, lr=0.1, eps=1e-3),
    ],
)
def test_a_training_step_stays_in_it(make, default):
    mg.manual_seed(0)
    model = Transformer(source_vocab_size=7, target_vocab_size=7, d_model=8, num_heads=2, dropout=0.1)
    optimizer = make(model.parameters())
    source, target = mg.randint(1, 7, (2, 5)), mg.randint(1, 7, (2, 4))
    for _ in range(2):
        logits = model(source, target)
        loss = F.cross_entropy(logits.view(-1, 7), target.view(-1), label_smoothing=0.1)
        if default != np.float16:  # sums of many of those are reckoned in float32
            assert dtypes_in_graph(loss) == {default}
        optimizer.zero_grad()
        loss.backward()
        nn.optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert logits.dtype == loss.dtype == default
        for parameter in model.parameters():
            assert parameter.dtype == parameter.grad.dtype == default
    kept = [array for state in optimizer.state.values() for array in state.values() if is_array(array)]
    assert kept and {array.dtype for array in kept} == {default}


def test_a_seed_gives_the_same_parameters_under_every_default():
    made = []
    for dtype in ("float32", "float64"):
        mg.set_default_dtype(dtype)
        mg.manual_seed(3)
        made.append([p.tolist() for p in nn.MultiHeadAttention(4, 2).parameters()])
    assert made[0] == made[1]
