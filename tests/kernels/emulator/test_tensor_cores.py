"""The functions of kernels/ptx.cuh on a CPU: fragments, products on tensor cores, asynchronous copies."""

import numpy as np
import pytest

from kernels.emulator import EmulatedModule, EmulatorError, running
from tests.kernels.emulator.compiled import WAYS, compiled, needs_compiler

pytestmark = needs_compiler

CODE = r"""
// c (16, 8) += a (16, 16) @ b (16, 8), each element where the PTX manual's figures of mma.m16n8k16 have it.
template <bool BF16> void product(const unsigned short* a, const unsigned short* b, float* c) {
    int g = threadIdx.x / 4, t = 2 * (threadIdx.x % 4);
    unsigned left[4], right[2];
    for (int r = 0; r < 4; ++r) left[r] = *(const unsigned*)(a + (g + 8 * (r % 2)) * 16 + t + 8 * (r / 2));
    for (int r = 0; r < 2; ++r) right[r] = b[(t + 8 * r) * 8 + g] | (unsigned)b[(t + 8 * r + 1) * 8 + g] << 16;
    float sum[4];
    for (int e = 0; e < 4; ++e) sum[e] = c[(g + 8 * (e / 2)) * 8 + t + e % 2];
    mma_16x8x16<BF16>(sum, left, right[0], right[1]);
    for (int e = 0; e < 4; ++e) c[(g + 8 * (e / 2)) * 8 + t + e % 2] = sum[e];
}
typedef const unsigned short* Numbers;
extern "C" __global__ void product_f16(Numbers a, Numbers b, float* c) { product<false>(a, b, c); }
extern "C" __global__ void product_bf16(Numbers a, Numbers b, float* c) { product<true>(a, b, c); }

// c (16, 8) += a (16, 8) @ b (8, 8): mma.m16n8k8 of TF32.
extern "C" __global__ void product_tf32(const float* a, const float* b, float* c) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4;
    unsigned left[4];
    for (int r = 0; r < 4; ++r) left[r] = __float_as_uint(a[(g + 8 * (r % 2)) * 8 + t + 4 * (r / 2)]);
    float sum[4];
    for (int e = 0; e < 4; ++e) sum[e] = c[(g + 8 * (e / 2)) * 8 + 2 * t + e % 2];
    mma_16x8x8_tf32(sum, left, __float_as_uint(b[t * 8 + g]), __float_as_uint(b[(t + 4) * 8 + g]));
    for (int e = 0; e < 4; ++e) c[(g + 8 * (e / 2)) * 8 + 2 * t + e % 2] = sum[e];
}

// A 16 x 16 tile through shared memory, whose rows are `stride` numbers apart, into the registers of a left operand.
extern "C" __global__ void fragments(const unsigned short* x, unsigned* plain, unsigned* transposed, int stride) {
    extern __shared__ unsigned short tile[];
    for (int i = threadIdx.x; i < 256; i += 32) tile[i / 16 * stride + i % 16] = x[i];
    __syncwarp();
    const unsigned short* row = tile + threadIdx.x % 16 * stride + threadIdx.x / 16 * 8;
    unsigned a[4], b[4];
    ldmatrix_x4(a, row);
    ldmatrix_x4_trans(b, row);
    for (int r = 0; r < 4; ++r) { plain[threadIdx.x * 4 + r] = a[r]; transposed[threadIdx.x * 4 + r] = b[r]; }
}
extern "C" __global__ void odd_row(unsigned* out) {
    __shared__ unsigned short tile[512];
    unsigned a[4];
    ldmatrix_x4(a, tile + threadIdx.x);
}

extern "C" __global__ void pairs(const float* x, unsigned* f16, unsigned* bf16, float* back) {
    int i = threadIdx.x;
    f16[i] = pack16<false>(x[2 * i], x[2 * i + 1]);
    bf16[i] = pack16<true>(x[2 * i], x[2 * i + 1]);
    back[2 * i] = from16<false>((unsigned short)f16[i]);
    back[2 * i + 1] = from16<true>((unsigned short)(bf16[i] >> 16));
}

// Two tiles in flight; the first is used once it has arrived. WAIT: how many groups may still be on their way.
extern "C" __global__ void copies(const float* x, float* y, int valid) {
    __shared__ __align__(16) float tile[2][4 * 32];
    for (int i = 0; i < 2; ++i) {
        cp_async_16(&tile[i][4 * threadIdx.x], x + 128 * i + 4 * threadIdx.x, valid);
        cp_async_commit();
    }
    cp_async_wait<WAIT>();
    __syncthreads();
    for (int e = 0; e < 4; ++e) y[4 * threadIdx.x + e] = tile[0][127 - 4 * threadIdx.x - e];
    cp_async_wait<0>();
    __syncthreads();
    for (int e = 0; e < 4; ++e) y[128 + 4 * threadIdx.x + e] = tile[1][127 - 4 * threadIdx.x - e];
}

// A buffer that is filled again while others still read it, unless there is a barrier before.
extern "C" __global__ void filled_again(const float* x, float* y) {
    __shared__ __align__(16) float tile[4 * 32];
    for (int step = 0; step < 2; ++step) {
        cp_async_16(&tile[4 * threadIdx.x], x + 128 * step + 4 * threadIdx.x);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        for (int e = 0; e < 4; ++e) y[128 * step + 4 * threadIdx.x + e] = tile[127 - 4 * threadIdx.x - e];
        BARRIER;
    }
}
extern "C" __global__ void odd_copy(const float* x) {
    __shared__ __align__(16) float tile[8];
    cp_async_16(tile, x + 1);
}
"""
GOOD = ("-DWAIT=1", "-DBARRIER=__syncthreads()")
WEAK_WAIT = ("-DWAIT=2", "-DBARRIER=__syncthreads()")
NO_BARRIER = ("-DWAIT=1", "-DBARRIER")


