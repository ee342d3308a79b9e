"""PyTorch's own operator samples, run on minigrad: what its developers try each of their operators with.

`torch.testing._internal` has a database of operators, `op_db`: for each, a function that makes sample inputs and one
that makes inputs which must be refused. Here is the adapter: which of our functions bears an operator's name, how a
sample is handed to it, and which samples are not tried, each with its reason.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import minigrad as mg
import nn.functional as F
from minigrad import Tensor
from tests.support import HALF, TOLERANCE, assert_close, check_kind, to_torch, torch_or_skip

DTYPES = ("float32", "float64", "int64", "bool")
TOLERANCES = {**TOLERANCE, np.dtype(np.float16): HALF}  # some samples ask for another dtype than theirs

# Functions of PyTorch that are operators here, beside those that op_db itself says to be operators.
OPERATORS: dict[str, Callable[..., Any]] = {"div": operator.truediv, "floor_divide": operator.floordiv}

# Keyword arguments that no function of ours has.
NOT_HERE = {
    "alpha": "written out, x + alpha * y",
    "layout": "arrays have one layout",
    "max_norm": "an embedding does not write into its weights",
    "memory_format": "arrays have one memory format",
    "norm_type": "goes with max_norm",
    "out": "results are new tensors",
    "pin_memory": "a matter of copies to a GPU",
    "reduce": "scatter_add adds",
    "rounding_mode": "written out, x // y or (x / y).floor()",
    "scale_grad_by_freq": "not for attention",
    "sparse": "gradients are dense",
}

# Operators that draw random numbers, of which only shapes and dtypes are compared.
RANDOM = {
    "nn.functional.dropout", "rand_like", "randint", "randint_like", "randn", "randn_like", "rand", "randperm",
}  # fmt: skip

ATTENTION = "nn.functional.scaled_dot_product_attention"

# Where op_db calls an operator otherwise than PyTorch's function is called, or we have it elsewhere.
CALLED: dict[str, Callable[..., Any]] = {
    "einsum": lambda tensors, equation: mg.einsum(equation, *tensors),
    "nn.functional.embedding": lambda weight, ids, **options: F.embedding(ids, weight, **options),
    "nn.functional.pad": mg.pad,
}


@dataclass(frozen=True)
class Difference:
    """Samples that are treated otherwise on purpose.

    Attributes:
        row: which row of the table in docs/architecture.md says so, and why: its first column.
        names: of operators; empty for any.
        applies: whether it is such a sample; of its tensors and numbers, and whether PyTorch refuses it.
    """

    row: str
    names: tuple[str, ...]
    applies: Callable[[Any, bool], bool]


def _tensors(sample: Any) -> list[Any]:
    return [x for x in _leaves((sample.input, sample.args)) if _is_tensor(x)]


def _has_number(sample: Any) -> bool:
    return any(type(x) in (int, float, bool) for x in _leaves((sample.input, sample.args)))


DIFFERENCES = [
    Difference("functions of numbers or arrays alone: `mg.exp(array)`", (), lambda s, wrong: wrong and not _tensors(s)),
    Difference(
        "a number for a tensor: `maximum(x, 0)`, `minimum`, `atan2(1, x)`, `logical_and`, `logical_or`, `logical_xor`",
        ("atan2", "max", "maximum", "min", "minimum", "logical_and", "logical_or", "logical_xor"),
        lambda s, wrong: wrong and _has_number(s),
    ),
    Difference(
        "integers or booleans in `mean`, `var`, `std`, `norm`, `ops.vector_norm`, `softmax`, `log_softmax`, `lerp`, "
        "`gelu`, `silu`, `elu`, `softplus`, `leaky_relu`, `round(decimals=1)`",
        ("mean",),
        lambda s, wrong: wrong and (not s.input.is_floating_point() or "dtype" in s.kwargs),
    ),
    Difference(
        "integers to the power of a tensor of negative integers: `pow`, `__pow__`, `__rpow__`",
        ("pow", "__rpow__"),
        lambda s, wrong: not wrong and not s.input.is_floating_point(),
    ),
    Difference('`norm` with p = "nuc"', ("norm",), lambda s, wrong: "nuc" in s.args),
    Difference(
        '`pad` with another mode than "constant"',
        ("nn.functional.pad",),
        lambda s, wrong: bool({"circular", "reflect", "replicate"} & {s.kwargs.get("mode"), *s.args[1:2]}),
    ),
    Difference(
        "`x[i] = v`, `copy_`, `add_` ... on what requires grad",
        ("zero_", "fill_"),
        lambda s, wrong: s.input.requires_grad,
    ),
]


@dataclass
class Outcome:
    """What became of an operator's samples.

    Attributes:
        passed: how many were alike in value, dtype, gradient, or error.
        failures: (sample, what was wrong) of those that were not.
        not_tried: reason -> how many were not tried for it.
    """

    passed: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    not_tried: dict[str, int] = field(default_factory=dict)

    @property
    def tried(self) -> int:
        return self.passed + len(self.failures)


def database() -> list[Any]:
    """The operators of which we have a function under the same name; the calling test is skipped without PyTorch."""
    torch_or_skip()
    pytest.importorskip(
        "expecttest", reason="expecttest, which PyTorch's database of operators needs, is not installed"
    )
    from torch.testing._internal.common_methods_invocations import op_db

    return [entry for entry in op_db if ours_of(entry)]


def ours_of(entry: Any) -> dict[str, Callable[..., Any]]:
    """Our functions under the operator's name and its other names, as name -> function, each function once."""
    found: dict[str, Callable[..., Any]] = {}
    for name in (entry.name, *[alias.name for alias in entry.aliases]):
        function = _named(name, entry)
        if function is not None and function not in found.values():
            found[name] = function
    return found


