"""Reverse-mode automatic differentiation: `@op` records how a value was made, `backward()` and `grad()` walk back.

An operation is one function of arrays that returns its value and its pullbacks: for each input, the function that takes
the gradient of the value to the gradient of that input. All else that an operation needs is done here, once: promotion of
its operands, the record of the graph, undoing of broadcasting, checks, and gradients of gradients. The operations
themselves are in `minigrad.ops`.
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
from minigrad.backend import Array, DeviceError, array_module, device_of, is_array, is_floating
from minigrad.promotion import promoted
from minigrad.tensor import Memory, Tensor

# ---- grad mode -------------------------------------------------------------------------------------------------------


class _Mode(threading.local):
    grad_enabled = True


_mode = _Mode()


class _GradModeAs(ContextDecorator):
    """Sets grad mode for a `with` block or a decorated function, in this thread; restores the former one on leaving."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def __enter__(self) -> None:
        self._former = _mode.grad_enabled
        _mode.grad_enabled = self._enabled

    def __exit__(self, *exception: object) -> None:
        _mode.grad_enabled = self._former

    def _recreate_cm(self) -> _GradModeAs:
        return _GradModeAs(self._enabled)  # a decorated function may call itself: each call has its own former mode


class no_grad(_GradModeAs):  # noqa: N801  (PyTorch's name)
    """Within it nothing is recorded: results require no gradient and keep nothing alive."""

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(_GradModeAs):  # noqa: N801
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

    Inputs are the positional parameters (or `*xs`, then the operation takes a list); options are keyword-only. Pullbacks
    are a tuple with one function per input, None for an input without derivative; a bare function if there is one input;
    or one function that returns the gradients of all inputs. A body may return a tuple of values; its pullback then takes
    a tuple of gradients. Called with no Tensor among its inputs, an operation is its body's value.

    Args:
        reference: for a body that cannot run on Tensors (it works in place): the plain composition that it equals,
            with the same parameters, from which gradients of gradients are taken.
        linear: the pullbacks use nothing but the gradient, through operations only, so they serve Tensors as they are.
        floating: the operation has no meaning on integers: they become float32 first.
        exempt: names of inputs that keep their dtype (conditions, indices).
    """
    if body is None:
        return functools.partial(op, reference=reference, linear=linear, floating=floating, exempt=exempt)
    parameters = inspect.signature(body).parameters.values()
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    inputs = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    options = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
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
        return body(*operands, **chosen)[0]

    call.operation = operation  # type: ignore[attr-defined]
    return call


def _bind(operation: Operation, operands: tuple[Any, ...], chosen: dict[str, Any]) -> tuple[tuple[Any, ...], dict]:
    """NumPy's ways of calling: options by position, inputs by name, a list of inputs. Raises TypeError as Python does."""
    if operation.variadic:
        if not operands or not isinstance(operands[0], (list, tuple)):
            raise TypeError(
                f"{operation.name} takes a list of tensors first, got {type(operands[0]).__name__ if operands else 'nothing'}"
            )
        inputs, extra = tuple(operands[0]), operands[1:]
        if not inputs:
            raise ValueError(f"{operation.name} needs at least one tensor, got an empty list")
    else:
        named = operation.inputs[len(operands) :]
        inputs = operands[: len(operation.inputs)] + tuple(chosen.pop(name) for name in named if name in chosen)
        extra = operands[len(operation.inputs) :]
        if len(inputs) != len(operation.inputs):
            raise TypeError(
                f"{operation.name} takes the inputs {', '.join(operation.inputs)}; got {len(inputs)} of them"
            )
    if len(extra) > len(operation.options):
        raise TypeError(f"{operation.name} takes at most {len(operation.options)} options, got {len(extra)}")
    return inputs, {**dict(zip(operation.options, extra, strict=False)), **chosen}


# ---- the record ------------------------------------------------------------------------------------------------------

_serial = itertools.count()


