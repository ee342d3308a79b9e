// The types that CUDA C++ has built in: float4 and its like, dim3.
#pragma once

// A kernel may look at an array of floats through a float4*, if the address is a multiple of the vector's size.
#define CUDA_CPU_VECTOR(bytes) __attribute__((may_alias, aligned(bytes)))
#define CUDA_CPU_VECTORS(T, name, align2, align4)                                      \
    struct CUDA_CPU_VECTOR(sizeof(T)) name##1 { T x; };                                \
    struct CUDA_CPU_VECTOR(align2) name##2 { T x, y; };                                \
    struct CUDA_CPU_VECTOR(sizeof(T)) name##3 { T x, y, z; };                          \
    struct CUDA_CPU_VECTOR(align4) name##4 { T x, y, z, w; };                          \
    inline name##1 make_##name##1(T x) { return {x}; }                                 \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                         \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                 \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDA_CPU_VECTORS(signed char, char, 2, 4)
CUDA_CPU_VECTORS(unsigned char, uchar, 2, 4)
CUDA_CPU_VECTORS(short, short, 4, 8)
CUDA_CPU_VECTORS(unsigned short, ushort, 4, 8)
CUDA_CPU_VECTORS(int, int, 8, 16)
CUDA_CPU_VECTORS(unsigned, uint, 8, 16)
CUDA_CPU_VECTORS(long long, longlong, 16, 16)
CUDA_CPU_VECTORS(unsigned long long, ulonglong, 16, 16)
CUDA_CPU_VECTORS(float, float, 8, 16)
CUDA_CPU_VECTORS(double, double, 16, 16)
#undef CUDA_CPU_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