def names_of(entry: Any) -> set[str]:
    """The names in our tables under which an operator's samples are run: "softmax", "__add__"."""
    names = set()
    for name, function in ours_of(entry).items():
        special = getattr(operator, function.__name__, None) is function
        names.add(f"__{function.__name__.strip('_')}__" if special else name.removeprefix("nn.functional."))
    return names


def _named(name: str, entry: Any) -> Callable[..., Any] | None:
    if name in CALLED:
        return CALLED[name]
    if name.startswith("nn.functional."):
        return getattr(F, name.removeprefix("nn.functional."), None)
    method = getattr(Tensor, name, None)
    if isinstance(method, property):
        return method.fget
    return method or getattr(mg, name, None) or OPERATORS.get(name) or _operator(entry)


def _operator(entry: Any) -> Callable[..., Any] | None:
    """Python's operator for an entry, where Tensor has it."""
    function = entry.operator_variant
    known = function is not None and hasattr(Tensor, f"__{function.__name__.strip('_')}__")
    return function if known else None


def run(entry: Any) -> Outcome:
    """All samples of one operator, under all names that we have for it, and all inputs that must be refused."""
    torch = torch_or_skip()
    outcome = Outcome()
    functions = ours_of(entry)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's about its own samples
        for name, function in functions.items():
            for dtype, sample in _samples(torch, entry):
                _try(outcome, entry, name, dtype, sample, lambda s=sample, f=function: _check(torch, entry, f, s))
        name, function = next(iter(functions.items()))
        for wrong in entry.error_inputs("cpu") if entry.error_inputs_func is not None else ():
            sample = wrong.sample_input
            _try(outcome, entry, name, "error", sample, lambda s=sample, f=function: _check_error(entry, f, s))
    return outcome


def _samples(torch: ModuleType, entry: Any) -> Iterator[tuple[str, Any]]:
    for name in DTYPES:
        dtype = getattr(torch, name)
        if dtype in entry.supported_dtypes("cpu"):
            needs_grad = dtype.is_floating_point and entry.supports_autograd
            for sample in entry.sample_inputs("cpu", dtype, requires_grad=needs_grad):
                yield name, sample


