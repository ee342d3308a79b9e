// CUDA C++ for g++: what a kernel's source sees when it is compiled for the CPU. CUDA_CPU is defined there.
//
// The parts: cuda_types.h (float4, dim3), device_math.h (functions of numbers), ptx_cpu.h (tensor cores, asynchronous
// copies), parameters.h (a kernel's parameters, for the checks of a launch), runtime.h (what runs behind all this).
#pragma once
#define CUDA_CPU 1
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <math.h>
#include <type_traits>

#include "cuda_types.h"
#include "device_math.h"
#include "ptx_cpu.h"
#include "runtime.h"

// ---- keywords -------------------------------------------------------------------------------------------------------
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static __attribute__((section("cuda_shared")))  // one block runs at a time, so that one copy serves
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(cuda_cpu::dynamic_shared)

// ---- where a thread is ----------------------------------------------------------------------------------------------
#define threadIdx (cuda_cpu::this_thread->index)
#define blockIdx (cuda_cpu::block_index)
#define blockDim (cuda_cpu::block_size)
#define gridDim (cuda_cpu::grid_size)
constexpr int warpSize = 32;

// ---- barriers -------------------------------------------------------------------------------------------------------
inline void __syncthreads(cuda_cpu::Place place = {}) { cuda_cpu::barrier(false, place); }
inline int __syncthreads_count(int vote, cuda_cpu::Place place = {}) { return cuda_cpu::barrier(vote, place); }
inline int __syncthreads_or(int vote, cuda_cpu::Place place = {}) { return cuda_cpu::barrier(vote, place) != 0; }
inline int __syncthreads_and(int vote, cuda_cpu::Place place = {}) { return cuda_cpu::barrier(!vote, place) == 0; }
inline void __threadfence() {}  // threads take turns, so memory is always in order
inline void __threadfence_block() {}

// ---- what the lanes of a warp do together ---------------------------------------------------------------------------
constexpr unsigned ALL_LANES = ~0u;
inline void __syncwarp(unsigned mask = ALL_LANES, cuda_cpu::Place place = {}) {
    cuda_cpu::Lane lane;
    cuda_cpu::meet_warp(cuda_cpu::SYNCWARP, mask, lane, place);
}

namespace cuda_cpu {
inline unsigned vote(const WarpOperation& operation, unsigned mask, int value, Place place) {
    Lane lane = {{value != 0}};
    meet_warp(operation, mask, lane, place);
    return lane.word[0];
}
template <class T> T shuffle(const WarpOperation& operation, unsigned mask, T value, int source, Place place) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "a shuffle takes a number of up to 8 bytes");
    Lane lane = {};
    memcpy(lane.word, &value, sizeof(T));
    lane.word[2] = (unsigned)source;
    meet_warp(operation, mask, lane, place);
    memcpy(&value, lane.word, sizeof(T));
    return value;
}
// The lane's segment of `width` lanes: a shuffle that would leave it gives the lane its own value.
inline int first_of_segment(int width) { return this_thread->lane & ~(width - 1); }
inline int in_segment(int source, int width) {
    return (source & ~(width - 1)) == first_of_segment(width) && source >= 0 ? source : this_thread->lane;
}
}  // namespace cuda_cpu

