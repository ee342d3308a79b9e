"""What threads do together: barriers, warps, shared memory, atomic operations, in every order of the threads."""

import numpy as np
import pytest

from kernels.emulator import running
from tests.kernels.emulator.compiled import WAYS, compiled, needs_compiler

pytestmark = [needs_compiler, pytest.mark.parametrize("order, seed, copies", WAYS)]

CODE = r"""
#define ALL 0xffffffffu

extern "C" __global__ void block_sum(const float* x, float* sums) {
    __shared__ float partial[128];
    int i = threadIdx.x;
    partial[i] = x[blockIdx.x * blockDim.x + i];
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (i < half) partial[i] += partial[i + half];
        __syncthreads();
    }
    if (i == 0) sums[blockIdx.x] = partial[0];
}

extern "C" __global__ void reversed(const double* x, double* y) {
    extern __shared__ double tile[];
    tile[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    y[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void shuffles(const float* x, float* y, int n, int width) {
    int lane = threadIdx.x;
    y[lane] = __shfl_sync(ALL, x[lane], n, width);
    y[32 + lane] = __shfl_up_sync(ALL, x[lane], n, width);
    y[64 + lane] = __shfl_down_sync(ALL, x[lane], n, width);
    y[96 + lane] = __shfl_xor_sync(ALL, x[lane], n, width);
}

extern "C" __global__ void wide_shuffle(const double* x, double* y) {
    y[threadIdx.x] = __shfl_xor_sync(ALL, x[threadIdx.x], 5);
}

extern "C" __global__ void votes(const int* x, unsigned* y) {
    int i = threadIdx.x, n = blockDim.x;
    y[i] = __ballot_sync(ALL, x[i]);
    y[n + i] = __any_sync(ALL, x[i]);
    y[2 * n + i] = __all_sync(ALL, x[i]);
    y[3 * n + i] = __syncthreads_count(x[i]);
    y[4 * n + i] = __syncthreads_or(x[i]);
    y[5 * n + i] = __syncthreads_and(x[i]);
}

// Two halves of a warp go different ways, each with a mask of its own.
extern "C" __global__ void halves(const float* x, float* y) {
    float sum = x[threadIdx.x];
    if (threadIdx.x < 16) {
        for (int m = 8; m > 0; m /= 2) sum += __shfl_xor_sync(0x0000ffffu, sum, m);
    } else {
        for (int m = 8; m > 0; m /= 2) sum = fmaxf(sum, __shfl_xor_sync(0xffff0000u, sum, m));
    }
    y[threadIdx.x] = sum;
}

// A warp that is not full: lanes that never were are not waited for, and have no value.
extern "C" __global__ void few(const float* x, float* y, int n) {
    if (threadIdx.x >= n) return;
    __syncwarp();
    y[threadIdx.x] = __shfl_down_sync(ALL, x[threadIdx.x], 1);
}

extern "C" __global__ void through_the_warp(float* x) {
    __shared__ float tile[32];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    x[threadIdx.x] = tile[31 - threadIdx.x];
}

extern "C" __global__ void unwritten(float* out) {
    __shared__ float fixed[4];
    extern __shared__ float dynamic[];
    out[2 * blockIdx.x] = fixed[1];
    out[2 * blockIdx.x + 1] = dynamic[1];
    fixed[1] = dynamic[1] = 1;
}

extern "C" __global__ void atomics(int* whole, float* real, unsigned long long* wide, double* precise) {
    int i = threadIdx.x;
    atomicAdd(&whole[0], i); atomicSub(&whole[1], i); atomicMax(&whole[2], i); atomicMin(&whole[3], -i);
    atomicOr(&whole[4], 1 << i % 5); atomicAnd(&whole[5], ~(1 << i % 5)); atomicXor(&whole[6], i);
    atomicAdd(real, 0.5f); atomicAdd(wide, 1ull << 33); atomicAdd(precise, 0.25);
    if (atomicCAS(&whole[7], 0, 1) == 0) atomicExch(&whole[8], 9);  // one thread alone
    atomicInc((unsigned*)&whole[9], 6); atomicDec((unsigned*)&whole[10], 6);  // counting to 6 and from it, in a circle
}
"""