class Node:
    """How one value was made. It refers to its inputs' nodes, to leaves and to constants; arrays live in the pullbacks.

    Attributes:
        inputs: one a positional input: its Node, or the leaf or constant itself.
        targets: one an input: the Node or leaf Tensor that its gradient goes to, None if it needs none.
        pullbacks: a tuple, one an input, or one function for all; None once freed.
        serial: nodes are numbered as they are made, so a node's number is above those of its inputs' nodes.
        part: for one value of a tuple: its place; its only target is then the tuple's node.
        parts: for a tuple's node: the values' (shape, dtype).
    """

    __slots__ = (
        "__weakref__", "device", "dtype", "inputs", "memories", "operation", "options", "part", "parts", "pullbacks",
        "serial", "shape", "targets", "value", "versions",
    )  # fmt: skip

    operation: Operation
    options: dict[str, Any]
    inputs: tuple[Any, ...]
    targets: tuple[Node | Tensor | None, ...]
    pullbacks: Any
    serial: int
    part: int | None
    parts: tuple[tuple[tuple[int, ...], np.dtype], ...] | None
    shape: tuple[int, ...]
    dtype: np.dtype
    device: str
    memories: tuple[Memory, ...]
    versions: tuple[int, ...]
    value: Callable[[], Tensor | None]

    def free(self) -> None:
        """Let go of all that the node keeps alive; walking it again is then an error."""
        self.pullbacks = None
        self.inputs = self.targets = ()


def _record(operation: Operation, operands: Sequence[Any], options: dict[str, Any]) -> Any:
    """The operation's value as a Tensor, with the node that made it if an input requires a gradient."""
    recording = False
    if _mode.grad_enabled:
        for operand in operands:
            if isinstance(operand, Tensor) and operand._requires_grad:
                recording = True
                break
    inputs = [
        operand if isinstance(operand, Tensor) else _constant(operation, operand, recording) for operand in operands
    ]
    arrays = [operand._data if isinstance(operand, Tensor) else operand for operand in inputs]
    if len(arrays) > 1:
        _check_devices(operation, arrays)
    arrays = promoted(arrays, operation.floating, operation.exempt)
    value, pullbacks = operation.body(*arrays, **options)
    if type(value) is tuple:
        return _record_tuple(operation, inputs, options, value, pullbacks if recording else None)
    tensor = _wrap(value, inputs)
    if recording and pullbacks is not None:
        node = _node(operation, options, inputs, pullbacks)
        _add_value(node, tensor)
        node.value = weakref.ref(tensor)
        tensor.node, tensor._requires_grad = node, True
    return tensor


def _record_tuple(
    operation: Operation, inputs: list[Any], options: dict[str, Any], values: tuple, pullbacks: Any
) -> tuple:
    """As `_record`, for a body with several values: one node makes the tuple, one a value takes it out."""
    tensors = tuple(_wrap(value, inputs) for value in values)
    if pullbacks is not None:
        whole = _node(operation, options, inputs, pullbacks)
        whole.parts = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        for place, tensor in enumerate(tensors):
            _add_value(whole, tensor)
            if is_floating(tensor.dtype):
                part = _node(operation, options, [], ())
                part.inputs = part.targets = (whole,)
                part.part = place
                _add_value(part, tensor)
                part.value = weakref.ref(tensor)
                tensor.node, tensor._requires_grad = part, True
    return tensors


def _wrap(value: Array, inputs: Sequence[Any]) -> Tensor:
    """A Tensor of `value`; a view of an input shares its memory, and so its version."""
    if type(value) is not np.ndarray and not is_array(value):
        value = np.asarray(value)  # NumPy turns 0-d results into scalars
    base = value.base
    for tensor in inputs:
        if isinstance(tensor, Tensor):
            data = tensor._data
            if value is data or (base is not None and array_module(value).may_share_memory(value, data)):
                return Tensor._of(value, tensor._memory)
    return Tensor._of(value, Memory())


