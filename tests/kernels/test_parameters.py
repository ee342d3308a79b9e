"""What is done with all parameters at once, run by the emulator: Adam's step against float64 and PyTorch, the norm and
scale of gradients; faults planted in the source are found.
"""

import math
import re
from functools import partial

import numpy as np
import pytest

from kernels import arrays, elements, modules, parameters
from kernels.emulator import EmulatedModule, running
from kernels.parameters import Parameter
from minigrad.backend import DeviceError
from tests.kernels.elements import (
    DTYPES,
    OF_PARAMETERS,
    assert_fault_is_found,
    draw,
    each_dtype,
    in_every_order,
    of_sources,
    tolerance,
)
from tests.kernels.emulator.compiled import compiled, needs_compiler
from tests.kernels.support import FULL, assert_nothing_reported, built_by
from tests.support import as_array, assert_close, torch_or_skip

# ---- Adam ------------------------------------------------------------------------------------------------------------

OPTIONS = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-3}
LENGTHS = [(), (5,), (0,), (1023,), (1024,), (1025,), (3, 1000)]  # around the length of a chunk
ROOM = 1100  # elements behind each array


def made(dtype, seed=0):
    """Parameters whose arrays are followed by elements that nobody may change, and all of these arrays whole."""
    rng, wholes, moved = np.random.default_rng(seed), [], []
    for shape in LENGTHS:
        size = math.prod(shape)
        four = [abs(rng.standard_normal(size + ROOM)).astype(dtype) for _ in Parameter._fields]
        wholes += four
        moved.append(Parameter(*[whole[:size].reshape(shape) for whole in four]))
    return moved, wholes


def exact_adam(moved, step, lr, betas, eps, l2=0.0, decay=0.0):
    p, g, m, v = map(as_array, moved)
    p = p - lr * decay * p
    g = g + l2 * p
    m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
    return p - lr * (m / (1 - betas[0] ** step)) / (np.sqrt(v / (1 - betas[1] ** step)) + eps), m, v


@needs_compiler
@pytest.mark.parametrize("decay", [{}, {"l2": 0.1}, {"decay": 0.1}], ids=str)
@each_dtype
def test_a_step_of_adam(dtype, decay):
    moved, wholes = made(dtype)
    exact = [exact_adam(parameter, 3, **OPTIONS, **decay) for parameter in moved]
    before = [whole[-ROOM:].copy() for whole in wholes]
    gradients = [parameter.gradient.copy() for parameter in moved]
    parameters.adam_step(moved, step=3, **OPTIONS, **decay)
    for parameter, gradient, expected in zip(moved, gradients, exact, strict=True):
        for name, its in zip(("values", "mean", "mean_square"), expected, strict=True):
            assert_close(getattr(parameter, name), its, tolerance(dtype), name)
        np.testing.assert_array_equal(parameter.gradient, gradient)
    for whole, rest in zip(wholes, before, strict=True):
        np.testing.assert_array_equal(whole[-ROOM:], rest)


@needs_compiler
def test_adam_in_every_order_of_threads():
    def moved():
        some, _ = made("float32")
        parameters.adam_step(some, step=1, **OPTIONS, decay=0.1)
        return [parameter.values for parameter in some]

    in_every_order(moved)


@needs_compiler
def test_a_table_is_kept_as_long_as_all_arrays_stay(monkeypatch):
    moved, _ = made("float32")
    parameters._kept.cache_clear()
    for step in range(1, 4):
        parameters.adam_step(moved, step=step, **OPTIONS)
    assert (parameters._kept.cache_info().misses, parameters._kept.cache_info().hits) == (1, 2)
    moved[1] = moved[1]._replace(gradient=moved[1].gradient.copy())
    parameters.adam_step(moved, step=4, **OPTIONS)
    assert parameters._kept.cache_info().misses == 2
    monkeypatch.setattr(parameters, "_stream", lambda library: 7)  # which would not wait until it has been copied
    parameters.adam_step(moved, step=5, **OPTIONS)
    assert parameters._kept.cache_info().misses == 3


@needs_compiler
@pytest.mark.parametrize("kind, decay", [("Adam", "l2"), ("AdamW", "decay")])
def test_steps_of_adam_equal_pytorchs(kind, decay):
    torch = torch_or_skip()
    starts = draw((), 3, (40, 50))
    theirs = [torch.tensor(start, requires_grad=True) for start in starts]
    optimizer = getattr(torch.optim, kind)(theirs, **OPTIONS, weight_decay=0.1)
    ours = [Parameter(start, *[np.zeros_like(start) for _ in range(3)]) for start in starts]
    for step in range(1, 11):
        for parameter, their_parameter in zip(ours, theirs, strict=True):
            parameter.gradient[...] = np.random.default_rng(step).standard_normal(parameter.values.shape)
            their_parameter.grad = torch.tensor(parameter.gradient)
        parameters.adam_step(ours, step=step, **OPTIONS, **{decay: 0.1})
        optimizer.step()
        for parameter, their_parameter in zip(ours, theirs, strict=True):
            assert_close(parameter.values, their_parameter, 1e-6)


