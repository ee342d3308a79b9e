// What a compiled kernel asks of the runtime, which is a library of its own (runtime.cpp, warp.cpp).
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda_types.h"

namespace cuda_cpu {

// Where in the user's source a barrier or a warp operation stands: as a default argument it is the place of the call.
struct Place {
    const char* file;
    int line;
    constexpr Place(const char* file = __builtin_FILE(), int line = __builtin_LINE()) : file(file), line(line) {}
};

// ---- a launch -------------------------------------------------------------------------------------------------------
enum Order { FIFO, LIFO, RANDOM };
struct Launch {  // module.py has the same fields
    unsigned grid[3], block[3];
    unsigned order, seed;     // of the threads that could go on, and of the blocks
    unsigned late_copies;     // 1: cp.async copies when it is waited for; 0: at once
    unsigned shared_bytes;    // of dynamic shared memory
};
struct Bytes {
    char *begin, *end;
};
// Runs body(argument) once for each thread. 0, or 1 and an error in cuda_cpu_message().
int launch(const Launch& launch, Bytes static_shared, void (*body)(void*), void* argument);

// ---- the thread that runs now ---------------------------------------------------------------------------------------
struct Thread {
    uint3 index;  // threadIdx
    int lane;     // its number in its warp
};
extern const Thread* this_thread;
extern uint3 block_index;           // blockIdx
extern dim3 block_size, grid_size;  // blockDim, gridDim

constexpr size_t MAX_SHARED = 227 << 10;  // bytes that one block may have: sm_90
extern char dynamic_shared[];

// Ends the launch with an error; the thread does not go on.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
// Ends the launch in the middle of what a thread does: called by a handler of signals.
void interrupt();
int print(const char* format, ...) __attribute__((format(printf, 1, 2)));

// ---- meeting others -------------------------------------------------------------------------------------------------
// Waits for all threads of the block; how many of them brought a true vote.
int barrier(bool vote, Place place);

struct Lane {  // what a lane brings to an operation of its warp, and what it takes from it
    uint32_t word[12];
};
struct WarpOperation {
    const char* name;
    void (*compute)(const Lane* in, Lane* out, unsigned lanes);  // `lanes`: which of the 32 take part
    bool orders_memory;  // what lanes wrote before it others may read after it
    bool whole_warp;     // all 32 lanes must take part
};
extern const WarpOperation SYNCWARP, SHUFFLE, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR, BALLOT, ANY, ALL;
extern const WarpOperation LDMATRIX, LDMATRIX_TRANS, MMA_F16, MMA_BF16, MMA_TF32;
// Waits for the lanes of `mask`; the last to come computes for all of them.
void meet_warp(const WarpOperation& operation, unsigned mask, Lane& lane, Place place);

// ---- asynchronous copies --------------------------------------------------------------------------------------------
struct Copy {
    void* to;
    const void* from;
    int valid;  // bytes that are read; the rest of 16 become zero
};
bool copies_are_late();
void put_off(const Copy& copy);
void commit_copies();
bool next_copy(Copy& copy, int newer_groups);  // one that must have arrived, unless the latest groups contain all

// ---- numbers of 16 bits ---------------------------------------------------------------------------------------------
inline float half_to_float(uint16_t bits) {
    _Float16 number;
    __builtin_memcpy(&number, &bits, 2);
    return (float)number;
}
inline uint16_t float_to_half(float x) {
    _Float16 number = (_Float16)x;
    uint16_t bits;
    __builtin_memcpy(&bits, &number, 2);
    return bits;
}
inline float bfloat_to_float(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float number;
    __builtin_memcpy(&number, &word, 4);
    return number;
}
inline uint16_t float_to_bfloat(float x) {  // to nearest, ties to even; NaN as a GPU makes it
    uint32_t word;
    __builtin_memcpy(&word, &x, 4);
    if ((word & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

}  // namespace cuda_cpu
