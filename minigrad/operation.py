"""How values are made and remembered: grad mode, `@op`, and the node that a recorded operation leaves behind.

An operation is one function of arrays that returns its value and its pullbacks: for each input, the function that takes
the gradient of the value to the gradient of that input. All else is done here, once for all operations: the operands'
promotion and devices, the record. The operations themselves are in `minigrad.ops`; how gradients flow back through the
record is in `minigrad.autograd`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from minigrad import ops
from minigrad.backend import Array, DeviceError, array_module, device_of, is_array, is_floating, plain_array
from minigrad.promotion import is_uniform, promoted
from minigrad.tensor import Memory, Tensor

# ---- grad mode -------------------------------------------------------------------------------------------------------


class _Mode(threading.local):
    def __init__(self) -> None:
        self.grad_enabled = True
        self.former: list[bool] = []  # of the blocks that this thread is in


_mode = _Mode()


class GradMode(ContextDecorator):
    """Sets grad mode for a `with` block or a decorated function, in this thread; restores the former one on leaving."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def __call__(self, function: Any) -> Any:
        if inspect.isgeneratorfunction(function):
            raise TypeError(f"grad mode cannot decorate the generator {function.__name__}: use a with block inside it")
        return super().__call__(function)

    def __enter__(self) -> None:
        _mode.former.append(_mode.grad_enabled)
        _mode.grad_enabled = self._enabled

    def __exit__(self, *exception: object) -> None:
        _mode.grad_enabled = _mode.former.pop()


class no_grad(GradMode):
    """Within it nothing is recorded: results require no gradient and keep nothing alive."""

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(GradMode):
    """Within it operations are recorded again, inside a `no_grad` block."""

    def __init__(self) -> None:
        super().__init__(True)


def is_grad_enabled() -> bool:
    """Whether this thread records operations."""
    return _mode.grad_enabled


# ---- operations ------------------------------------------------------------------------------------------------------


def namespace(*operands: object) -> ModuleType:
    """The library of the operands: `minigrad.ops` if one is a Tensor, else CuPy or NumPy. All have NumPy's names."""
    for operand in operands:
        if isinstance(operand, Tensor):
            return ops
    return array_module(*operands)


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """What the engine knows of an operation: the body, and how to call it."""

    name: str
    body: Callable[..., Any]
    reference: Callable[..., Any] | None  # the plain composition that a fused operation equals
    linear: bool  # the pullbacks are functions of the gradient alone
    floating: bool  # integers become the default float dtype first
    exempt: frozenset[int]  # positions of inputs that are not promoted: conditions, indices
    inputs: tuple[str, ...]  # positional parameters
    options: tuple[str, ...]  # keyword-only parameters
    variadic: bool  # one `*inputs` parameter, given as a list


def op(
    body: Callable[..., Any] | None = None,
    *,
    reference: Callable[..., Any] | None = None,
    linear: bool = False,
    floating: bool = False,
    exempt: Iterable[str] = (),
) -> Any:
    """Make a differentiable operation out of a function of arrays that returns (value, pullbacks).

    Inputs are the positional parameters (or `*xs`, then the operation takes a list), options are keyword-only.
    Pullbacks are a tuple with one function per input, None for an input without derivative; a bare function if there is
    one input; or one function that returns the gradients of all inputs. A body may return a tuple of values: its
    pullback takes a tuple of gradients then. Called with no Tensor among its inputs, an operation is its body's value.

    Args:
        reference: for a body that cannot run on Tensors (it works in place): the plain composition that it equals,
            with the same parameters, from which gradients of gradients are taken.
        linear: the pullbacks use nothing but the gradient, through operations only, so they serve Tensors as they are.
        floating: the operation has no meaning on integers: they become float32 first.
        exempt: names of inputs that keep their dtype (conditions, indices).
    """
    if body is None:
        return functools.partial(op, reference=reference, linear=linear, floating=floating, exempt=exempt)
    parameters = list(inspect.signature(body).parameters.values())
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    inputs = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    options = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    for p in parameters:
        if p.kind is p.VAR_KEYWORD or (p.name in inputs and p.default is not p.empty):
            raise TypeError(
                f"op: {p} of {body.__name__} is no input; name each option after a *, as in f(x, *, axis=None)"
            )
    if not set(exempt) <= set(inputs):
        raise ValueError(f"op: exempt {sorted(exempt)} of {body.__name__} must name some of its inputs {inputs}")
    positions = frozenset(inputs.index(name) for name in exempt)
    operation = Operation(body.__name__, body, reference, linear, floating, positions, inputs, options, variadic)
    count = -1 if variadic else len(inputs)

    @functools.wraps(body)
    def call(*operands: Any, **chosen: Any) -> Any:
        if len(operands) != count:
            operands, chosen = _bind(operation, operands, chosen)
        for operand in operands:
            if isinstance(operand, Tensor):
                return _record(operation, operands, chosen)
        return _result(operation, operands, chosen)[0]

    call.operation = operation  # type: ignore[attr-defined]
    return call