# ---- gradients -------------------------------------------------------------------------------------------------------


@needs_compiler
@each_dtype
def test_the_norm_and_the_scale_of_gradients(dtype):
    moved, wholes = made(dtype)
    gradients = [parameter.gradient for parameter in moved]
    exact = [3 * as_array(gradient) for gradient in gradients]
    before = [whole[-ROOM:].copy() for whole in wholes]
    (norm,) = in_every_order(lambda: [parameters.squared_norm(gradients)])
    assert norm.dtype == np.float32 and norm.shape == ()
    assert_close(norm, sum((as_array(g) ** 2).sum() for g in gradients), 1e-6)
    assert parameters.unscale(gradients, 1.5)
    parameters.scale(gradients, np.array(2.0))  # float64, as the norm of some gradients is
    for gradient, expected in zip(gradients, exact, strict=True):
        assert_close(gradient, expected, 2 * tolerance(dtype))
    for whole, rest in zip(wholes, before, strict=True):
        np.testing.assert_array_equal(whole[-ROOM:], rest)


@needs_compiler
@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 1023, 1024, 2999])
def test_a_gradient_that_is_not_finite_is_seen(wrong, place):
    gradients = draw(70, 3000, 1)
    assert parameters.unscale(gradients, 0.5)
    gradients[1][place] = wrong
    assert not parameters.unscale(gradients, 0.5)


@needs_compiler
def test_what_a_scale_makes_infinite_is_seen():
    assert not parameters.unscale([np.full(3, 1e38, np.float32)], 16.0)


# ---- what does not fit -----------------------------------------------------------------------------------------------

MATRIX, ROW = np.zeros((3, 4), np.float32), np.zeros(4, np.float32)
FIXED = np.broadcast_to(np.float32(0), 4).copy()
FIXED.flags.writeable = False
WRONG = [
    (ValueError, r"adam_step: mean must be an array of float32 \(4,\), got float32 \(3,\)",
     lambda: parameters.adam_step([Parameter(ROW, ROW, ROW[:3], ROW)], step=1, **OPTIONS)),
    (ValueError, r"adam_step: values must be an array of float32 \(3, 4\), got float16 \(3, 4\)",
     lambda: parameters.adam_step([Parameter(*[x] * 4) for x in (ROW, MATRIX.astype("e"))], step=1, **OPTIONS)),
    (ValueError, r"adam_step: mean must be an array of float32 \(4,\), got MaskedArray",
     lambda: parameters.adam_step([Parameter(ROW, ROW, np.ma.array(ROW), ROW)], step=1, **OPTIONS)),
    (ValueError, "adam_step: gradient must be an array, got NoneType",
     lambda: parameters.adam_step([Parameter(ROW, None, ROW, ROW)], step=1, **OPTIONS)),
    (ValueError, r"adam_step: values of shape \(4,\) is read-only",
     lambda: parameters.adam_step([Parameter(FIXED, ROW, ROW, ROW)], step=1, **OPTIONS)),
    (ValueError, "adam_step: step must be 1 or more, got 0",
     lambda: parameters.adam_step([Parameter(ROW, ROW, ROW, ROW)], step=0, **OPTIONS)),
    (ValueError, r"squared_norm: gradient of shape \(4, 3\) is not contiguous",
     lambda: parameters.squared_norm([MATRIX.T])),
    (ValueError, "squared_norm: there must be one gradient at least", lambda: parameters.squared_norm([])),
    (ValueError, "squared_norm: gradient must be an array, got float", lambda: parameters.squared_norm([1.0])),
    (TypeError, "unscale: the kernels compute in .*, got float64",
     lambda: parameters.unscale([MATRIX.astype("d")], 1.0)),
    (ValueError, r"unscale: gradient of shape \(4,\) is read-only", lambda: parameters.unscale([FIXED], 1.0)),
    (ValueError, r"scale: gradient of shape \(4,\) is read-only",
     lambda: parameters.scale([FIXED], np.array(2, np.float32))),
    (ValueError, r"scale: factor must be an array of float32 \(\), got float", lambda: parameters.scale([ROW], 2.0)),
    (ValueError, r"scale: factor must be an array of float32 \(\), got float32 \(4,\)",
     lambda: parameters.scale([ROW], ROW)),
]  # fmt: skip