def reasons(entry: Any) -> Iterator[str | None]:
    """For each sample that is not to be refused, why it is not tried, or None."""
    name = next(iter(ours_of(entry)))
    return (_why_not(entry, name, sample, False) for _, sample in _samples(torch_or_skip(), entry))


def _try(outcome: Outcome, entry: Any, name: str, kind: str, sample: Any, check: Callable[[], None]) -> None:
    """Run one sample; `kind` is its dtype, or "error" if PyTorch refuses it."""
    reason = _why_not(entry, name, sample, kind == "error")
    if reason is not None:
        outcome.not_tried[reason] = outcome.not_tried.get(reason, 0) + 1
        return
    try:
        check()
    except Exception as error:
        outcome.failures.append((f"{name} {kind}: {describe(sample)}", f"{type(error).__name__}: {error}"))
    else:
        outcome.passed += 1


def _why_not(entry: Any, name: str, sample: Any, wrong: bool) -> str | None:
    """Why a sample is not tried, or None."""
    for option in sample.kwargs:
        if option in NOT_HERE:
            return f"{option}=: {NOT_HERE[option]}"
    for value in _leaves((sample.input, sample.args, sample.kwargs)):
        if isinstance(value, complex) or (_is_tensor(value) and value.is_complex()):
            return "complex numbers"
        if _is_tensor(value) and str(value.layout) != "torch.strided":
            return "sparse tensors"
        if getattr(value, "ndim", 0) > 64:
            return "NumPy's arrays have at most 64 dimensions"
    if wrong and name.startswith("__") and not _is_tensor(sample.input):
        return "a number has no such method"
    if wrong and _operator(entry) and _takes(entry, sample):
        return "PyTorch refuses it to the function, not to the operator"
    if not wrong and entry.name in ("argsort", "sort", "topk") and not sample.kwargs.get("stable"):
        rows = sample.input.flatten()
        if rows.unique().numel() < rows.numel():
            return "the order of equal elements is open"
    for difference in DIFFERENCES:
        if (not difference.names or entry.name in difference.names) and difference.applies(sample, wrong):
            return f"on purpose: {difference.row}"
    return None


def _takes(entry: Any, sample: Any) -> bool:
    try:
        entry.operator_variant(sample.input, *sample.args, **sample.kwargs)
    except Exception:
        return False
    return True