def launch(name, *args, block=32, options=GOOD, shared_mem=0):
    compiled(CODE, *options).get_function(name)((1,), (block,), args, shared_mem=shared_mem)


def draw(*shape):
    return np.random.default_rng(3).standard_normal(shape, np.float32)


# ---- products --------------------------------------------------------------------------------------------------------


def test_a_product_of_float16():
    a, b, c = draw(16, 16).astype(np.float16), draw(16, 8).astype(np.float16), draw(16, 8)
    expected = c + a.astype(np.float64) @ b.astype(np.float64)
    launch("product_f16", a, b, c)
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5)


def test_a_product_of_bfloat16():
    a, b, c = (draw(16, 16).view(np.uint32) >> 16), (draw(16, 8).view(np.uint32) >> 16), draw(16, 8)
    left, right = ((x << 16).view(np.float32).astype(np.float64) for x in (a, b))
    expected = c + left @ right
    launch("product_bf16", a.astype(np.uint16), b.astype(np.uint16), c)
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5)


def test_a_product_of_tf32():
    a, b, c = draw(16, 8), draw(8, 8), draw(16, 8)
    left, right = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64) for x in (a, b))
    expected = c + left @ right
    error = np.abs(c + a.astype(np.float64) @ b.astype(np.float64) - expected).max()
    launch("product_tf32", a, b, c)
    np.testing.assert_allclose(c, expected, rtol=1e-6, atol=1e-6)
    assert error > 1e-4  # of the operands the last bits were not seen


def test_a_sum_of_tf32_products_is_cut_off():
    a, b = np.full((16, 8), 2**-13, np.float32), np.full((8, 8), 0.75 * 2**-12, np.float32)
    for sign in (1, -1):
        c = np.full((16, 8), sign, np.float32)
        launch("product_tf32", np.float32(sign) * a, b, c)  # twice four of 0.75 * 2**-25: each time 0.75 units
        np.testing.assert_array_equal(c, sign)


def test_a_product_needs_a_whole_warp():
    with pytest.raises(EmulatorError, match=r"mma at kernel.cu:\d+ needs all 32 lanes of the warp; those of ffff0000"):
        launch("product_f16", np.zeros(256, np.uint16), np.zeros(128, np.uint16), np.zeros(128, np.float32), block=16)


# ---- fragments -------------------------------------------------------------------------------------------------------


def test_fragments_lie_where_products_take_them():
    x = np.arange(256, dtype=np.uint16).reshape(16, 16)
    plain, transposed = np.zeros((32, 4, 2), np.uint16), np.zeros((32, 4, 2), np.uint16)
    launch("fragments", x, plain.view(np.uint32), transposed.view(np.uint32), np.int32(24), shared_mem=768)
    for lane in range(32):
        g, t = lane // 4, 2 * (lane % 4)
        corners = [(0, 0), (8, 0), (0, 8), (8, 8)]
        assert plain[lane].tolist() == [[x[r + g, c + t], x[r + g, c + t + 1]] for r, c in corners]
        assert transposed[lane].tolist() == [[x[r + t, c + g], x[r + t + 1, c + g]] for r, c in corners]


