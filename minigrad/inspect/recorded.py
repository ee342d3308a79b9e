"""graph(): what was recorded of how tensors were made, as a Graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minigrad.backend import is_array, to_device
from minigrad.dtypes import is_floating
from minigrad.inspect.graph import Graph, GraphCall, GraphEdge, GraphNode, plain_data
from minigrad.inspect.trace import Call, Origin, plain
from minigrad.operation import Node
from minigrad.tensor import Tensor


def graph(outputs: Tensor | Sequence[Tensor], names: Any = None) -> Graph:
    """What was recorded of how `outputs` were made.

    Take it before `backward()`, or keep the graph with `retain_graph=True`: then gradients can be shown. Modules and
    lines are known of what was made within `tracing()`.

    Args:
        outputs: tensors that require grad.
        names: of tensors: a mapping from name to tensor, or a module, whose parameters and buffers are named.

    Raises RuntimeError for an output that does not require grad, and for a graph that was freed; TypeError for what is
    no tensor or no name, ValueError for no outputs.
    """
    outputs = list(outputs) if isinstance(outputs, Iterable) and not isinstance(outputs, Tensor) else [outputs]
    if not outputs:
        raise ValueError("graph: takes at least one output, got none")
    for place, output in enumerate(outputs):
        if not isinstance(output, Tensor):
            raise TypeError(f"graph: output {place} must be a Tensor, not {type(output).__name__}")
        if not output.requires_grad:
            raise RuntimeError(
                f"graph: output {place} of shape {output.shape} does not require grad, so nothing was recorded of it"
            )
    operations = _operations([output.node for output in outputs if output.node is not None])
    tensors = {id(output): output for output in outputs if output.node is None}
    for node in operations:
        tensors |= {id(x): x for x in node.inputs if isinstance(x, Tensor) or is_array(x)}
    numbers: dict[Any, int] = {key: number for number, key in enumerate([*tensors, *operations])}
    calls: dict[Call, GraphCall] = {}
    for node in operations:
        _add(calls, _call(node))

    edges = []
    users: dict[int, list[Call | None]] = {number: [] for number in range(len(tensors))}
    for node in operations:
        for place, x in enumerate(node.inputs):
            source = numbers.get(_key(x))
            if source is not None:
                edges.append(_edge(x, source, node, numbers[node], place))
                users.get(source, []).append(_call(node))

    made = {_key(output.node or output) for output in outputs}
    called = _names(names)
    nodes = []
    for key, x in tensors.items():
        call = _common(users[numbers[key]])
        nodes.append(_of_tensor(x, called.get(key, ""), calls[call] if call else None, numbers[key], key in made))
    for node in operations:
        call = _call(node)
        nodes.append(_of_operation(node, calls[call] if call else None, numbers[node], node in made))
    return Graph(nodes, edges, {call.id: call for call in calls.values()})


def _key(x: Any) -> Any:
    """What a node or a tensor is known by here: several values of an operation are one, tensors have no equality."""
    return _whole(x) if type(x) is Node else id(x)


def _operations(newest: list[Node]) -> list[Node]:
    """All nodes behind these, oldest first; one for the values of a tuple."""
    found = {_whole(node) for node in newest}
    waiting = list(found)
    while waiting:
        node = waiting.pop()
        if node.pullbacks is None:
            raise RuntimeError(
                f"graph: {node.operation.name} was freed by an earlier backward; "
                "take the graph before, or give that one retain_graph=True"
            )
        sources = {_whole(x) for x in node.inputs if type(x) is Node} - found
        found |= sources
        waiting += sources
    return sorted(found, key=lambda node: node.serial)


def _whole(node: Node) -> Node:
    return node if node.part is None else node.inputs[0]


def _names(names: Any) -> dict[int, str]:
    """The name of each tensor, by its identity."""
    if names is None:
        return {}
    if not isinstance(names, Mapping):
        if not hasattr(names, "named_parameters"):
            raise TypeError(f"graph: names must be a module or a mapping to tensors, not {type(names).__name__}")
        names = {**dict(names.named_buffers()), **dict(names.named_parameters())}
    for name, tensor in names.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise TypeError(f"graph: names must map strings to Tensors, got {name!r}: {type(tensor).__name__}")
    return {id(tensor): name for name, tensor in names.items()}


def _call(node: Node) -> Call | None:
    """The call of a module that a node belongs to; what a walk made belongs to none."""
    origin: Origin | None = node.origin
    return origin.call if origin and not origin.retraced else None


def _add(calls: dict[Call, GraphCall], call: Call | None) -> None:
    """Add a call, after those that it was made in."""
    for one in reversed(list(_around(call))):
        if one not in calls:
            parent = calls[one.parent].id if one.parent else None
            calls[one] = GraphCall(len(calls), one.path, one.kind, parent)


def _common(users: list[Call | None]) -> Call | None:
    """The innermost call that all these are part of."""
    shared = users[0] if users else None
    for user in users[1:]:
        around = set(_around(user))
        shared = next((call for call in _around(shared) if call in around), None)
    return shared


def _around(call: Call | None) -> Iterator[Call]:
    """The call and those that it was made in, innermost first."""
    while call is not None:
        yield call
        call = call.parent


def _edge(x: Any, source: int, node: Node, target: int, place: int) -> GraphEdge:
    gradients = node.origin.gradients if node.origin else ()
    return GraphEdge(
        source=source,
        target=target,
        place=place,
        part=x.part if type(x) is Node else None,
        shape=tuple(x.shape),
        gradient_norm=_norm(gradients[place]) if gradients else None,
    )


def _of_tensor(x: Any, name: str, call: GraphCall | None, id: int, output: bool) -> GraphNode:
    is_leaf = isinstance(x, Tensor) and x.requires_grad
    return GraphNode(
        id=id,
        kind="leaf" if is_leaf else "constant",
        name=name,
        shape=tuple(x.shape),
        dtype=str(x.dtype),
        options={},
        call=call.id if call else None,
        module=call.path if call else None,
        line=None,
        output=output,
        value_norm=_norm(x),
        gradient_norm=_norm(x.grad) if is_leaf else None,
    )


def _of_operation(node: Node, call: GraphCall | None, id: int, output: bool) -> GraphNode:
    origin: Origin | None = node.origin
    operation = node.operation
    names = map(str, range(len(node.inputs))) if operation.variadic else operation.inputs
    numbers = {name: x for name, x in zip(names, node.inputs, strict=True) if isinstance(x, (int, float))}
    shape, dtype = node.parts[-1] if node.parts else (node.shape, node.dtype)
    return GraphNode(
        id=id,
        kind="operation",
        name=operation.name,
        shape=tuple(shape),
        dtype=str(dtype),
        options=plain_data({**numbers, **node.options}),
        call=call.id if call else None,
        module=origin.module if origin else None,
        line=f"{origin.file}:{origin.line}" if origin else None,
        output=output,
        value_norm=_norm(origin.values) if origin and origin.values else None,
        gradient_norm=_norm(origin.gradient) if origin else None,
    )


def _norm(value: Any) -> float | None:
    """The Euclidean norm of all floating elements of an array, a Tensor or a tuple of them; None if there are none."""
    parts = value if isinstance(value, tuple) else (value,)
    arrays = [to_device(plain(part), "cpu") for part in parts if part is not None]
    floating = [array.astype(np.float64) for array in arrays if is_floating(array.dtype)]
    return math.sqrt(sum(float((array * array).sum()) for array in floating)) if floating else None
