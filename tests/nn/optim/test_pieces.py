"""Small parameters are moved as one array and large ones in parts: the numbers are those of each moved by itself."""

import copy
import functools

import numpy as np
import pytest

import minigrad as mg
from nn.module import Parameter
from nn.optim import SGD, Adam, AdamW, optimizer, pieces
from tests.nn.optim.test_optimizer import every_kind, same_bits

SHAPES = [(3, 4), (), (7,), (0, 2), (5, 6), (100,)]


def parameters(dtype=np.float32):
    rng = np.random.default_rng(0)
    return [Parameter(np.asarray(rng.standard_normal(shape), dtype)) for shape in SHAPES]


def set_gradients(moved, step):
    """Gradients of random numbers; of each second step one parameter has none, one's is not contiguous."""
    rng = np.random.default_rng(step)
    for place, parameter in enumerate(moved):
        gradient = np.asarray(rng.standard_normal(parameter.shape), parameter.dtype)
        parameter.grad = mg.Tensor(gradient)
        if step % 2 and place == 2:
            parameter.grad = None
        if step % 2 and place == 4:
            parameter.grad = mg.Tensor(gradient.T.copy()).T


def trained(make, moved, first=0, last=7):
    optimizer = make(moved, weight_decay=0.1)
    for step in range(first, last):
        set_gradients(moved, step)
        optimizer.step()
    return [p.numpy().copy() for p in moved], optimizer.state_dict()


@every_kind
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("small, part", [(1 << 13, 1 << 17), (6, 5), (0, 1)])
def test_the_same_bits_as_one_by_one(make, dtype, small, part, monkeypatch):
    found = trained(make, parameters(dtype))
    monkeypatch.setattr(optimizer, "SMALL", -1)
    monkeypatch.setattr(pieces, "PART", 1 << 40)
    whole = trained(make, parameters(dtype))
    monkeypatch.setattr(optimizer, "SMALL", small)
    monkeypatch.setattr(pieces, "PART", part)
    assert same_bits(trained(make, parameters(dtype)), whole) and same_bits(found, whole)


@every_kind
def test_parameters_are_moved_in_their_own_arrays(make):
    moved = parameters()
    arrays = [p.data for p in moved]
    before = [array.copy() for array in arrays]
    trained(make, moved, last=2)
    for parameter, array, former in zip(moved, arrays, before, strict=True):
        assert parameter.data is array and (array.size == 0 or (array != former).all())


@every_kind
def test_states_may_be_replaced_and_copied(make):
    moved = parameters()
    optimizer = make(moved)
    for step in range(3):
        set_gradients(moved, step)
        optimizer.step()
    twins, twin_optimizer = copy.deepcopy((moved, optimizer))
    optimizer.load_state_dict(optimizer.state_dict())
    for step in range(3, 6):
        for some, its in ((moved, optimizer), (twins, twin_optimizer)):
            set_gradients(some, step)
            its.step()
    assert same_bits([p.numpy() for p in moved], [p.numpy() for p in twins])
    assert same_bits(optimizer.state_dict(), twin_optimizer.state_dict())


@every_kind
@pytest.mark.parametrize("change", ["the order", "the states"])
def test_parameters_and_states_keep_together(make, change, monkeypatch):
    """Whoever turns the list of parameters round, or exchanges two states, gets what was asked for."""

    def trained_with_a_change():
        first, second = moved = [Parameter(np.arange(3.0) + k, dtype=np.float32) for k in range(2)]
        optimizer = make(moved)
        for step in range(4):
            set_gradients(moved[:2], 2 * step)
            optimizer.step()
            if step == 1 and change == "the order":
                optimizer.param_groups[0]["params"].reverse()
            elif step == 1:
                optimizer.state[first], optimizer.state[second] = optimizer.state[second], optimizer.state[first]
        return [p.numpy().copy() for p in moved]

    found = trained_with_a_change()
    monkeypatch.setattr(optimizer, "SMALL", -1)
    assert same_bits(found, trained_with_a_change())


def joined_numbers(an_optimizer):
    """How many numbers of parameters it keeps a second time."""
    return sum(one._values.array.size for joined in an_optimizer._joined.values() for one in joined)


@pytest.mark.cpu_only(reason="on a GPU nothing is joined")
def test_parameters_are_joined_anew_only_after_a_change(monkeypatch):
    joined, join = [], pieces.Joined.join
    monkeypatch.setattr(
        pieces.Joined, "join", lambda self, values, *rest: (joined.append(len(values)), join(self, values, *rest))
    )
    moved = parameters()
    adam = Adam(moved)

    def numbers_joined_in_a_step(without=None):
        joined.clear()
        set_gradients(moved, 0)
        if without is not None:
            moved[without].grad = None
        adam.step()
        return joined.copy()

    assert numbers_joined_in_a_step() == [6] and numbers_joined_in_a_step() == []
    moved[0].data = 2 * moved[0].data  # as large, and elsewhere
    assert numbers_joined_in_a_step() == [6] and numbers_joined_in_a_step() == []
    adam.state[moved[0]] = copy.deepcopy(adam.state[moved[0]])
    assert numbers_joined_in_a_step() == [6] and numbers_joined_in_a_step() == []
    adam.param_groups[0]["params"].reverse()
    assert numbers_joined_in_a_step() == [6] and numbers_joined_in_a_step() == []
    assert numbers_joined_in_a_step(without=1) == [5] and numbers_joined_in_a_step() == [1]


