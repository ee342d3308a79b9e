"""Learning-rate schedules: every step's rate, the ends, groups, saving and restoring."""

import math

import pytest

from nn.module import Parameter
from nn.optim import SGD, CosineSchedule, WarmupSchedule
from tests.support import torch_or_skip


def sgd(*rates):
    return SGD([{"params": [Parameter([1.0])], "lr": lr} for lr in rates])


def rates(schedule, steps, group=0):
    """The rates that steps 1 ... `steps` are made with."""
    found = []
    for _ in range(steps):
        found.append(schedule.optimizer.param_groups[group]["lr"])
        schedule.step()
    return found


# ---- the paper's -----------------------------------------------------------------------------------------------------


def test_warmup_is_the_papers_equation():
    found = rates(WarmupSchedule(sgd(77.0), d_model=512, warmup_steps=4000), 8000)
    for t in (1, 2, 3999, 4000, 4001, 8000):
        assert found[t - 1] == pytest.approx(512**-0.5 * min(t**-0.5, t * 4000**-1.5), rel=1e-12)
    assert found[0] > 0 and found.index(max(found)) == 3999 and found.count(max(found)) == 1
    assert max(found) == pytest.approx(6.9877e-4, rel=1e-4)  # 1 / √(512 · 4000)


def test_warmup_by_a_factor_and_without_a_rise():
    assert rates(WarmupSchedule(sgd(1.0), 4, 0, factor=3.0), 4) == pytest.approx(
        [1.5, 1.5 / 2**0.5, 1.5 / 3**0.5, 0.75]
    )
    assert rates(WarmupSchedule(sgd(1.0), 1, 1), 2) == pytest.approx([1, 2**-0.5])


def test_warmup_gives_all_groups_one_rate():
    optimizer = sgd(1.0, 2.0)
    WarmupSchedule(optimizer, 4, 10)
    assert optimizer.param_groups[0]["lr"] == optimizer.param_groups[1]["lr"] == pytest.approx(0.5 * 10**-1.5)


# ---- cosine ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "warmup"), [(10, 0), (10, 1), (10, 4), (10, 9), (10, 10), (1, 0), (1, 1), (2, 1)])
@pytest.mark.parametrize("min_lr", [0.0, 0.01])
def test_cosine_rises_to_one_peak_and_falls_to_the_floor(total, warmup, min_lr):
    found = rates(CosineSchedule(sgd(0.3), total, warmup, min_lr), total + 5)
    peak = max(1, warmup)
    assert found[peak - 1] == 0.3 == max(found) and found.count(0.3) == 1
    assert found[:peak] == pytest.approx([0.3 * t / peak for t in range(1, peak + 1)])
    assert all(a > b for a, b in zip(found[peak - 1 : total], found[peak : total + 1], strict=True))
    assert found[total:] == [min_lr] * 5 and min(found[:total]) > 0


def test_half_way_down_is_half_the_rate():
    assert rates(CosineSchedule(sgd(1.0), 10, 2), 10)[6 - 1] == pytest.approx((1 + math.cos(math.pi * 4 / 9)) / 2)
    assert rates(CosineSchedule(sgd(1.0), 9, 1, min_lr=0.5), 9)[5] == pytest.approx(
        0.75 + 0.25 * math.cos(math.pi * 5 / 9)
    )


def test_cosine_equals_pytorchs_without_warm_up():
    torch = torch_or_skip()
    theirs = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=20, eta_min=0.01)
    expected = []
    for _ in range(21):
        expected.append(theirs.param_groups[0]["lr"])
        theirs.step()
        schedule.step()
    assert rates(CosineSchedule(sgd(0.3), 20, min_lr=0.01), 21) == pytest.approx(expected, rel=1e-9)


def test_a_warm_up_longer_than_the_training_is_cut_short():
    assert rates(CosineSchedule(sgd(1.0), 2, 4), 5) == [0.25, 0.5, 0, 0, 0]


def test_cosine_keeps_each_groups_own_rate():
    schedule = CosineSchedule(sgd(1.0, 3.0), 10)
    assert schedule.base_lrs == [1, 3]
    assert rates(schedule, 3, group=1) == pytest.approx([3 * rate for rate in rates(CosineSchedule(sgd(1.0), 10), 3)])


# ---- both ------------------------------------------------------------------------------------------------------------

both = pytest.mark.parametrize(
    "make",
    [lambda o: CosineSchedule(o, 10, 3, min_lr=0.01), lambda o: WarmupSchedule(o, 16, 3)],
    ids=["cosine", "warmup"],
)


@both
@pytest.mark.parametrize("after", [0, 1, 5, 12])
def test_going_on_from_a_state_is_exact(make, after):
    """Into an optimizer whose state was restored before, as when a run is resumed, or is not restored at all."""
    undisturbed = make(sgd(0.3, 0.1))
    rates(undisturbed, after)
    state, optimizer_state = undisturbed.state_dict(), undisturbed.optimizer.state_dict()
    expected = rates(undisturbed, 5)
    for restored_lr in (0.3, 7.0):
        resumed = make(sgd(restored_lr, 0.1))
        resumed.optimizer.load_state_dict(optimizer_state)
        resumed.load_state_dict(state)
        assert rates(resumed, 5) == expected
    assert state == {"last_step": after + 1, "base_lrs": [0.3, 0.1]}


@both
def test_a_state_that_does_not_fit_is_refused(make):
    schedule = make(sgd(0.3))
    before, rate = schedule.state_dict(), schedule.optimizer.param_groups[0]["lr"]
    cases = [
        ({}, r"a schedule's state is last_step and base_lrs, got \[\]"),
        (
            {"last_step": 2, "base_lrs": [1.0, 2.0]},
            "step 2 with rates for 2 groups does not fit .* the optimizer has 1 groups",
        ),
        ({"last_step": 0, "base_lrs": [1.0]}, "step 0 .* steps count from 1"),
        ({"last_step": "x", "base_lrs": [1.0]}, "invalid literal"),
    ]
    for state, text in cases:
        with pytest.raises(ValueError, match=text):
            schedule.load_state_dict(state)
        assert schedule.state_dict() == before and schedule.optimizer.param_groups[0]["lr"] == rate


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda o: WarmupSchedule(o, 0, 10), "d_model must be at least 1, .*; got 0, 10 and 1"),
        (lambda o: WarmupSchedule(o, 8, -1), "warmup_steps and factor 0 or more; got 8, -1 and 1"),
        (lambda o: WarmupSchedule(o, 8, 1, factor=-2.0), "got 8, 1 and -2.0"),
        (lambda o: CosineSchedule(o, 0), "total_steps must be at least 1 and warmup_steps 0 or more, got 0 and 0"),
        (lambda o: CosineSchedule(o, 5, -1), "got 5 and -1"),
        (lambda o: CosineSchedule(o, 5, min_lr=0.5), "min_lr must be from 0 to the lr 0.3, got 0.5"),
        (lambda o: CosineSchedule(o, 5, min_lr=-0.1), "min_lr must be from 0 to the lr 0.3, got -0.1"),
    ],
)
def test_arguments_are_checked(make, text):
    optimizer = sgd(0.3)
    with pytest.raises(ValueError, match=text):
        make(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.3
