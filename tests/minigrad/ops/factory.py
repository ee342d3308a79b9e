"""The tests that every operation passes, made from a table with one `Case` an operation (or a way to call one).

docs/adding-an-op.md shows how to give an operation of your own its tests; `CHECKS`, at the end, are what they check.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import minigrad as mg
from minigrad import Tensor, gradcheck, ops
from tests.cupy_standin import installed
from tests.differences import taken_more_widely
from tests.support import NARROW, TOLERANCE, assert_close, check_kind, to_torch, torch_or_skip

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
ODD_SHAPES = ((2,), (3,), (2, 3), (4, 1, 2, 2))  # an operation of given shapes must refuse some of them
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
        refuses: calls that must fail, (library, *operands) -> ..., where library is `minigrad` or PyTorch.
        unlike: which wrong operands PyTorch treats otherwise, for a reason: "shapes", "text", "None", "integers".
    """

    name: str
    call: Callable[..., Any]
    shapes: st.SearchStrategy[Shapes] = ONE
    always: Sequence[Shapes] = ()
    values: Values | tuple[Values, ...] = normal
    numpy: Callable[..., Any] | None = None
    torch: Callable[..., Any] | None = None
    differentiable: bool = True
    refuses: Sequence[Callable[..., Any]] = ()
    unlike: Sequence[str] = ()

    def operands(self, shapes: Shapes, seed: int, dtype: Any = np.float64) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        values = self.values if isinstance(self.values, tuple) else (self.values,) * len(shapes)
        arrays = [np.asarray(draw(rng, shape)) for draw, shape in zip(values, shapes, strict=True)]
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
    groups = [("gradients", "half"), ("numpy",), ("torch", "refusals"), ("device",)]
    return tuple(each_case(_test_of(names)) for names in groups)


def _test_of(names: Sequence[str]) -> Callable[[Case], None]:
    def test(case: Case) -> None:
        for name in names:
            run_check(case, name)

    return test


def run_check(case: Case, name: str) -> int:
    """One of `CHECKS` on all shapes of a case: AssertionError that names what differs. Returns what it counts."""
    check = CHECKS[name]
    count = 0

    @settings(max_examples=check.examples, deadline=None, report_multiple_bugs=False)
    @given(case.shapes, SEEDS)
    def on_drawn_shapes(shapes: Shapes, seed: int) -> None:
        nonlocal count
        count += check.function(case, shapes, seed) or 0

    with np.errstate(all="ignore"), warnings.catch_warnings():  # rows without elements, and what is to be refused
        warnings.simplefilter("ignore")
        for shapes in case.always if check.always else ():
            count += check.function(case, shapes, 0) or 0
        on_drawn_shapes()
    return count


# ---- the checks ------------------------------------------------------------------------------------------------------


def _check_gradients(case: Case, shapes: Shapes, seed: int) -> None:
    """Gradients, and gradients of gradients, are finite differences'."""
    operands = case.operands(shapes, seed)
    if case.differentiable:
        inputs = [array if array.dtype.kind == "f" else Tensor(array) for array in operands]
        assert gradcheck(case.ours, inputs, order=2)
    else:
        leaves = [Tensor(array, requires_grad=array.dtype.kind == "f") for array in operands]
        assert not any(value.requires_grad for value in case.ours(*leaves)), "the gradient: there should be none"


def _generator_of_weights(seed: int) -> np.random.Generator:
    """For what gradients begin with: not the stream of the operands, which would give their own values again."""
    return np.random.default_rng([seed, 1])


def _check_half(case: Case, shapes: Shapes, seed: int) -> int:
    """In 16 bits values and gradients are those of float64, but for rounding, and stay of 16 bits.

    Returns 0 if no operand is floating, else 1.
    """
    return max(_check_16_bits(case, shapes, seed, dtype, tolerance) for dtype, tolerance in NARROW.items())


