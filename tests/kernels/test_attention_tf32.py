"""Attention of float32 on tensor cores, run by the emulator: every option against float64, whatever the order of
threads and copies; faults planted in the source are found.

MINIGRAD_FULL=1 tries every head dimension, shape, option and fault, and more of them under the sanitizers.
"""

from functools import partial
from itertools import product

import numpy as np
import pytest

from kernels import attention_forward, call, devices, launch, modules, tiles
from kernels.emulator import EmulatedModule, EmulatorError, running
from kernels.tiles import ON_TENSOR_CORES
from tests.kernels import faults, support
from tests.kernels.emulator.compiled import WAYS, compiled, needs_compiler
from tests.kernels.support import (
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
    errors,
    every,
    is_as_exact_as_plain,
    options_of,
)

TENSOR_CORES = {"tensor_cores": True}
run = partial(support.run, **TENSOR_CORES)
forward = partial(attention_forward, **TENSOR_CORES)
random_inputs = partial(support.random_inputs, np.float32)
TOLERANCE = 1e-6


# ---- lengths, causal masks, head dimensions --------------------------------------------------------------------------

WIDTHS = (1, 3, 13, 16, 20, 32, 33, 64, 80, 128, 200, 256)
MATRIX = [(16, shape) for shape in SHAPES] + [(3, "odd lengths"), (13, "causal")]
MATRIX += every(case for case in product(WIDTHS, SHAPES) if case not in MATRIX)


@needs_compiler
@pytest.mark.parametrize("width, shape", MATRIX)
def test_as_exact_as_float32_can_be_in_any_order_of_threads(width, shape):
    sizes, keys, options = SHAPES[shape]
    inputs = random_inputs((*sizes, width), keys=keys)
    results = run(inputs, **options)
    assert all(x.dtype == np.float32 for x in results[:4])
    assert_close(inputs, results, options)
    for order, seed, copies in WAYS if FULL or width <= 16 else WAYS[-1:]:
        with running(order, seed, copies):
            assert_same_bits(run(inputs, **options), results, f"with threads {order}, copies {copies}")


@needs_compiler
@pytest.mark.parametrize("width", every(range(1, 257)) or [77])
def test_every_head_dimension(width):
    inputs = random_inputs((1, 1, 21, width), keys=35)
    assert_close(inputs, run(inputs), {})


@needs_compiler
def test_long_sums_stay_exact():
    """Tensor cores cut off what does not fit into a sum: errors of one sign, worst where terms have one sign too."""
    for name, queries, keys in (("output", 5, 6000), ("d_value", 6000, 5)):
        inputs = random_inputs((1, 1, queries, 16), keys=keys)
        assert_close(inputs, run(inputs), {})
        inputs = [np.abs(inputs[0]), *inputs[1:3], np.abs(inputs[3])]
        assert errors(inputs, run(inputs), {})[name] <= TOLERANCE


# ---- options ---------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("key_heads", [1, *every([2])])
@pytest.mark.parametrize("width", [16, *every([3, 32, 64, 80, 128, 256])])
@pytest.mark.parametrize("options", OPTIONS if FULL else ["everything", "a negative scale", "key lengths"])
def test_options(options, width, key_heads):
    options = options_of(options, width)
    inputs = random_inputs((B, H, N_Q, width), key_heads, N_K)
    results = run(inputs, **options)
    assert_close(inputs, results, options)
    with running("random", seed=3, copies="early"):
        assert_same_bits(run(inputs, **options), results)


@needs_compiler
def test_nan_and_infinity_stay_in_their_rows():
    inputs = random_inputs((1, 1, 70, 16))
    inputs[1][0, 0, 5], inputs[1][0, 0, 6, 0] = np.nan, np.inf
    for row, bits in ((7, 0x7F800001), (8, 0xFFFFFFFF)):  # NaN that are none once their last bits are rounded
        inputs[1][0, 0, row] = np.array(bits, np.uint32).view(np.float32)
    output, lse = forward(*inputs[1:])
    wrong = np.isin(np.arange(70), [5, 6, 7, 8])
    assert np.isnan(output[0, 0, wrong]).all() and np.isfinite(output[0, 0, ~wrong]).all()
    assert np.isnan(lse[0, 0, wrong]).all() and np.isfinite(lse[0, 0, ~wrong]).all()


@needs_compiler
def test_numbers_of_every_size():
    """The smaller half of a number is 2**-12 of it: its products must not vanish before those of the larger half do."""
    for size in (1e-15, 1e15):
        inputs = random_inputs((1, 1, 40, 16))
        inputs[1] /= np.float32(size)
        inputs[2] *= np.float32(size)
        inputs[3] *= np.float32(size)
        assert_close(inputs, run(inputs), {})


@needs_compiler
def test_16_bits_are_multiplied_on_tensor_cores_in_any_case():
    inputs = support.random_inputs(np.float16, (1, 1, 40, 16))
    assert_same_bits(run(inputs), support.run(inputs))


def test_other_dtypes_are_refused():
    x = np.zeros((1, 1, 4, 8))
    with pytest.raises(TypeError, match="compute in float32, float16, bfloat16, got float64"):
        forward(x, x, x)


# ---- where arrays lie ------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("width", [16, 12, 3])
def test_views_of_one_projection(width, monkeypatch):
    whole = np.random.default_rng(4).standard_normal((2, 50, 3, 2, width), dtype=np.float32)  # (B, N, 3, H, d)
    views = [whole[:, :, i].swapaxes(1, 2) for i in range(3)]  # (B, H, N, d)
    expected = run([np.ascontiguousarray(x) for x in (views[0], *views)])
    if width % 4 == 0:  # rows begin at multiples of 16 bytes
        monkeypatch.setattr(call, "copied", lambda x: pytest.fail(f"copied {x.shape}"))
    assert_same_bits(run([views[0], *views]), expected)