@pytest.mark.cpu_only(reason="on a GPU nothing is joined")
def test_only_what_the_last_step_joined_is_kept():
    moved = [Parameter([1.0]), Parameter([1.0, 2.0]), Parameter([3.0, 4.0, 5.0])]
    adam = Adam([{"params": moved[:2]}, {"params": moved[2]}])

    def numbers_after_a_step_of(*places):
        for place, parameter in enumerate(moved):
            parameter.grad = mg.ones(*parameter.shape) if place in places else None
        adam.step()
        return joined_numbers(adam)

    assert numbers_after_a_step_of(0, 1, 2) == 6
    assert numbers_after_a_step_of(0) == 1  # and then the first two have moved unequally often
    assert numbers_after_a_step_of(0, 1, 2) == 6 and len(adam._joined[0]) == 2
    adam.load_state_dict(adam.state_dict())
    assert joined_numbers(adam) == 0
    adam.param_groups[0] = dict(adam.param_groups[0], lr=0.1)
    assert numbers_after_a_step_of(0, 1, 2) == 6
    del adam.param_groups[0]
    assert numbers_after_a_step_of(0, 1, 2) == 3


def test_a_momentum_that_is_turned_off_and_on_again_goes_on_from_what_it_was():
    parameter = Parameter([1.0])
    sgd = SGD([parameter], lr=1.0, momentum=0.5)
    for momentum in (0.0, 0.5, 0.0, 0.5):
        sgd.param_groups[0]["momentum"] = momentum
        parameter.grad = mg.ones(1)
        sgd.step()
    assert parameter.tolist() == [1.0 - 1.0 - 1.0 - 1.0 - 1.5]


@pytest.mark.parametrize("shape", [(3, 2), (6,)])
def test_a_parameter_may_get_values_of_another_shape(shape):
    first, second = Parameter(np.ones((2, 3), np.float32)), Parameter([1.0])
    sgd = SGD([first, second], lr=0.5)
    for other in (None, shape):
        first.data = first.data if other is None else first.data.reshape(other)
        first.grad, second.grad = mg.ones(*first.shape), mg.ones(1)
        sgd.step()
    assert first.shape == shape and not first.numpy().any() and second.tolist() == [0.0]


def test_parameters_of_other_dtypes_and_ages_are_apart():
    first, second = Parameter(np.ones(3, np.float32)), Parameter(np.ones(3, np.float64))
    late = Parameter(np.ones(3, np.float32))
    optimizer = Adam([first, second, late], lr=0.5)
    for step in range(2):
        for parameter in (first, second, *([late] if step else [])):
            parameter.grad = mg.Tensor(np.full(3, 0.25, parameter.dtype))
        optimizer.step()
    assert first.dtype == np.float32 and second.dtype == np.float64
    np.testing.assert_allclose(first.numpy(), 0.0, atol=1e-6)  # two steps of lr
    np.testing.assert_allclose(second.numpy(), 0.0, atol=1e-6)
    np.testing.assert_allclose(late.numpy(), 0.5, atol=1e-6)
    assert [optimizer.state[p]["step"] for p in (first, second, late)] == [2, 2, 1]


@pytest.mark.cpu_only(reason="on a GPU a kernel moves them")
@pytest.mark.parametrize("of_a_part", [False, True])
def test_parameters_of_the_same_memory_are_moved_one_after_the_other(of_a_part):
    first = Parameter([1.0, 1.0])
    second = (first.detach()[:1] if of_a_part else first.detach()).requires_grad_()
    first.grad, second.grad = mg.ones(2), mg.ones(*second.shape)
    SGD([first, second], lr=0.25).step()
    assert first.tolist() == [0.5, 0.75 if of_a_part else 0.5]


@pytest.mark.cpu_only(reason="on a GPU a kernel moves them")
@pytest.mark.parametrize("make", [SGD, functools.partial(SGD, momentum=0.9), Adam, AdamW])
def test_large_parameters_are_moved_in_parts_from_the_first_step_on(make, monkeypatch):
    monkeypatch.setattr(optimizer, "SMALL", 4)
    monkeypatch.setattr(pieces, "PART", 6)
    moved = [Parameter(np.ones(n, np.float32)) for n in (2, 4, 20)]
    mover, sizes = make(moved), []
    move = mover._move
    monkeypatch.setattr(mover, "_move", lambda values, *rest: (sizes.append(values.size), move(values, *rest)))
    for _ in range(2):
        for parameter in moved:
            parameter.grad = mg.ones(*parameter.shape)
        sizes.clear()
        mover.step()
        assert sorted(sizes) == [2, 6, 6, 6, 6]