def _check_16_bits(case: Case, shapes: Shapes, seed: int, narrow: np.dtype, tolerance: float) -> int:
    arrays = case.operands(shapes, seed, narrow)
    if not any(array.dtype == narrow for array in arrays):
        return 0

    def leaves_in(dtype: Any) -> list[Tensor]:
        return [Tensor(a.astype(dtype), requires_grad=True) if a.dtype == narrow else Tensor(a) for a in arrays]

    leaves, exact = leaves_in(narrow), leaves_in(np.float64)
    found, precise, single = case.ours(*leaves), case.ours(*exact), case.ours(*leaves_in(np.float32))
    rng = _generator_of_weights(seed)
    for value, wanted, like in zip(found, precise, single, strict=True):
        dtype = narrow if like.dtype == np.float32 else like.dtype
        assert value.dtype == dtype, f"the dtype is {value.dtype}, expected {np.dtype(dtype)}"
        assert_close(value, wanted, tolerance, f"the value in {narrow}", least=1)
        if value.requires_grad:
            weights = np.asarray(rng.standard_normal(value.shape)).astype(narrow)
            value.backward(weights.astype(value.dtype), retain_graph=True)
            wanted.backward(weights.astype(np.float64), retain_graph=True)
    for place, (ours, other) in enumerate(zip(leaves, exact, strict=True)):
        if ours.grad is not None:
            what = f"the gradient of operand {place} in {narrow}"
            assert ours.grad.dtype == narrow, f"{what} is {ours.grad.dtype}"
            assert_close(ours.grad, other.grad, tolerance, what, least=1)
    return 1


def _check_numpy(case: Case, shapes: Shapes, seed: int) -> None:
    """The values are NumPy's, in float64 and in float32, which stays float32."""
    for dtype, tolerance in TOLERANCE.items():
        arrays = case.operands(shapes, seed, dtype)
        exact = case.numpys(*[array.astype(np.float64) if array.dtype == dtype else array for array in arrays])
        expected = case.numpys(*arrays)
        found = case.ours(*map(Tensor, arrays))
        assert len(found) == len(expected), f"{len(found)} values, expected {len(expected)}"
        for value, wanted, precise in zip(found, expected, exact, strict=True):
            dtype_of_numpy = np.asarray(wanted).dtype
            assert value.dtype == dtype_of_numpy, f"the dtype is {value.dtype}, expected {dtype_of_numpy}"
            assert_close(value, precise, tolerance)


def _check_torch(case: Case, shapes: Shapes, seed: int) -> None:
    """Values, dtypes and gradients are PyTorch's, in float32 and float64, and in 16 bits where PyTorch has that."""
    torch = torch_or_skip()
    for dtype, tolerance in {**TOLERANCE, **NARROW}.items():
        arrays = case.operands(shapes, seed, dtype)
        leaves = [Tensor(array, requires_grad=array.dtype == dtype) for array in arrays]
        theirs = [to_torch(torch, array).requires_grad_(array.dtype == dtype) for array in arrays]
        try:
            expected = case.torchs(torch, *theirs)
        except NotImplementedError:
            if dtype not in NARROW:
                raise
            continue
        least = 1 if dtype in NARROW else 0
        found = case.ours(*leaves)
        rng = _generator_of_weights(seed)
        for value, wanted in zip(found, expected, strict=True):
            assert str(value.dtype) == str(wanted.dtype).removeprefix("torch."), (
                f"the dtype is {value.dtype}, expected {wanted.dtype}"
            )
            assert value.requires_grad == wanted.requires_grad, "the gradient: required here or there, not in both"
            assert_close(value, wanted, tolerance, least=least)
            if value.requires_grad:
                weights = np.asarray(rng.standard_normal(value.shape), value.dtype)
                value.backward(weights, retain_graph=True)
                wanted.backward(to_torch(torch, weights), retain_graph=True)
        for place, (ours, other) in enumerate(zip(leaves, theirs, strict=True)):
            what = f"the gradient of operand {place}"
            assert (ours.grad is None) == (other.grad is None), f"{what} is None here or there, not in both"
            if ours.grad is not None:
                assert ours.grad.dtype == dtype, f"{what} is {ours.grad.dtype}, expected {dtype}"
                assert_close(ours.grad, other.grad, tolerance, what, least)