def _bind(operation: Operation, operands: tuple[Any, ...], chosen: dict[str, Any]) -> tuple[tuple[Any, ...], dict]:
    """NumPy's ways of calling: options by position, inputs by name, a list of inputs. TypeError for other ways."""
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
            inputs += tuple([chosen.pop(name) for name in operation.inputs[len(inputs) :] if name in chosen])
        if len(inputs) < count:
            raise TypeError(f"{name} takes the inputs {', '.join(operation.inputs)}; got {len(inputs)} of them")
    if len(extra) > len(operation.options):
        raise TypeError(f"{name} takes at most {len(operation.options)} options, got {len(extra)}")
    for option, value in zip(operation.options, extra, strict=False):
        if option in chosen:
            raise TypeError(f"{name} got its option {option} twice, by position and by name")
        chosen[option] = value
    return inputs, chosen


def computed(operation: Operation, arrays: Sequence[Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """(value, pullbacks) of the promoted operands."""
    if not is_uniform(arrays) and (len(arrays) > 1 or operation.floating):
        _check_devices(operation, arrays)
        arrays = promoted(arrays, operation.floating, operation.exempt)
    return _result(operation, arrays, options)


def _result(operation: Operation, arrays: Sequence[Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """What the body returns: (value, pullbacks)."""
    result = operation.body(*arrays, **options)
    if type(result) is not tuple or len(result) != 2:
        raise TypeError(
            f"{operation.name}: its body must return (value, pullbacks), it returned {type(result).__name__}"
        )
    return result


# ---- the record ------------------------------------------------------------------------------------------------------

_serial = itertools.count()


class Node:
    """How one value was made. It refers to its inputs' nodes, to leaves and to constants; arrays live in the pullbacks.

    Attributes:
        operation, options: what made it.
        inputs: one per positional input: its Node, or the leaf or constant itself.
        targets: one per input: the Node or leaf Tensor that its gradient goes to, None if it needs none.
        pullbacks: one per input, None for one that needs no gradient, or one function for all; None once freed.
        serial: nodes are numbered as they are made, so a node's number is above those of its inputs' nodes.
        shape, dtype, device: the value's.
        value: a weak reference to the value: call it for the Tensor, or None if that is gone.
        memories, versions: of the inputs and the value, to notice that one was written over since.
        part: for one value of a tuple: its place; its only target is then the tuple's node.
        parts: for a tuple's node: the values' (shape, dtype).
    """

    __slots__ = (
        "__weakref__", "device", "dtype", "inputs", "memories", "operation", "options", "part", "parts", "pullbacks",
        "serial", "shape", "targets", "value", "versions",
    )  # fmt: skip

    operation: Operation
    options: dict[str, Any]
    inputs: list[Any]
    targets: list[Any]
    pullbacks: Any
    serial: int
    part: int | None
    parts: tuple[tuple[tuple[int, ...], np.dtype], ...] | None
    shape: tuple[int, ...]
    dtype: np.dtype
    device: str
    memories: list[Memory]
    versions: list[int]
    value: Callable[[], Tensor | None]

    def free(self) -> None:
        """Let go of all that the node keeps alive; walking it again is then an error."""
        self.pullbacks = None
        self.inputs, self.targets = [], []
        self.options = {}


def _record(operation: Operation, operands: Sequence[Any], options: dict[str, Any]) -> Any:
    """The operation's value as a Tensor (or several), with the node that made it if an input requires a gradient."""
    recording = False
    inputs, arrays = [], []
    for x in operands:
        if isinstance(x, Tensor):
            recording = recording or x._requires_grad
            arrays.append(x._data)
        else:
            x = _constant(operation, x)
            arrays.append(x)
        inputs.append(x)
    recording = recording and _mode.grad_enabled
    try:
        value, pullbacks = computed(operation, arrays, options)
    except (IndexError, TypeError, ValueError) as error:
        if str(error).startswith(f"{operation.name}:"):
            raise
        raise _named(error, operation, inputs) from error
    if type(value) is tuple:
        values = tuple([wrapped(part, inputs) for part in value])
        if recording:
            _record_tuple(operation, options, inputs, values, pullbacks)
        return values
    tensor = wrapped(value, inputs)
    if recording and pullbacks is not None and is_floating(tensor._data.dtype):
        _attach(_node(operation, options, inputs, pullbacks), tensor)
    return tensor


def _record_tuple(
    operation: Operation, options: dict[str, Any], inputs: list[Any], values: tuple[Tensor, ...], pullbacks: Any
) -> None:
    """One node for the tuple, and one for each value, which takes it out of the tuple."""
    whole = _node(operation, options, inputs, pullbacks)
    whole.parts = tuple((value.shape, value.dtype) for value in values)
    for place, value in enumerate(values):
        _note_value(whole, value)
        if is_floating(value.dtype):
            part = _node(operation, options, [], ())
            part.inputs = part.targets = [whole]
            part.part = place
            _attach(part, value)


def wrapped(value: Array, inputs: Sequence[Any]) -> Tensor:
    """A Tensor of `value`; a view of an input shares its memory, and so its version."""
    if type(value) is not np.ndarray and not is_array(value):
        value = np.asarray(value)  # NumPy turns 0-d results into scalars
    base = value.base
    for tensor in inputs:
        if isinstance(tensor, Tensor):
            data = tensor._data
            if value is data or (base is not None and _overlap(value, data)):
                return Tensor._of(value, tensor._memory)
    return Tensor._of(value, Memory())


def _overlap(a: Array, b: Array) -> bool:
    return type(a) is type(b) and array_module(a).may_share_memory(a, b)


def _node(operation: Operation, options: dict[str, Any], inputs: Sequence[Any], pullbacks: Any) -> Node:
    node = Node()
    node.serial = next(_serial)
    node.operation, node.options = operation, options
    node.part = node.parts = None
    node.inputs, node.targets, node.memories, node.versions = [], [], [], []
    for x in inputs:
        source = target = None
        if isinstance(x, Tensor):
            source = x.node or x
            target = source if x._requires_grad else None
            node.memories.append(x._memory)
            node.versions.append(x._memory.version)
        node.inputs.append(x if source is None else source)
        node.targets.append(target)
    node.pullbacks = needed(operation, pullbacks, node.targets)
    return node


def needed(operation: Operation, pullbacks: Any, targets: list[Any]) -> Any:
    """The pullbacks without those of inputs that need no gradient, which are dropped with all that they captured.

    Raises TypeError if they are no functions, or not one per input.
    """
    if callable(pullbacks):
        return pullbacks
    if not isinstance(pullbacks, (tuple, list)):
        raise TypeError(f"{operation.name}: its pullbacks must be functions, not {type(pullbacks).__name__}")
    if len(pullbacks) != len(targets):
        raise TypeError(f"{operation.name} has {len(targets)} inputs and returned {len(pullbacks)} pullbacks")
    return [None if target is None else pullback for pullback, target in zip(pullbacks, targets, strict=True)]


def _attach(node: Node, tensor: Tensor) -> None:
    """Make the node the maker of this value."""
    _note_value(node, tensor)
    node.value = weakref.ref(tensor)
    tensor.node, tensor._requires_grad = node, True


def _note_value(node: Node, tensor: Tensor) -> None:
    """The value's form, and the version of its memory."""
    data, memory = tensor._data, tensor._memory
    node.shape, node.dtype, node.device = data.shape, data.dtype, device_of(data)
    node.memories.append(memory)
    node.versions.append(memory.version)


def _constant(operation: Operation, operand: Any) -> Any:
    """An operand that is no Tensor: a number, an array (copied, as a graph may come to refer to it) or None."""
    if operand is None or type(operand) in (float, int, bool):
        return operand
    if isinstance(operand, np.generic) and operand.dtype.kind in "fiub":
        return operand.item()  # a scalar never widens
    if is_array(operand):
        operand = plain_array(operand)
        if operand.dtype.kind not in "fiub":
            raise TypeError(f"{operation.name}: a tensor holds floats, integers or booleans, not {operand.dtype}")
        return operand.copy()
    raise TypeError(
        f"{operation.name} takes tensors, arrays and numbers, got {type(operand).__name__}: "
        "make a tensor of it with mg.Tensor(...)"
    )


def _named(error: Exception, operation: Operation, inputs: Sequence[Any]) -> Exception:
    """The array library's error with the operation's name and the shapes at fault."""
    shapes = " and ".join(str(x.shape) if hasattr(x, "shape") else repr(x) for x in inputs)
    kind = next(kind for kind in (IndexError, TypeError, ValueError) if isinstance(error, kind))
    return kind(f"{operation.name}: {error} (called with {shapes})")


def _check_devices(operation: Operation, arrays: Sequence[Any]) -> None:
    device = None
    for array in arrays:
        if type(array) is np.ndarray or is_array(array):
            if device is not None and device_of(array) != device:
                raise DeviceError(
                    f"{operation.name}: operands on different devices, "
                    + " and ".join(f"{x.shape} on {device_of(x)}" for x in arrays if is_array(x))
                    + "; move one with .to(device)"
                )
            device = device_of(array)
