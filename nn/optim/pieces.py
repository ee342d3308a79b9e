"""How parameters on a CPU are given to an optimizer's arithmetic: small ones as one array, large ones part by part.

A pass over an array costs NumPy about a microsecond before its first element, which for small parameters is most of the
time; and the ten or so passes of a step over a part that stays in the cache are faster than as many over memory.
What is done to the numbers is the same. At the end is what keeps a parameter's state in its dtype and where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from minigrad import Tensor
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
    """

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: of the arrays in a state."""
        self._names = names
        self._arrays: State = dict.fromkeys(names)
        self._parts: list[State] = []  # what each state was given

    def move(self, parameters: Sequence[Tensor], states: Sequence[State], move: Move) -> None:
        """Moves all; each state is its parameter's."""
        values = _joined([parameter.data for parameter in parameters])
        gradient = _joined([parameter.grad.data for parameter in parameters])  # type: ignore[union-attr]
        if not self._holds(states):
            self._arrays = {name: self._join(name, parameters, states) for name in self._names}
            self._hand_out(parameters, states)
        state = {"step": states[0]["step"], **self._arrays}
        move_pieces(in_parts(values, gradient, state, self._names), move)
        if any([state[name] is not self._arrays[name] for name in self._names]):  # the first step made them
            self._arrays = {name: state[name] for name in self._names}
            self._hand_out(parameters, states)
        for parameter, part in zip(parameters, _parted(values, parameters), strict=True):
            parameter.data[...] = part

    def _holds(self, states: Sequence[State]) -> bool:
        """Whether these states, in this order, have the parts still that they were given."""
        if len(states) != len(self._parts):
            return False
        for name, whole in self._arrays.items():
            for state, parts in zip(states, self._parts, strict=True):
                part = parts[name]
                if state[name] is not part or (part is not None and part.base is not whole):
                    return False
        return True

    def _join(self, name: str, parameters: Sequence[Tensor], states: Sequence[State]) -> np.ndarray | None:
        if all([state[name] is None for state in states]):
            return None
        return _joined([remembered(state, name, p.data) for p, state in zip(parameters, states, strict=True)])

    def _hand_out(self, parameters: Sequence[Tensor], states: Sequence[State]) -> None:
        self._parts = [{} for _ in states]
        for name, whole in self._arrays.items():
            given = [None] * len(states) if whole is None else _parted(whole, parameters)
            for state, parts, part in zip(states, self._parts, given, strict=True):
                state[name] = parts[name] = part


def in_parts(values: np.ndarray, gradient: np.ndarray, state: State, names: Sequence[str]) -> list[Piece]:
    """The parts of one parameter, or it as a whole; `names` are those of the arrays in its state."""
    arrays = [state[name] for name in names]
    fit = all([type(array) is np.ndarray and array.dtype == values.dtype for array in arrays])
    if not fit or not all([array.flags.c_contiguous for array in (values, gradient, *arrays)]):
        return [(values, gradient, state)]
    flat = [array.reshape(-1) for array in (values, gradient, *arrays)]
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


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in arrays])


def _parted(whole: np.ndarray, parameters: Sequence[Tensor]) -> Iterator[np.ndarray]:
    """Views of the parts, in the parameters' shapes."""
    start = 0
    for parameter in parameters:
        shape, size = parameter.data.shape, parameter.data.size
        yield whole[start : start + size].reshape(shape)
        start += size


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
