"""How gradients flow: `backward()` and `grad()` walk a recorded graph from its outputs back to its leaves.

The walk calls each node's pullbacks once, newest node first. What every operation needs is done here, once:
broadcasting is undone, each pullback's result is checked, gradients are added up in buffers that belong to the engine,
the graph is freed on the way. For gradients of gradients (`create_graph=True`) an operation's body is called again, on
Tensors, and the pullbacks that this gives are used: the gradients are then a graph themselves.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy import ndarray

from minigrad import ops
from minigrad.backend import Array, DeviceError, array_module, device_of, is_array, on_device_of
from minigrad.dtypes import is_floating
from minigrad.grad_mode import GradMode
from minigrad.memory import Memory
from minigrad.operation import Node, computed, needed, wrapped
from minigrad.tensor import Tensor
from minigrad.watchers import is_watched, tell

# ---- the walk --------------------------------------------------------------------------------------------------------


def backward(
    output: Tensor, gradient: Any = None, *, retain_graph: bool | None = None, create_graph: bool = False
) -> None:
    """Add d output / d leaf to `.grad` of every leaf that requires a gradient.

    Args:
        output: what to differentiate; with no `gradient` it has one element.
        gradient: weights of the output's elements, of its shape; 1 if not given.
        retain_graph: keep the graph for another walk; the default is `create_graph`.
        create_graph: make the gradients differentiable in turn. The graph of a `.grad` then refers to its leaf: a
            cycle, which only the garbage collector frees. `grad()` makes none.

    Raises RuntimeError if the output requires no gradient, the graph was freed, or a value in it was written over
    since. Nothing has been added to any `.grad` then.
    """
    seed = _seed(output, gradient, "backward")
    gradients, owned, _ = _walk([output], [seed], None, retain_graph, create_graph)
    sums = []
    with GradMode(create_graph):
        # References are counted before the loop, in which a name would be one more.
        for leaf, references in zip(gradients, _references(gradients), strict=True):
            gradient = gradients[leaf]
            alone = leaf in owned or (references == _ONE_REFERENCE and _may_be_kept(gradient))
            mine = _own(_hooked(leaf, gradient), alone)
            sums.append(mine if leaf._grad is None else leaf._grad + mine)
    for leaf, total in zip(gradients, sums, strict=True):  # after an error none has been reached
        leaf._grad = total


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
    outputs, inputs = _tensors(outputs, "output"), _tensors(inputs, "input")
    weights = list(grad_outputs) if isinstance(grad_outputs, (list, tuple)) else [grad_outputs] * len(outputs)
    if len(weights) != len(outputs):
        raise ValueError(f"grad: {len(weights)} grad_outputs for {len(outputs)} outputs; give one an output")
    for place, tensor in enumerate(inputs):
        if not tensor.requires_grad:
            raise RuntimeError(f"grad: input {place} of shape {tensor.shape} does not require grad")
    seeds = [_seed(output, weight, "grad") for output, weight in zip(outputs, weights, strict=True)]
    sources = [tensor.node or tensor for tensor in inputs]
    gradients, _, hooked = _walk(outputs, seeds, set(sources), retain_graph, create_graph)
    for place, source in enumerate(sources):
        if source not in gradients and not allow_unused:
            raise RuntimeError(
                f"grad: the outputs do not depend on input {place} of shape {source.shape}; "
                "allow_unused=True gives None for it"
            )
    with GradMode(create_graph):
        for source in {source for source in sources if source in gradients and source not in hooked}:
            gradients[source] = _hooked(source, gradients[source])
        return tuple(_own(gradients[source], False) if source in gradients else None for source in sources)


def _tensors(given: Any, role: str) -> list[Tensor]:
    """One Tensor, or the Tensors of any iterable, as a list."""
    tensors = list(given) if isinstance(given, Iterable) and not isinstance(given, Tensor) else [given]
    for place, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"grad: {role} {place} must be a Tensor, not {type(tensor).__name__}")
    return tensors


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
        with on_device_of(output._data):
            return array_module(output._data).ones_like(output._data)
    if not isinstance(gradient, Tensor):
        gradient = Tensor(gradient, dtype=output.dtype, device=output.device)
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
) -> tuple[dict[Any, Any], set[Any], set[Node]]:
    """Walk back from the outputs: the heart of the engine.

    Returns the gradients of the leaves, or of the `wanted` nodes and leaves: Tensors with a graph of their own if
    `create_graph`, else arrays; then whose arrays were made here, so that they may be written into; and the nodes whose
    hooks were run, being walked. Goes no further than `stops`.
    """
    keep = create_graph if retain_graph is None else retain_graph
    gradients: dict[Any, Any] = {}
    owned: set[Any] = set()
    hooked: set[Node] = set()
    values: dict[Node, Tensor] = {}
    nodes = _nodes_to_walk(outputs, wanted, stops)
    pull = _pull_watched if is_watched() else _pull
    with GradMode(create_graph):
        for output, seed in zip(outputs, seeds, strict=True):
            if create_graph != isinstance(seed, Tensor):
                seed = Tensor._of(seed) if create_graph else seed._data
            _accumulate(gradients, owned, output.node or output, seed, "the seed")
        while nodes:
            node = nodes.pop()  # the newest: every use of its value has been walked
            gradient = gradients.pop(node, None)
            if gradient is None:
                continue
            if node.hooks is not None:
                gradient = _hooked(node, gradient)
                hooked.add(node)
            if wanted is not None and node in wanted:
                gradients[node] = gradient
            if node.part is not None:
                gradients.setdefault(node.targets[0], {})[node.part] = gradient
                continue
            name, targets = node.operation.name, node.targets
            if type(gradient) is ndarray:
                results = pull(node, gradient, None)
            else:
                with _there(gradient):
                    gradient = gradient if node.parts is None else _all_parts(node, gradient)
                    results = pull(node, gradient, values if create_graph else None)
            if not keep:
                node.free()
            for target, result in zip(targets, results):  # noqa: B905 - as many, and strict costs time
                if target is None or result is None:
                    continue
                # What nearly always is to be done is done here: small chains spend a tenth of their time in a call.
                held = gradients.get(target)
                like = target if type(target) is Node else target._data
                if held is not None:
                    like = held
                fits = type(result) is ndarray and result.dtype is like.dtype and result.shape == like.shape
                if fits and held is None and like.device == "cpu":
                    gradients[target] = result
                elif fits and target in owned:
                    held += result
                elif fits and type(held) is ndarray and held.ndim > 0:  # of none, a sum is no array
                    gradients[target] = held + result
                    owned.add(target)
                else:
                    _accumulate(gradients, owned, target, result, name)
    return gradients, owned, hooked


def _nodes_to_walk(outputs: Sequence[Tensor], wanted: set[Any] | None, stops: frozenset[Any]) -> list[Node]:
    """The nodes that gradients pass through, oldest first: inputs before what was made of them. None is stale."""
    found = {output.node for output in outputs if output.node is not None}
    waiting = list(found)
    while waiting:
        for target in waiting.pop().targets:
            if type(target) is Node and target not in found and target not in stops:
                found.add(target)
                waiting.append(target)
    nodes = sorted(found, key=operator.attrgetter("serial"))
    if wanted is not None:
        leading: set[Any] = set()  # to something wanted
        for node in nodes:
            freed = node.pullbacks is None  # past it nobody can see
            if freed or not (wanted.isdisjoint(node.targets) and leading.isdisjoint(node.targets)):
                leading.add(node)
        nodes = [node for node in nodes if node in leading]
    for node in nodes:
        if node.pullbacks is None or Memory.latest > node.serial:
            _check(node)
    return nodes


def _check(node: Node) -> None:
    """Raises RuntimeError if the node was freed, or what its pullbacks captured has been written over."""
    if node.pullbacks is None:
        raise RuntimeError(
            f"{node.operation.name}: this part of the graph was freed by an earlier backward; "
            "give that one retain_graph=True to walk it twice"
        )
    changed = [place for place, memory in enumerate(node.memories) if memory.last_write > node.serial]
    if changed:
        tensors = [i for i, x in enumerate(node.inputs) if isinstance(x, (Node, Tensor)) and node.part is None]
        shapes = [node.inputs[i].shape for i in tensors] + [shape for shape, _ in node.parts or [(node.shape, None)]]
        what = f"input {tensors[changed[0]]}" if changed[0] < len(tensors) else "value"
        raise RuntimeError(
            f"{node.operation.name}: its {what} (of shape {shapes[changed[0]]}) was changed in place after the "
            "operation, so its gradient would be wrong; change a copy instead, or change it before"
        )


def _pull(node: Node, gradient: Any, values: dict[Node, Tensor] | None) -> Sequence[Any]:
    """The gradients of the node's inputs, None for those that need none; as graphs if `values` are given."""
    try:
        pullbacks = node.pullbacks if values is None else _retraced(node, values)
        forgotten = False
        if type(pullbacks) is tuple:
            results: Any = []
            for pullback in pullbacks:
                if pullback is None:
                    results.append(None)
                else:
                    result = pullback(gradient)
                    results.append(result)
                    forgotten = forgotten or result is None
        else:
            results = pullbacks(gradient)
            forgotten = results is None
            if not isinstance(results, (tuple, list)):
                results = [results]
    except Exception as error:
        error.add_note(f"in the pullback of {node.operation.name}, for its value of shape {node.shape}")
        raise
    if forgotten:
        raise RuntimeError(f"{node.operation.name}: a pullback returned None; is its return missing?")
    if len(results) != len(node.targets):
        raise RuntimeError(
            f"{node.operation.name}: its pullback gave {len(results)} gradients for {len(node.targets)} inputs"
        )
    return results


