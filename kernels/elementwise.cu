// Functions of each element by itself, forward and backward: GELU and dropout. One launch reads and writes what as a
// composition of array operations is half a dozen passes. Types and chunks: elements.cuh, random numbers: philox.cuh,
// which come before this text.

#define TANH_FORM 1  // of `form`; 0 is the exact one
#define SQRT_TWO_OVER_PI 0.79788456f
#define ONE_OVER_SQRT_TWO_PI 0.39894228f

// GELU: x Phi(x), with Phi the normal distribution's share below x. Hendrycks & Gimpel 2016, "Gaussian error linear
// units", section 2, which also gives Phi(x) ~ (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
INLINE float phi_by_tanh(float x) { return 0.5f * (1 + tanhf(SQRT_TWO_OVER_PI * x * (1 + 0.044715f * (x * x)))); }

INLINE float gelu(float x, int form) { return x * (form == TANH_FORM ? phi_by_tanh(x) : normcdff(x)); }

// d/dx = Phi + x Phi', where Phi' = e^(-x^2 / 2) / sqrt(2 pi), or 2 Phi (1 - Phi) u'
INLINE float gelu_slope(float x, int form) {
    if (form == TANH_FORM) {
        const float phi = phi_by_tanh(x), du = SQRT_TWO_OVER_PI * (1 + 3 * 0.044715f * (x * x));
        return phi + x * (2 * phi * (1 - phi)) * du;
    }
    return normcdff(x) + x * ONE_OVER_SQRT_TWO_PI * expf(-0.5f * (x * x));
}

extern "C" __global__ void __launch_bounds__(THREADS)
gelu_forward(const Element* __restrict__ x, Element* __restrict__ y, i64 count, int form) {
    for (i64 first = (i64)blockIdx.x * CHUNK + threadIdx.x; first < count; first += (i64)gridDim.x * CHUNK) {
        EACH(k, PER_THREAD) {
            const i64 i = first + k * THREADS;
            if (i < count) y[i] = rounded(gelu(value_of(x[i]), form));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gelu_backward(const Element* __restrict__ g, const Element* __restrict__ x, Element* __restrict__ d_x, i64 count,
              int form) {
    for (i64 first = (i64)blockIdx.x * CHUNK + threadIdx.x; first < count; first += (i64)gridDim.x * CHUNK) {
        EACH(k, PER_THREAD) {
            const i64 i = first + k * THREADS;
            if (i < count) d_x[i] = rounded(value_of(g[i]) * gelu_slope(value_of(x[i]), form));
        }
    }
}

// ---- dropout --------------------------------------------------------------------------------------------------------
// y = x / (1 - p), or x 0 where x is dropped, so that NaN is not hidden: Srivastava et al. 2014, "Dropout". The gradient
// of x is the same function of the gradient of y. Which are dropped follows from the key and an element's place alone:
// the four elements of a chunk that are one thread's share the four random numbers of one counter.
extern "C" __global__ void __launch_bounds__(THREADS)
dropout(const Element* __restrict__ x, Element* __restrict__ y, i64 count, unsigned key0, unsigned key1,
        unsigned drop_below, float keep_scale) {
    for (i64 chunk = blockIdx.x; chunk * CHUNK < count; chunk += gridDim.x) {
        const i64 counter = chunk * THREADS + threadIdx.x, first = chunk * CHUNK + threadIdx.x;
        unsigned random[PER_THREAD] = {(unsigned)counter, (unsigned)(counter >> 32)};
        philox(random, key0, key1);
        EACH(k, PER_THREAD) {
            const i64 i = first + k * THREADS;
            if (i < count) y[i] = rounded(value_of(x[i]) * (random[k] < drop_below ? 0 : keep_scale));
        }
    }
}