def _node(operation: Operation, options: dict[str, Any], inputs: Sequence[Any], pullbacks: Any) -> Node:
    node = Node()
    node.serial = next(_serial)
    node.operation, node.options = operation, options
    node.part = node.parts = None
    node.inputs = tuple([(x.node or x) if isinstance(x, Tensor) else x for x in inputs])
    node.targets = tuple([(x.node or x) if isinstance(x, Tensor) and x._requires_grad else None for x in inputs])
    if callable(pullbacks):
        node.pullbacks = pullbacks
    elif len(pullbacks) != len(node.targets):
        raise TypeError(f"{operation.name} has {len(node.targets)} inputs and returned {len(pullbacks)} pullbacks")
    else:  # what needs no gradient is dropped now, with all that its pullback captured
        node.pullbacks = tuple([p if t is not None else None for p, t in zip(pullbacks, node.targets, strict=True)])
    node.memories = tuple([x._memory for x in inputs if isinstance(x, Tensor)])
    node.versions = tuple([memory.version for memory in node.memories])
    return node


def _add_value(node: Node, tensor: Tensor) -> None:
    """Note the value's form, and the version of its memory."""
    node.shape, node.dtype, node.device = tensor.shape, tensor.dtype, tensor.device
    node.memories += (tensor._memory,)
    node.versions += (tensor._memory.version,)


def _constant(operation: Operation, operand: Any, recording: bool) -> Any:
    """An operand that is no Tensor: a number, an array (copied if the graph will refer to it) or None."""
    if operand is None or type(operand) in (float, int, bool):
        return operand
    if isinstance(operand, np.generic) and operand.dtype.kind in "fiub":
        return operand.item()  # a scalar never widens
    if is_array(operand):
        return operand.copy() if recording else operand
    raise TypeError(
        f"{operation.name} takes tensors, arrays and numbers, got {type(operand).__name__}: make it a Tensor with mg.Tensor(...)"
    )


def _check_devices(operation: Operation, arrays: Sequence[Any]) -> None:
    found = {device_of(array): array for array in arrays if hasattr(array, "shape")}
    if len(found) > 1:
        places = " and ".join(f"{array.shape} on {device}" for device, array in found.items())
        raise DeviceError(f"{operation.name}: operands on different devices, {places}; move one with .to(device)")


# ---- the walk --------------------------------------------------------------------------------------------------------


def backward(
    output: Tensor, gradient: Any = None, *, retain_graph: bool | None = None, create_graph: bool = False
) -> None:
    """Add d output / d leaf to `.grad` of every leaf that requires a gradient.

    Args:
        output: what to differentiate; with no `gradient` it has one element.
        gradient: weights of the output's elements, of its shape; 1 if not given.
        retain_graph: keep the graph for another walk; the default is `create_graph`.
        create_graph: make the gradients differentiable in turn. The graph of a `.grad` then refers to its leaf, a cycle
            that only the garbage collector frees; `grad()` makes none.

    Raises RuntimeError if the output requires no gradient, the graph was freed, or a value in it was written over since;
    nothing has been added to any `.grad` then.
    """
    seed = _seed(output, gradient, "backward")
    gradients, owned = _walk([output], [seed], None, retain_graph, create_graph)
    with _GradModeAs(create_graph):
        for leaf, value in gradients.items():
            mine = _own(value, leaf in owned)
            leaf.grad = mine if leaf.grad is None else leaf.grad + mine


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of the outputs' sum with respect to each of `inputs`; no `.grad` is touched.

    Args:
        grad_outputs: weights of the outputs' elements: one tensor, or one an output (None for 1).
        retain_graph: keep the graph for another walk; the default is `create_graph`.
        create_graph: make the gradients differentiable in turn.
        allow_unused: give None for an input that the outputs do not depend on, instead of an error.

    Raises RuntimeError as `backward` does, and for an input that is unused or requires no gradient.
    """
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    weights = list(grad_outputs) if isinstance(grad_outputs, (list, tuple)) else [grad_outputs] * len(outputs)
    if len(weights) != len(outputs):
        raise ValueError(f"grad: {len(weights)} grad_outputs for {len(outputs)} outputs; give one an output")
    for place, tensor in enumerate(inputs):
        if not tensor.requires_grad:
            raise RuntimeError(f"grad: input {place} of shape {tensor.shape} does not require grad")
    seeds = [_seed(output, weight, "grad") for output, weight in zip(outputs, weights, strict=True)]
    sources = [tensor.node or tensor for tensor in inputs]
    gradients, _ = _walk(outputs, seeds, set(sources), retain_graph, create_graph)
    for place, source in enumerate(sources):
        if source not in gradients and not allow_unused:
            raise RuntimeError(
                f"grad: the outputs do not depend on input {place} of shape {source.shape}; allow_unused=True gives None for it"
            )
    with _GradModeAs(create_graph):
        return tuple(_own(gradients[source], False) if source in gradients else None for source in sources)


def _seed(output: Tensor, gradient: Any, caller: str) -> Array | Tensor:
    """The gradient that the walk starts with, of the output's shape and dtype."""
    if not output.requires_grad:
        raise RuntimeError(
            f"{caller}: the output of shape {output.shape} does not require grad, nor does anything it was made of"
        )
    if gradient is None:
        if output.numel() != 1:
            raise RuntimeError(
                f"{caller}: an output of shape {output.shape} needs a gradient of that shape; "
                "only a single element has one by default (take .sum() or .mean() first)"
            )
        return array_module(output._data).ones_like(output._data)
    if not isinstance(gradient, Tensor):
        gradient = Tensor(gradient, device=output.device)
    if gradient.shape != output.shape:
        raise RuntimeError(
            f"{caller}: the gradient has shape {gradient.shape}, the output {output.shape}; they must be equal"
        )
    if gradient.device != output.device:
        raise DeviceError(f"{caller}: the gradient is on {gradient.device}, the output on {output.device}")
    return gradient if gradient.dtype == output.dtype else ops.astype(gradient, dtype=output.dtype)


