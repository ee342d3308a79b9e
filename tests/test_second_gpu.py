"""A second GPU: whatever is computed there runs there, though another one is CuPy's current GPU; by the stand-in."""

import copy
import pickle

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from kernels import attention_backward, attention_forward
from minigrad.backend import DeviceError, device_of, to_device
from models import Transformer, greedy_decode
from nn.optim import AdamW, GradScaler, clip_grad_norm_
from tests.cupy_standin import installed
from tests.kernels.emulator.compiled import needs_compiler
from tests.support import assert_close

pytestmark = [needs_compiler, pytest.mark.cpu_only(reason="it brings its own stand-in, of two GPUs")]

SOURCE, TARGET = np.array([[3, 4, 5, 0], [4, 3, 0, 0]]), np.array([[1, 5, 4, 2], [1, 3, 2, 0]])


@pytest.fixture(autouse=True)
def two_gpus():
    with installed(devices=2):
        yield


def trained(device, amp=False):
    """A Transformer after two steps, the last loss, and an answer."""
    mg.manual_seed(0)
    model = Transformer(6, 6, d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0)
    model.to(device)
    optimizer, scaler = AdamW(model.parameters(), lr=0.01, eps=1e-3), GradScaler(enabled=amp)
    for _ in range(2):
        optimizer.zero_grad()
        with mg.autocast(enabled=amp):
            logits = model(SOURCE, TARGET[:, :-1])
            target = mg.Tensor(TARGET[:, 1:].reshape(-1), device=device)
            loss = F.cross_entropy(logits.reshape(-1, 6), target, ignore_index=0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    model.eval()
    return model, loss, greedy_decode(model, SOURCE, 1, 2, 3)


@pytest.mark.parametrize("amp", [False, True])
def test_training_and_decoding(amp):
    model, loss, answers = trained("cuda:1", amp)
    expected, expected_loss, expected_answers = trained("cpu", amp)
    tolerance = 1e-2 if amp else 1e-5
    assert loss.device == "cuda:1" and answers.shape == expected_answers.shape
    assert_close(loss.numpy(), expected_loss.numpy(), tolerance)
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert ours.device == "cuda:1", name
        assert_close(ours.numpy(), theirs.numpy(), tolerance, name, least=0.1)


def spread(first, second):
    """The loss of a graph over two devices, in which a layer is used twice on the second, and its leaves."""
    mg.manual_seed(0)
    a, b = nn.Linear(4, 4).to(first), nn.Linear(4, 4).to(second)
    x = mg.randn(3, 4).to(first).detach().requires_grad_()
    hidden = a(x).tanh()
    there = hidden.to(second)
    y = b(b(there) + there * 2) + there.sum()
    return (y * y).mean().to(first) + (hidden * y.to(first)).sum(), [x, *a.parameters(), *b.parameters()]


def test_a_graph_over_two_gpus():
    (loss, leaves), (expected, expected_leaves) = spread("cuda:0", "cuda:1"), spread("cpu", "cpu")
    loss.backward()
    expected.backward()
    for ours, theirs in zip(leaves, expected_leaves, strict=True):
        assert ours.grad.device == ours.device
        assert_close(ours.grad.numpy(), theirs.grad.numpy(), 1e-5)


def test_gradients_of_gradients_over_two_gpus():
    found = []
    for devices in (("cuda:0", "cuda:1"), ("cpu", "cpu")):
        loss, leaves = spread(*devices)
        gradients = mg.grad(loss, leaves, create_graph=True)
        found.append(mg.grad(sum((g * g).sum().to(devices[0]) for g in gradients), leaves))
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours.numpy(), theirs.numpy(), 1e-4)


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "float64")])
def test_gradients_on_several_devices_are_clipped_and_unscaled_together(dtypes):
    made = []
    for devices in (("cpu", "cuda:0", "cuda:1", "cuda:1"), ("cpu",) * 4):
        kinds = ("float32", dtypes[0], dtypes[0], dtypes[1])
        parameters = [nn.Parameter(mg.ones(3).to(d).to(kind)) for d, kind in zip(devices, kinds, strict=True)]
        for place, p in enumerate(parameters):
            p.grad = mg.Tensor([1.0, 2.0, 3.0 + place], device=p.device, dtype=p.dtype)
        scaler, optimizer = GradScaler(init_scale=4.0), AdamW(parameters, lr=0.1)
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(parameters, 0.5)
        scaler.step(optimizer)
        made.append([norm, *[p.grad for p in parameters], *parameters])
    for ours, theirs in zip(*made, strict=True):
        assert_close(ours.numpy(), theirs.numpy(), 1e-6)


def test_one_hot_and_copies_stay_there():
    classes = mg.Tensor([0, 1], device="cuda:1")
    assert F.one_hot(classes, 3).device == F.one_hot(classes).device == "cuda:1"
    x = pickle.loads(pickle.dumps(mg.Tensor([1.0], device="cuda:1")))
    assert x.device == copy.deepcopy(x).device == "cuda:1"


def test_checkpoints_hooks_and_anomalies():
    x = mg.Tensor([1.0, 2.0], device="cuda:1", requires_grad=True)
    y = mg.checkpoint(lambda x: x.exp() * x, x)
    y.register_hook(lambda g: g * 2)
    with mg.detect_anomaly():
        y.sum().backward()
    assert_close(x.grad.numpy(), 2 * np.exp([1.0, 2.0]) * np.array([2.0, 3.0]), 1e-6)
    with pytest.raises(mg.AnomalyError, match="log"), mg.detect_anomaly():
        (x - 1).log()
    assert mg.gradcheck(lambda x: F.softmax(x, -1), [x])


@pytest.mark.parametrize("dtype, options", [("float32", {}), ("float32", {"tensor_cores": True}), ("float16", {})])
def test_attention_kernels_run_where_their_arrays_are(dtype, options):
    arrays = [np.random.default_rng(seed).standard_normal((1, 2, 9, 5)).astype(dtype) for seed in range(4)]  # copied
    options = {**options, "scale": -0.5, "key_lengths": [7], "bias": np.ones((9, 9), np.float32)}

    def run(arrays, options):
        grad_output, *qkv = arrays
        output, lse = attention_forward(*qkv, **options)
        return output, lse, *attention_backward(grad_output, *qkv, output, lse, **options)

    expected = run(arrays, options)
    there = [to_device(array, "cuda:1") for array in arrays]
    for found, its in zip(run(there, options | {"bias": to_device(options["bias"], "cuda:1")}), expected, strict=True):
        assert device_of(found) == "cuda:1"
        np.testing.assert_array_equal(found.get(), its)


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_what_forward_found_must_be_where_the_query_is(device):
    query = to_device(np.ones((1, 1, 3, 4), np.float32), "cuda:1")
    output, lse = attention_forward(query, query, query)
    with pytest.raises(DeviceError, match=f"attention: lse is on {device}, other arrays of the call are on cuda:1"):
        attention_backward(query, query, query, query, output, to_device(lse, device))
