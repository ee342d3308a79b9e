"""The same values in another dtype, on another device or in another order of memory; all differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad import ops
from minigrad.backend import Array
from minigrad.dtypes import bfloat16, is_floating, tensor_dtype

if TYPE_CHECKING:
    from minigrad.tensor import Tensor

Flag = bool  # within the class `bool` is a method


class Casts:
    """What Tensor inherits: itself if nothing is to do, otherwise a new tensor."""

    __slots__ = ()

    if TYPE_CHECKING:
        _data: Array

        @property
        def dtype(self) -> np.dtype: ...
        @property
        def device(self) -> str: ...

    def to(self, target: Any) -> Any:
        """On another device ("cpu", "cuda", "cuda:1") or in another dtype (np.float64, "float16")."""
        if isinstance(target, str) and target.partition(":")[0] in ("cpu", "cuda"):
            return self if target == self.device else ops.to_device(self, device=target)
        if target is None:
            raise TypeError("to: name a device such as 'cuda' or a dtype such as 'float64', not None")
        if target != "bfloat16":
            try:
                np.dtype(target)
            except TypeError as error:
                raise TypeError(f"to: {target!r} is neither a device ('cpu', 'cuda', 'cuda:1') nor a dtype") from error
        dtype = tensor_dtype(target)
        return self if dtype == self.dtype else ops.astype(self, dtype=dtype)

    def type_as(self, other: Tensor) -> Tensor:
        """In the dtype and on the device of `other`."""
        return self.to(other.device).to(other.dtype)

    def half(self) -> Tensor:
        """As float16."""
        return self.to(np.float16)

    def bfloat16(self) -> Tensor:
        """As bfloat16, which needs the package ml_dtypes."""
        return self.to(bfloat16)

    def float(self) -> Tensor:
        """As float32."""
        return self.to(np.float32)

    def double(self) -> Tensor:
        """As float64."""
        return self.to(np.float64)

    def int(self) -> Tensor:
        """As int32, truncated."""
        return self.to(np.int32)

    def long(self) -> Tensor:
        """As int64, truncated."""
        return self.to(np.int64)

    def bool(self) -> Tensor:
        """As booleans: whether not zero."""
        return self.to(np.bool_)

    def is_floating_point(self) -> Flag:
        """Whether the dtype is float16, bfloat16, float32 or float64."""
        return is_floating(self.dtype)

    def contiguous(self) -> Any:
        """With its elements in memory one after another, row by row."""
        return self if self._data.flags.c_contiguous else ops.copy(self)