def _is_torchs(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"


def _is_tensor(value: Any) -> bool:
    return _is_torchs(value) and hasattr(value, "requires_grad")


def _leaves(value: Any) -> Iterator[Any]:
    """Everything in nested tuples, lists and dicts."""
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    else:
        yield value


# ---- one sample ------------------------------------------------------------------------------------------------------


def _check(torch: ModuleType, entry: Any, function: Callable[..., Any], sample: Any) -> None:
    """Values, dtypes, whether a gradient is required, and gradients are PyTorch's."""
    pairs: dict[int, tuple[Any, Tensor]] = {}
    arguments, options = _ours((sample.input, *sample.args), pairs), _ours(sample.kwargs, pairs)
    reference = _in_float64(torch, entry.op) if entry.name == ATTENTION else entry.op
    least = _least_scale(sample) if entry.name == ATTENTION else 1
    wanted = list(_leaves(reference(sample.input, *sample.args, **sample.kwargs)))
    found = list(_leaves(function(*arguments, **options)))
    assert len(found) == len(wanted), f"{len(found)} values, expected {len(wanted)}"
    rng = np.random.default_rng(0)
    ends, weights = [], []
    for ours, theirs in zip(found, wanted, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert type(ours) is type(theirs), f"{ours!r}, expected {theirs!r}"
            assert_close(ours, theirs, 1e-6)
            continue
        assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch."), f"{ours.dtype}, expected {theirs.dtype}"
        assert ours.shape == tuple(theirs.shape), f"shape {ours.shape}, expected {tuple(theirs.shape)}"
        if entry.name in RANDOM or sample.kwargs.get("dropout_p", 0):
            continue
        assert_close(ours, theirs, TOLERANCES.get(ours.dtype, 0), least=least)
        assert ours.requires_grad == theirs.requires_grad, f"requires_grad {ours.requires_grad}"
        if theirs.requires_grad:
            ends.append((ours, theirs))
            weights.append(np.asarray(rng.standard_normal(ours.shape), ours.dtype))
    if ends:
        leaves = [(ours, theirs) for theirs, ours in pairs.values() if ours.requires_grad]
        gradients = mg.grad([end for end, _ in ends], [leaf for leaf, _ in leaves], weights, allow_unused=True)
        expected = torch.autograd.grad(
            [end for _, end in ends],
            [leaf for _, leaf in leaves],
            [to_torch(torch, w) for w in weights],
            allow_unused=True,
        )
        for (leaf, _), ours, theirs in zip(leaves, gradients, expected, strict=True):
            ours = np.zeros(leaf.shape) if ours is None else ours
            theirs = torch.zeros(leaf.shape) if theirs is None else theirs
            assert_close(ours, theirs, TOLERANCES[leaf.dtype], "the gradient", least=least)


def _in_float64(torch: ModuleType, operator: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's operator, which computes in float64 what is given in float32, and whose value is float32 again.

    For attention, whose float32 results are less exact than the tolerance on some samples, PyTorch's as much as ours.
    """

    def computed(x: Any, *args: Any, **options: Any) -> Any:
        def wide(value: Any) -> Any:
            return value.double() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value

        value = operator(wide(x), *map(wide, args), **{name: wide(option) for name, option in options.items()})
        return value.to(x.dtype)

    return computed


def _least_scale(sample: Any) -> float:
    """What errors of attention on this sample are compared with at least: the tolerance is for scores of up to 30.

    float32 knows a score s to s 2⁻²⁴ only, and so a weight, to which it is the exponent.
    """
    query, key = sample.input, sample.args[0]
    longest = [float(x.detach().double().norm(dim=-1).max()) if x.numel() else 0.0 for x in (query, key)]
    return max(1.0, longest[0] * longest[1] / max(1, query.shape[-1]) ** 0.5 / 30)


def _check_error(entry: Any, function: Callable[..., Any], sample: Any) -> None:
    """What PyTorch refuses is refused here, with the same kind of error."""
    arguments, options = _ours((sample.input, *sample.args), {}), _ours(sample.kwargs, {})
    check_kind(lambda: entry.op(sample.input, *sample.args, **sample.kwargs), lambda: function(*arguments, **options))


def _ours(value: Any, pairs: dict[int, tuple[Any, Tensor]]) -> Any:
    """PyTorch's argument as ours; a tensor that stands in two places becomes one Tensor."""
    if isinstance(value, (tuple, list)):
        parts = [_ours(part, pairs) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {name: _ours(part, pairs) for name, part in value.items()}
    if isinstance(value, slice):
        return slice(*[_ours(part, pairs) for part in (value.start, value.stop, value.step)])
    if not _is_torchs(value):
        return value
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    if type(value).__name__ == "device":
        return value.type
    if id(value) not in pairs:
        pairs[id(value)] = value, Tensor(value.detach().numpy(), requires_grad=value.requires_grad)
    return pairs[id(value)][1]


def describe(sample: Any) -> str:
    """A sample in a line: tensors as their shapes."""

    def text(value: Any) -> str:
        if isinstance(value, (tuple, list)):
            inside = ", ".join(map(text, value))
            return f"[{inside}]" if isinstance(value, list) else f"({inside})"
        return f"tensor{tuple(value.shape)}" if hasattr(value, "shape") else repr(value)

    parts = [text(sample.input), *map(text, sample.args)]
    return ", ".join(parts + [f"{name}={text(value)}" for name, value in sample.kwargs.items()])