def _walk(
    outputs: Sequence[Tensor],
    seeds: Sequence[Array | Tensor],
    wanted: set[Any] | None,
    retain_graph: bool | None,
    create_graph: bool,
    stops: frozenset[Any] = frozenset(),
) -> tuple[dict[Any, Any], set[Any]]:
    """Walk back from the outputs: the heart of the engine.

    Returns the gradients of the leaves, or of the `wanted` nodes and leaves: Tensors with a graph of their own if
    `create_graph`, else arrays; and whose arrays were made here, so that they may be written into. Goes no further than
    `stops`.
    """
    keep = create_graph if retain_graph is None else retain_graph
    gradients: dict[Any, Any] = {}
    owned: set[Any] = set()
    values: dict[Node, Tensor] = {}
    nodes = _nodes_to_walk(outputs, wanted, stops)
    with _GradModeAs(create_graph):
        for output, seed in zip(outputs, seeds, strict=True):
            if create_graph != isinstance(seed, Tensor):
                seed = Tensor._of(seed) if create_graph else seed._data
            _accumulate(gradients, owned, output.node or output, seed, False)
        while nodes:
            node = nodes.pop()  # the newest: every use of its value has been walked
            gradient = gradients.get(node) if wanted and node in wanted else gradients.pop(node, None)
            owned.discard(node)  # from here on others may hold it
            if gradient is None:
                continue
            if node.part is not None:
                gradients.setdefault(node.targets[0], {})[node.part] = gradient
                continue
            if node.parts is not None:
                gradient = _all_parts(node, gradient)
            targets = node.targets
            results = _call(node, _retraced(node, values) if create_graph else node.pullbacks, gradient)
            if not keep:
                node.free()
            for target, result in zip(targets, results, strict=True):
                if target is not None and result is not None:
                    _accumulate(gradients, owned, target, *_conformed(result, target, node))
    return gradients, owned


