"""Random streams: keyed by seed, step and call, one a thread, and those that users make; the same on every device."""

import copy
import math
import pickle
import threading

import numpy as np
import pytest

import minigrad as mg
from nn import init
from tests.cupy_standin import installed


def drawn():
    return mg.randn(3).tolist()


def test_a_seed_gives_the_same_numbers_again():
    mg.manual_seed(7)
    first = [drawn(), drawn()]
    mg.manual_seed(7)
    assert [drawn(), drawn()] == first
    assert first[0] != first[1]
    mg.manual_seed(8)
    assert drawn() != first[0]


def test_numbers_depend_on_seed_step_and_call_and_on_nothing_drawn_before():
    mg.manual_seed(7, 3)
    expected = [drawn(), drawn()]
    mg.manual_seed(0)
    for _ in range(5):
        drawn()
    mg.manual_seed(7, 3)
    mg.randn(1000)
    assert drawn() == expected[1]
    seen = {str(expected[0])}
    for seed, step in [(7, 0), (7, 4), (3, 7), (8, 3), (0, 0), (2**64 - 1, 2**64 - 1), (2**64 - 1, 0)]:
        mg.manual_seed(seed, step)
        seen.add(str(drawn()))
    assert len(seen) == 8


def test_numpy_and_its_global_state_are_left_alone():
    np.random.seed(0)
    mg.manual_seed(1)
    np.random.rand(10)
    first = drawn()
    after = np.random.rand()
    np.random.seed(0)
    np.random.rand(10)
    assert np.random.rand() == after
    np.random.seed(123)
    mg.manual_seed(1)
    assert drawn() == first


@pytest.mark.parametrize(
    ("seed", "step", "what"), [(-1, 0, "seed"), (2**64, 0, "seed"), (0, -1, "step"), (0, 2**64, "step")]
)
def test_seeds_out_of_range(seed, step, what):
    with pytest.raises(ValueError, match=rf"manual_seed: {what} must be from 0 to 2\*\*64 - 1, got"):
        mg.manual_seed(seed, step)


def test_each_thread_has_a_stream_of_its_own():
    mg.manual_seed(5)
    expected = [drawn() for _ in range(20)]
    found = {}
    barrier = threading.Barrier(3)

    def draw_many(name, seed):
        mg.manual_seed(seed)
        barrier.wait()
        found[name] = [drawn() for _ in range(20)]

    threads = [threading.Thread(target=draw_many, args=(name, seed)) for name, seed in [("a", 5), ("b", 5), ("c", 6)]]
    mg.manual_seed(5)
    before = drawn()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found["a"] == found["b"] == expected
    assert found["c"] != expected
    assert [before, drawn()] == expected[:2]


def test_normal_numbers_are_float32_and_look_normal():
    mg.manual_seed(0)
    x = mg.randn(4, 5000)
    assert (x.dtype, x.shape) == (np.float32, (4, 5000))
    assert np.all(np.abs(x.mean(dim=1).numpy()) < 0.06)  # four standard errors
    assert np.all(np.abs(x.var(dim=1).numpy() - 1) < 0.08)


# ---- streams of one's own --------------------------------------------------------------------------------------------

DRAWS = [
    lambda g: mg.rand(3, generator=g),
    lambda g: mg.randn(2, 3, generator=g),
    lambda g: mg.randint(100, (4,), generator=g),
    lambda g: mg.randperm(9, generator=g),
    lambda g: mg.rand_like(mg.zeros(3), generator=g),
    lambda g: mg.randn_like(mg.zeros(3), generator=g),
    lambda g: mg.randint_like(mg.zeros(3), 100, generator=g),
    lambda g: init.uniform_(mg.zeros(3), generator=g),
    lambda g: init.normal_(mg.zeros(3), generator=g),
    lambda g: init.xavier_uniform_(mg.zeros(3, 2), generator=g),
    lambda g: init.xavier_normal_(mg.zeros(3, 2), generator=g),
    lambda g: init.kaiming_uniform_(mg.zeros(3, 2), generator=g),
    lambda g: init.kaiming_normal_(mg.zeros(3, 2), generator=g),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_a_generator_draws_what_the_thread_draws_under_its_seed_and_leaves_the_thread_alone(draw):
    mg.manual_seed(7)
    expected, following = draw(None).tolist(), drawn()
    generator = mg.Generator(7)
    mg.manual_seed(7)
    assert draw(generator).tolist() == expected
    assert draw(None).tolist() == expected
    assert drawn() == following
    assert draw(generator).tolist() != expected
    assert draw(generator.manual_seed(7)).tolist() == expected
    assert draw(mg.Generator().manual_seed(7, 1)).tolist() != expected


def test_the_threads_own_stream_is_what_manual_seed_returns():
    generator = mg.manual_seed(3)
    first = mg.randn(2, generator=generator).tolist()
    second = drawn()
    mg.manual_seed(3)
    assert mg.randn(2).tolist() == first
    assert drawn() == second


def test_a_copied_generator_goes_on_from_the_same_place():
    generator = mg.Generator(1)
    mg.randn(2, generator=generator)
    copies = [copy.copy(generator), copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))]
    following = mg.randn(2, generator=generator).tolist()
    assert [mg.randn(2, generator=other).tolist() for other in copies] == [following] * 3


@pytest.mark.parametrize("draw", DRAWS)
def test_other_things_are_no_generators(draw):
    with pytest.raises(TypeError, match=r"generator must be a minigrad\.Generator or None, got Generator\(PCG64\)"):
        draw(np.random.default_rng(0))
    with pytest.raises(TypeError, match="or None, got 0"):
        draw(0)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_generator_checks_its_seed(seed):
    with pytest.raises(ValueError, match=r"manual_seed: seed must be from 0 to 2\*\*64 - 1"):
        mg.Generator(seed)


@pytest.mark.parametrize("seed", ["a", 1.5, math.nan, None])
def test_a_seed_is_an_integer(seed):
    with pytest.raises(TypeError, match=f"manual_seed: seed must be an integer, got {seed!r}"):
        mg.Generator(seed)
    with pytest.raises(TypeError, match=f"manual_seed: step must be an integer, got {seed!r}"):
        mg.manual_seed(0, seed)


# ---- on every device -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda device: mg.rand(3, device=device),
        lambda device: mg.randn(3, device=device),
        lambda device: mg.randint(10, (3,), device=device),
        lambda device: mg.randperm(5, device=device),
        lambda device: mg.rand_like(mg.zeros(3, device=device)),
        lambda device: mg.randn_like(mg.zeros(3, device=device)),
        lambda device: mg.randint_like(mg.zeros(3, device=device), 10),
        lambda device: init.xavier_normal_(mg.zeros(2, 3, device=device)),
    ],
)
def test_a_seed_gives_the_same_numbers_on_every_device(make):
    with installed(devices=2):
        made = []
        for device in ("cpu", "cuda", "cuda:1"):
            mg.manual_seed(7)
            made.append(make(device))
        assert [tensor.device for tensor in made] == ["cpu", "cuda:0", "cuda:1"]
        assert made[0].tolist() == made[1].tolist() == made[2].tolist()