@pytest.fixture(autouse=True)
def in_this_order(order, seed, copies):
    with running(order, seed, copies):
        yield


def launch(name, *args, grid=1, block=32, shared_mem=0):
    compiled(CODE).get_function(name)((grid,), (block,), args, shared_mem=shared_mem)


def test_a_sum_over_a_block():
    x, sums = np.random.default_rng(0).standard_normal((5, 128), np.float32), np.zeros(5, np.float32)
    launch("block_sum", x, sums, grid=5, block=128)
    np.testing.assert_allclose(sums, x.sum(1), rtol=1e-5, atol=1e-5)


def test_dynamic_shared_memory():
    x, y = np.arange(200.0).reshape(2, 100), np.zeros((2, 100))
    launch("reversed", x, y, grid=2, block=100, shared_mem=800)
    np.testing.assert_array_equal(y, x[:, ::-1])


@pytest.mark.parametrize("width", [32, 8])
@pytest.mark.parametrize("n", [0, 1, 3, 9])
def test_shuffles(n, width):
    x, y = np.arange(100, 132, dtype=np.float32), np.zeros((4, 32), np.float32)
    launch("shuffles", x, y, np.int32(n), np.int32(width))
    lane = np.arange(32)
    first = lane // width * width
    up = np.where(lane - n >= first, lane - n, lane)
    down = np.where(lane + n < first + width, lane + n, lane)
    xor = np.where((lane ^ n) < first + width, lane ^ n, lane)
    np.testing.assert_array_equal(y, x[np.stack([first + n % width, up, down, xor])])


def test_a_shuffle_of_eight_bytes():
    x, y = np.linspace(0, 1, 32), np.zeros(32)
    launch("wide_shuffle", x, y)
    np.testing.assert_array_equal(y, x[np.arange(32) ^ 5])


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_votes(share):
    x, y = (np.random.default_rng(1).random(64) < share).astype(np.int32), np.zeros((6, 2, 32), np.uint32)
    launch("votes", x, y, block=64)
    warps = x.reshape(2, 32)
    np.testing.assert_array_equal(y[0], np.repeat((warps << np.arange(32, dtype=np.int64)).sum(1)[:, None], 32, 1))
    np.testing.assert_array_equal(y[1], np.repeat(warps.any(1)[:, None], 32, 1))
    np.testing.assert_array_equal(y[2], np.repeat(warps.all(1)[:, None], 32, 1))
    assert (y[3] == x.sum()).all() and (y[4] == x.any()).all() and (y[5] == x.all()).all()


def test_parts_of_a_warp_that_go_different_ways():
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    launch("halves", x, y)
    assert (y[:16] == x[:16].sum()).all() and (y[16:] == 31).all()


@pytest.mark.parametrize("block", [20, 32])
def test_lanes_that_never_were_or_have_returned(block):
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    launch("few", x, y, np.int32(20), block=block)
    np.testing.assert_array_equal(y[:19], x[1:20])
    assert np.isnan(y[19]) and not y[20:].any()


def test_a_warp_orders_its_memory():
    x = np.arange(32, dtype=np.float32)
    launch("through_the_warp", x)
    np.testing.assert_array_equal(x, np.arange(32)[::-1])


def test_unwritten_shared_memory_is_nan_in_every_block():
    out = np.zeros(6, np.float32)
    launch("unwritten", out, grid=3, block=1, shared_mem=16)
    assert np.isnan(out).all()


def test_atomic_operations():
    whole, real = np.zeros(11, np.int32), np.zeros(1, np.float32)
    whole[5] = -1
    wide, precise = np.zeros(1, np.uint64), np.zeros(1)
    launch("atomics", whole, real, wide, precise, block=100)
    assert whole.tolist() == [4950, -4950, 99, -99, 31, -32, np.bitwise_xor.reduce(np.arange(100)), 1, 9, 2, 5]
    assert (real[0], wide[0], precise[0]) == (50, 100 << 33, 25)
