"""Attention of float32, run by the emulator: every option against float64, whatever the order of threads; faults
planted in the source are found.

MINIGRAD_FULL=1 tries every shape with every head dimension, and more of them under the sanitizers.
"""

import itertools
from functools import partial

import numpy as np
import pytest

from kernels import attention_backward, attention_forward, call, devices, modules
from kernels.call import ATTENTION
from kernels.dropout import philox4x32
from kernels.emulator import EmulatedModule, EmulatorError, running
from tests.kernels import faults, support
from tests.kernels.emulator.compiled import compiled, needs_compiler
from tests.kernels.support import (
    DROPOUT,
    FULL,
    N_K,
    N_Q,
    OPTIONS,
    SHAPES,
    B,
    H,
    assert_close,
    assert_nothing_reported,
    assert_same_bits,
    built_by,
    every,
    is_as_exact_as_plain,
    options_of,
    random_bias,
    random_mask,
    run,
)

random_inputs = partial(support.random_inputs, np.float32)
TOLERANCE = 1e-6
ORDERS = [("fifo", 0), ("lifo", 0), ("random", 1)]


# ---- lengths, causal masks, head dimensions --------------------------------------------------------------------------

WIDTHS = (1, 3, 16, 20, 32, 33, 64, 80, 128, 200, 256)
MATRIX = [(16, shape) for shape in SHAPES] + [(3, "odd lengths"), (20, "odd lengths"), (33, "causal")]
MATRIX += [(64, "odd lengths"), (64, "causal"), (80, "more keys"), (128, "causal"), (200, "odd lengths")]
MATRIX += every(case for case in itertools.product(WIDTHS, SHAPES) if case not in MATRIX)


@needs_compiler
@pytest.mark.parametrize("width, shape", MATRIX)
def test_as_exact_as_float32_can_be_in_any_order_of_threads(width, shape):
    sizes, keys, options = SHAPES[shape]
    inputs = random_inputs((*sizes, width), keys=keys)
    results = run(inputs, **options)
    assert all(x.dtype == np.float32 for x in results[:4])
    assert_close(inputs, results, options)
    for order, seed in ORDERS if FULL or width <= 64 else ORDERS[-1:]:
        with running(order, seed):
            assert_same_bits(run(inputs, **options), results)


@needs_compiler
def test_one_key():
    inputs = random_inputs((2, 1, 70, 16), keys=1)
    output, d_query, d_key, d_value, _ = run(inputs)
    np.testing.assert_array_equal(output, np.broadcast_to(inputs[3], output.shape))
    np.testing.assert_allclose(d_value, inputs[0].sum(axis=2, keepdims=True, dtype=np.float64), rtol=1e-5)
    size = np.linalg.norm(inputs[0]) * np.linalg.norm(inputs[3])  # of the terms that cancel: the weight is always 1
    assert max(np.linalg.norm(d_query), np.linalg.norm(d_key)) <= TOLERANCE * size


@needs_compiler
def test_long_sums_stay_exact():
    inputs = random_inputs((1, 1, 5, 16), keys=6000)
    assert_close(inputs, run(inputs), {})
    inputs = random_inputs((1, 1, 6000, 16), keys=5)
    assert_close(inputs, run(inputs), {})


@needs_compiler
@pytest.mark.parametrize("group", [1, 2, 6])
def test_grouped_heads(group):
    inputs = random_inputs((2, 6, 70, 16), key_heads=6 // group, keys=90)
    options = {"is_causal": True, "causal_offset": 10}
    assert_close(inputs, run(inputs, **options), options)


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 2, 0, 16), (0, 2, 5, 16)])
def test_no_queries(shape):
    inputs = random_inputs(shape, keys=5)
    results = run(inputs)
    assert [x.shape for x in results[:4]] == [x.shape for x in (inputs[1], *inputs[1:])]
    assert all((x == 0).all() for x in results[:4])


