"""SGD against arithmetic and PyTorch."""

import numpy as np
import pytest

import minigrad as mg
from nn.module import Parameter
from nn.optim import SGD
from tests.support import assert_close, torch_or_skip


def test_steps_by_hand():
    parameter = Parameter([1.0])
    optimizer = SGD([parameter], lr=0.5, momentum=0.5, weight_decay=1.0)
    parameter.grad = mg.Tensor([1.0])
    optimizer.step()  # g = 1 + 1, v = 2
    assert parameter.tolist() == [0.0]
    optimizer.step()  # g = 1 + 0, v = 1 + 1
    assert parameter.tolist() == [-1.0]


def test_without_momentum_nothing_is_remembered():
    parameter = Parameter([1.0])
    optimizer = SGD([parameter], lr=1.0)
    parameter.grad = mg.Tensor([0.25])
    optimizer.step()
    assert parameter.tolist() == [0.75]
    assert optimizer.state_dict()["state"] == {0: {"step": 1, "momentum_buffer": None}}
    again = SGD([Parameter([1.0])])
    again.load_state_dict(optimizer.state_dict())
    assert again.state_dict() == optimizer.state_dict()


@pytest.mark.parametrize("options", [{}, {"lr": 0.3}, {"momentum": 0.9}, {"momentum": 0.5, "weight_decay": 0.1}])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_pytorch_step_for_step(options, dtype):
    torch = torch_or_skip()
    rng = np.random.default_rng(0)
    starts = [rng.standard_normal(shape).astype(dtype) for shape in ((), (3,), (4, 5), (0,))]
    ours, theirs = [Parameter(start) for start in starts], [torch.tensor(start, requires_grad=True) for start in starts]
    optimizer, their_optimizer = SGD(ours, **options), torch.optim.SGD(theirs, **options)
    for step in range(10):
        for place, (parameter, their_parameter) in enumerate(zip(ours, theirs, strict=True)):
            gradient = rng.standard_normal(parameter.shape).astype(dtype)
            skipped = (step + place) % 4 == 0
            parameter.grad = None if skipped else mg.Tensor(gradient)
            their_parameter.grad = None if skipped else torch.tensor(gradient)
        optimizer.step()
        their_optimizer.step()
        for parameter, their_parameter in zip(ours, theirs, strict=True):
            assert_close(parameter, their_parameter, 1e-6 if dtype == np.float32 else 1e-14, f"step {step}")


@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay"])
@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_options_are_checked(name, value):
    with pytest.raises(ValueError, match=f"{name} must be 0 or more, got {value}"):
        SGD([Parameter([1.0])], **{name: value})
