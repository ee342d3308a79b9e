"""NumPy's ways of calling an operation: options by position, inputs by name, a list of inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minigrad.operation import Operation


def bound(operation: Operation, operands: tuple[Any, ...], chosen: dict[str, Any]) -> tuple[tuple[Any, ...], dict]:
    """(inputs, options) of a call. TypeError for other ways of calling."""
    name, count = operation.name, len(operation.inputs)
    if operation.variadic:
        if not operands or not isinstance(operands[0], (list, tuple)):
            given = type(operands[0]).__name__ if operands else "nothing"
            raise TypeError(f"{name} takes a list of tensors first, got {given}")
        inputs, extra = tuple(operands[0]), operands[1:]
        if not inputs:
            raise ValueError(f"{name} needs at least one tensor, got an empty list")
    else:
        inputs, extra = operands[:count], operands[count:]
        if len(inputs) < count:
            inputs += tuple([chosen.pop(given) for given in operation.inputs[len(inputs) :] if given in chosen])
        if len(inputs) < count:
            raise TypeError(f"{name} takes the inputs {', '.join(operation.inputs)}; got {len(inputs)} of them")
    if len(extra) > len(operation.options):
        raise TypeError(f"{name} takes at most {len(operation.options)} options, got {len(extra)}")
    for option, value in zip(operation.options, extra, strict=False):
        if option in chosen:
            raise TypeError(f"{name} got its option {option} twice, by position and by name")
        chosen[option] = value
    return inputs, chosen
