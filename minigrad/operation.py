"""How values are made and remembered: `@op`, and the node that a recorded operation leaves behind.

An operation is one function of arrays that returns its value and its pullbacks: for each input, the function that takes
the gradient of the value to the gradient of that input. All else is done here, once for all operations: the operands'
promotion and devices, the record. The operations themselves are in `minigrad.ops`; how gradients flow back through the
record is in `minigrad.autograd`.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy import ndarray

from minigrad import ops, watchers
from minigrad.backend import Array, DeviceError, array_module, device_of, is_array, on_device_of, plain_array
from minigrad.bfloat import body_for
from minigrad.calling import bound
from minigrad.dtypes import is_floating, is_numeric
from minigrad.grad_mode import mode
from minigrad.hooks import Hooks
from minigrad.memory import Memory, next_serial
from minigrad.promotion import promoted
from minigrad.scalars import in_short
from minigrad.tensor import Tensor

_new = object.__new__
_FLOAT32 = np.dtype(np.float32)
_NO_OPTIONS: dict[str, Any] = {}

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
    optional: frozenset[int]  # positions of inputs that may be None
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
    optional: Iterable[str] = (),
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
        floating: the operation has no meaning on integers: they become the default float dtype first.
        exempt: names of inputs that keep their dtype (conditions, indices).
        optional: names of inputs that may be None (a bias).
    """
    if body is None:
        return functools.partial(
            op, reference=reference, linear=linear, floating=floating, exempt=exempt, optional=optional
        )
    parameters = list(inspect.signature(body).parameters.values())
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    inputs = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    options = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    for p in parameters:
        if p.kind is p.VAR_KEYWORD or (p.name in inputs and p.default is not p.empty):
            raise TypeError(
                f"op: {p} of {body.__name__} is no input; name each option after a *, as in f(x, *, axis=None)"
            )
    for role, names in (("exempt", set(exempt)), ("optional", set(optional))):
        if not names <= set(inputs):
            raise ValueError(f"op: {role} {sorted(names)} of {body.__name__} must name some of its inputs {inputs}")
    exempted, absent = [frozenset(inputs.index(name) for name in names) for names in (exempt, optional)]
    operation = Operation(body.__name__, body, reference, linear, floating, exempted, absent, inputs, options, variadic)
    call = _callable(operation)
    return _arithmetic(operation, call) if len(inputs) == 2 and not options else call


def _callable(operation: Operation) -> Callable[..., Any]:
    """The function that `@op` makes of a body.

    Every operation of a program passes here: so it goes over its operands once, and what has to be done for few of
    them is done elsewhere.
    """
    body, count = operation.body, -1 if operation.variadic else len(operation.inputs)

    @functools.wraps(body)
    def call(*operands: Any, **options: Any) -> Any:
        if len(operands) != count:
            operands, options = bound(operation, operands, options)
        arrays = []
        dtype = None
        uniform, needs_grad, absent = True, False, False
        for x in operands:
            if isinstance(x, Tensor):
                data = x._data
                arrays.append(data)
                if data.dtype is not dtype or type(data) is not ndarray:
                    uniform = uniform and dtype is None and type(data) is ndarray and data.dtype.kind == "f"
                    dtype = data.dtype
                if x._requires_grad:
                    needs_grad = True
            else:
                arrays.append(x)
                if x is None:
                    absent = True
                elif type(x) is not float and type(x) is not int:
                    uniform = False
        if dtype is None:  # no Tensor
            return _checked(operation, body(*operands, **options))[0]
        if absent:
            _check_absent(operation, operands)
        if watchers.active:
            cast = watchers.cast_operands(operation, operands)
            if cast:
                return call(*cast, **options)
            watchers.tell("calling", operation)
        try:
            if uniform:
                value, pullbacks = _checked(operation, body(*arrays, **options))
            else:
                operands = tuple([x if isinstance(x, Tensor) else _constant(operation, x) for x in operands])
                arrays = [x._data if isinstance(x, Tensor) else x for x in operands]
                value, pullbacks = computed(operation, arrays, options)
        except (IndexError, OverflowError, TypeError, ValueError) as error:
            if str(error).startswith((f"{operation.name}:", f"{operation.name} takes")):
                raise
            raise _named(error, operation, operands) from error
        recording = needs_grad and pullbacks is not None and mode.grad_enabled
        if type(value) is tuple:
            return _several(operation, operands, options, value, pullbacks if recording else None)
        tensor = wrapped(value, operands)
        if recording and is_floating(tensor._data.dtype):
            _attach(_node(operation, options, operands, pullbacks), tensor)
        if watchers.active:
            watchers.tell("made", operation, operands, options, (tensor,), tensor.node)
        return tensor

    call.operation = operation  # type: ignore[attr-defined]
    return call


