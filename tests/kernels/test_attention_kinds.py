"""What holds of attention whatever computes it, run by the emulator: which numbers are read, wherever arrays lie, and
rows to which nothing is visible. What depends on how products are made is in the test module of each source.
"""

import numpy as np
import pytest

from kernels import attention_backward, attention_forward
from tests.kernels.emulator.compiled import needs_compiler
from tests.kernels.reference import Attention, plain_attention
from tests.kernels.support import (
    FULL,
    N_K,
    N_Q,
    B,
    H,
    assert_close,
    assert_same_bits,
    errors,
    every,
    random_bias,
    random_inputs,
    run,
)

pytestmark = needs_compiler

# A dtype, and whether float32 is computed on tensor cores. bfloat16 and float16 share all but roundings.
KINDS = {"float32": ("float32", {}), "on tensor cores": ("float32", {"tensor_cores": True}), "16 bits": ("float16", {})}
each_kind = pytest.mark.parametrize("dtype, kind", KINDS.values(), ids=KINDS)
each_of_float32 = pytest.mark.parametrize("dtype, kind", list(KINDS.values())[:2], ids=list(KINDS)[:2])
NAMES = ("grad_output", "query", "key", "value")

# ---- what is read ----------------------------------------------------------------------------------------------------


@each_kind
def test_hidden_keys_are_not_read(dtype, kind):
    inputs = random_inputs(dtype, (2, 1, 40, 16), keys=90)
    options = {"key_lengths": np.array([33, 64]), **kind}
    results = run(inputs, **options)
    for x in inputs[2:]:
        for entry, length in enumerate(options["key_lengths"]):
            x[entry, :, length:] = np.nan
    assert_same_bits(run(inputs, **options), results)


@each_kind
@pytest.mark.parametrize("width", [16, 3])
def test_what_lies_around_the_arrays_is_not_read(width, dtype, kind):
    inputs = random_inputs(dtype, (1, 2, 40, width), keys=50)
    expected = run(inputs, **kind)
    poisoned = []
    for x in inputs:
        room = np.full((x.shape[0] + 1, x.shape[1] + 1, x.shape[2] + 9, width + 8), np.nan, dtype)
        room[: x.shape[0], : x.shape[1], 4 : 4 + x.shape[2], :width] = x
        poisoned.append(room[: x.shape[0], : x.shape[1], 4 : 4 + x.shape[2], :width])
    assert_same_bits(run(poisoned, **kind), expected)


@each_kind
def test_offsets_past_32_bits(dtype, kind, tmp_path):
    # A file of holes: 3 rows that are 2**30 elements apart, gigabytes of addresses and a few pages of memory.
    whole = np.memmap(tmp_path / "holes", dtype, "w+", shape=(2 * 2**30 + 16,))
    size = whole.itemsize
    far = np.lib.stride_tricks.as_strided(whole, (1, 1, 3, 16), (0, 0, size * 2**30, size))
    inputs = random_inputs(dtype, (1, 1, 3, 16))
    for i in range(4):
        far[...] = inputs[i]
        assert_same_bits(run([*inputs[:i], np.asarray(far), *inputs[i + 1 :]], **kind), run(inputs, **kind))


@pytest.mark.skipif(not FULL, reason="takes long: MINIGRAD_FULL=1 runs it")
@each_kind
def test_more_heads_than_a_grid_is_high(dtype, kind):
    inputs = random_inputs(dtype, (3, 22_000, 2, 4))
    assert_close(inputs, run(inputs, **kind), {})


# ---- where arrays lie ------------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("which", NAMES)
def test_what_is_broadcast(which, axis, dtype, kind):
    """Its axis of stride 0 becomes the innermost where an array is copied in the order that it has in memory."""
    inputs = random_inputs(dtype, (B, H, N_Q, 16), keys=N_K)
    place, bias = NAMES.index(which), random_bias(N_Q, N_K)
    one = inputs[place].take([0], axis)
    inputs[place] = np.broadcast_to(one, inputs[place].shape)
    expected = run([x.copy() for x in inputs], bias=bias, **kind)
    assert_same_bits(run(inputs, bias=bias, **kind), expected)


