"""detect_anomaly: the first NaN or infinity that an operation makes is an error that says where."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigrad.backend import array_module, is_array, on_device_of
from minigrad.dtypes import is_floating
from minigrad.inspect.trace import Origin, Tracer, plain
from minigrad.operation import Node, Operation
from minigrad.tensor import Tensor
from minigrad.watchers import watching


class AnomalyError(RuntimeError):
    """An operation made NaN or infinity, forward or in its pullback."""


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """A block, or the run of a decorated function, in which the first NaN or infinity raises AnomalyError.

    The error names the operation, whether its value or a gradient that its pullback made, the user's line and module,
    and what went in. It is this thread's, and works under `no_grad` too.

    Forward, NaN always raises; the message says if it came in with an input. Infinity raises where an operation made it
    out of finite numbers: one that an input or an option holds, such as the -inf of an attention mask, may pass.
    Backward, both raise. Where the forward ran outside such a block (and outside `tracing`), the line is not known.
    Every value is looked at: use it to find a fault, not to train.
    """
    with watching(_Detector()):
        yield


class _Detector(Tracer):
    def made(
        self,
        operation: Operation,
        inputs: Sequence[Any],
        options: dict[str, Any],
        values: tuple[Tensor, ...],
        node: Node | None,
    ) -> None:
        super().made(operation, inputs, options, values, node)
        if self.walked_nodes:  # a pullback may make NaN on its way and leave it out: only its results count
            return
        for value in values:
            nan, infinite = _counts(value)
            if not nan and not infinite:
                continue
            given_nan, given_infinite = _counts((*inputs, *options.values()))
            if not nan and given_infinite:
                continue
            came_in = nan and given_nan
            lines = [
                f"{operation.name} {'passed on' if came_in else 'made'} {_amount(nan, infinite)} in its value of "
                f"shape {value.shape}, forward",
                *_place(self.origin()),
                *[f"its input {_name(operation, place)}: {_described(x)}" for place, x in enumerate(inputs)],
            ]
            if came_in:
                lines.append("the NaN came in with an input: no operation inside detect_anomaly() made it")
            raise AnomalyError("\n  ".join(lines))

    def walked(self, node: Node, gradient: Any, results: Sequence[Any] | None) -> None:
        super().walked(node, gradient, results)
        for place, (result, target) in enumerate(zip(results or (), node.targets, strict=False)):
            nan, infinite = _counts(result) if target is not None else (0, 0)
            if not nan and not infinite:
                continue
            passed_on = any(_counts(gradient))
            lines = [
                f"the pullback of {node.operation.name} {'passed on' if passed_on else 'made'} {_amount(nan, infinite)}"
                f" in the gradient of its input {_name(node.operation, place)} of shape {target.shape}, backward",
                *_place(node.origin),
                f"the gradient that it was given: {_described(gradient)}",
            ]
            if passed_on:
                lines.append(
                    "no pullback inside detect_anomaly() made that: it was given to backward() or grad(), came from a "
                    "hook, or the gradients of several uses of a value overflowed when they were added up"
                )
            raise AnomalyError("\n  ".join(lines))


def _counts(value: Any) -> tuple[int, int]:
    """How many elements are NaN, and how many are infinite; of all parts of a tuple."""
    if isinstance(value, (tuple, list)):
        parts = [_counts(part) for part in value]
        return sum(nan for nan, _ in parts), sum(infinite for _, infinite in parts)
    if isinstance(value, float):
        return int(math.isnan(value)), int(math.isinf(value))
    if not (isinstance(value, (Tensor, np.generic)) or is_array(value)):
        return 0, 0
    array = plain(value)
    library = array_module(array)
    with on_device_of(array):
        if not is_floating(array.dtype) or library.isfinite(array).all():
            return 0, 0
        return int(library.isnan(array).sum()), int(library.isinf(array).sum())


def _amount(nan: int, infinite: int) -> str:
    return " and ".join(f"{count} {kind}" for count, kind in ((nan, "NaN"), (infinite, "inf")) if count)


def _place(origin: Origin | None) -> list[str]:
    """The lines that say where, as a traceback does."""
    if origin is None:
        return ["its line is not known: run the forward inside detect_anomaly() as well"]
    lines = [f'File "{origin.file}", line {origin.line}, in {origin.function}']
    lines += [f"  {origin.source}"] if origin.source else []
    if origin.call is not None:
        lines.append(f"in the module {origin.call.path or '(outermost)'}, a {origin.call.kind}")
    return lines


def _name(operation: Operation, place: int) -> str:
    return str(place) if operation.variadic else operation.inputs[place]


def _described(value: Any) -> str:
    """The form of an operand or a gradient, the range of its finite values, and what else it holds."""
    if isinstance(value, (tuple, list)):
        return "; ".join(_described(part) for part in value)
    if not (isinstance(value, Tensor) or is_array(value)):
        return repr(value)
    array = plain(value)
    text = f"shape {array.shape}, {array.dtype}"
    if not is_floating(array.dtype):
        return text
    with on_device_of(array):
        finite = array[array_module(array).isfinite(array)]
        text += f", from {float(finite.min()):.6g} to {float(finite.max()):.6g}" if finite.size else ""
        text += f", with {_amount(*_counts(array))}" if finite.size < array.size else ""
    return text