def _pull_watched(node: Node, gradient: Any, values: dict[Node, Tensor] | None) -> Sequence[Any]:
    """`_pull`, before and after which this thread's watchers are told."""
    try:
        tell("walking", node)
        results = _pull(node, gradient, values)
    except BaseException:
        tell("walked", node, gradient, None)
        raise
    tell("walked", node, gradient, results)
    return results


def _hooked(source: Any, gradient: Any) -> Any:
    """The gradient after the hooks of its tensor, each of which is given a copy and may put another in its place."""
    hooks = source.hooks
    if hooks is None:
        return gradient
    with GradMode(isinstance(gradient, Tensor)):
        for hook in list(hooks.functions.values()):
            try:
                replaced = hook(_own(gradient, False))
                if replaced is not None:
                    gradient = _replacement(replaced, gradient)
            except Exception as error:
                maker = f"the value of {source.operation.name}" if type(source) is Node else "a leaf"
                error.add_note(f"in a hook of {maker}, of shape {source.shape}")
                raise
        value = source.value() if hooks.retained else None
        if value is not None:
            value.grad = _own(gradient, False) if value.grad is None else value.grad + gradient
    return gradient


def _replacement(given: Any, gradient: Any) -> Any:
    """What a hook returned, as a gradient in the walk."""
    if not isinstance(given, Tensor):
        raise TypeError(f"a hook must return a Tensor or None, it returned {type(given).__name__}")
    device = gradient.device if isinstance(gradient, Tensor) else device_of(gradient)
    if (given.shape, given.dtype, given.device) != (gradient.shape, gradient.dtype, device):
        raise RuntimeError(
            f"a hook returned a gradient of shape {given.shape}, {given.dtype} on {given.device}; "
            f"it must be {gradient.shape}, {gradient.dtype} on {device}"
        )
    return given if isinstance(gradient, Tensor) else _own(given._data, False)._data