def _arithmetic(operation: Operation, general: Callable[..., Any]) -> Callable[..., Any]:
    """`general` for an operation of two inputs without options, with a straight way for Tensors of one float dtype."""
    body = operation.body

    def call(x: Any, y: Any) -> Any:
        if watchers.active or not isinstance(x, Tensor) or not isinstance(y, Tensor):
            return general(x, y)
        a, b = x._data, y._data
        dtype = a.dtype
        if dtype is not b.dtype or type(a) is not ndarray or (dtype is not _FLOAT32 and dtype.kind != "f"):
            return general(x, y)
        try:
            value, pullbacks = result = body(a, b)
        except (IndexError, TypeError, ValueError):
            return general(x, y)  # which says what is wrong
        if type(value) is ndarray and value.base is None and value is not a and value is not b:
            tensor = _new(Tensor)
            tensor._data, tensor._requires_grad = value, False
            tensor._memory = tensor._grad = tensor.node = tensor.hooks = None
        elif type(result) is tuple and isinstance(value, (ndarray, np.generic)):
            tensor = wrapped(value, (x, y))
        else:
            return general(x, y)
        if (
            (x._requires_grad or y._requires_grad)
            and mode.grad_enabled
            and pullbacks is not None
            and tensor._data.dtype.kind == "f"
        ):
            _attach(_node(operation, _NO_OPTIONS, (x, y), pullbacks), tensor)
        return tensor

    names = (*operation.inputs, *call.__code__.co_varnames[2:])  # so that inputs can be given by the body's names
    call.__code__ = call.__code__.replace(co_varnames=names)
    functools.update_wrapper(call, body)
    call.operation = operation  # type: ignore[attr-defined]
    return call


