"""What all optimizers share: which parameters they take, groups, steps without gradients, saving and restoring."""

import copy

import numpy as np
import pytest

import minigrad as mg
import nn
from minigrad.backend import is_array
from nn.module import Parameter
from nn.optim import SGD, Adam, AdamW
from tests.cupy_standin import installed
from tests.support import assert_close

KINDS = [
    lambda params, **options: SGD(params, **{"lr": 0.1, "momentum": 0.9, **options}),
    lambda params, **options: Adam(params, **{"lr": 0.1, **options}),
    lambda params, **options: AdamW(params, **{"lr": 0.1, **options}),
]
every_kind = pytest.mark.parametrize("make", KINDS, ids=["SGD", "Adam", "AdamW"])


def set_gradients(parameters, seed):
    rng = np.random.default_rng(seed)
    for parameter in parameters:
        parameter.grad = mg.Tensor(rng.standard_normal(parameter.shape, np.float32), device=parameter.device)


def same_bits(a, b):
    """Whether two trees of dicts, lists, arrays and numbers are equal to the bit."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_bits(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same_bits, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and a == b


# ---- parameters and groups -------------------------------------------------------------------------------------------


@every_kind
def test_a_generator_of_parameters_is_listed(make):
    model = nn.Linear(2, 2)
    optimizer = make(model.parameters())
    set_gradients(model.parameters(), 0)
    before = model.state_dict()
    optimizer.step()
    optimizer.zero_grad()
    assert all((model.state_dict()[name] != before[name]).any() for name in before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_is_refused():
    parameter = Parameter([1.0])
    used_up = iter([parameter])
    list(used_up)
    cases = [
        ([], ValueError, "Adam was given no parameters: an empty list, or an iterator that was used up before"),
        (used_up, ValueError, "no parameters"),
        ([{"params": []}], ValueError, "no parameters"),
        (
            parameter,
            TypeError,
            r"Adam takes a list of parameters or of dicts, got a Parameter; write model\.parameters\(\)",
        ),
        (nn.Linear(1, 1), TypeError, r"got a Linear; write model\.parameters\(\)"),
        ({"params": [parameter]}, TypeError, "got a dict"),
        ({parameter}, TypeError, "got a set"),
        ([{"params": {parameter}}], TypeError, "got a set"),
        ([parameter, np.ones(1)], TypeError, "Adam: parameter 1 must be a Tensor, got ndarray"),
        (nn.ModuleList([nn.Linear(1, 1)]), TypeError, "parameter 0 must be a Tensor, got Linear"),
        ([parameter, {"params": [parameter]}], TypeError, "parameter 1 must be a Tensor, got dict"),
        ([parameter, parameter * 2], ValueError, r"parameter 1 of shape \(1,\) was made by an operation; only leaves"),
        ([parameter, parameter], ValueError, r"parameter 1 of shape \(1,\) is in the list twice"),
        ([{"params": [parameter]}, {"params": parameter}], ValueError, "is in the list twice"),
        (
            [{"params": [parameter], "momentum": 1}],
            ValueError,
            "a group has \"params\" and may have lr, .*; got .*'momentum'",
        ),
        ([{"lr": 1}], ValueError, 'a group has "params"'),
        ([{"params": [parameter], "lr": -1}], ValueError, "lr must be 0 or more, got -1"),
    ]
    for params, error, text in cases:
        with pytest.raises(error, match=text):
            Adam(params)


def test_groups_have_options_of_their_own():
    first, second, third = Parameter([1.0]), Parameter([1.0]), Parameter([1.0])
    groups = [{"params": iter([first, second]), "lr": 1.0}, {"params": third}]
    optimizer = SGD(groups, lr=0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.5]
    assert set(groups[1]) == {"params"}  # the caller's dicts are left alone
    for parameter in (first, second, third):
        parameter.grad = mg.Tensor([1.0])
    optimizer.step()
    optimizer.param_groups[1]["lr"] = 0.25
    optimizer.step()
    assert [first.item(), second.item(), third.item()] == [-1, -1, 0.25]


# ---- steps -----------------------------------------------------------------------------------------------------------


@every_kind
def test_parameters_without_a_gradient_stay_and_so_does_their_state(make):
    used, unused, frozen = (Parameter([1.0, 2.0]) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = make([used, unused, frozen], weight_decay=0.1)
    set_gradients([used], 0)
    optimizer.step()
    optimizer.step()
    assert unused.tolist() == frozen.tolist() == [1, 2]
    assert list(optimizer.state_dict()["state"]) == [0] and optimizer.state_dict()["state"][0]["step"] == 2
    set_gradients([unused], 0)
    used.grad = None
    optimizer.step()
    steps = {number: state["step"] for number, state in optimizer.state_dict()["state"].items()}
    assert steps == {0: 2, 1: 1}


@every_kind
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_nothing_changes_its_dtype(make, dtype):
    parameter = Parameter(np.ones((2, 3)), dtype=dtype)
    optimizer = make([parameter], lr=np.float64(0.1), weight_decay=np.float64(0.01))
    for _ in range(2):
        parameter.grad = mg.full((2, 3), 0.5, dtype=dtype)
        optimizer.step()
    assert parameter.dtype == dtype and np.isfinite(parameter.numpy()).all()
    state = optimizer.state_dict()["state"][0]
    assert {value.dtype for value in state.values() if isinstance(value, np.ndarray)} == {np.dtype(dtype)}


@every_kind
def test_a_0d_parameter_stays_an_array(make):
    parameter = Parameter(3.0)
    (parameter * parameter).backward()
    assert parameter.grad.item() == 6
    make([parameter], weight_decay=0.1).step()
    assert is_array(parameter.data) and parameter.shape == () and parameter.item() < 3


@every_kind
def test_values_are_written_in_place_and_graphs_notice(make):
    parameter, x = Parameter([2.0]), mg.Tensor([3.0], requires_grad=True)
    optimizer = make([parameter])
    array, loss = parameter.data, (parameter * x).sum()
    (parameter * 1.0).sum().backward()
    optimizer.step()
    assert parameter.data is array and array[0] != 2
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


@every_kind
def test_gradients_are_only_read(make):
    parameter = Parameter([2.0, 3.0])
    parameter.grad = mg.ones(1).expand(2)  # a view that cannot be written
    make([parameter], weight_decay=0.1).step()
    assert parameter.grad.tolist() == [1, 1] and (parameter.numpy() < [2, 3]).all()


def test_zero_grad_both_ways_also_after_a_nan():
    used, unused = Parameter([1.0]), Parameter([1.0])
    optimizer = SGD([used, unused], lr=1.0)
    used.grad = mg.Tensor([float("nan")])
    optimizer.zero_grad(set_to_none=False)
    assert used.grad.tolist() == [0] and unused.grad is None
    (used * 2).sum().backward()
    assert used.grad.tolist() == [2]
    optimizer.zero_grad()
    assert used.grad is None


@every_kind
def test_a_module_moved_afterwards_takes_its_state_along(make):
    """To another dtype, and to a GPU and back: the same values as if it had been moved first."""
    for stops in ([np.float64], ["cuda", "cpu"], ["cuda"]):
        with installed():
            model = nn.Linear(2, 2)
            optimizer = make(model.parameters())
            plain = copy.deepcopy(model)
            plain_optimizer = make(plain.parameters())
            for step, stop in enumerate([None, *stops, None]):
                if stop is not None:
                    model.to(stop)
                set_gradients(model.parameters(), step)
                set_gradients(plain.parameters(), step)
                optimizer.step()
                plain_optimizer.step()
            for a, b in zip(model.parameters(), plain.parameters(), strict=True):
                assert a.dtype == stops[-1] or a.device.startswith(stops[-1])
                assert_close(a.numpy(), b.numpy(), 1e-5)
                arrays = [value for value in optimizer.state[a].values() if not isinstance(value, int)]
                assert {(array.dtype, type(array)) for array in arrays} == {(a.dtype, type(a.data))}


@every_kind
def test_an_optimizer_over_a_copy_trains_the_copy(make):
    model = nn.Linear(2, 2)
    before, twin = model.state_dict(), copy.deepcopy(model)
    optimizer = make(twin.parameters())
    set_gradients(twin.parameters(), 0)
    optimizer.step()
    assert same_bits(model.state_dict(), before) and not same_bits(twin.state_dict(), before)
    other_model, other = copy.deepcopy((twin, optimizer))  # together, state and all
    set_gradients(other_model.parameters(), 1)
    set_gradients(twin.parameters(), 1)
    other.step()
    optimizer.step()
    assert same_bits(other_model.state_dict(), twin.state_dict())


# ---- saving and restoring --------------------------------------------------------------------------------------------


def test_the_form_of_a_state():
    parameters = [Parameter(np.ones((2, 3), np.float32)), Parameter(1.0), Parameter([1.0])]
    optimizer = Adam([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.5}], betas=(0.8, 0.9))
    set_gradients([parameters[2], parameters[0]], 0)
    optimizer.step()
    state = optimizer.state_dict()
    assert list(state) == ["state", "param_groups"] and list(state["state"]) == [0, 2]
    assert {name: np.shape(value) for name, value in state["state"][0].items()} == {
        "step": (), "exp_avg": (2, 3), "exp_avg_sq": (2, 3),
    }  # fmt: skip
    assert type(state["state"][0]["step"]) is int and type(state["state"][2]["exp_avg"]) is np.ndarray
    assert state["param_groups"] == [
        {"lr": 1e-3, "betas": (0.8, 0.9), "eps": 1e-8, "weight_decay": 0.0, "params": [0, 1]},
        {"lr": 0.5, "betas": (0.8, 0.9), "eps": 1e-8, "weight_decay": 0.0, "params": [2]},
    ]
    before = copy.deepcopy(state)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 7
    assert same_bits(state, before)  # a copy


@every_kind
def test_going_on_from_a_state_is_exact(make):
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    optimizer = make(model.parameters(), weight_decay=0.01)
    for seed in range(3):
        set_gradients(model.parameters(), seed)
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.07
    saved, state = copy.deepcopy(model), optimizer.state_dict()
    restored = make(saved.parameters(), lr=9.0, weight_decay=9.0)
    restored.load_state_dict(state)
    assert same_bits(restored.state_dict(), state)
    for seed in range(3, 6):
        for some_model, some_optimizer in ((model, optimizer), (saved, restored)):
            set_gradients(some_model.parameters(), seed)
            some_optimizer.step()
    assert same_bits(model.state_dict(), saved.state_dict())
    assert same_bits(optimizer.state_dict(), restored.state_dict())


def test_a_state_that_does_not_fit_is_refused_and_nothing_changes():
    def adam():
        parameters = [Parameter(np.ones((2, 3), np.float32)), Parameter([1.0])]
        optimizer = Adam(parameters)
        set_gradients(parameters, 0)
        optimizer.step()
        return optimizer

    optimizer = adam()
    before = optimizer.state_dict()
    other = adam().state_dict()
    zeros = np.zeros(2, np.float32)
    cases = [
        ({"state": {}}, 'an optimizer\'s state has a dict "state" and a list "param_groups"'),
        ({"state": [], "param_groups": []}, 'has a dict "state"'),
        ({**other, "param_groups": []}, r"groups of \[\] parameters, the optimizer has \[2\]"),
        (
            SGD([Parameter([1.0]), Parameter([1.0])]).state_dict(),
            r"group 0 has the options \['lr', 'momentum', 'weight_decay'\]",
        ),
        (
            {**other, "param_groups": [{**other["param_groups"][0], "lr": -1.0}]},
            "group 0: lr must be 0 or more, got -1.0",
        ),
        ({**other, "state": {2: other["state"][0]}}, "state of parameter 2, but there are 2 parameters"),
        ({**other, "state": {"0": other["state"][0]}}, "state of parameter '0'"),
        (
            {**other, "state": {0: {"step": 1}}},
            r"parameter 0 has a state of \['step'\], not \['exp_avg', 'exp_avg_sq', 'step'\]",
        ),
        (
            {**other, "state": {0: {"step": 1, "exp_avg": zeros, "exp_avg_sq": zeros}}},
            r"exp_avg of shape \(2,\), the parameter has \(2, 3\)\n  parameter 0: exp_avg_sq of shape \(2,\)",
        ),
        ({**other, "state": {1: {**other["state"][1], "step": 0}}}, "parameter 1: step 0, but it counts from 1"),
        ({**other, "state": {1: {**other["state"][1], "exp_avg": ["a"]}}}, "could not convert string"),
    ]
    for state, text in cases:
        with pytest.raises(ValueError, match=text):
            optimizer.load_state_dict(state)
        assert same_bits(optimizer.state_dict(), before)


def test_a_state_saved_on_a_gpu_is_loaded_on_the_cpu_and_back():
    with installed():
        states = []
        for device in ("cpu", "cuda"):
            parameter = Parameter([1.0, 2.0], device=device)
            optimizer = Adam([parameter])
            set_gradients([parameter], 0)
            optimizer.step()
            states.append(optimizer.state_dict())
            assert type(states[-1]["state"][0]["exp_avg"]) is np.ndarray
        assert same_bits(*states)
        optimizer.load_state_dict(states[0])
        assert mg.Tensor(optimizer.state[parameter]["exp_avg"]).device == "cuda:0"
        set_gradients([parameter], 1)
        optimizer.step()
