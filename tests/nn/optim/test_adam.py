"""Adam and AdamW against arithmetic and PyTorch."""

import numpy as np
import pytest

import minigrad as mg
from nn.module import Parameter
from nn.optim import Adam, AdamW
from tests.support import assert_close, torch_or_skip


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_the_first_step_is_lr_long_whatever_the_gradient(kind):
    parameter = Parameter([1.0, 1.0, 1.0])
    parameter.grad = mg.Tensor([1e-3, 1.0, -1e3])
    kind([parameter], lr=0.25, weight_decay=0.0).step()
    assert_close(parameter, [0.75, 0.75, 1.25], 1e-5)


def test_weight_decay_is_part_of_adams_gradient_but_not_of_adamws():
    for kind, expected in ((AdamW, 0.99), (Adam, 0.9)):
        parameter, untouched = Parameter([1.0]), Parameter([1.0])
        parameter.grad = mg.zeros(1)
        kind([parameter, untouched], lr=0.1, weight_decay=0.1).step()
        assert parameter.item() == pytest.approx(expected, abs=1e-6) and untouched.item() == 1


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3},
        {"betas": (0.0, 0.0)},
        {"weight_decay": 0.0},
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_pytorch_step_for_step(kind, options, dtype):
    torch = torch_or_skip()
    rng = np.random.default_rng(0)
    starts = [rng.standard_normal(shape).astype(dtype) for shape in ((), (3,), (4, 5), (0,))]
    ours, theirs = [Parameter(start) for start in starts], [torch.tensor(start, requires_grad=True) for start in starts]
    optimizer = {"Adam": Adam, "AdamW": AdamW}[kind](ours, **options)
    their_optimizer = getattr(torch.optim, kind)(theirs, **options)
    for step in range(20):
        for place, (parameter, their_parameter) in enumerate(zip(ours, theirs, strict=True)):
            gradient = (rng.standard_normal(parameter.shape) * 10.0 ** rng.integers(-4, 4)).astype(dtype)
            skipped = (step + place) % 4 == 0
            parameter.grad = None if skipped else mg.Tensor(gradient)
            their_parameter.grad = None if skipped else torch.tensor(gradient)
        optimizer.step()
        their_optimizer.step()
        for parameter, their_parameter in zip(ours, theirs, strict=True):
            assert_close(parameter, their_parameter, 1e-6 if dtype == np.float32 else 1e-14, f"step {step}")
    for number, state in their_optimizer.state_dict()["state"].items():
        mine = optimizer.state_dict()["state"][number]
        assert mine["step"] == state["step"]
        for name in ("exp_avg", "exp_avg_sq"):
            assert_close(mine[name], state[name], 1e-6 if dtype == np.float32 else 1e-14, name)


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_options_are_checked(kind):
    for name in ("lr", "eps", "weight_decay"):
        for value in (-1e-3, float("nan")):
            with pytest.raises(ValueError, match=f"{name} must be 0 or more, got {value}"):
                kind([Parameter([1.0])], **{name: value})
    for betas in ((0.9, 1.0), (-0.1, 0.9), (0.9,), 0.9, (0.9, float("nan"))):
        with pytest.raises(ValueError, match="betas must be two numbers from 0 to below 1, got"):
            kind([Parameter([1.0])], betas=betas)
