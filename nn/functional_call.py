"""functional_call: a module as a function of its parameters, for transforms such as `mg.hvp` and for ensembles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minigrad import Tensor
from nn.module import Module


def functional_call(
    module: Module, parameters: Mapping[str, Tensor], args: Any = (), kwargs: Mapping[str, Any] | None = None
) -> Any:
    """`module(*args, **kwargs)` with these tensors in place of its parameters and buffers, as in `torch.func`.

    Gradients flow to the tensors given, not to the module's own parameters, which are back in their places afterwards,
    after an exception too. Meanwhile the module is changed: no other thread should call it.

    Args:
        parameters: name to tensor, by the names of `named_parameters()`, `named_buffers()` or the state_dict; what is
            not named stays. A tied weight is replaced under all of its names by naming one.
        args: the positional arguments: a tuple, or one argument that is none.
        kwargs: the keyword arguments.

    Raises RuntimeError for a name that the module lacks, a tensor of another shape, and two tensors for one tied
    weight; TypeError for what is no Tensor. Nothing has been replaced then.
    """
    slots = [
        (prefix + name, owner, name, tensor)
        for prefix, owner in module._walk()
        for name, tensor in (*owner._own_parameters(), *owner._own_buffers())
    ]
    held = {name: tensor for name, _, _, tensor in slots}
    chosen: dict[int, Tensor] = {}  # by the identity of what is replaced
    for name, tensor in parameters.items():
        if name not in held:
            raise RuntimeError(f"functional_call: {type(module).__name__} has no parameter or buffer {name!r}")
        if not isinstance(tensor, Tensor):
            raise TypeError(f"functional_call: {name} must be a Tensor, got {type(tensor).__name__}")
        if tensor.shape != held[name].shape:
            raise RuntimeError(
                f"functional_call: {name} has shape {tensor.shape}, the module's {held[name].shape}; they must be equal"
            )
        if chosen.setdefault(id(held[name]), tensor) is not tensor:
            raise RuntimeError(f"functional_call: {name} is tied to another weight, for which another tensor was given")
    replaced = [(owner, name, tensor) for _, owner, name, tensor in slots if id(tensor) in chosen]
    try:
        for owner, name, tensor in replaced:
            vars(owner)[name] = chosen[id(tensor)]  # not setattr: a parameter's place is for Parameters
        return module(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))
    finally:
        for owner, name, tensor in replaced:
            vars(owner)[name] = tensor
