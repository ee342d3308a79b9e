// The functions of kernels/ptx.cuh for the CPU: fragments of 16-bit numbers, tensor cores, asynchronous copies.
#pragma once
#include <cstdint>
#include <cstring>
#include <math.h>

#include "cuda_types.h"
#include "runtime.h"

// ---- numbers of 16 bits ---------------------------------------------------------------------------------------------
template <bool BF16> float from16(unsigned short bits) {
    return BF16 ? cuda_cpu::bfloat_to_float(bits) : cuda_cpu::half_to_float(bits);
}
template <bool BF16> unsigned pack16(float low, float high) {
    if (BF16) return cuda_cpu::float_to_bfloat(low) | (unsigned)cuda_cpu::float_to_bfloat(high) << 16;
    return cuda_cpu::float_to_half(low) | (unsigned)cuda_cpu::float_to_half(high) << 16;
}
inline float exp2_fast(float x) { return exp2f(x); }

// ---- fragments ------------------------------------------------------------------------------------------------------
namespace cuda_cpu {
inline void load_fragments(const WarpOperation& operation, unsigned (&tiles)[4], const void* row, Place place) {
    if ((uintptr_t)row % 16)
        fail("%s at %s:%d: the address of a row must be a multiple of 16", operation.name, place.file, place.line);
    uint4 bytes = *(const uint4*)row;  // each lane reads a row itself, so that a sanitizer blames the right thread
    Lane lane = {{bytes.x, bytes.y, bytes.z, bytes.w, (uint32_t)((uintptr_t)row / 16)}};
    meet_warp(operation, ~0u, lane, place);
    memcpy(tiles, lane.word, sizeof tiles);
}
inline void add_product(const WarpOperation& operation, float (&sum)[4], const unsigned (&left)[4], unsigned right0,
                        unsigned right1, Place place) {
    Lane lane = {{left[0], left[1], left[2], left[3], right0, right1}};
    memcpy(lane.word + 6, sum, sizeof sum);
    meet_warp(operation, ~0u, lane, place);
    memcpy(sum, lane.word, sizeof sum);
}
}  // namespace cuda_cpu

inline void ldmatrix_x4(unsigned (&tiles)[4], const void* row, cuda_cpu::Place place = {}) {
    cuda_cpu::load_fragments(cuda_cpu::LDMATRIX, tiles, row, place);
}
inline void ldmatrix_x4_trans(unsigned (&tiles)[4], const void* row, cuda_cpu::Place place = {}) {
    cuda_cpu::load_fragments(cuda_cpu::LDMATRIX_TRANS, tiles, row, place);
}
template <bool BF16>
void mma_16x8x16(float (&sum)[4], const unsigned (&left)[4], unsigned right0, unsigned right1,
                 cuda_cpu::Place place = {}) {
    cuda_cpu::add_product(BF16 ? cuda_cpu::MMA_BF16 : cuda_cpu::MMA_F16, sum, left, right0, right1, place);
}
// Of 32-bit numbers, of which the tensor core uses 10 bits of the mantissa.
inline void mma_16x8x8_tf32(float (&sum)[4], const unsigned (&left)[4], unsigned right0, unsigned right1,
                            cuda_cpu::Place place = {}) {
    cuda_cpu::add_product(cuda_cpu::MMA_TF32, sum, left, right0, right1, place);
}

// ---- asynchronous copies --------------------------------------------------------------------------------------------
namespace cuda_cpu {
inline void carry_out(const Copy& copy) {
    uint4 bytes = {};
    if (copy.valid == 16) bytes = *(const uint4*)copy.from;
    else if (copy.valid) memcpy(&bytes, copy.from, (size_t)copy.valid);
    *(uint4*)copy.to = bytes;
}
}  // namespace cuda_cpu

inline void cp_async_16(void* shared, const void* global, int valid = 16, cuda_cpu::Place place = {}) {
    if (((uintptr_t)shared | (uintptr_t)global) % 16)
        cuda_cpu::fail("cp.async at %s:%d: both addresses must be multiples of 16", place.file, place.line);
    if (cuda_cpu::copies_are_late()) cuda_cpu::put_off({shared, global, valid});
    else cuda_cpu::carry_out({shared, global, valid});
}
inline void cp_async_commit() { cuda_cpu::commit_copies(); }
template <int NEWER> void cp_async_wait() {
    cuda_cpu::Copy copy;
    while (cuda_cpu::next_copy(copy, NEWER)) cuda_cpu::carry_out(copy);
}
