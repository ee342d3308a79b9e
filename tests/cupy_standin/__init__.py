"""A strict stand-in for CuPy on a machine without a GPU: what CuPy refuses it refuses, where CuPy differs it differs.

Its arrays pretend to be on a GPU. They do not mix with NumPy's and never become one unless they are asked to; results
without axes stay arrays; a function or a keyword that CuPy 14 lacks is missing here too. So it shows whether an array
ever leaves its device, or NumPy's is taken where CuPy's is needed. What a GPU computes it does not show: NumPy does the
arithmetic. Kernels of `cupy.RawModule` are run by `kernels.emulator`.

`array.py` has the arrays, `functions.py` the functions of the module, `cuda.py` devices and kernels, `cupy14.txt` the
names and parameters of the real library's functions.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from tests.cupy_standin import cuda, measuring
from tests.cupy_standin.array import Array
from tests.cupy_standin.functions import Cupy, Ufunc

__all__ = ["Array", "installed", "replaced"]


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[float])(x).astype(x.dtype)


@contextlib.contextmanager
def installed(devices: int = 1, count_devices: Callable[[], int] | None = None) -> Iterator[ModuleType]:
    """Within it `import cupy` finds the stand-in, which sees so many GPUs; afterwards what was there before."""
    cupy = Cupy("cupy")
    cupy.RawModule = cuda.RawModule
    cupy.cuda = cuda.module(count_devices or (lambda: devices))
    measuring.add_to(cupy)
    special = ModuleType("cupyx.scipy.special")
    special.erf = Ufunc("erf", _erf)
    modules = {"cupy": cupy, "cupyx": ModuleType("cupyx"), "cupyx.scipy": ModuleType("cupyx.scipy")}
    with replaced({**modules, "cupyx.scipy.special": special}), cuda.Device(0):
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
