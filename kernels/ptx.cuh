// The instructions that CUDA C++ has no name for, each behind one small function, so that no header needs to be found
// when a kernel is compiled. The emulator has functions of the same names for the CPU.
//
// A warp's 32 lanes hold a matrix in pieces ("fragments"). Of a 16 x 8 sum lane i holds the rows g = i / 4 and g + 8,
// columns t = 2 (i % 4) and t + 1. A 16 x 16 left operand has four registers of two numbers each: (g, t), (g + 8, t),
// (g, t + 8), (g + 8, t + 8); a 16 x 8 right operand two, of its column g: rows t and t + 8.
// Operands of 32-bit numbers are half as deep, 16 x 8 and 8 x 8: a register has one number, and t = i % 4, t + 4.
#ifndef CUDA_CPU

// The number that 16 bits stand for: bfloat16 is the upper half of a float32.
template <bool BF16> __device__ __forceinline__ float from16(unsigned short bits) {
    float number;
    if (BF16) asm("{ .reg .b32 t; mov.b32 t, {0, %1}; mov.b32 %0, t; }" : "=f"(number) : "h"(bits));
    else asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(bits));
    return number;
}

// Two numbers, rounded to nearest even, in one register; `low` lies first in memory.
template <bool BF16> __device__ __forceinline__ unsigned pack16(float low, float high) {
    unsigned pair;
    if (BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// 2^x in one instruction, to two units in the last place; 2^-inf = 0.
static __device__ __forceinline__ float exp2_fast(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

static __device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// Reads four 8 x 8 tiles of 16-bit numbers: lane i names row i % 8 of tile i / 8, 16 bytes in shared memory, and
// receives the numbers 2 (i % 4) and the next one of row i / 4 of each tile.
static __device__ __forceinline__ void ldmatrix_x4(unsigned (&tiles)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(shared_address(row)) : "memory");
}

// The same with each tile transposed.
static __device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&tiles)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(shared_address(row)) : "memory");
}

// sum (16 x 8) += left (16 x 16) @ right (16 x 8) on the tensor cores, added up in float32.
template <bool BF16>
__device__ __forceinline__ void mma_16x8x16(float (&sum)[4], const unsigned (&left)[4], unsigned right0,
                                            unsigned right1) {
    if (BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

// sum (16 x 8) += left (16 x 8) @ right (8 x 8) of float32, added up in float32; of the operands' 23 bits after the
// point the tensor cores look at the upper 10 (TF32).
static __device__ __forceinline__ void mma_16x8x8_tf32(float (&sum)[4], const unsigned (&left)[4], unsigned right0,
                                                       unsigned right1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

// Starts a copy of 16 bytes from global to shared memory, both addresses multiples of 16. Of the source only the first
// `valid` bytes (0 ... 16) are read, the rest becomes zero; with none it may point anywhere.
static __device__ __forceinline__ void cp_async_16(void* shared, const void* global, int valid = 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(shared_address(shared)), "l"(global), "r"(valid) : "memory");
}

// The copies that this thread started since the last commit are one group.
static __device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but this thread's latest NEWER groups have arrived. Other threads' copies need a barrier as well.
template <int NEWER> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(NEWER) : "memory");
}

#endif
