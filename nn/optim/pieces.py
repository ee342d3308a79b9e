"""How parameters on a CPU are given to an optimizer's arithmetic: small ones as one array, large ones part by part.

A pass over an array costs NumPy about a microsecond before its first element, which for small parameters is most of the
time; and the ten or so passes of a step over a part that stays in the cache are faster than as many over memory.
What is done to the numbers is the same. At the end is what keeps a parameter's state in its dtype and where it lies.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigrad.backend import Array, array_module, device_of, to_device
from minigrad.dividing import divide

SMALL = 1 << 15  # elements: of more, joining costs more than the calls that it saves
PART = 1 << 17  # elements: a float32 array of as many takes 512 KiB
NS_OF_A_STEP = 3.0  # nanoseconds an element, roughly

State = dict[str, Any]
Piece = tuple[np.ndarray, np.ndarray, State]
"""Of one parameter, or all of it: its values, gradient and state."""

Move = Callable[[np.ndarray, np.ndarray, State], None]
"""Writes new values over an array, of its gradient and state."""


class Joined:
    """Parameters of one dtype that have moved equally often, moved as one.

    The arrays of their states become parts of one array each, and stay that until somebody puts others in their place.
    Their values stay in arrays of their own, which others may know: they are copied here and back. By these arrays the
    parameters are known again, so they are kept until the next step, though a parameter may have another by then.
    """

    def __init__(self) -> None:
        self._own: Sequence[np.ndarray] = []  # the parameters' arrays
        self._values = _Whole(np.empty(0), [])
        self._arrays: dict[str, _Whole] = {}  # of the states, by their names

    def is_of(self, values: Sequence[np.ndarray], states: Sequence[State], names: Sequence[str]) -> bool:
        """Whether these arrays are joined, in this order, and the states still have the parts that they were given."""
        return (
            len(self._own) == len(values)
            and all(map(operator.is_, self._own, values))
            and self._values.is_whole()
            and [*self._arrays] == [*names]
            and all([self._arrays[name].has_parts(map(operator.itemgetter(name), states)) for name in names])
        )

    def join(self, values: Sequence[np.ndarray], states: Sequence[State], names: Sequence[str]) -> None:
        """Join parameters; `names` are those of the arrays in their states."""
        self._own, self._values = values, _joined(values)
        self._arrays = {}
        for name in names:
            pairs = zip(states, values, strict=True)
            self._arrays[name] = joined = _joined([remembered(state, name, own) for state, own in pairs])
            for state, part in zip(states, joined.parts, strict=True):
                state[name] = part

    def move(self, gradients: Sequence[np.ndarray], step: int, move: Move) -> None:
        """Move all that were joined."""
        whole = np.concatenate(self._own, axis=None, out=self._values.array)
        state = {"step": step, **{name: joined.array for name, joined in self._arrays.items()}}
        move_pieces(in_parts(whole, np.concatenate(gradients, axis=None), state, [*self._arrays]), move)
        for own, part in zip(self._own, self._values.parts, strict=True):
            own[...] = part


class _Whole(NamedTuple):
    """One array, and the views of its parts."""

    array: np.ndarray
    parts: list[np.ndarray]

    def is_whole(self) -> bool:
        """Whether the parts are views still: of a copy they are arrays of their own."""
        return self.parts[0].base is self.array

    def has_parts(self, arrays: Iterable[np.ndarray]) -> bool:
        return all(map(operator.is_, self.parts, arrays))


def _joined(arrays: Sequence[np.ndarray]) -> _Whole:
    """A copy of all, whose parts have their shapes."""
    whole = np.concatenate(arrays, axis=None)
    ends = itertools.accumulate([array.size for array in arrays])
    parts = [whole[end - array.size : end].reshape(array.shape) for array, end in zip(arrays, ends, strict=True)]
    return _Whole(whole, parts)


def in_parts(values: np.ndarray, gradient: np.ndarray, state: State, names: Sequence[str]) -> list[Piece]:
    """The parts of one parameter, or it as a whole; `names` are those of the arrays in its state."""
    arrays = [values, gradient, *[state[name] for name in names]]
    if values.size <= PART or not all([array.flags.c_contiguous for array in arrays]):
        return [(values, gradient, state)]
    flat = [array.reshape(-1) for array in arrays]
    pieces: list[Piece] = []
    for start in range(0, values.size, PART):
        own, its_gradient, *rest = [array[start : start + PART] for array in flat]
        pieces.append((own, its_gradient, {"step": state["step"], **dict(zip(names, rest, strict=True))}))
    return pieces


def move_pieces(pieces: Sequence[Piece], move: Move) -> None:
    """Moves each piece, several at once if they are many."""
    if not pieces:
        return

    def work(start: int, stop: int) -> None:
        for piece in pieces[start:stop]:
            move(*piece)

    elements = sum([values.size for values, *_ in pieces])
    divide(pieces[0][0], len(pieces), NS_OF_A_STEP * elements / len(pieces), work)


# ---- states ----------------------------------------------------------------------------------------------------------


def remembered(state: dict[str, Any], name: str, values: Array) -> Array:
    """The array `name` of a parameter's state: zeros at first; in the dtype and on the device of the parameter."""
    array = state.get(name)
    if array is None:
        state[name] = array = array_module(values).zeros_like(values)
    elif array.dtype != values.dtype or device_of(array) != device_of(values):
        state[name] = array = copy_like(values, array)  # the parameter was moved
    return array


def copy_like(values: Array, array: Any) -> Array:
    """A copy of `array` in the dtype and on the device of `values`."""
    return to_device(np.array(to_device(array, "cpu"), values.dtype), device_of(values))
