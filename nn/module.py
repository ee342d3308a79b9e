"""Parameter, and Module: a tree of parameters, buffers and modules that can be walked, saved, loaded and moved.

The layers themselves, and the containers, are in the files beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from textwrap import indent
from typing import Any, NamedTuple, Self, TypeGuard, TypeVar

import numpy as np

from minigrad import Tensor, no_grad, zeros_like
from minigrad.backend import to_device
from minigrad.dtypes import is_floating
from minigrad.inspect.trace import inside
from minigrad.watchers import is_watched

T = TypeVar("T")


class Parameter(Tensor):
    """A leaf Tensor that a module trains: assigned to an attribute of a Module, it is one of its parameters.

    Args:
        data: as for Tensor; copied.
        requires_grad: False for a frozen parameter.

    Attributes:
        zero_row: a row that `nn.init` leaves at zero, such as an Embedding's padding; None for no such row. Copies, and
            what is pickled, keep it.
    """

    zero_row: int | None = None

    def __init__(self, data: Any, requires_grad: bool = True, dtype: Any = None, device: str | None = None) -> None:
        super().__init__(data, requires_grad, dtype, device)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return *self.__reduce__(), {"zero_row": self.zero_row}

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copy: Any = super().__deepcopy__(memo)
        copy.zero_row = self.zero_row
        return copy


class LoadedKeys(NamedTuple):
    """What `load_state_dict(strict=False)` passed over: names that the mapping lacked, and names that it alone has."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """The base of layers and models. A subclass calls `super().__init__()`, assigns its parts, and defines `forward`.

    Parameters, buffers and modules are ordinary attributes, known by their type (buffers: by `register_buffer`) and
    kept in the order of assignment. A name is the path of attributes to it, such as "encoder.layers.0.linear1.weight".
    What is reached by two paths (tied weights) is trained, counted and moved once; its name is the first one.
    """

    training: bool
    _buffers: dict[str, bool]  # name: whether it is part of the state_dict

    def __init__(self) -> None:
        self._buffers = {}
        self.training = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises AttributeError before `super().__init__()`; TypeError for what would silently drop out of the tree."""
        kind = type(self).__name__
        if isinstance(value, (Parameter, Module)) and "_buffers" not in vars(self):
            raise AttributeError(f"{kind}.{name}: call super().__init__() before assigning parameters or modules")
        _refuse_hidden(self, name, value)
        held = vars(self).get(name)
        if isinstance(held, Parameter) and not (value is None or isinstance(value, Parameter)):
            raise TypeError(
                f"{kind}.{name} is a parameter, so a {type(value).__name__} cannot take its place: "
                "wrap it in nn.Parameter(...), or write new values into it with copy_() inside mg.no_grad()"
            )
        if name in vars(self).get("_buffers", ()) and not (value is None or isinstance(value, Tensor)):
            raise TypeError(
                f"{kind}.{name} is a buffer, so a {type(value).__name__} cannot take its place: use a Tensor"
            )
        if isinstance(value, Module) and any(module is self for module in value.modules()):
            raise ValueError(f"{kind}.{name}: a module cannot contain itself")
        super().__setattr__(name, value)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Make `tensor` an attribute that moves with the module and, if `persistent`, is part of its state_dict.

        Raises ValueError if the name is taken, TypeError if `tensor` is a Parameter or no Tensor.
        """
        if hasattr(self, name) and name not in self._buffers:
            raise ValueError(
                f"register_buffer: {type(self).__name__} has an attribute {name!r} already; use another name"
            )
        if isinstance(tensor, Parameter) or not (tensor is None or isinstance(tensor, Tensor)):
            raise TypeError(
                f"register_buffer: {name!r} must be a Tensor or None, got {type(tensor).__name__}; "
                "a Parameter is registered by assigning it"
            )
        self._buffers[name] = persistent
        setattr(self, name, tensor)

    # ---- calling -----------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; a subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_watched():
            with inside(self):
                return self.forward(*args, **kwargs)
        return self.forward(*args, **kwargs)

    # ---- walking -----------------------------------------------------------------------------------------------------

    def _walk(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all within it, as often as they are reached, each with the beginning of its parts' names."""
        yield prefix, self
        for name, value in list(vars(self).items()):
            if name != "_buffers":
                _refuse_hidden(self, name, value)  # a list may have been filled after it was assigned
            if isinstance(value, Module):
                yield from value._walk(f"{prefix}{name}.")

    def _own_parameters(self) -> list[tuple[str, Parameter]]:
        return [(name, value) for name, value in vars(self).items() if isinstance(value, Parameter)]

    def _own_buffers(self) -> list[tuple[str, Tensor]]:
        values = [(name, vars(self).get(name)) for name in self._buffers]
        return [(n, value) for n, value in values if isinstance(value, Tensor) and not isinstance(value, Parameter)]

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of this module, whose name is "", and of all within it, parents before their children."""
        return _once((prefix[:-1], module) for prefix, module in self._walk())

    def modules(self) -> Iterator[Module]:
        """This module and all within it."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the modules that are attributes of this one."""
        return _once((name, value) for name, value in list(vars(self).items()) if isinstance(value, Module))

    def children(self) -> Iterator[Module]:
        """The modules that are attributes of this one."""
        return (module for _, module in self.named_children())

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """(name, parameter) of every parameter in the tree."""
        return _once((prefix + name, p) for prefix, module in self._walk() for name, p in module._own_parameters())

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter in the tree."""
        return (parameter for _, parameter in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of every buffer in the tree, persistent or not."""
        return _once((prefix + name, b) for prefix, module in self._walk() for name, b in module._own_buffers())

    def buffers(self) -> Iterator[Tensor]:
        """Every buffer in the tree, persistent or not."""
        return (buffer for _, buffer in self.named_buffers())

    def apply(self, function: Callable[[Module], Any]) -> Self:
        """Call `function` on every module within this one, and then on this one; returns the module itself."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    # ---- modes and gradients -----------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Set training mode (dropout drops) or, with False, evaluation mode everywhere; returns the module itself."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Set evaluation mode everywhere; returns the module itself."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze (False) or unfreeze every parameter; returns the module itself."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget every gradient: None, or fresh zeros where there was one."""
        zero_grad(self.parameters(), set_to_none)

    # ---- saving, loading, moving -------------------------------------------------------------------------------------

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        """What a state_dict consists of, under every name that it has."""
        for prefix, module in self._walk():
            persistent = [(name, buffer) for name, buffer in module._own_buffers() if module._buffers[name]]
            yield from ((prefix + name, tensor) for name, tensor in (*module._own_parameters(), *persistent))

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and persistent buffers, by name: NumPy arrays that further training leaves alone.

        Tied weights appear under each of their names, as in PyTorch.
        """
        return {name: tensor.numpy().copy() for name, tensor in self._state()}

    def load_state_dict(self, mapping: Mapping[str, Any], strict: bool = True) -> LoadedKeys:
        """Write the values of `mapping` into the parameters and persistent buffers, which keep their dtype and device.

        Args:
            mapping: name to array: NumPy or CuPy arrays, Tensors, torch tensors, or what numpy.asarray takes.
            strict: names that only one side has are an error; else they are passed over and returned.

        Raises RuntimeError that lists every missing and unexpected name, and every value that is of another shape, or
        of a kind that the tensor cannot hold (with strict=False too); nothing has been written then.
        """
        if not isinstance(mapping, Mapping):
            raise TypeError(f"load_state_dict takes a mapping of names to arrays, got {type(mapping).__name__}")
        own = dict(self._state())
        keys = LoadedKeys([name for name in own if name not in mapping], [name for name in mapping if name not in own])
        arrays: dict[str, np.ndarray] = {}
        problems: list[str] = []
        if strict:
            problems += [f"missing: {name} of shape {own[name].shape}" for name in keys.missing_keys]
            problems += [f"unexpected: {name}" for name in keys.unexpected_keys]
        for name, tensor in own.items():
            if name in mapping:
                try:
                    arrays[name] = array = _to_numpy(mapping[name])
                except (TypeError, ValueError) as error:
                    problems.append(f"{name}: cannot be read as an array ({error})")
                    continue
                if array.shape != tensor.shape:
                    problems.append(f"{name}: shape {array.shape} given, the module has {tensor.shape}")
                elif not np.can_cast(array.dtype, tensor.dtype, casting="same_kind"):
                    problems.append(f"{name}: {array.dtype} given, which the module's {tensor.dtype} cannot hold")
        if problems:
            listed = "\n  ".join(problems)
            raise RuntimeError(f"load_state_dict: this state does not fit {type(self).__name__}:\n  {listed}")
        with no_grad():
            for name, array in arrays.items():
                own[name].copy_(to_device(array, own[name].device))
        return keys

    def to(self, target: Any) -> Self:
        """Move all parameters, gradients and buffers to a device ("cuda"), or cast the floating ones to a dtype.

        Parameters stay the same objects, so an optimizer made before goes on with them. Returns the module itself.
        Raises DeviceError if the device is not there, TypeError for a dtype that cannot carry gradients.
        """
        for tensor in (*self.parameters(), *self.buffers()):
            moved = tensor.detach().to(target)
            if is_floating(tensor.dtype) and not is_floating(moved.dtype):
                raise TypeError(f"{type(self).__name__}.to: {moved.dtype} cannot carry gradients; use a floating dtype")
            if is_floating(moved.dtype) and not is_floating(tensor.dtype):
                continue  # ids and masks keep their dtype
            if moved.data is not tensor.data:
                tensor._replace(moved.data)
            if tensor.grad is not None:
                tensor.grad = tensor.grad.detach().to(target)
        return self

    # ---- reading -----------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What `repr` says of the module itself: its sizes and options."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {value!r}" for name, value in vars(self).items() if isinstance(value, Module)]
        inside = "\n".join([self.extra_repr(), *lines]).strip()
        return f"{type(self).__name__}(\n{indent(inside, '  ')}\n)" if lines else f"{type(self).__name__}({inside})"


def zero_grad(parameters: Iterable[Tensor], set_to_none: bool) -> None:
    """Forget the parameters' gradients. Zeros are made afresh: multiplying by 0 would keep a NaN."""
    for parameter in parameters:
        if parameter._grad is not None:
            parameter._grad = None if set_to_none else zeros_like(parameter._grad)