def _accumulate(gradients: dict[Any, Any], owned: set[Any], target: Any, gradient: Any, name: str) -> None:
    """Add what the pullback of operation `name` gave to the target's gradient.

    In place only into a buffer made here: one that broadcasting was undone into, or an earlier sum.
    """
    gradient = _as_array(gradient)
    with _there(gradient):
        gradient, fresh = _conformed(gradient, target, name)
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


def _there(gradient: Any) -> AbstractContextManager[Any]:
    """A block that computes where a gradient is, or those of a tuple's values are."""
    one = next(iter(gradient.values())) if type(gradient) is dict else gradient
    return on_device_of(one._data if isinstance(one, Tensor) else one)


def _conformed(gradient: Any, target: Any, name: str) -> tuple[Any, bool]:
    """A pullback's result as a gradient of `target`, broadcasting undone, dtype cast; and whether it is a new array."""
    device = gradient.device if isinstance(gradient, Tensor) else device_of(gradient)
    fresh = False
    if device != target.device:
        raise DeviceError(f"{name}: a pullback gave a gradient on {device} for an input on {target.device}")
    if gradient.shape != target.shape:
        gradient, fresh = _unbroadcast(gradient, target.shape, name), True
    if gradient.dtype != target.dtype:
        if not is_floating(gradient.dtype):
            raise RuntimeError(
                f"{name}: a pullback gave a gradient of dtype {gradient.dtype}; gradients are floating point"
            )
        gradient, fresh = ops.astype(gradient, dtype=target.dtype), True
    return gradient, fresh and not isinstance(gradient, Tensor)