def _check_refusals(case: Case, shapes: Shapes, seed: int) -> int:
    """What PyTorch refuses of wrong operands is refused with the same kind of error; what it takes gives its values.

    Integers and booleans in place of floats are taken where docs/architecture.md says so, and nowhere else. Returns how
    many were refused.
    """
    torch = torch_or_skip()
    arrays = case.operands(shapes, seed)
    for call in case.refuses:
        check_kind(partial(call, torch, *map(torch.tensor, arrays)), partial(call, mg, *map(Tensor, arrays)))
    refused = len(case.refuses)
    for wrong, kind in _wrong_operands(case, shapes, seed):
        theirs = [torch.tensor(x) if isinstance(x, np.ndarray) else x for x in wrong]
        ours = [Tensor(x) if isinstance(x, np.ndarray) else x for x in wrong]
        try:
            expected = case.torchs(torch, *theirs)
        except AttributeError:
            continue  # a method of what is no tensor
        except Exception:
            if kind and case.name in taken_more_widely(kind):
                case.ours(*ours)
            else:
                check_kind(partial(case.torchs, torch, *theirs), partial(case.ours, *ours))
                refused += 1
            continue
        if not all(isinstance(wanted, torch.Tensor) for wanted in expected):
            continue  # "text" % tensor, tensor == None: Python's own meaning
        for value, wanted in zip(case.ours(*ours), expected, strict=True):
            assert str(value.dtype) == str(wanted.dtype).removeprefix("torch."), (
                f"the dtype is {value.dtype}, expected {wanted.dtype}"
            )
            assert_close(value, wanted, TOLERANCE.get(value.dtype, 0))
    return refused


def _wrong_operands(case: Case, shapes: Shapes, seed: int) -> Iterator[tuple[list[Any], str]]:
    """Operands that may not be taken, and "integers" or "booleans" if they are those in place of floats, else ""."""
    operands = case.operands(shapes, seed)
    for place in range(len(operands)):
        before, behind = operands[:place], operands[place + 1 :]
        for shape in ODD_SHAPES if "shapes" not in case.unlike else ():
            odd = case.operands((*shapes[:place], shape, *shapes[place + 1 :]), seed)[place]
            yield [*before, odd, *behind], ""
        if len(operands) > 1 and "text" not in case.unlike:
            yield [*before, "text", *behind], ""
            if "None" not in case.unlike:
                yield [*before, None, *behind], ""
    floats = [x.dtype.kind == "f" for x in operands]
    if any(floats) and all(x.size for x in operands) and "integers" not in case.unlike:
        for dtype, kind in ((np.int64, "integers"), (np.bool_, "booleans")):
            yield [x.astype(dtype) if f else x for x, f in zip(operands, floats, strict=True)], kind


def _check_device(case: Case, shapes: Shapes, seed: int) -> None:
    """Nothing leaves the operands' device, on which arrays of another kind are refused; the results are the CPU's."""
    arrays = case.operands(shapes, seed)
    needs_grad = [array.dtype.kind == "f" for array in arrays]
    on_cpu = [Tensor(array, requires_grad=flag, device="cpu") for array, flag in zip(arrays, needs_grad, strict=True)]
    with installed():
        on_gpu = [Tensor(a, requires_grad=f, device="cuda") for a, f in zip(arrays, needs_grad, strict=True)]
        for value, wanted in zip(case.ours(*on_gpu), case.ours(*on_cpu), strict=True):
            assert value.device == "cuda:0", f"the value is on {value.device}, its operands on cuda:0"
            assert_close(value.numpy(), wanted.numpy(), 1e-14)
            if value.requires_grad:
                value.sum().backward(retain_graph=True)
                wanted.sum().backward(retain_graph=True)
        for tensor, wanted in zip(on_gpu, on_cpu, strict=True):
            if tensor.grad is not None:
                assert tensor.grad.device == "cuda:0"
                assert_close(tensor.grad.numpy(), wanted.grad.numpy(), 1e-14, least=0.1)  # some cancel to nothing


@dataclass(frozen=True)
class Check:
    """What a case is held against, and on how many drawn shapes."""

    function: Callable[[Case, Shapes, int], int | None]
    examples: int
    always: bool = True  # whether the case's own shapes are tried too


CHECKS = {
    "gradients": Check(_check_gradients, 6),
    "half": Check(_check_half, 6),
    "numpy": Check(_check_numpy, 10),
    "torch": Check(_check_torch, 10),
    "refusals": Check(_check_refusals, 2, always=False),
    "device": Check(_check_device, 4),
}
