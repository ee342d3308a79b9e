"""The tests that every operation passes, made from a table with one `Case` an operation (or a way to call one)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from minigrad import Tensor, gradcheck, ops
from tests.minigrad.fake_cupy import installed
from tests.support import TOLERANCE, assert_close, torch_or_skip

Shapes = tuple[tuple[int, ...], ...]  # one an operand
Values = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
SEEDS = st.integers(0, 2**32 - 1)


# ---- operands --------------------------------------------------------------------------------------------------------


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape))


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.uniform(0.5, 2.0, shape))


def nonzero(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.uniform(0.5, 2.0, shape) * rng.choice([-1.0, 1.0], shape))


def integers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.integers(-3, 4, shape))


def with_zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.uniform(0.5, 2.0, shape) * rng.choice([-1.0, 0.0, 1.0], shape))


def booleans(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.random(shape) < 0.5)


# ---- shapes ----------------------------------------------------------------------------------------------------------


def broadcastable(count: int) -> st.SearchStrategy[Shapes]:
    """Shapes that broadcast with one another; 0-d and zero-size ones among them."""
    drawn = npst.mutually_broadcastable_shapes(num_shapes=count, min_side=0, max_side=3, max_dims=3)
    return drawn.map(lambda result: result.input_shapes)


def with_axes(least: int, most: int = 3, min_side: int = 0) -> st.SearchStrategy[Shapes]:
    """The shape of one operand that has at least so many axes."""
    return npst.array_shapes(min_dims=least, max_dims=most, min_side=min_side, max_side=3).map(lambda shape: (shape,))


ONE = broadcastable(1)
TWO = broadcastable(2)
THREE = broadcastable(3)

# Tried for every operation that takes any shapes, whatever Hypothesis draws.
ANY_ONE: tuple[Shapes, ...] = (((),), ((0,),), ((2, 0, 3),), ((1,),))
ANY_TWO: tuple[Shapes, ...] = (
    ((), ()), ((), (3, 4)), ((1,), (3, 4)), ((3, 1), (4,)), ((1, 3, 1), (2, 1, 4)), ((), (0,)), ((0, 3), (1, 3)),
)  # fmt: skip
ANY_THREE: tuple[Shapes, ...] = (((), (3, 1), (4,)), ((2, 3), (), ()), ((1, 3), (2, 1), (2, 3)), ((0,), (1,), ()))


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """How to call an operation, and what with.

    Attributes:
        name: of the operation, in `minigrad.ops`.
        call: (library, *operands) -> value or values, where library is `minigrad.ops`, NumPy or PyTorch.
        shapes: the operands' shapes, drawn by Hypothesis.
        always: shapes that are tried besides.
        values: what the operands hold: one for all, or one an operand.
        numpy, torch: `call` for NumPy and PyTorch, where they name it differently.
        differentiable: whether gradients flow to the floating-point operands.
    """

    name: str
    call: Callable[..., Any]
    shapes: st.SearchStrategy[Shapes] = ONE
    always: Sequence[Shapes] = ()
    values: Values | tuple[Values, ...] = normal
    numpy: Callable[..., Any] | None = None
    torch: Callable[..., Any] | None = None
    differentiable: bool = True

    def operands(self, shapes: Shapes, seed: int, dtype: Any = np.float64) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        values = self.values if isinstance(self.values, tuple) else (self.values,) * len(shapes)
        arrays = [draw(rng, shape) for draw, shape in zip(values, shapes, strict=True)]
        return [array.astype(dtype) if array.dtype.kind == "f" else array for array in arrays]

    def ours(self, *operands: Any) -> tuple[Tensor, ...]:
        return _tuple(self.call(ops, *operands))

    def numpys(self, *operands: Any) -> tuple[Any, ...]:
        return _tuple((self.numpy or self.call)(np, *operands))

    def torchs(self, torch: ModuleType, *operands: Any) -> tuple[Any, ...]:
        return _tuple((self.torch or self.call)(torch, *operands))


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def unary(name: str, call: Callable[..., Any] | None = None, **more: Any) -> Case:
    """A case of one operand of any shape, by default called by the name that all libraries share."""
    return Case(name, call or (lambda lib, x: getattr(lib, name)(x)), ONE, ANY_ONE, **more)


def binary(name: str, call: Callable[..., Any] | None = None, **more: Any) -> Case:
    """A case of two operands that broadcast."""
    return Case(name, call or (lambda lib, x, y: getattr(lib, name)(x, y)), TWO, ANY_TWO, **more)


def of_numbers(function: Callable[[float], float]) -> Callable[..., Any]:
    """The call of NumPy for an operation that it lacks: a function of Python numbers, element by element."""
    return lambda _, x: np.vectorize(function, otypes=[x.dtype])(x)


def make_tests(cases: Sequence[Case]) -> tuple[Callable[..., None], ...]:
    """Four test functions for a table: against finite differences, NumPy and PyTorch, and on another device."""
    each_case = pytest.mark.parametrize("case", cases, ids=[f"{case.name}-{i}" for i, case in enumerate(cases)])
    return tuple(each_case(_on_all_shapes(*check)) for check in _CHECKS)


def _on_all_shapes(check: Callable[[Case, Shapes, int], None], examples: int) -> Callable[[Case], None]:
    def test(case: Case) -> None:
        @settings(max_examples=examples)
        @given(case.shapes, SEEDS)
        def on_drawn_shapes(shapes: Shapes, seed: int) -> None:
            check(case, shapes, seed)

        with np.errstate(divide="ignore", invalid="ignore"):  # a row without elements
            for shapes in case.always:
                check(case, shapes, 0)
            on_drawn_shapes()

    return test


# ---- the tests -------------------------------------------------------------------------------------------------------


def _check_gradients(case: Case, shapes: Shapes, seed: int) -> None:
    """Gradients, and gradients of gradients, are finite differences'."""
    operands = case.operands(shapes, seed)
    if case.differentiable:
        assert gradcheck(case.ours, operands, order=2)
    else:
        leaves = [Tensor(array, requires_grad=array.dtype.kind == "f") for array in operands]
        assert not any(value.requires_grad for value in case.ours(*leaves))