def at_an_odd_address(x):
    """A copy whose elements lie at no multiples of their size."""
    memory = np.zeros(x.nbytes + 1, np.uint8)[1:]
    memory[...] = np.frombuffer(x.tobytes(), np.uint8)
    return memory.view(x.dtype).reshape(x.shape)


def in_structs(x):
    """The same within structs of an odd size, so that strides are no multiples of the elements'."""
    structs = np.zeros(x.shape, [("x", x.dtype), ("other", np.uint8)])
    structs["x"] = x
    return structs["x"]


@each_kind
@pytest.mark.parametrize("lay", [at_an_odd_address, in_structs])
def test_elements_at_odd_places(lay, dtype, kind):
    inputs, bias = random_inputs(dtype, (B, H, N_Q, 16), keys=N_K), random_bias(N_Q, N_K)
    grad_output, *qkv = inputs
    output, lse = attention_forward(*qkv, bias=bias, **kind)
    expected = attention_backward(*inputs, output, lse, bias=bias, **kind)
    *odd_qkv, odd_bias = map(lay, (*qkv, bias))
    odd_output, odd_lse = attention_forward(*odd_qkv, bias=odd_bias, **kind)
    results = attention_backward(lay(grad_output), *odd_qkv, lay(odd_output), lay(odd_lse), bias=odd_bias, **kind)
    assert_same_bits((odd_output, *results), (output, *expected))


# ---- rows without a visible key, or as if ----------------------------------------------------------------------------


@each_of_float32
def test_rows_to_which_nothing_is_visible(dtype, kind):
    inputs = random_inputs(dtype, (1, 1, 133, 16), keys=33)
    options = {"is_causal": True, "causal_offset": -100}
    output, lse = attention_forward(*inputs[1:], **options, **kind)
    assert (output[0, 0, :100] == 0).all() and (lse[0, 0, :100] == -np.inf).all()
    exact = Attention(*inputs[1:], **options).lse
    np.testing.assert_allclose(lse[0, 0, 100:], exact[0, 0, 100:], atol=1e-6)
    d_query, *_ = attention_backward(inputs[0], *inputs[1:], output, lse, **options, **kind)
    assert (d_query[0, 0, :100] == 0).all()


@each_of_float32
@pytest.mark.parametrize("width", [16, *every([128, 256])])
def test_of_large_scores_float32_is_as_exact_as_plain_attention(width, dtype, kind):
    inputs = random_inputs(dtype, (B, H, N_Q, width), keys=N_K)
    options = {"scale": 8 / np.sqrt(width), "bias": random_bias(N_Q, N_K)}  # up to about 40
    found = errors(inputs, run(inputs, **options, **kind), options)
    plain = errors(inputs, plain_attention(*inputs, **options), options)
    assert all(found[name] <= 2 * plain[name] for name in found), (found, plain)


@each_of_float32
@pytest.mark.parametrize("low", [-1e9, np.finfo(np.float32).min])
def test_rows_of_a_very_low_bias_give_the_mean(low, dtype, kind):
    """Other libraries hide keys so: where all are hidden, the scores drown and all weights are equal."""
    inputs = random_inputs(dtype, (1, 2, 70, 16))
    output, _, _, d_value, _ = run(inputs, bias=np.full((70, 70), low, np.float32), **kind)
    for found, mixed in ((output, inputs[3]), (d_value, inputs[0])):
        mean = np.broadcast_to(mixed.mean(axis=2, keepdims=True, dtype=np.float64), found.shape)
        assert np.linalg.norm(found - mean) <= 1e-6 * np.linalg.norm(mean)


@each_kind
@pytest.mark.parametrize("queries, keys", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_do(queries, keys, dtype, kind):
    query, key = (np.ones((1, 2, n, 16), dtype) for n in (queries, keys))
    output, lse = attention_forward(query, key, key, **kind)
    assert output.dtype == dtype and (output == 0).all() and (lse == -np.inf).all()
    gradients = attention_backward(query, query, key, key, output, lse, **kind)
    for gradient, x in zip(gradients, (query, key, key), strict=False):
        assert gradient.shape == x.shape and (gradient == 0).all()