inline unsigned __ballot_sync(unsigned mask, int vote, cuda_cpu::Place place = {}) {
    return cuda_cpu::vote(cuda_cpu::BALLOT, mask, vote, place);
}
inline int __any_sync(unsigned mask, int vote, cuda_cpu::Place place = {}) {
    return (int)cuda_cpu::vote(cuda_cpu::ANY, mask, vote, place);
}
inline int __all_sync(unsigned mask, int vote, cuda_cpu::Place place = {}) {
    return (int)cuda_cpu::vote(cuda_cpu::ALL, mask, vote, place);
}
template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32, cuda_cpu::Place place = {}) {
    int source = cuda_cpu::first_of_segment(width) + (lane & (width - 1));
    return cuda_cpu::shuffle(cuda_cpu::SHUFFLE, mask, value, source, place);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, cuda_cpu::Place place = {}) {
    int source = cuda_cpu::in_segment(cuda_cpu::this_thread->lane - (int)by, width);
    return cuda_cpu::shuffle(cuda_cpu::SHUFFLE_UP, mask, value, source, place);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, cuda_cpu::Place place = {}) {
    int source = cuda_cpu::in_segment(cuda_cpu::this_thread->lane + (int)by, width);
    return cuda_cpu::shuffle(cuda_cpu::SHUFFLE_DOWN, mask, value, source, place);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, cuda_cpu::Place place = {}) {
    int lane = cuda_cpu::this_thread->lane, source = lane ^ bits;
    if ((source & ~(width - 1)) > (lane & ~(width - 1))) source = lane;  // an earlier segment may be read
    return cuda_cpu::shuffle(cuda_cpu::SHUFFLE_XOR, mask, value, source & 31, place);
}

// ---- atomic operations ----------------------------------------------------------------------------------------------
namespace cuda_cpu {
template <class T> struct Same { typedef T type; };
template <class T> using Value = typename Same<T>::type;  // its type is the pointer's: atomicAdd(float*, 1)

template <class T, class F> T atomic_update(T* address, F change) {
    typedef typename std::conditional<sizeof(T) == 8, uint64_t, uint32_t>::type __attribute__((may_alias)) Bits;
    static_assert(sizeof(T) == sizeof(Bits), "atomic operations are on 4 or 8 bytes");
    Bits* place = (Bits*)address;
    Bits old = __atomic_load_n(place, __ATOMIC_RELAXED);
    for (;;) {
        T before, after;
        memcpy(&before, &old, sizeof(T));
        after = change(before);
        Bits wanted;
        memcpy(&wanted, &after, sizeof(T));
        if (__atomic_compare_exchange_n(place, &old, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return before;
    }
}
}  // namespace cuda_cpu
// Each returns what was there before. As on a GPU, numbers with a fraction can be added and exchanged, no more.
#define CUDA_CPU_ATOMIC(name, is_taken, expression)                                             \
    template <class T> T name(T* address, cuda_cpu::Value<T> value) {                           \
        static_assert(is_taken<T>::value, #name " takes integers alone");                       \
        return cuda_cpu::atomic_update(address, [value](T old) -> T { return expression; });    \
    }
CUDA_CPU_ATOMIC(atomicAdd, std::is_arithmetic, old + value)
CUDA_CPU_ATOMIC(atomicSub, std::is_integral, old - value)
CUDA_CPU_ATOMIC(atomicMax, std::is_integral, old < value ? value : old)
CUDA_CPU_ATOMIC(atomicMin, std::is_integral, value < old ? value : old)
CUDA_CPU_ATOMIC(atomicAnd, std::is_integral, old & value)
CUDA_CPU_ATOMIC(atomicOr, std::is_integral, old | value)
CUDA_CPU_ATOMIC(atomicXor, std::is_integral, old ^ value)
CUDA_CPU_ATOMIC(atomicExch, std::is_arithmetic, value)
CUDA_CPU_ATOMIC(atomicInc, std::is_integral, old < value ? old + 1 : 0)
CUDA_CPU_ATOMIC(atomicDec, std::is_integral, old == 0 || old > value ? value : old - 1)
#undef CUDA_CPU_ATOMIC
template <class T> T atomicCAS(T* address, cuda_cpu::Value<T> compare, cuda_cpu::Value<T> value) {
    return cuda_cpu::atomic_update(address, [=](T old) { return old == compare ? value : old; });
}

// ---- printing, and giving up ----------------------------------------------------------------------------------------
inline void __trap(cuda_cpu::Place place = {}) { cuda_cpu::fail("__trap at %s:%d", place.file, place.line); }
#define printf cuda_cpu::print
#undef assert
#define assert(condition) \
    ((condition) ? (void)0 : cuda_cpu::fail("assertion failed at %s:%d: %s", __FILE__, __LINE__, #condition))