def test_bank_conflicts_are_counted():
    module = EmulatedModule(CODE, GOOD)
    out = np.zeros(256, np.uint32)

    def conflicts_of(stride):
        before = module.bank_conflicts
        args = (np.zeros(256, np.uint16), out, out.copy(), np.int32(stride))
        module.get_function("fragments")((1,), (32,), args, shared_mem=2 * 16 * stride)
        return module.bank_conflicts - before

    assert conflicts_of(72) == 0  # rows of 144 bytes: eight of them begin in eight groups of banks
    assert conflicts_of(64) == 2 * 4 * 7  # rows of 128 bytes: two loads of four matrices, eight rows in one group each
    assert conflicts_of(32) == 2 * 4 * 6  # rows of 64 bytes: two groups


def test_a_row_begins_at_a_multiple_of_16():
    with pytest.raises(EmulatorError, match=r"ldmatrix at kernel.cu:\d+: the address of a row must be a multiple"):
        launch("odd_row", np.zeros(1, np.uint32))


def test_numbers_are_rounded_to_16_bits_as_numpy_does():
    special = [0.0, -0.0, np.inf, 1 + 2**-11, 1 + 2**-8, 65520, 3, 4]
    x = np.concatenate([draw(200), 1e5 * draw(20), 1e-6 * draw(20), special]).astype(np.float32)
    f16, bf16, back = np.zeros(len(x), np.uint16), np.zeros(len(x), np.uint16), np.zeros(len(x), np.float32)
    launch("pairs", x, f16.view(np.uint32), bf16.view(np.uint32), back, block=len(x) // 2)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    np.testing.assert_array_equal(f16, expected.view(np.uint16))
    np.testing.assert_array_equal(back[::2], expected[::2].astype(np.float32))
    bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes, which has bfloat16, is not installed").bfloat16
    np.testing.assert_array_equal(bf16, x.astype(bfloat16).view(np.uint16))
    np.testing.assert_array_equal(back[1::2], x[1::2].astype(bfloat16).astype(np.float32))


# ---- asynchronous copies ---------------------------------------------------------------------------------------------


def aligned(array):
    """A copy at an address that is a multiple of 16, as CuPy's arrays are."""
    room = np.zeros(array.size + 4, np.float32)
    begin = -room.ctypes.data // 4 % 4
    room[begin : begin + array.size] = array.ravel()
    return room[begin : begin + array.size].reshape(array.shape)


@pytest.mark.parametrize("order, seed, when", WAYS)
@pytest.mark.parametrize("valid", [16, 8, 0])
def test_copies_arrive(order, seed, when, valid):
    x, y = aligned(draw(2, 32, 4)), np.zeros((2, 128), np.float32)
    with running(order, seed, when):
        launch("copies", x, y, np.int32(valid))
    x[..., valid // 4 :] = 0  # the rest of the 16 bytes becomes zero
    np.testing.assert_array_equal(y, x.reshape(2, 128)[:, ::-1])


def test_a_wait_for_too_few_copies_shows_if_they_are_late():
    x, y = aligned(draw(2, 128)), np.zeros((2, 128), np.float32)
    with running(copies="late"):
        launch("copies", x, y, np.int32(16), options=WEAK_WAIT)
    assert np.isnan(y[0]).any() and not np.isnan(y[1]).any()
    with running(copies="early"):
        launch("copies", x, y, np.int32(16), options=WEAK_WAIT)
    np.testing.assert_array_equal(y, x[:, ::-1])


def test_a_buffer_that_is_filled_too_soon_shows_in_some_order():
    x, y = aligned(draw(2, 128)), np.zeros((2, 128), np.float32)
    wrong = {}
    for way in WAYS:
        with running(*way):
            launch("filled_again", x, y, options=GOOD)
            np.testing.assert_array_equal(y, x[:, ::-1])
            launch("filled_again", x, y, options=NO_BARRIER)
            wrong[way] = not np.array_equal(y, x[:, ::-1])
    assert any(wrong.values()), wrong


def test_a_copy_begins_at_multiples_of_16():
    with pytest.raises(EmulatorError, match=r"cp.async at kernel.cu:\d+: both addresses must be multiples of 16"):
        launch("odd_copy", aligned(draw(8)))
