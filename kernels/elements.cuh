// What rows.cu, elementwise.cu and parameters.cu share: elements of float32, float16 or bfloat16, which are read as
// float, computed with in float, and rounded once when they are written; and how the threads of a block share its work.
// ptx.cuh comes before this text.

// ---- options, set with -D -------------------------------------------------------------------------------------------
#define FLOAT32 0
#define FLOAT16 1
#define BFLOAT16 2
#ifndef DTYPE
#define DTYPE FLOAT32
#endif

#define INLINE static __device__ __forceinline__
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)
#define THREADS 256  // of a block
#define WARP 32
#define ALL_OF_WARP 0xffffffffu
typedef long long i64;  // an array may have more than 2^31 elements

#if DTYPE == FLOAT32
typedef float Element;
INLINE float value_of(Element x) { return x; }
INLINE Element rounded(float x) { return x; }
#else
typedef unsigned short Element;  // its bits
INLINE float value_of(Element x) { return from16<DTYPE == BFLOAT16>(x); }
INLINE Element rounded(float x) { return (Element)pack16<DTYPE == BFLOAT16>(x, 0); }
#endif

// ---- which elements are one thread's --------------------------------------------------------------------------------
// A block takes a chunk of elements that lie side by side, a thread every THREADS-th of them, so that a warp's accesses
// are of neighbours, and a thread has several under way at the same time.
#define PER_THREAD 4
#define CHUNK (PER_THREAD * THREADS)

// ---- what the threads of a row put together ------------------------------------------------------------------------
INLINE float sum_of(float a, float b) { return a + b; }
INLINE float greater_of(float a, float b) { return fmaxf(a, b); }

// Threads of one threadIdx.y are those of a row: a warp, or a whole block. What `combine` makes of their values, in a
// fixed order, so that the same call gives the same bits; each of them gets it. All have to come here.
template <float combine(float, float)> INLINE float over_row(float value) {
    for (int bit = WARP / 2; bit > 0; bit /= 2) value = combine(value, __shfl_xor_sync(ALL_OF_WARP, value, bit));
    if (blockDim.x == WARP) return value;
    __shared__ float values[THREADS / WARP];  // one of each warp
    if (threadIdx.x % WARP == 0) values[threadIdx.x / WARP] = value;
    __syncthreads();  // all values are there
    value = values[0];
    for (int warp = 1; warp < blockDim.x / WARP; ++warp) value = combine(value, values[warp]);
    __syncthreads();  // all have been read
    return value;
}
INLINE float row_sum(float value) { return over_row<sum_of>(value); }
INLINE float row_max(float value) { return over_row<greater_of>(value); }