def _unbroadcast(gradient: Any, shape: tuple[int, ...], name: str) -> Any:
    """The gradient summed over the axes along which an input of `shape` was broadcast; done nowhere else."""
    extra = len(gradient.shape) - len(shape)
    if extra < 0 or any(n not in (1, m) for n, m in zip(shape, gradient.shape[extra:], strict=True)):
        raise RuntimeError(
            f"{name}: a pullback gave a gradient of shape {gradient.shape} for an input of shape "
            f"{shape}; it must have that shape, or one that the input broadcasts to"
        )
    stretched = [extra + axis for axis, n in enumerate(shape) if n == 1 and gradient.shape[extra + axis] != 1]
    return ops.reshape(ops.sum(gradient, axis=(*range(extra), *stretched), keepdims=True), shape)


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


def _references(held: dict[Any, Any]) -> list[int]:
    """How often each value of the dict is referred to: counts that mean something beside one another."""
    return list(map(sys.getrefcount, held.values()))


(_ONE_REFERENCE,) = _references({0: object()})  # what is counted of a value that only the dict refers to


def _may_be_kept(gradient: Any) -> bool:
    """Whether it may become a leaf's own: an array of NumPy's, with memory of its own, in the usual order, writable."""
    return type(gradient) is ndarray and gradient.base is None and gradient.flags.carray


def _own(gradient: Any, owned: bool) -> Tensor:
    """A gradient as a Tensor with an array that nothing else refers to."""
    if isinstance(gradient, Tensor):
        return ops.copy(gradient)
    if owned:
        return Tensor._of(gradient)
    with on_device_of(gradient):
        return Tensor._of(gradient.copy())


# ---- gradients of gradients ------------------------------------------------------------------------------------------


def _retraced(node: Node, values: dict[Node, Tensor]) -> Any:
    """The node's pullbacks as functions of Tensors, so that what they compute is a graph in turn.

    The body is called again, on Tensors. A fused body cannot be: its reference is, on a fresh alias of each argument,
    and its pullback is a walk that stops at these. (Without aliases the way through f in `fused(x, f(x))` would be
    counted twice.)
    """
    if node.operation.linear:
        return node.pullbacks
    inputs = [restored(source, values) if type(source) is Node else source for source in node.inputs]
    if node.operation.reference is None:
        return needed(node.operation, node.operation.body(*inputs, **node.options)[1], node.targets)
    inputs = [ops.alias(x) if target is not None else x for x, target in zip(inputs, node.targets, strict=True)]
    outputs = node.operation.reference(*inputs, **node.options)
    aliases = [x.node if target is not None else None for x, target in zip(inputs, node.targets, strict=True)]

    def pullback(gradient: Any) -> list[Any]:
        pairs = zip(outputs, gradient, strict=True) if isinstance(outputs, tuple) else [(outputs, gradient)]
        known = [(output, g) for output, g in pairs if output.requires_grad and g is not None]
        return gradients_between([o for o, _ in known], [g for _, g in known], aliases, create_graph=True)

    return pullback


def gradients_between(
    outputs: Sequence[Tensor], seeds: Sequence[Any], sources: Sequence[Any], create_graph: bool, keep: bool = True
) -> list[Any]:
    """The gradients of `sources` (nodes, leaves, or None), as if none were made of another: no walk goes past them."""
    stops = frozenset([source for source in sources if source is not None])
    found, _, _ = _walk(outputs, seeds, set(stops), keep, create_graph, stops)
    return [found.get(source) for source in sources]


def restored(node: Node, values: dict[Node, Tensor]) -> Tensor:
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
    value = computed(source.operation, arrays, source.options)[0]
    tensor = wrapped(value if node.part is None else value[node.part], inputs)
    tensor.node, tensor._requires_grad = node, True
    node.value = weakref.ref(tensor)
    return tensor