def computed(operation: Operation, arrays: Sequence[Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """(value, pullbacks) of operands that may have to be promoted first."""
    if _are_alike(arrays, operation.exempt):
        return _checked(operation, operation.body(*arrays, **options))
    with on_device_of(next((x for x in arrays if is_array(x)), None)):
        if len(arrays) > 1 or operation.floating:
            _check_devices(operation, arrays)
            arrays = promoted(arrays, operation.floating, operation.exempt)
        return _checked(operation, body_for(operation, arrays)(*arrays, **options))


def _are_alike(arrays: Sequence[Any], exempt: frozenset[int]) -> bool:
    """Whether all are NumPy's, and of one float dtype but for the exempt ones: then nothing is to be promoted."""
    dtype = None
    for place, x in enumerate(arrays):
        if type(x) is not ndarray:
            if x is not None:
                return False
        elif place not in exempt:
            dtype = dtype or x.dtype
            if x.dtype != dtype or dtype.kind != "f":
                return False
    return dtype is not None


def _checked(operation: Operation, result: Any) -> tuple[Any, Any]:
    """What a body returned. TypeError unless it is (value, pullbacks)."""
    if type(result) is not tuple or len(result) != 2:
        found = f"a tuple of {len(result)}" if type(result) is tuple else type(result).__name__
        raise TypeError(f"{operation.name}: its body must return (value, pullbacks), it returned {found}")
    return result


# ---- the record ------------------------------------------------------------------------------------------------------


class Node:
    """How one value was made. It refers to its inputs' nodes, to leaves and to constants; arrays live in the pullbacks.

    Attributes:
        operation, options: what made it.
        inputs: one per positional input: its Node, or the leaf or constant itself.
        targets: one per input: the Node or leaf Tensor that its gradient goes to, None if it needs none.
        pullbacks: one per input, None for one that needs no gradient, or one function for all; None once freed.
        serial: nodes are numbered as they are made, so a node's number is above those of its inputs' nodes; and writes
            over values with them, so it is below those of later ones.
        shape, dtype, device: the value's (of a tuple's node only the shape, the first value's).
        value: a weak reference to the value: call it for the Tensor, or None if that is gone.
        memories: of the inputs and the value: none may have been written over since.
        part: for one value of a tuple: its place; its only target is then the tuple's node.
        parts: for a tuple's node: the values' (shape, dtype).
        hooks: what is to see the gradient of the value, or None.
        origin: for a node made while watched: where; else None.
    """

    __slots__ = (
        "__weakref__", "device", "dtype", "hooks", "inputs", "memories", "operation", "options", "origin", "part",
        "parts", "pullbacks", "serial", "shape", "targets", "value",
    )  # fmt: skip

    operation: Operation
    options: dict[str, Any]
    inputs: Sequence[Any]
    targets: Sequence[Any]
    pullbacks: Any
    serial: int
    part: int | None
    parts: tuple[tuple[tuple[int, ...], np.dtype], ...] | None
    shape: tuple[int, ...]
    dtype: np.dtype
    device: str
    memories: list[Memory]
    value: Callable[[], Tensor | None]
    hooks: Hooks | None
    origin: Any

    def __repr__(self) -> str:
        return f"<Node of {self.operation.name}, shape {self.shape}>"

    def free(self) -> None:
        """Let go of all that the node keeps alive; walking it again is then an error."""
        self.pullbacks = None
        self.inputs = self.targets = ()
        self.options = _NO_OPTIONS


def _node(operation: Operation, options: dict[str, Any], inputs: Sequence[Any], pullbacks: Any) -> Node:
    sources, targets, memories = [], [], []
    all_needed = True
    for x in inputs:
        source, needs_grad = x, False
        if isinstance(x, Tensor):
            source, needs_grad = x.node or x, x._requires_grad
            memories.append(x._memory or x.memory)
        sources.append(source)
        targets.append(source if needs_grad else None)
        all_needed = all_needed and needs_grad
    node: Node = _new(Node)
    node.serial = next_serial()
    node.operation, node.options, node.memories = operation, options, memories
    node.inputs, node.targets = sources, targets
    if all_needed and type(pullbacks) is tuple and len(pullbacks) == len(sources):
        node.pullbacks = pullbacks
    else:
        node.pullbacks = needed(operation, pullbacks, targets)
    node.part = node.parts = node.hooks = node.origin = None
    return node


def needed(operation: Operation, pullbacks: Any, targets: Sequence[Any]) -> Any:
    """The pullbacks without those of inputs that need no gradient, which are dropped with all that they captured.

    Raises TypeError if they are no functions, or not one per input.
    """
    if callable(pullbacks):
        return pullbacks
    if not isinstance(pullbacks, (tuple, list)):
        raise TypeError(f"{operation.name}: its pullbacks must be functions, not {type(pullbacks).__name__}")
    if len(pullbacks) != len(targets):
        raise TypeError(f"{operation.name} has {len(targets)} inputs and returned {len(pullbacks)} pullbacks")
    return tuple([None if target is None else f for f, target in zip(pullbacks, targets, strict=True)])


def _attach(node: Node, tensor: Tensor) -> None:
    """Make the node the maker of this value."""
    data = tensor._data
    node.shape, node.dtype = data.shape, data.dtype
    node.device = "cpu" if type(data) is ndarray else device_of(data)
    if tensor._memory is None:
        tensor._memory = Memory()  # nobody else has this tensor yet
    node.memories.append(tensor._memory)
    node.value = weakref.ref(tensor)
    tensor.node, tensor._requires_grad = node, True


def _several(
    operation: Operation, operands: Sequence[Any], options: dict[str, Any], results: tuple[Any, ...], pullbacks: Any
) -> tuple[Tensor, ...]:
    """The values of a tuple as Tensors: one node for the tuple, and one for each value, which takes it out of it."""
    values = tuple([wrapped(value, operands) for value in results])
    whole = None
    if pullbacks is not None:
        whole = _node(operation, options, operands, pullbacks)
        whole.parts = tuple([(value.shape, value.dtype) for value in values])
        whole.shape = values[0].shape
        for place, value in enumerate(values):
            whole.memories.append(value.memory)
            if is_floating(value.dtype):
                part = _node(operation, _NO_OPTIONS, (), ())
                part.inputs = part.targets = [whole]
                part.part = place
                _attach(part, value)
    if watchers.active:
        watchers.tell("made", operation, operands, options, values, whole)
    return values


def wrapped(value: Array, inputs: Sequence[Any]) -> Tensor:
    """A Tensor of `value`; one that is an input, or a view of one, shares its memory."""
    if type(value) is not ndarray and not is_array(value):
        if not isinstance(value, (np.generic, float, int)):
            raise TypeError(f"the value of an operation must be an array, not {type(value).__name__}")
        value = np.asarray(value)  # NumPy turns 0-d results into scalars
    is_view = value.base is not None
    for x in inputs:
        if isinstance(x, Tensor) and (value is x._data or (is_view and _overlap(value, x._data))):
            return Tensor._of(value, x.memory)
    return Tensor._of(value)


def _overlap(view: Array, x: Array) -> bool:
    """Whether they may be of one memory: NumPy's if one array owns the memory of both, which is the faster question."""
    owner, other = view.base, x if x.base is None else x.base
    if type(owner) is type(other) is ndarray and owner.base is other.base is None:
        return owner is other
    return type(view) is type(x) and array_module(x).may_share_memory(view, x)


def _constant(operation: Operation, operand: Any) -> Any:
    """An operand that is no Tensor: a number, an array (copied, as a graph may come to refer to it) or None."""
    if operand is None or type(operand) in (float, int, bool):
        return operand
    if isinstance(operand, np.generic) and is_numeric(operand.dtype):
        return operand.item()  # a scalar never widens
    if is_array(operand):
        with on_device_of(operand):
            return plain_array(operand).copy()
    raise _no_operand(operation, operand)


def _check_absent(operation: Operation, operands: Sequence[Any]) -> None:
    for place, operand in enumerate(operands):
        if operand is None and place not in operation.optional:
            raise _no_operand(operation, operand)


def _no_operand(operation: Operation, operand: Any) -> TypeError:
    return TypeError(
        f"{operation.name} takes tensors, arrays and numbers, got {type(operand).__name__}: "
        "make a tensor of it with mg.Tensor(...)"
    )


def _named(error: Exception, operation: Operation, inputs: Sequence[Any]) -> Exception:
    """The array library's error with the operation's name and the shapes at fault."""
    shapes = " and ".join(str(x.shape) if hasattr(x, "shape") else in_short(x) for x in inputs)
    kind = next(k for k in (IndexError, OverflowError, TypeError, ValueError) if isinstance(error, k))
    return kind(f"{operation.name}: {error} (called with {shapes})")


def _check_devices(operation: Operation, arrays: Sequence[Any]) -> None:
    device = None
    for array in arrays:
        if type(array) is ndarray or is_array(array):
            if device is not None and device_of(array) != device:
                raise DeviceError(
                    f"{operation.name}: operands on different devices, "
                    + " and ".join(f"{x.shape} on {device_of(x)}" for x in arrays if is_array(x))
                    + "; move one with .to(device)"
                )
            device = device_of(array)