@needs_compiler
def test_no_keys():
    inputs = random_inputs((1, 2, 5, 16), keys=0)
    bias = np.zeros((5, 0), np.float32)
    output, lse = attention_forward(*inputs[1:], bias=bias)
    assert (output == 0).all() and (lse == -np.inf).all()
    gradients = attention_backward(*inputs, output, lse, bias=bias)
    assert [x.shape for x in gradients] == [x.shape for x in (*inputs[1:], bias)]
    assert (gradients[0] == 0).all()


# ---- options ---------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("width", [16, *every(width for width in WIDTHS if width != 16)])
@pytest.mark.parametrize("options", OPTIONS)
def test_options(options, width):
    options = options_of(options, width)
    inputs = random_inputs((B, H, N_Q, width), keys=N_K)
    results = run(inputs, **options)
    assert_close(inputs, results, options)
    with running("random", seed=3):
        assert_same_bits(run(inputs, **options), results)


@needs_compiler
def test_a_bias_may_be_broadcast_or_transposed_in_memory():
    inputs = random_inputs((B, H, N_Q, 16), keys=N_K)
    for bias in (
        random_bias(N_K, N_Q).T,
        np.broadcast_to(random_bias(N_K), (B, H, N_Q, N_K)),
        random_bias(N_Q, N_K)[:, ::-1],
    ):
        results = run(inputs, bias=bias)
        assert_close(inputs, results, {"bias": bias})
        assert_same_bits(results, run(inputs, bias=bias.copy()))


@needs_compiler
def test_the_gradient_of_a_bias_only_if_wanted_and_in_its_dtype():
    grad_output, *qkv = random_inputs((1, 1, 20, 16))
    for bias in (random_bias(20, 20).astype(np.float64), random_bias(20, 20), random_mask(20, 20)):
        output, lse = attention_forward(*qkv, bias=bias)
        *_, d_bias = attention_backward(grad_output, *qkv, output, lse, bias=bias)
        assert d_bias is None if bias.dtype == np.bool_ else d_bias.dtype == bias.dtype
        assert attention_backward(grad_output, *qkv, output, lse, bias=bias, bias_gradient=False)[3] is None


@needs_compiler
def test_nan_and_infinity_stay_in_their_rows():
    inputs = random_inputs((1, 1, 70, 16))
    inputs[1][0, 0, 5], inputs[1][0, 0, 6, 0] = np.nan, np.inf
    for options in ({}, DROPOUT):
        output, lse = attention_forward(*inputs[1:], **options)
        wrong = np.isin(np.arange(70), [5, 6])
        assert np.isnan(output[0, 0, wrong]).all() and np.isfinite(output[0, 0, ~wrong]).all()
        assert np.isnan(lse[0, 0, wrong]).all() and np.isfinite(lse[0, 0, ~wrong]).all()


# ---- dropout's random numbers ----------------------------------------------------------------------------------------

# Counters, keys and numbers: kat_vectors of Random123, the library of Salmon et al. 2011.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
ONE_DRAW = """
extern "C" __global__ void draw(unsigned* counter, unsigned key0, unsigned key1) {
    unsigned c[4] = {counter[0], counter[1], counter[2], counter[3]};
    philox(c, key0, key1);
    for (int i = 0; i < 4; ++i) counter[i] = c[i];
}
"""


@pytest.mark.parametrize("counter, key, expected", KNOWN)
def test_known_numbers_are_drawn_in_numpy(counter, key, expected):
    assert tuple(int(number) for number in philox4x32(counter, key)) == expected


@needs_compiler
@pytest.mark.parametrize("counter, key, expected", KNOWN)
def test_the_kernels_draw_known_numbers(counter, key, expected):
    draw = compiled(modules.source_text(["philox.cuh"]) + ONE_DRAW).get_function("draw")
    numbers = np.array(counter, np.uint32)
    draw((1,), (1,), (numbers, *map(np.uint32, key)))
    assert tuple(numbers.tolist()) == expected


