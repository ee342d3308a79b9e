"""Modules that hold modules in a row: ModuleList and Sequential."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

from nn.module import Module


class ModuleList(Module):
    """A list of modules that are parts of the tree, under the names "0", "1" ...; it has no forward of its own.

    Raises TypeError for an item that is not a Module.
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> Self:
        """Add a module at the end; returns the list itself."""
        self._put(len(self), module)
        return self

    def _put(self, place: int, module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__}: item {place} must be a Module, got {type(module).__name__}")
        setattr(self, str(place), module)

    def _modules(self) -> list[Module]:
        """All items, as often as they are in the list."""
        return [value for value in vars(self).values() if isinstance(value, Module)]

    def __len__(self) -> int:
        return len(self._modules())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules())

    def __getitem__(self, place: int | slice) -> Any:
        """One module, or those of a slice in a container of the same kind, with the same parameters."""
        if isinstance(place, slice):
            return self._of(self._modules()[place])
        return self._modules()[place]

    def __setitem__(self, place: int, module: Module) -> None:
        self._put(range(len(self))[place], module)

    @classmethod
    def _of(cls, modules: list[Module]) -> Any:
        return cls(modules)


class Sequential(ModuleList):
    """Modules called one after another, each on the result of the one before: `Sequential(a, b)(x)` is b(a(x))."""

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        """The result of the last module; `x` itself if there is none."""
        for module in self:
            x = module(x)
        return x

    @classmethod
    def _of(cls, modules: list[Module]) -> Any:
        return cls(*modules)