@needs_compiler
@pytest.mark.skipif(not FULL, reason="takes long: MINIGRAD_FULL=1 runs it")
@pytest.mark.parametrize("kibibytes", [163, 99])
@pytest.mark.parametrize("width", [128, 256])
def test_tiles_for_little_shared_memory(width, kibibytes, monkeypatch):
    monkeypatch.setattr(devices, "EMULATED_SHARED_MEMORY", kibibytes << 10)
    inputs = random_inputs((1, 1, 70, width), keys=101)
    assert_close(inputs, run(inputs), {})


def test_no_tiles_for_too_little_shared_memory():
    with pytest.raises(
        ValueError, match=r"head dimension 200 in float32 on tensor cores needs 100224 bytes .* this device has 65536"
    ):
        tiles.choose_tiles(ON_TENSOR_CORES, 200, backward=True, plain=True, shared_limit=64 << 10)


# ---- faults are found ------------------------------------------------------------------------------------------------

FAULTS = faults.FAULTS | {
    "operand in another order": ("p[half][0], p[half][2], p[half][1]", "p[half][0], p[half][1], p[half][2]"),
    "rows of a sum in another order": ("return 2 * (lane() % 4) * TILE_ROW", "return (lane() % 4) * TILE_ROW"),
    "a product of three is left out": ("a.small[half], b.big[half][0]", "a.small[half], b.small[half][0]"),
    "a chunk of outputs too few": ("8 * n >= width) break", "8 * n >= width - 8) break"),
}
FAULTY_WIDTH = 36  # of smaller ones, all chunks of outputs come together


def _shows(fault, direction, inputs, options):
    is_close = partial(is_as_exact_as_plain, inputs, options)
    return faults.shows(fault, direction(inputs, options | TENSOR_CORES), is_close)


@needs_compiler
@pytest.mark.parametrize("fault", FAULTS | faults.FORWARD)
def test_a_fault_in_forward_is_found(fault):
    inputs = random_inputs((1, 1, 300, FAULTY_WIDTH), keys=203)
    options = {"is_causal": True, "causal_offset": 60}
    assert _shows((FAULTS | faults.FORWARD)[fault], faults.forward, inputs, options)


@needs_compiler
@pytest.mark.parametrize("fault", [*every(FAULTS), *faults.BACKWARD])
def test_a_fault_in_backward_is_found(fault):
    inputs = random_inputs((1, 1, 203, FAULTY_WIDTH), keys=150)
    options = {"is_causal": True, "causal_offset": -5}
    assert _shows((FAULTS | faults.BACKWARD)[fault], faults.backward, inputs, options)


@needs_compiler
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("width", [16, *every([32, 64, 128, 256])])
def test_shared_memory_that_is_one_row_short_is_found(width, backward):
    inputs = random_inputs((1, 1, 300, width))
    size = 4 * (width + 4)
    with faults.short_of_shared_memory(size, backward=backward), pytest.raises(EmulatorError, match="shared memory"):
        run(inputs)


@needs_compiler
@pytest.mark.parametrize("width", [16, *every([32, 64, 128, 256])])
def test_no_bank_conflicts(width):
    assert faults.bank_conflicts(random_inputs((1, 1, 150, width)), **TENSOR_CORES) == 0


@needs_compiler
@pytest.mark.skipif(not FULL, reason="takes long: MINIGRAD_FULL=1 runs it")
def test_bank_conflicts_are_counted():
    def without_padding(code):
        assert code.count("(HEAD_DIM + 4)") == 1
        return code.replace("(HEAD_DIM + 4)", "HEAD_DIM")

    assert faults.bank_conflicts(random_inputs((1, 1, 150, 64)), without_padding, **TENSOR_CORES) > 1000


PLACES = """
extern "C" __global__ void places(int* place) { place[threadIdx.x] = place_of_rows(); }
"""


@needs_compiler
@pytest.mark.parametrize("width", [16, *every([32, 64, 128, 256])])
def test_no_bank_conflicts_where_rows_are_summed_over(width):
    """What is not read by ldmatrix: one number a lane, of which 32 at once must lie in the 32 banks."""
    row = tiles.choose_tiles(ON_TENSOR_CORES, width, backward=False, plain=True, shared_limit=227 << 10)
    code = modules.source_text(launch.SOURCES[ON_TENSOR_CORES]) + PLACES
    found = np.zeros(32, np.int32)
    compiled(code, *row.options).get_function("places")((1,), (32,), (found,))
    assert len(set(found % 32)) == 32


def sanitized_run(sanitize, width, options):
    """A call, forward and backward, under a sanitizer, in a process that was started for it."""
    inputs = random_inputs((B, H, N_Q, width), 1, N_K)
    options = options_of(options, width)
    with built_by(partial(EmulatedModule, sanitize=sanitize)), running("random", seed=1, copies="early"):
        assert_close(inputs, run(inputs, **options), options)


SANITIZED = list(product((16, 33, 64, 128, 256), ("everything", "key lengths", "a mask of keys, causal", "dropout")))


@needs_compiler
@pytest.mark.parametrize("sanitize", ["address", "thread"])
@pytest.mark.parametrize("width, options", SANITIZED if FULL else SANITIZED[:1])
def test_sanitizers_report_nothing(width, options, sanitize):
    assert_nothing_reported(sanitize, f"{__name__}:sanitized_run", sanitize, width, options)
