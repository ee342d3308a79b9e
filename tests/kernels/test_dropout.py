"""Dropout of an array's elements, run by the emulator: the mask is the mirror's, in any order of threads, and it is
random.

On a GPU, through `F.dropout`: tests/nn/test_dropout_kernel.py. Philox itself, and dropout of attention's weights, are
tested with attention. MINIGRAD_FULL=1 tries every dtype with every sanitizer.
"""

import itertools
from functools import partial

import numpy as np
import pytest

from kernels import apply_dropout, elements
from kernels.dropout import element_factor
from kernels.emulator import EmulatedModule, running
from tests.kernels.elements import DTYPES, OF_ELEMENTWISE, draw, each_dtype, in_every_order
from tests.kernels.emulator.compiled import needs_compiler
from tests.kernels.support import FULL, assert_nothing_reported, built_by
from tests.support import as_array

KEY = (3, 2**64 - 1, 5)


def kept_of(count, p, key):
    """Which of so many elements are kept."""
    return apply_dropout(np.ones(count, np.float32), p, key) != 0


@needs_compiler
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@each_dtype
@pytest.mark.parametrize("shape", [(), (1,), (1025,), (3, 700)], ids=str)
def test_values_are_those_of_the_mirrors_mask(shape, dtype, p):
    (x,) = draw(shape, dtype=dtype)
    (y,) = in_every_order(lambda: [apply_dropout(x, p, KEY)])
    factor = element_factor(shape, p, KEY).astype(np.float32)
    assert y.shape == shape
    np.testing.assert_array_equal(y, (x.astype(np.float32) * factor).astype(dtype))  # rounded once


@needs_compiler
def test_the_mask_depends_on_places_alone(monkeypatch):
    ones = np.ones((40, 60), np.float32)
    expected = apply_dropout(ones, 0.5, KEY)
    for x in (np.asfortranarray(ones), np.broadcast_to(np.float32(1), (40, 60)), ones.reshape(-1), ones.astype("e")):
        np.testing.assert_array_equal(apply_dropout(x, 0.5, KEY).reshape(40, 60), expected)
    np.testing.assert_array_equal(apply_dropout(ones[:7], 0.5, KEY), expected[:7])
    monkeypatch.setattr(elements, "MOST_BLOCKS", 2)  # of three chunks
    np.testing.assert_array_equal(apply_dropout(ones, 0.5, KEY), expected)


@needs_compiler
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_elements_and_calls_are_dropped_independently(p):
    """Within five standard deviations of what independent draws give; with a fixed key, so always the same."""
    count = 40_000
    masks = np.array([kept_of(count, p, key) for key in ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4))])
    bound = 5 * np.sqrt(p * (1 - p) / count)
    assert abs(masks.mean(axis=1) - (1 - p)).max() < bound
    away = (masks - (1 - p)) / np.sqrt(p * (1 - p))  # mean 0, variance 1
    for first, second in itertools.combinations(away, 2):
        assert abs((first * second).mean()) < 5 / np.sqrt(count)
    for distance in (1, 31, 32, 255, 256, 257, 512, 1024):  # neighbours, of a warp, of a counter, of a chunk
        assert abs((away[0, distance:] * away[0, :-distance]).mean()) < 5 / np.sqrt(count - distance)


def test_places_beyond_32_bits_have_numbers_of_their_own(monkeypatch):
    """The mirror's: the counter has a second word. Its elements would not fit into memory, their places do."""
    near, far = np.arange(2**12), 2**34 + np.arange(2**12)
    found = []
    for places in (near, far):
        monkeypatch.setattr("kernels.dropout.np.arange", lambda count, places=places: places)
        found.append(element_factor((2**12,), 0.5, KEY) > 0)
    assert abs((found[0] == found[1]).mean() - 0.5) < 5 * 0.5 / 2**6


def test_no_elements_need_no_launch(monkeypatch):
    monkeypatch.setattr(elements, "launch", lambda *arguments: pytest.fail("launched"))
    assert apply_dropout(np.zeros((2, 0), np.float32), 0.5, KEY).shape == (2, 0)


X = np.zeros(3, np.float32)
WRONG = [
    (ValueError, "dropout: x must be an array, got list", lambda: apply_dropout([1.0], 0.5, KEY)),
    (TypeError, "dropout: the kernels compute in .*, got float64", lambda: apply_dropout(X.astype("d"), 0.5, KEY)),
    (ValueError, "dropout: p must be from 0 to 1, got nan", lambda: apply_dropout(X, float("nan"), KEY)),
    (ValueError, r"dropout: p=0.5 needs key=\(seed, step, call\), .* got \(1, 2\)",
     lambda: apply_dropout(X, 0.5, (1, 2))),
    (ValueError, "three integers from 0 to", lambda: apply_dropout(X, 0.5, (1, 2, 2**64))),
]  # fmt: skip


@pytest.mark.parametrize("error, text, call", WRONG)
def test_what_does_not_fit_is_refused(error, text, call):
    with pytest.raises(error, match=text):
        call()


def dropout_sanitized(sanitize, dtype):
    """In a process that was started for the sanitizer; a size that fills no chunk."""
    elements.SOURCES = OF_ELEMENTWISE
    with built_by(partial(EmulatedModule, sanitize=sanitize)), running("random", seed=1):
        (x,) = draw(1030, dtype=dtype)
        assert as_array(apply_dropout(x, 0.5, KEY)).any()


@needs_compiler
@pytest.mark.parametrize(
    "sanitize, dtype", itertools.product(("address", "thread"), DTYPES) if FULL else [("address", "float16")]
)
def test_sanitizers_report_nothing(sanitize, dtype):
    assert_nothing_reported(sanitize, f"{__name__}:dropout_sanitized", sanitize, dtype)
