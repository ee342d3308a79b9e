// The functions of numbers that CUDA C++ has and C++ has not. expf, sqrtf, fmaxf, tanhf, erff ... are <math.h>'s.
#pragma once
#include <cstdint>
#include <cstring>
#include <math.h>
#include <type_traits>

// Of two types, as on a GPU: of int and unsigned unsigned; of a number and NaN the number; int and float do not mix.
namespace cuda_cpu {
template <class A, class B>
using Common = std::enable_if_t<std::is_floating_point_v<A> == std::is_floating_point_v<B>, std::common_type_t<A, B>>;
}
template <class A, class B, class T = cuda_cpu::Common<A, B>> constexpr T max(A a, B b) {
    T x = (T)a, y = (T)b;
    return x < y || x != x ? y : x;
}
template <class A, class B, class T = cuda_cpu::Common<A, B>> constexpr T min(A a, B b) {
    T x = (T)a, y = (T)b;
    return y < x || x != x ? y : x;
}

// ---- fast ones: of full precision here ------------------------------------------------------------------------------
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float exp10f(float x) { return powf(10.0f, x); }
inline float fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }

// ---- bits -----------------------------------------------------------------------------------------------------------
namespace cuda_cpu {
template <class To, class From> To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace cuda_cpu
inline unsigned __float_as_uint(float x) { return cuda_cpu::same_bits<unsigned>(x); }
inline int __float_as_int(float x) { return cuda_cpu::same_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return cuda_cpu::same_bits<float>(x); }
inline float __int_as_float(int x) { return cuda_cpu::same_bits<float>(x); }
inline long long __double_as_longlong(double x) { return cuda_cpu::same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return cuda_cpu::same_bits<double>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
    return reversed;
}

// ---- integers -------------------------------------------------------------------------------------------------------
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
namespace cuda_cpu {
inline int to_int(float x) {  // NaN gives 0, a number that is too large or too small the nearest there is
    if (x != x) return 0;
    return x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : (int)x;
}
}  // namespace cuda_cpu
inline int __float2int_rn(float x) { return cuda_cpu::to_int(nearbyintf(x)); }
inline int __float2int_rz(float x) { return cuda_cpu::to_int(x); }
inline int __float2int_rd(float x) { return cuda_cpu::to_int(floorf(x)); }
inline int __float2int_ru(float x) { return cuda_cpu::to_int(ceilf(x)); }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }

template <class T> T __ldg(const T* address) { return *address; }
