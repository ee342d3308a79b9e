"""What all optimizers share: groups of parameters with their options, the walk over them, saving and restoring.

How one parameter is moved is in `sgd.py` and `adam.py`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from minigrad import Tensor
from minigrad.backend import Array, on_device_of, to_device
from minigrad.memory import written
from nn.module import zero_grad
from nn.optim.pieces import SMALL, Joined, Piece, copy_like, in_parts, move_pieces, remembered


class Optimizer:
    """The base of optimizers. A subclass has `_check` and `_move`, and names the arrays that it remembers.

    Args:
        params: parameters, or dicts {"params": parameters, option: value, ...}, one per group, whose options go before
            `defaults`. They are listed once, so a generator will do.
        defaults: the options and their values.

    Attributes:
        param_groups: one dict per group: its "params", and every option. Options may be changed between steps.
        state: for each parameter that has been moved: "step", the number of times, and the remembered arrays, None if
            unused.

    Raises ValueError for no parameters, one given twice, one that an operation made, or an option out of range;
    TypeError for anything but a Tensor.
    """

    arrays: ClassVar[tuple[str, ...]]  # names of the arrays in a parameter's state, each of its shape

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self._defaults = defaults
        self.param_groups = [self._group(group) for group in self._as_groups(params)]
        self.state: dict[Tensor, dict[str, Any]] = {}
        self._joined: dict[int, list[Joined]] = {}  # what the last step joined, by the number of the group
        self._check_parameters()

    # ---- for subclasses ----------------------------------------------------------------------------------------------

    def _check(self, options: dict[str, Any]) -> None:
        """Raises ValueError if an option is out of range."""
        raise NotImplementedError

    def _move(self, values: Array, gradient: Array, state: dict[str, Any], options: dict[str, Any]) -> None:
        """Write new values over an array, element by element; `state["step"]` is 1 the first time.

        On a CPU the array may be that of several parameters, or a part of one, and other threads write to others then.
        """
        raise NotImplementedError

    def _used(self, options: dict[str, Any]) -> tuple[str, ...]:
        """Which of `arrays` a step with these options uses: `_move` finds them in a state on a CPU, at first zeros."""
        return self.arrays

    def _move_all(self, parameters: list[Tensor], options: dict[str, Any], joined: list[Joined]) -> None:
        """`_move` for each of a group's parameters that have a gradient: on a CPU in larger or smaller pieces.

        `joined` is what the last step joined of this group, and becomes what this one does.
        """

        def move(values: Array, gradient: Array, state: dict[str, Any]) -> None:
            self._move(values, gradient, state, options)

        used = self._used(options)
        pieces: list[Piece] = []
        together: dict[Any, list[Piece]] = {}
        arrays: set[int] = set()
        for parameter in parameters:
            own, gradient, state = parameter._data, parameter._grad._data, self.state[parameter]  # type: ignore[union-attr]
            alone = type(own) is np.ndarray and own.base is None and id(own) not in arrays
            if not alone or type(gradient) is not np.ndarray:  # on a GPU, or in memory that may be another's
                with on_device_of(own):
                    move(own, gradient, state)
                continue
            arrays.add(id(own))
            if own.size <= SMALL:
                together.setdefault((own.dtype, state["step"]), []).append((own, gradient, state))
            else:
                for name in used:
                    remembered(state, name, own)
                pieces += in_parts(own, gradient, state, used)
        del joined[len(together) :]
        joined += [Joined() for _ in range(len(together) - len(joined))]
        for one, ((_, step), members) in zip(joined, together.items(), strict=True):
            its_values, gradients, states = zip(*members, strict=True)
            if not one.is_of(its_values, states, used):
                one.join(its_values, states, used)
            one.move(gradients, step, move)
        move_pieces(pieces, move)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Move every parameter that has a gradient. The others stay as they are, and so does their state."""
        former, self._joined = self._joined, {}
        for number, group in enumerate(self.param_groups):
            parameters = [parameter for parameter in group["params"] if parameter._grad is not None]
            for parameter in parameters:
                state = self.state.get(parameter)
                if state is None:
                    state = self.state[parameter] = {"step": 0, **dict.fromkeys(self.arrays)}
                state["step"] += 1
            self._joined[number] = joined = former.get(number, [])
            self._move_all(parameters, group, joined)
            written([parameter.memory for parameter in parameters])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget every parameter's gradient: None, or fresh zeros where there was one."""
        zero_grad(self._parameters(), set_to_none)

    # ---- saving and restoring ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything but the parameters' values: {"state": {0: {"step": ..., array names ...}}, "param_groups": [...]}.

        Parameters are named by their number, counted through the groups. Arrays are NumPy copies, in the parameter's
        dtype.
        """
        numbers = {parameter: number for number, parameter in enumerate(self._parameters())}
        state = {numbers[parameter]: _mapped(_to_numpy, kept) for parameter, kept in self.state.items()}
        groups = [{**group, "params": [numbers[p] for p in group["params"]]} for group in self.param_groups]
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` of an optimizer over parameters of the same shapes gave: the next steps are
        equal.

        Raises ValueError that lists all that does not fit; nothing has been changed then.
        """
        state, groups = state_dict.get("state"), state_dict.get("param_groups")
        if not isinstance(state, Mapping) or not isinstance(groups, list):
            raise ValueError('load_state_dict: an optimizer\'s state has a dict "state" and a list "param_groups"')
        parameters = list(self._parameters())
        problems = self._group_problems(groups)
        for number, kept in state.items():
            if number not in range(len(parameters)):
                problems.append(f"state of parameter {number!r}, but there are {len(parameters)} parameters")
            else:
                problems += self._state_problems(number, kept, parameters[number].shape)
        if problems:
            listed = "\n  ".join(problems)
            raise ValueError(f"load_state_dict: this state does not fit the optimizer:\n  {listed}")
        loaded = {}
        for number, kept in state.items():
            values = parameters[number].data
            loaded[parameters[number]] = _mapped(functools.partial(copy_like, values), kept)
        self.state, self._joined = loaded, {}
        for own, given in zip(self.param_groups, groups, strict=True):
            own.update({name: given[name] for name in self._defaults})

    def _group_problems(self, groups: list[dict[str, Any]]) -> list[str]:
        ours = [len(group["params"]) for group in self.param_groups]
        given = [len(group["params"]) for group in groups]
        if given != ours:
            return [f"groups of {given} parameters, the optimizer has {ours}"]
        problems = []
        for place, group in enumerate(groups):
            options = {name: value for name, value in group.items() if name != "params"}
            if set(options) != set(self._defaults):
                problems.append(f"group {place} has the options {sorted(options)}, not {sorted(self._defaults)}")
                continue
            try:
                self._check(options)
            except (TypeError, ValueError) as error:
                problems.append(f"group {place}: {error}")
        return problems

    def _state_problems(self, number: int, kept: Mapping[str, Any], shape: tuple[int, ...]) -> list[str]:
        expected = {"step", *self.arrays}
        if set(kept) != expected:
            return [f"parameter {number} has a state of {sorted(kept)}, not {sorted(expected)}"]
        problems = [
            f"parameter {number}: {name} of shape {np.shape(kept[name])}, the parameter has {shape}"
            for name in self.arrays
            if kept[name] is not None and np.shape(kept[name]) != shape
        ]
        if not kept["step"] >= 1:
            problems.append(f"parameter {number}: step {kept['step']}, but it counts from 1")
        return problems

    # ---- groups ------------------------------------------------------------------------------------------------------

    def _parameters(self) -> Iterator[Tensor]:
        return itertools.chain.from_iterable(group["params"] for group in self.param_groups)

    def _listed(self, params: Any) -> list[Any]:
        if isinstance(params, (Tensor, Mapping, set)) or not isinstance(params, Iterable):
            raise TypeError(  # a set has no order of its own, so a saved state would not fit
                f"{type(self).__name__} takes a list of parameters or of dicts, got a {type(params).__name__}; "
                "write model.parameters()"
            )
        return list(params)

    def _as_groups(self, params: Iterable[Any]) -> list[dict[str, Any]]:
        given = self._listed(params)
        return given if given and all(isinstance(group, dict) for group in given) else [{"params": given}]

    def _group(self, given: dict[str, Any]) -> dict[str, Any]:
        name = type(self).__name__
        unknown = set(given) - {"params", *self._defaults}
        if unknown or "params" not in given:
            raise ValueError(
                f'{name}: a group has "params" and may have {", ".join(self._defaults)}; '
                f"got {', '.join(map(repr, given))}"
            )
        params = [given["params"]] if isinstance(given["params"], Tensor) else self._listed(given["params"])
        options = {**self._defaults, **given}
        self._check(options)
        return {**options, "params": params}

    def _check_parameters(self) -> None:
        name, seen = type(self).__name__, set()
        for place, parameter in enumerate(self._parameters()):
            if not isinstance(parameter, Tensor):
                kind = type(parameter).__name__
                raise TypeError(f"{name}: parameter {place} must be a Tensor, got {kind}; write model.parameters()")
            if not parameter.is_leaf:
                raise ValueError(
                    f"{name}: parameter {place} of shape {parameter.shape} was made by an operation; "
                    "only leaves can be trained"
                )
            if parameter in seen:
                raise ValueError(f"{name}: parameter {place} of shape {parameter.shape} is in the list twice")
            seen.add(parameter)
        if not seen:
            raise ValueError(f"{name} was given no parameters: an empty list, or an iterator that was used up before")


def check_not_negative(options: dict[str, Any], *names: str) -> None:
    """Raises ValueError that names the first option below 0, or NaN."""
    for name in names:
        if not options[name] >= 0:
            raise ValueError(f"{name} must be 0 or more, got {options[name]}")


def _mapped(function: Callable[[Any], Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter's state with `function` of each array."""
    return {
        name: int(value) if name == "step" else None if value is None else function(value)
        for name, value in kept.items()
    }


def _to_numpy(array: Array) -> np.ndarray:
    return to_device(array, "cpu").copy()
