"""Random streams: where random numbers come from. What is made of them is in `minigrad.factories` and `nn`.

Streams are keyed, not continued: each call draws from a generator of its own, named by (seed, step, call). This module
knows arrays, not Tensors, and draws on the CPU only, so that a seed gives the same numbers on every device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


class Generator:
    """A random stream of its own, beside the thread's: `mg.randn(3, generator=mg.Generator(7))`.

    It draws what the thread's stream draws under the same seed. Use it in one thread at a time.
    """

    def __init__(self, seed: int = 0) -> None:
        self.manual_seed(seed)

    def manual_seed(self, seed: int, step: int = 0) -> Generator:
        """Start the stream (seed, step) afresh, and return the generator itself: see `minigrad.manual_seed`."""
        for name, number in (("seed", seed), ("step", step)):
            if not hasattr(number, "__index__"):
                raise TypeError(f"manual_seed: {name} must be an integer, got {number!r}")
            if not 0 <= number < 2**64:
                raise ValueError(f"manual_seed: {name} must be from 0 to 2**64 - 1, got {number}")
        self._seed, self._step, self._call = int(seed), int(step), 0
        return self

    def next(self) -> np.random.Generator:
        """The source of the next call's numbers, keyed by (seed, step, call).

        Philox is counter-based (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): any key can be used
        at once, without drawing the numbers before it.
        """
        self._call += 1
        counter = np.array([0, 0, self._call, self._step], np.uint64)
        return np.random.Generator(np.random.Philox(key=self._seed, counter=counter))


class _Thread(threading.local):
    def __init__(self) -> None:
        self.generator = Generator()


_thread = _Thread()


def manual_seed(seed: int, step: int = 0) -> Generator:
    """Start this thread's random stream (seed, step) afresh: the same calls draw the same numbers again.

    A training loop that says `manual_seed(seed, step)` at each step can be resumed at any step without saving a
    random state. A thread that never says it draws the stream (0, 0), like any other. Returns the thread's Generator.
    Raises ValueError for numbers outside 0 ... 2**64 - 1.
    """
    return _thread.generator.manual_seed(seed, step)


def next_generator(generator: Generator | None = None) -> np.random.Generator:
    """The source of the next call's numbers: in `generator`'s stream, or else in this thread's."""
    if generator is None:
        return _thread.generator.next()
    if not isinstance(generator, Generator):
        raise TypeError(f"generator must be a minigrad.Generator or None, got {generator!r}")
    return generator.next()


def next_key() -> tuple[int, int, int]:
    """(seed, step, call), which names the next call's numbers in this thread's stream, for what draws them itself."""
    _thread.generator._call += 1
    return stream_position()


def stream_position() -> tuple[int, int, int]:
    """Where this thread's stream stands: (seed, step, call)."""
    generator = _thread.generator
    return generator._seed, generator._step, generator._call


@contextmanager
def replayed(position: tuple[int, int, int]) -> Iterator[None]:
    """A block in which this thread draws what it drew from `position` on; afterwards its stream goes on as before."""
    generator, former = _thread.generator, stream_position()
    generator._seed, generator._step, generator._call = position
    try:
        yield
    finally:
        generator._seed, generator._step, generator._call = former
