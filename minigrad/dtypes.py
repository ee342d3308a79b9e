"""What a tensor's numbers may be: booleans, integers, and floats, of which bfloat16 is no kind of NumPy's own."""

from __future__ import annotations

from typing import Any

import numpy as np

ml_dtypes: Any
try:
    import ml_dtypes  # then NumPy knows the name "bfloat16" too
except ImportError:
    ml_dtypes = None

bfloat16: Any = ml_dtypes.bfloat16 if ml_dtypes else "bfloat16"  # of which `tensor_dtype` says what is missing


def tensor_dtype(dtype: Any) -> np.dtype:
    """The dtype in native byte order. TypeError unless it is one of booleans, integers or floats of up to 64 bits."""
    if isinstance(dtype, str) and dtype == bfloat16:
        raise TypeError("bfloat16 needs the package ml_dtypes: pip install ml_dtypes")
    found = np.dtype(dtype)
    if not is_numeric(found):
        raise TypeError(f"a tensor holds floats, integers or booleans, not {found}")
    if found.itemsize > 8:
        raise TypeError(f"a tensor holds floats of 16, 32 or 64 bits, not {found}; use .astype(np.float64)")
    return found if found.isnative else found.newbyteorder("=")


def is_numeric(dtype: np.dtype) -> bool:
    """Whether a tensor can hold this dtype, if it has 64 bits at most."""
    return dtype.kind in "fiub" or is_bfloat16(dtype)


def is_floating(dtype: np.dtype) -> bool:
    """Whether values of this dtype can carry gradients."""
    return dtype.kind == "f" or is_bfloat16(dtype)


def is_bfloat16(dtype: np.dtype | None) -> bool:
    """Whether it is the dtype that ml_dtypes adds to NumPy's, as one of another kind."""
    return dtype is not None and dtype.kind == "V" and dtype.name == "bfloat16"


def is_16_bit(dtype: np.dtype) -> bool:
    """Whether it is float16 or bfloat16, whose numbers are added up in float32."""
    return dtype.itemsize == 2 and is_floating(dtype)


def finfo(dtype: np.dtype) -> Any:
    """`np.finfo`, of bfloat16 too."""
    return ml_dtypes.finfo(dtype) if is_bfloat16(dtype) else np.finfo(dtype)