def _check_numpy(case: Case, shapes: Shapes, seed: int) -> None:
    """The values are NumPy's, in float64 and in float32, which stays float32."""
    for dtype, tolerance in TOLERANCE.items():
        arrays = case.operands(shapes, seed, dtype)
        exact = case.numpys(*[array.astype(np.float64) if array.dtype == dtype else array for array in arrays])
        expected = case.numpys(*arrays)
        found = case.ours(*map(Tensor, arrays))
        assert len(found) == len(expected)
        for value, wanted, precise in zip(found, expected, exact, strict=True):
            assert value.dtype == np.asarray(wanted).dtype
            assert_close(value, precise, tolerance)


def _check_torch(case: Case, shapes: Shapes, seed: int) -> None:
    """Values, dtypes and gradients are PyTorch's, in float32 and float64."""
    torch = torch_or_skip()
    for dtype, tolerance in TOLERANCE.items():
        arrays = case.operands(shapes, seed, dtype)
        leaves = [Tensor(array, requires_grad=array.dtype == dtype) for array in arrays]
        theirs = [torch.tensor(array, requires_grad=array.dtype == dtype) for array in arrays]
        found, expected = case.ours(*leaves), case.torchs(torch, *theirs)
        rng = np.random.default_rng(seed)
        for value, wanted in zip(found, expected, strict=True):
            assert str(value.dtype) == str(wanted.dtype).removeprefix("torch.")
            assert value.requires_grad == wanted.requires_grad
            assert_close(value, wanted, tolerance)
            if value.requires_grad:
                weights = np.asarray(rng.standard_normal(value.shape), dtype)
                value.backward(weights, retain_graph=True)
                wanted.backward(torch.tensor(weights), retain_graph=True)
        for place, (ours, other) in enumerate(zip(leaves, theirs, strict=True)):
            assert (ours.grad is None) == (other.grad is None)
            if ours.grad is not None:
                assert ours.grad.dtype == dtype
                assert_close(ours.grad, other.grad, tolerance, f"the gradient of operand {place}")


def _check_device(case: Case, shapes: Shapes, seed: int) -> None:
    """Nothing leaves the operands' device, on which arrays of another kind are refused; the results are the CPU's."""
    arrays = case.operands(shapes, seed)
    needs_grad = [array.dtype.kind == "f" for array in arrays]
    on_cpu = [Tensor(array, requires_grad=flag) for array, flag in zip(arrays, needs_grad, strict=True)]
    with installed():
        on_gpu = [Tensor(a, requires_grad=f, device="cuda") for a, f in zip(arrays, needs_grad, strict=True)]
        for value, wanted in zip(case.ours(*on_gpu), case.ours(*on_cpu), strict=True):
            assert value.device == "cuda:0"
            assert_close(value.numpy(), wanted.numpy(), 1e-14)
            if value.requires_grad:
                value.sum().backward(retain_graph=True)
                wanted.sum().backward(retain_graph=True)
        for tensor, wanted in zip(on_gpu, on_cpu, strict=True):
            if tensor.grad is not None:
                assert tensor.grad.device == "cuda:0"
                assert_close(tensor.grad.numpy(), wanted.grad.numpy(), 1e-14)


_CHECKS = [(_check_gradients, 6), (_check_numpy, 10), (_check_torch, 10), (_check_device, 4)]  # examples of each
