"""CUDA's functions of numbers, vectors and bits, against NumPy's."""

import numpy as np
import pytest

from tests.kernels.emulator.compiled import compiled, needs_compiler

pytestmark = needs_compiler

CODE = r"""
extern "C" __global__ void functions(const float* x, float* y, int n) {
    int i = threadIdx.x;
    float v = x[i];
    y += i;
    y[0 * n] = expf(v); y[1 * n] = __expf(v); y[2 * n] = exp2f(v); y[3 * n] = logf(fabsf(v));
    y[4 * n] = rsqrtf(fabsf(v)); y[5 * n] = tanhf(v); y[6 * n] = erff(v); y[7 * n] = sqrtf(fabsf(v));
    y[8 * n] = __fdividef(1.0f, v); y[9 * n] = powf(fabsf(v), 1.5f); y[10 * n] = fmaf(v, v, 1.0f);
    y[11 * n] = __saturatef(v); y[12 * n] = normcdff(v); y[13 * n] = __log2f(fabsf(v)); y[14 * n] = exp10f(v);
}
extern "C" __global__ void extremes(const float* x, float* y) {
    y[0] = max(x[0], x[1]); y[1] = min(x[0], x[1]); y[2] = fmaxf(x[0], x[2]); y[3] = max(x[2], x[0]);
    y[4] = min(x[0], x[2]); y[5] = (float)max(1.0f, 2.5); y[6] = min(-1, 3u); y[7] = max(-1, 3);
}
extern "C" __global__ void bits(const unsigned* x, unsigned* y) {
    unsigned a = x[0], b = x[1];
    y[0] = __umulhi(a, b); y[1] = __float_as_uint(1.5f); y[2] = __uint_as_float(0x7f800000u) == INFINITY;
    y[3] = __popc(a); y[4] = __clz((int)b); y[5] = __ffs((int)a); y[6] = __brev(a); y[7] = __mulhi(-5, 1 << 30);
    y[8] = (unsigned)__umul64hi(1ull << 63, 6); y[9] = __float2int_rn(2.5f); y[10] = __float2int_rz(-2.5f);
    y[11] = __clz(0); y[12] = __float_as_int(-0.0f); y[13] = warpSize;
}
extern "C" __global__ void vectors(const float4* x, float* y, uint4* z) {
    float4 v = x[0];
    float2 pair = make_float2(v.x, v.w);
    ((float2*)y)[1] = pair;
    y[0] = ((const float*)x)[2];
    z[0] = make_uint4(1, 2, 3, 4);
    y[1] = sizeof(float3) + sizeof(float4) + alignof(float4) + sizeof(uchar4) + alignof(int2) + alignof(dim3);
}
"""


def launch(name, *args, block=1):
    compiled(CODE).get_function(name)((1,), (block,), args)


def test_functions_of_floats():
    erf = pytest.importorskip("minigrad.special").erf
    x = np.random.default_rng(0).uniform(-3, 3, 100).astype(np.float32)
    found = np.zeros((15, 100), np.float32)
    launch("functions", x, found, np.int32(100), block=100)
    v = x.astype(np.float64)
    size = np.abs(v)
    expected = [np.exp(v), np.exp(v), np.exp2(v), np.log(size), size**-0.5, np.tanh(v), erf(v), np.sqrt(size), 1 / v]
    expected += [size**1.5, v * v + 1, np.clip(v, 0, 1), (1 + erf(v / np.sqrt(2))) / 2, np.log2(size), 10**v]
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


def test_the_greater_and_the_smaller():
    found = np.zeros(8, np.float32)
    launch("extremes", np.array([1, 2, np.nan], np.float32), found)
    assert found.tolist() == [2, 1, 1, 1, 1, 2.5, 3, 3]  # a number and NaN: the number; int and unsigned: unsigned


def test_bits():
    found = np.zeros(14, np.uint32)
    a, b = 0xD2511F50, 0x00012345
    launch("bits", np.array([a, b], np.uint32), found)
    expected = [a * b >> 32, 0x3FC00000, 1, bin(a).count("1"), 32 - b.bit_length(), 5, int(f"{a:032b}"[::-1], 2)]
    expected += [2**32 - 2, 3, 2, 2**32 - 2, 32, 0x80000000, 32]
    assert found.tolist() == expected


def test_floats_become_integers_as_on_a_gpu():
    code = """extern "C" __global__ void f(const float* x, int* y) {
        y[0] = __float2int_rz(x[0]); y[1] = __float2int_rn(-x[0]); y[2] = __float2int_ru(x[1]);
        y[3] = __float2int_rd(-x[2]); y[4] = __float2int_rz(x[2]); y[5] = __float2int_ru(x[3]);
    }"""
    found = np.zeros(6, np.int32)
    compiled(code).get_function("f")((1,), (1,), (np.array([1e20, np.nan, 2**31, 1.5], np.float32), found))
    assert found.tolist() == [2**31 - 1, -(2**31), 0, -(2**31), 2**31 - 1, 2]


def test_vectors():
    x, y, z = np.arange(4, dtype=np.float32), np.zeros(4, np.float32), np.zeros(4, np.uint32)
    launch("vectors", x, y, z)
    assert y.tolist() == [2, 12 + 16 + 16 + 4 + 8 + 4, 0, 3] and z.tolist() == [1, 2, 3, 4]