@needs_compiler
def test_dropout_keeps_its_share_and_depends_on_each_part_of_its_key():
    query = np.zeros((2, 4, 128, 1), np.float32)  # equal weights of 1 / N: outputs are the share that is kept
    value = np.ones((2, 4, 128, 1), np.float32)

    def kept(*key):
        return attention_forward(query, query, value, dropout_p=0.2, dropout_key=key)[0]

    first = kept(1, 2, 3)
    assert abs(first.mean() - 1) < 5 * np.sqrt(0.2 / 0.8 / (8 * 128 * 128))
    assert len(np.unique(first[:, :, :, 0].reshape(8, -1), axis=0)) == 8  # no two heads alike
    np.testing.assert_array_equal(first, kept(1, 2, 3))
    for other in ((2**64 - 1, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert (kept(*other) != first).mean() > 0.5


# ---- where arrays lie ------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("width", [16, 3])
def test_views_of_one_projection_are_read_and_written_without_a_copy(width, monkeypatch):
    whole = np.random.default_rng(4).standard_normal((2, 50, 3, 2, width), dtype=np.float32)  # (B, N, 3, H, d)
    views = [whole[:, :, i].swapaxes(1, 2) for i in range(3)]  # (B, H, N, d)
    copies = [np.ascontiguousarray(x) for x in (views[0], *views)]
    monkeypatch.setattr(call, "copied", lambda x: pytest.fail(f"copied {x.shape}"))
    results = run([views[0], *views])
    for x in results[:4]:
        assert x.swapaxes(1, 2).reshape(2, 50, 2 * width).base is not None  # heads are joined without a copy
    assert_same_bits(results, run(copies))


@needs_compiler
def test_other_strides():
    inputs = random_inputs((2, 2, 40, 16))
    expected = run(inputs)
    turned = [x[:, :, ::-1].copy()[:, :, ::-1] for x in inputs]
    columns = [x.copy(order="F") for x in inputs]
    for strange in (turned, columns):
        assert_same_bits(run(strange), expected)
    one = [np.broadcast_to(x[:1, :1], x.shape) for x in inputs]
    assert_same_bits(run(one), run([x.copy() for x in one]))


@needs_compiler
@pytest.mark.parametrize("width", [128, 256])
def test_tiles_for_little_shared_memory(width, monkeypatch):
    monkeypatch.setattr(devices, "EMULATED_SHARED_MEMORY", 99 << 10)
    inputs = random_inputs((1, 1, 70, width), keys=101)
    assert_close(inputs, run(inputs), {})


# ---- faults are found ------------------------------------------------------------------------------------------------


def _without(line):
    return (f"__sync{line}\n", "\n")


FORWARD_FAULTS = {
    "no barrier before tiles are used": _without("threads();  // the tiles are there"),
    "no barrier after tiles were used": _without("threads();  // the last tiles have been used"),
    "P is read before the warp wrote it": _without("warp();  // a row of P is written and read by one warp"),
    "keys past the last one are seen": ("return key < h.keys && key <=", "return key <="),
    "a tile of keys too few": ("end_query + a.causal_offset)", "end_query + a.causal_offset - STREAM)"),
    "the sum does not shrink": ("total[i] = total[i] * shrink + sum", "total[i] = total[i] + sum"),
}
BACKWARD_FAULTS = {
    "dq: no barrier before tiles are used": _without("threads();  // K and V are there"),
    "dq: no barrier after tiles were used": _without("threads();  // K and V have been used"),
    "dq: dS is read before the warp wrote it": _without("warp();  // a row of dS is written and read by one warp"),
    "dq: the share of another row": ("share[rows + query] = inverse", "share[rows + (query ^ 1)] = inverse"),
    "dkdv: no barrier before tiles are used": _without("threads();  // Q and dO are there"),
    "dkdv: no barrier after tiles were used": _without("threads();  // Q and dO have been used"),
    "dkdv: P is read before the warp wrote it": _without("warp();  // P is there"),
    "dkdv: dS is written before P has been used": _without("warp();  // P has been used"),
    "dkdv: dS is read before the warp wrote it": _without("warp();  // dS is there"),
}
BIAS_FAULTS = {
    "no barrier before tiles are used": _without("threads();  // the four tiles are there"),
    "no barrier after tiles were used": _without("threads();  // the last four tiles have been used"),
    "sums are written over tiles": _without("threads();  // no tile is used any more"),
    "sums are read before they are there": _without("threads();  // the sums are there"),
}


def _shows(fault, direction, inputs, options):
    return faults.shows(fault, direction(inputs, options), partial(is_as_exact_as_plain, inputs, options))


@needs_compiler
@pytest.mark.parametrize("fault", FORWARD_FAULTS)
def test_a_fault_in_forward_is_found(fault):
    inputs = random_inputs((1, 1, 150, 16), keys=203)
    assert _shows(FORWARD_FAULTS[fault], faults.forward, inputs, {"is_causal": True, "causal_offset": 60})


@needs_compiler
@pytest.mark.parametrize("fault", BACKWARD_FAULTS)
def test_a_fault_in_backward_is_found(fault):
    inputs = random_inputs((1, 1, 204, 16), keys=150)
    options = {"is_causal": True, "causal_offset": -5}
    if "share" in fault:  # which is nearly 1, but where the sum of weights drowns in a bias, as scores would
        inputs[1][:, :, 1::2] = 0
        options["bias"] = np.where(np.arange(204)[:, None] % 2 > 0, np.float32(-1e9), random_bias(204, 150))
    assert _shows(BACKWARD_FAULTS[fault], faults.backward, inputs, options)


@needs_compiler
@pytest.mark.parametrize("fault", BIAS_FAULTS)
def test_a_fault_in_the_gradient_of_a_bias_is_found(fault):
    inputs = random_inputs((2, 1, 150, 16), keys=70)
    assert _shows(BIAS_FAULTS[fault], faults.backward, inputs, {"bias": random_bias(70)})


@needs_compiler
def test_shared_memory_that_is_one_row_short_is_found():
    inputs = random_inputs((1, 1, 150, 16))

    def short(code, flags):
        return _Short(EmulatedModule(code, flags))

    with built_by(short), pytest.raises(EmulatorError, match="shared memory"):
        attention_forward(*inputs[1:])


class _Short:
    """A module whose kernels get 80 bytes less shared memory than they are launched with."""

    def __init__(self, module):
        self.module = module

    def get_function(self, name):
        kernel = self.module.get_function(name)

        def launched(grid, block, arguments, shared_mem):
            return kernel(grid, block, arguments, shared_mem=shared_mem - 80)

        return launched


def sanitized_run(sanitize, width, options):
    """A call, forward and backward, under a sanitizer, in a process that was started for it."""
    inputs = random_inputs((B, H, N_Q, width), 1, N_K)
    options = options_of(options, width)
    with built_by(partial(EmulatedModule, sanitize=sanitize)), running("random", seed=1):
        assert_close(inputs, run(inputs, **options), options)


SANITIZED = list(
    itertools.product((16, 33, 80, 256), ["everything", "key lengths", "a mask of keys, causal", "a bias of keys"])
)


@needs_compiler
@pytest.mark.parametrize("sanitize", ["address", "thread"])
@pytest.mark.parametrize("width, options", SANITIZED if FULL else SANITIZED[:1])
def test_sanitizers_report_nothing(width, options, sanitize):
    assert_nothing_reported(sanitize, f"{__name__}:sanitized_run", sanitize, width, options)


# ---- the struct ------------------------------------------------------------------------------------------------------

OFFSETS = """
extern "C" __global__ void measure(int* found) {
    Attention* a = 0;
    int i = 0;
    found[i++] = (int)sizeof(Attention);
#define PLACE(field) found[i++] = (int)(long long)&a->field;
    FIELDS
}
"""


@needs_compiler
def test_the_struct_is_the_same_in_python():
    fields = " ".join(f"PLACE({name})" for name in ATTENTION.names)
    code = modules.source_text(["philox.cuh", "attention.cuh"]) + OFFSETS.replace("FIELDS", fields)
    found = np.zeros(1 + len(ATTENTION.names), np.int32)
    compiled(code).get_function("measure")((1,), (1,), (found,))
    assert found.tolist() == [ATTENTION.itemsize, *(ATTENTION.fields[name][1] for name in ATTENTION.names)]
