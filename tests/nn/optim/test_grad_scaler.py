"""GradScaler: gradients unscaled, bad steps left out, the scale's rise and fall, beside PyTorch's."""

import math

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from nn.module import Parameter
from nn.optim import SGD, GradScaler, clip_grad_norm_
from tests.cupy_standin import installed
from tests.support import assert_close, torch_or_skip


def one_parameter(device=None):
    parameter = Parameter([1.0, 2.0], device=device)
    return parameter, SGD([parameter], lr=1.0)


def step(scaler, parameter, optimizer, gradient):
    """One step in which the loss has this gradient."""
    optimizer.zero_grad()
    scaler.scale((parameter * mg.Tensor(gradient, device=parameter.device)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


GOOD, INFINITE, NAN = [0.5, -1.0], [math.inf, 0.0], [0.0, math.nan]


def test_a_step_is_that_of_the_loss_that_was_not_scaled():
    parameter, optimizer = one_parameter()
    scaler = GradScaler()
    loss = (parameter * parameter).sum()
    assert scaler.scale(loss).item() == 65536 * loss.item()
    scaler.scale(loss).backward()
    np.testing.assert_array_equal(parameter.grad.numpy(), [2 * 65536, 4 * 65536])
    scaler.unscale_(optimizer)
    np.testing.assert_array_equal(parameter.grad.numpy(), [2, 4])
    scaler.step(optimizer)
    np.testing.assert_array_equal(parameter.numpy(), [-1, -2])


@pytest.mark.parametrize("gradient", [INFINITE, NAN], ids=["infinite", "NaN"])
def test_a_bad_step_is_left_out_and_the_scale_falls(gradient):
    parameter, optimizer = one_parameter()
    scaler = GradScaler(init_scale=1024, backoff_factor=0.25)
    with np.errstate(all="ignore"):
        step(scaler, parameter, optimizer, gradient)
    np.testing.assert_array_equal(parameter.numpy(), [1, 2])
    assert optimizer.state == {} and scaler.get_scale() == 256
    step(scaler, parameter, optimizer, GOOD)
    np.testing.assert_array_equal(parameter.numpy(), [0.5, 3])


def test_clipping_between_unscaling_and_the_step():
    parameter, optimizer = one_parameter()
    scaler = GradScaler()
    scaler.scale((parameter * mg.Tensor([3.0, 4.0])).sum()).backward()
    scaler.unscale_(optimizer)
    assert clip_grad_norm_([parameter], 1.0).item() == 5
    scaler.step(optimizer)  # does not unscale again
    assert_close(parameter, [0.4, 1.2], 1e-6)
    scaler.update()
    with np.errstate(all="ignore"):
        optimizer.zero_grad()
        scaler.scale((parameter * mg.Tensor(INFINITE)).sum()).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_([parameter], 1.0)  # which may make 0 of infinite ones
        scaler.step(optimizer)
    assert_close(parameter, [0.4, 1.2], 1e-6)


def test_gradients_that_float16_would_lose_are_saved():
    x, w = mg.Tensor(np.full((4, 1), 1e-3, np.float32)), Parameter([[1.0]])
    found = []
    for scaler in (GradScaler(enabled=False), GradScaler()):
        w.grad = None
        with mg.autocast():
            loss = F.linear(x, w).float().sum() * 1e-5
        scaler.scale(loss).backward()
        scaler.unscale_(SGD([w]))
        found.append(w.grad.item())
    assert found[0] == 0 or abs(found[0] - 4e-8) > 4e-9  # below 2**-24, or one of the few numbers next to it
    assert found[1] == pytest.approx(4e-8, rel=2e-3)


def test_the_scale_rises_and_falls_as_pytorchs():
    torch = torch_or_skip()
    options = {"init_scale": 2.0**126, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2}
    ours, theirs = GradScaler(**options), torch.amp.GradScaler("cpu", **options)
    parameter, optimizer = one_parameter()
    their_parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    their_optimizer = torch.optim.SGD([their_parameter], lr=1.0)
    for kind in "ggggbggbbgbgggg":  # it would grow beyond float32 at the fourth
        gradient = [1e-3, -1e-3] if kind == "g" else NAN
        with np.errstate(all="ignore"):
            step(ours, parameter, optimizer, gradient)
        their_optimizer.zero_grad()
        theirs.scale((their_parameter * torch.tensor(gradient)).sum()).backward()
        theirs.step(their_optimizer)
        theirs.update()
        assert ours.state_dict() == theirs.state_dict()
        np.testing.assert_allclose(parameter.numpy(), their_parameter.detach().numpy(), rtol=1e-6)


def test_two_optimizers_share_a_scale_and_one_bad_one_lowers_it():
    first, second = one_parameter(), one_parameter()
    scaler = GradScaler()
    with np.errstate(all="ignore"):
        scaler.scale((first[0] * mg.Tensor(GOOD) + second[0] * mg.Tensor(NAN)).sum()).backward()
        for _, optimizer in (first, second):
            scaler.step(optimizer)
    scaler.update()
    np.testing.assert_array_equal(first[0].numpy(), [0.5, 3])
    np.testing.assert_array_equal(second[0].numpy(), [1, 2])
    assert scaler.get_scale() == 32768


def test_a_saved_scaler_goes_on():
    scaler, other = GradScaler(growth_interval=3), GradScaler(init_scale=4)
    for _ in range(2):
        step(scaler, *one_parameter(), GOOD)
    state = scaler.state_dict()
    assert state == {
        "scale": 65536.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 3,
        "_growth_tracker": 2,
    }
    other.load_state_dict(state)
    step(other, *one_parameter(), GOOD)
    assert other.get_scale() == 131072


def test_a_scaler_that_is_not_enabled_does_nothing():
    parameter, optimizer = one_parameter()
    scaler = GradScaler(enabled=False)
    loss = (parameter * parameter).sum()
    assert scaler.scale(loss) is loss and not scaler.is_enabled() and scaler.get_scale() == 1
    loss.backward()
    scaler.unscale_(optimizer)
    np.testing.assert_array_equal(parameter.grad.numpy(), [2, 4])
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_array_equal(parameter.numpy(), [-1, -2])
    assert scaler.state_dict() == {}
    scaler.load_state_dict({"scale": 3.0})
    assert scaler.state_dict() == {}


def test_calls_in_a_wrong_order():
    parameter, optimizer = one_parameter()
    scaler = GradScaler()
    with pytest.raises(RuntimeError, match=r"update: no gradients were unscaled since the last one; call step"):
        scaler.update()
    with pytest.raises(RuntimeError, match=r"unscale_: no parameter has a gradient; call scale\(loss\).backward\(\)"):
        scaler.step(optimizer)
    scaler.scale(parameter.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_: these gradients were unscaled since the last update\(\)"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step: this optimizer had its step since the last update\(\)"):
        scaler.step(optimizer)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_loss_of_16_bits_is_scaled_in_float32(dtype):
    scaled = GradScaler().scale(mg.Tensor(2.0, dtype=dtype))
    assert (scaled.dtype, scaled.item()) == (np.float32, 131072)


def test_a_scale_that_has_fallen_to_0_stays_there():
    p = nn.Parameter(mg.ones(2))
    scaler, optimizer = GradScaler(init_scale=2.0**-1073), SGD([p], lr=0.1)
    for _ in range(3):
        p.grad = mg.Tensor([math.nan, 1.0])
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 0 and p.tolist() == [1, 1]


def test_gradients_in_float16_are_refused():
    parameter = Parameter(np.ones(3, np.float16))
    optimizer, scaler = SGD([parameter]), GradScaler(init_scale=2)
    scaler.scale(parameter.sum()).backward()
    with pytest.raises(ValueError, match=r"unscale_: a gradient of shape \(3,\) is float16; keep parameters in"):
        scaler.step(optimizer)
    np.testing.assert_array_equal(parameter.grad.numpy(), [2, 2, 2])


@pytest.mark.parametrize(
    "options",
    [
        {"init_scale": 0},
        {"init_scale": math.inf},
        {"init_scale": math.nan},
        {"growth_factor": 1.0},
        {"growth_factor": math.inf},
        {"backoff_factor": 1.0},
        {"backoff_factor": 0.0},
    ],
    ids=str,
)
def test_factors_out_of_range(options):
    with pytest.raises(ValueError, match="GradScaler: the scale must be above 0, growth_factor above 1, both finite"):
        GradScaler(**options)


def test_states_that_do_not_fit():
    scaler = GradScaler()
    before = scaler.state_dict()
    with pytest.raises(ValueError, match="growth_interval must be at least 1 and above the number of good steps"):
        GradScaler(growth_interval=0)
    with pytest.raises(ValueError, match=r"growth_interval must be at least 1 .*, got 2000 and 2000"):
        scaler.load_state_dict({**before, "scale": 3.0, "_growth_tracker": 2000})
    with pytest.raises(ValueError, match=r"load_state_dict: a scaler's state is scale, growth_factor, .* not enabled"):
        scaler.load_state_dict({})
    with pytest.raises(ValueError, match=r"load_state_dict: a scaler's state is .*; got \['scale'\]$"):
        scaler.load_state_dict({"scale": 2.0})
    assert scaler.state_dict() == before


def test_unscaling_is_noticed_by_a_graph_through_the_gradient():
    parameter, optimizer = one_parameter()
    (parameter * parameter * parameter).sum().backward(create_graph=True)
    squared = (parameter.grad * parameter.grad).sum()
    GradScaler().unscale_(optimizer)
    with pytest.raises(RuntimeError, match="changed in place"):
        squared.backward()


def test_on_a_gpu():
    with installed():
        parameter, optimizer = one_parameter("cuda")
        scaler = GradScaler()
        step(scaler, parameter, optimizer, GOOD)
        with np.errstate(all="ignore"):
            step(scaler, parameter, optimizer, NAN)
        assert parameter.device == "cuda:0" and parameter.tolist() == [0.5, 3.0] and scaler.get_scale() == 32768


def test_the_example_trains_a_model_and_overflows_on_the_way():
    """In the beginning the scale is too large for float16: those steps are left out."""
    mg.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 3))
    optimizer, scaler = SGD(model.parameters(), lr=0.5), GradScaler(init_scale=2.0**24)
    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    target = x[:, :3].argmax(axis=1)
    scales, losses = [], []
    for _ in range(60):
        with mg.autocast():
            loss = F.cross_entropy(model(mg.Tensor(x)), mg.Tensor(target))
        before = model.state_dict()
        optimizer.zero_grad()
        with np.errstate(over="ignore", invalid="ignore"):
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(list(model.parameters()), 1.0)
            scaler.step(optimizer)
        scaler.update()
        moved = any((before[name] != values).any() for name, values in model.state_dict().items())
        scales.append(scaler.get_scale())
        assert moved == (len(scales) > 1 and scales[-1] == scales[-2])
        losses.append(loss.item())
    assert 2.0**10 < scales[-1] < 2.0**24 and len(set(scales[-40:])) == 1
    assert losses[-1] < 0.4 * losses[0]