def _nodes_to_walk(outputs: Sequence[Tensor], wanted: set[Any] | None, stops: frozenset[Any]) -> list[Node]:
    """The nodes that gradients pass through, oldest first: inputs before what was made of them. None freed, none stale."""
    found = {output.node for output in outputs if output.node is not None}
    waiting = list(found)
    while waiting:
        for target in waiting.pop().targets:
            if type(target) is Node and target not in found and target not in stops:
                found.add(target)
                waiting.append(target)
    nodes = sorted(found, key=_serial_of)
    if wanted is not None:
        useful: set[Any] = set(wanted)
        for node in nodes:
            if not useful.isdisjoint(node.targets) or node.pullbacks is None:  # past a freed node nobody can see
                useful.add(node)
        nodes = [node for node in nodes if node in useful and node not in stops]
    for node in nodes:
        _check(node)
    return nodes


def _serial_of(node: Node) -> int:
    return node.serial


def _check(node: Node) -> None:
    """Raises RuntimeError if the node was freed, or what its pullbacks captured has been written over."""
    if node.pullbacks is None:
        raise RuntimeError(
            f"{node.operation.name}: this part of the graph was freed by an earlier backward; "
            "give that one retain_graph=True to walk it twice"
        )
    if node.versions != tuple([memory.version for memory in node.memories]):
        raise RuntimeError(
            f"{node.operation.name}: an input or the value (of shape {node.shape}) was changed in place after the operation, "
            "so its gradient would be wrong; change a copy instead, or change it before"
        )


def _call(node: Node, pullbacks: Any, gradient: Any) -> Sequence[Any]:
    """The gradients of the node's inputs, None for those that need none."""
    if not callable(pullbacks):
        return [p(gradient) if p is not None else None for p in pullbacks]
    results = pullbacks(gradient)
    if not isinstance(results, (tuple, list)):
        results = (results,)
    if len(results) != len(node.targets):
        raise RuntimeError(
            f"{node.operation.name}: its pullback gave {len(results)} gradients for {len(node.targets)} inputs"
        )
    return results


def _accumulate(gradients: dict[Any, Any], owned: set[Any], target: Any, gradient: Any, fresh: bool) -> None:
    """Add to the target's gradient; in place only into a buffer made here: a `fresh` one, or an earlier sum."""
    held = gradients.get(target)
    if held is None:
        gradients[target] = gradient
        if fresh:
            owned.add(target)
    elif target in owned:
        held += gradient
    else:
        gradients[target] = total = _as_array(held + gradient)
        if type(total) is not Tensor:
            owned.add(target)


def _conformed(gradient: Any, target: Any, node: Node) -> tuple[Any, bool]:
    """A pullback's result as a gradient of `target`, broadcasting undone and dtype the target's; whether that made a new array."""
    gradient = _as_array(gradient)
    data = gradient._data if isinstance(gradient, Tensor) else gradient
    fresh = False
    if device_of(data) != target.device:
        raise DeviceError(
            f"{node.operation.name}: a pullback gave a gradient on {device_of(data)} for an input on {target.device}"
        )
    if not is_floating(data.dtype):
        raise RuntimeError(
            f"{node.operation.name}: a pullback gave a gradient of dtype {data.dtype}; gradients are floating point"
        )
    if gradient.shape != target.shape:
        gradient, fresh = _unbroadcast(gradient, target.shape, node), True
    if gradient.dtype != target.dtype:
        gradient, fresh = ops.astype(gradient, dtype=target.dtype), True
    return gradient, fresh and not isinstance(gradient, Tensor)


def _unbroadcast(gradient: Any, shape: tuple[int, ...], node: Node) -> Any:
    """The gradient summed over the axes along which an input of `shape` was broadcast. The one place that undoes it."""
    extra = len(gradient.shape) - len(shape)
    if extra < 0 or any(n not in (1, m) for n, m in zip(shape, gradient.shape[extra:], strict=True)):
        raise RuntimeError(
            f"{node.operation.name}: a pullback gave a gradient of shape {gradient.shape} for an input of shape {shape}; "
            "it must have that shape, or one that the input broadcasts to"
        )
    stretched = [extra + axis for axis, n in enumerate(shape) if n == 1 and gradient.shape[extra + axis] != 1]
    library = namespace(gradient)
    return library.reshape(library.sum(gradient, axis=(*range(extra), *stretched), keepdims=True), shape)


