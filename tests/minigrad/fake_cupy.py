"""A CuPy without a GPU: NumPy arrays that say they are on one, and refuse plain NumPy arrays as CuPy does.

It shows whether an array ever leaves its device, or a NumPy array is taken where CuPy's is needed. What a GPU computes
it does not show.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

_NAMES = ("cupy", "cupyx", "cupyx.scipy", "cupyx.scipy.special")


class FakeArray(np.ndarray):
    """An array on a pretended device; results of arithmetic stay on it, 0-d ones too."""

    def __array_finalize__(self, made_from: Any) -> None:
        self._device = made_from._device if isinstance(made_from, FakeArray) else _Device.current

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=self._device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._device)  # 2 is CUDA

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return _run(getattr(ufunc, method), inputs, options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return _run(function, arguments, options)

    def __getitem__(self, key: Any) -> Any:
        return _run(np.ndarray.__getitem__, (self, _Key(key)), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, FakeArray) and np.shares_memory(self, value):
            raise AssertionError("CuPy's assignment does not mind that the two overlap")
        _run(np.ndarray.__setitem__, (self, _Key(key), value), {})


class _Key:
    """An index, which CuPy takes as NumPy arrays too."""

    def __init__(self, key: Any) -> None:
        self.key = key


class _Device:
    current = 0

    def __init__(self, index: int) -> None:
        self._index = index

    def __enter__(self) -> None:
        self._former, _Device.current = _Device.current, self._index

    def __exit__(self, *exception: object) -> None:
        _Device.current = self._former


class _Function:
    """NumPy's function of a name, as CuPy has it."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return _run(self._function, arguments, options)

    def at(self, array: Any, key: Any, values: Any) -> None:
        _run(self._function.at, (array, _Key(key), values), {})

    def reduceat(self, array: Any, indices: Any, axis: int = 0) -> Any:
        return _run(self._function.reduceat, (array, indices), {"axis": axis})


class _FakeCupy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _Function(getattr(np, name))


def _run(function: Any, arguments: Any, options: Any) -> Any:
    devices: list[int] = []
    result = function(*_bare(tuple(arguments), devices), **_bare(dict(options), devices))
    return _dressed(result, devices[0] if devices else _Device.current)


def _bare(value: Any, devices: list[int]) -> Any:
    if isinstance(value, FakeArray):
        devices.append(value._device)
        return value.view(np.ndarray)
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, _Key):
        parts = value.key if isinstance(value.key, tuple) else (value.key,)
        bare = tuple(part.view(np.ndarray) if isinstance(part, FakeArray) else part for part in parts)
        return bare if isinstance(value.key, tuple) else bare[0]
    if isinstance(value, (tuple, list)):
        return type(value)(_bare(part, devices) for part in value)
    return {name: _bare(part, devices) for name, part in value.items()} if isinstance(value, dict) else value


def _dressed(value: Any, device: int) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        with _Device(device):
            return np.asarray(value).view(FakeArray)
    return type(value)(_dressed(part, device) for part in value) if isinstance(value, (tuple, list)) else value


def _asarray(array: Any) -> FakeArray:
    return array if isinstance(array, FakeArray) else np.array(array).view(FakeArray)


def _indices(dimensions: Any, dtype: Any = int) -> Any:
    return _run(np.indices, (dimensions, dtype), {})  # CuPy's has no `sparse`


@contextlib.contextmanager
def installed(devices: int = 1, count_devices: Any = None) -> Iterator[ModuleType]:
    """Within it `import cupy` finds the fake, which sees so many GPUs; afterwards what was there before."""
    cupy = _FakeCupy("cupy")
    cupy.ndarray, cupy.asarray, cupy.indices = FakeArray, _asarray, _indices
    cupy.asnumpy = lambda array: np.array(array.view(np.ndarray))
    runtime = SimpleNamespace(getDeviceCount=count_devices or (lambda: devices))
    cupy.cuda = SimpleNamespace(Device=_Device, runtime=runtime)
    special = ModuleType("cupyx.scipy.special")
    special.erf = _Function(np.vectorize(math.erf, otypes=[float]))
    modules = (cupy, ModuleType("cupyx"), ModuleType("cupyx.scipy"), special)
    with replaced(dict(zip(_NAMES, modules, strict=True))):
        yield cupy


@contextlib.contextmanager
def replaced(modules: dict[str, Any]) -> Iterator[None]:
    """Within it these stand in `sys.modules` (None: importing it fails); afterwards what was there before."""
    former = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in former.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