def _once(named: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    """Each object under the first of its names."""
    seen: set[int] = set()
    for name, thing in named:
        if id(thing) not in seen:
            seen.add(id(thing))
            yield name, thing


_NO_COLLECTIONS = (Module, Tensor, int, float, str, type(None))  # what nearly all attributes are


def _refuse_hidden(module: Module, name: str, value: Any) -> None:
    """Modules and parameters in a plain collection would be neither trained nor saved, and nothing would say so."""
    if not isinstance(value, _NO_COLLECTIONS) and _holds_parts(value):
        raise TypeError(
            f"{type(module).__name__}.{name}: modules or parameters in a {type(value).__name__} would be neither "
            "trained nor saved; put modules into nn.ModuleList([...]), and give a parameter an attribute of its own"
        )


def _holds_parts(value: Any) -> bool:
    """Whether a list, a dict, a deque, an array of objects ... holds modules or parameters, at whatever depth."""
    if not isinstance(value, Collection) or isinstance(value, (str, bytes, bytearray, range)):
        return False
    if hasattr(value, "dtype") and hasattr(value, "shape") and value.dtype != object:
        return False  # an array of numbers
    parts = value.values() if isinstance(value, Mapping) else value.flat if isinstance(value, np.ndarray) else value
    return any(isinstance(part, (Module, Parameter)) or _holds_parts(part) for part in parts)


def _to_numpy(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        return value.numpy()
    if hasattr(value, "detach"):  # a torch tensor: NumPy takes none that requires grad or is on a GPU
        value = value.detach().cpu()
    return np.asarray(to_device(value, "cpu"))


M = TypeVar("M", bound=Module)


def is_plain(module: Any, kind: type[M]) -> TypeGuard[M]:
    """Whether it does what this kind does: it is of no subclass, and nobody has put another `forward` into it.

    A `forward` that was exchanged in the class itself is not noticed.
    """
    return type(module) is kind and "forward" not in vars(module)