@pytest.mark.parametrize("error, text, call", WRONG)
def test_what_does_not_fit_is_refused(error, text, call):
    with pytest.raises(error, match=text):
        call()


def test_arrays_apart_are_refused(monkeypatch):
    monkeypatch.setattr(arrays, "device_of", lambda array: "cuda:0" if array is ROW else "cpu")
    with pytest.raises(DeviceError, match="squared_norm: gradient is on cuda:0, other arrays of the call are on cpu"):
        parameters.squared_norm([MATRIX, ROW])


def test_more_blocks_than_a_launch_takes(monkeypatch):
    monkeypatch.setattr(parameters, "MOST_BLOCKS", 3)
    with pytest.raises(ValueError, match=r"4 blocks of work, a GPU takes fewer than 2\*\*31 in one launch"):
        parameters.squared_norm([ROW, MATRIX, np.zeros(1025, "f")])


def test_nothing_to_do_needs_no_launch(monkeypatch):
    monkeypatch.setattr(parameters, "launch", lambda *arguments: pytest.fail("launched"))
    nothing = np.zeros((0, 3), np.float32)
    assert not parameters.squared_norm([nothing]) and parameters.unscale([nothing], 2.0)
    parameters.scale([nothing], np.array(2, np.float32))
    parameters.adam_step([Parameter(*[nothing] * 4)], step=1, **OPTIONS)


# ---- faults are found ------------------------------------------------------------------------------------------------


def change_behind_arrays():
    """How much a step and a scale have changed of what nobody may change."""
    moved, wholes = made("float32")
    before = [whole[-ROOM:].copy() for whole in wholes]
    parameters.adam_step(moved, step=1, **OPTIONS)
    parameters.scale([parameter.gradient for parameter in moved], np.array(2, np.float32))
    return np.max([abs(whole[-ROOM:] - rest).max() for whole, rest in zip(wholes, before, strict=True)])


FAULTS = {
    "the tail of a step is not masked": "        if (i >= p.length) return;\n",
    "the tail of gradients is not masked": "        if (i < p.length) ",
}


@needs_compiler
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault):
    assert_fault_is_found(OF_PARAMETERS, FAULTS[fault], change_behind_arrays)


def sanitized_run(sanitize, dtype):
    """All kernels under a sanitizer, in a process that was started for it; sizes that fill no chunk."""
    with of_sources(OF_PARAMETERS), built_by(partial(EmulatedModule, sanitize=sanitize)), running("random", seed=1):
        some = [Parameter(*draw(*[size] * 4, dtype=dtype)) for size in (1, 1025)]
        parameters.adam_step(some, step=1, **OPTIONS)
        gradients = [parameter.gradient for parameter in some]
        parameters.scale(gradients, np.asarray(parameters.squared_norm(gradients)))
        parameters.unscale(gradients, 0.5)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES if FULL else ["float32"])
@pytest.mark.parametrize("sanitize", ["address", "thread"])
def test_sanitizers_report_nothing(sanitize, dtype):
    assert_nothing_reported(sanitize, f"{__name__}:sanitized_run", sanitize, dtype)


# ---- the structs -----------------------------------------------------------------------------------------------------

OFFSETS = """
extern "C" __global__ void measure(int* found) {
    int i = 0;
    Parameter* parameter = 0;
    Step* step = 0;
    found[i++] = (int)sizeof(Parameter), found[i++] = (int)sizeof(Step);
#define PLACE(field) found[i++] = (int)(long long)&field;
    PLACES
    found[i++] = THREADS, found[i++] = WARP, found[i++] = CHUNK;
}
"""


@needs_compiler
def test_the_structs_and_sizes_are_the_same_in_python():
    row, step = parameters.ROW, parameters.STEP
    structs = re.findall(r"^struct \w+ {.*?^};", modules.source_text(["parameters.cu"]), re.MULTILINE | re.DOTALL)
    fields = [f"parameter->{name}" for name in row.names] + [f"step->{name}" for name in step.names]
    places = " ".join(f"PLACE({field})" for field in fields)
    code = "\n".join([modules.source_text(["elements.cuh"]), *structs, OFFSETS.replace("PLACES", places)])
    found = np.zeros(2 + len(fields) + 3, np.int32)
    compiled(code).get_function("measure")((1,), (1,), (found,))
    expected = [dtype.fields[name][1] for dtype in (row, step) for name in dtype.names]
    assert found.tolist() == [row.itemsize, step.itemsize, *expected, elements.THREADS, elements.WARP, elements.CHUNK]