def _all_parts(node: Node, gradients: dict[int, Any]) -> tuple[Any, ...]:
    """The gradients of a tuple's values: zeros for an unused one, None for one that carries no gradient."""
    known = next(iter(gradients.values()))
    library = array_module(known._data if isinstance(known, Tensor) else known)

    def zeros(shape: tuple[int, ...], dtype: np.dtype) -> Any:
        array = library.zeros(shape, dtype)
        return Tensor._of(array) if isinstance(known, Tensor) else array

    parts = enumerate(node.parts or ())
    return tuple(
        gradients[place] if place in gradients else zeros(shape, dtype) if is_floating(dtype) else None
        for place, (shape, dtype) in parts
    )


def _as_array(value: Any) -> Any:
    """NumPy's arithmetic turns 0-d arrays into scalars: an array again; arrays and Tensors as they are."""
    return value if isinstance(value, Tensor) or is_array(value) else np.asarray(value)


def _own(gradient: Any, owned: bool) -> Tensor:
    """A gradient as a Tensor with an array that nothing else refers to."""
    if isinstance(gradient, Tensor):
        return ops.copy(gradient)
    return Tensor._of(gradient if owned else gradient.copy())


# ---- gradients of gradients ------------------------------------------------------------------------------------------


def _retraced(node: Node, values: dict[Node, Tensor]) -> Any:
    """The node's pullbacks as functions of Tensors, so that what they compute is a graph in turn.

    The body is called again, on Tensors. A fused body cannot be: its reference is, on a fresh alias of each argument, and
    its pullback is a walk that stops at these. (Without aliases `fused(x, f(x))` would count the way through `f` twice.)
    """
    if node.operation.linear:
        return node.pullbacks
    inputs = [_restored(source, values) if type(source) is Node else source for source in node.inputs]
    if node.operation.reference is None:
        return node.operation.body(*inputs, **node.options)[1]
    inputs = [ops.alias(x) if target is not None else x for x, target in zip(inputs, node.targets, strict=True)]
    outputs = node.operation.reference(*inputs, **node.options)
    aliases = [x.node if target is not None else None for x, target in zip(inputs, node.targets, strict=True)]

    def pullback(gradient: Any) -> list[Any]:
        pairs = zip(outputs, gradient, strict=True) if isinstance(outputs, tuple) else [(outputs, gradient)]
        known = [(output, g) for output, g in pairs if output.requires_grad and g is not None]
        stops = frozenset(alias for alias in aliases if alias is not None)
        found, _ = _walk([o for o, _ in known], [g for _, g in known], set(stops), True, True, stops)
        return [found.get(alias) for alias in aliases]

    return pullback


def _restored(node: Node, values: dict[Node, Tensor]) -> Tensor:
    """The Tensor of a node: the one still alive, or computed again from the node's inputs. Without recursion."""
    waiting = [node]
    while waiting:
        current = waiting[-1]
        if current in values:
            waiting.pop()
            continue
        tensor = current.value()
        if tensor is None:
            source = current.inputs[0] if current.part is not None else current
            _check(source)
            missing = [x for x in source.inputs if type(x) is Node and x not in values]
            if missing:
                waiting.extend(missing)
                continue
            tensor = _recomputed(current, source, values)
        values[current] = tensor
    return values[node]


def _recomputed(node: Node, source: Node, values: dict[Node, Tensor]) -> Tensor:
    """The value of `node` by running the body of `source` (the node of the tuple, if it is part of one) again."""
    inputs = [values[x] if type(x) is Node else x for x in source.inputs]
    arrays = [x._data if isinstance(x, Tensor) else x for x in inputs]
    arrays = promoted(arrays, source.operation.floating, source.operation.exempt)
    value = source.operation.body(*arrays, **source.options)[0]
    tensor = _wrap(value if node.part is None else value[node.part], inputs)
    tensor.node, tensor._requires_grad = node, True
    node.value = weakref.ref(tensor)
    return tensor
