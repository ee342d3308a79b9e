// What the lanes of a warp compute together: votes, shuffles, and the matrices of tensor cores.
#include <cstdint>
#include <cstring>
#include <math.h>

#include "runtime.h"

namespace cuda_cpu {
namespace {

constexpr int WARP = 32;
constexpr uint32_t UNDEFINED = ~0u;  // a NaN: the value of a lane that does not take part

// ---- votes ----------------------------------------------------------------------------------------------------------
unsigned ballot(const Lane* in, unsigned lanes) {
    unsigned votes = 0;
    for (int i = 0; i < WARP; ++i)
        if (lanes >> i & 1 && in[i].word[0]) votes |= 1u << i;
    return votes;
}
void give_all(Lane* out, uint32_t value) {
    for (int i = 0; i < WARP; ++i) out[i].word[0] = value;
}
void compute_ballot(const Lane* in, Lane* out, unsigned lanes) { give_all(out, ballot(in, lanes)); }
void compute_any(const Lane* in, Lane* out, unsigned lanes) { give_all(out, ballot(in, lanes) != 0); }
void compute_all(const Lane* in, Lane* out, unsigned lanes) { give_all(out, ballot(in, lanes) == lanes); }

// ---- shuffles -------------------------------------------------------------------------------------------------------
// A lane brings 8 bytes, and in word 2 the lane whose bytes it wants.
void compute_shuffle(const Lane* in, Lane* out, unsigned lanes) {
    for (int i = 0; i < WARP; ++i) {
        if (!(lanes >> i & 1)) continue;
        unsigned source = in[i].word[2];
        bool there = lanes >> source & 1;
        out[i].word[0] = there ? in[source].word[0] : UNDEFINED;
        out[i].word[1] = there ? in[source].word[1] : UNDEFINED;
    }
}

// ---- ldmatrix: four 8 x 8 matrices of 16-bit numbers ----------------------------------------------------------------
long conflicts;

// Lanes 8m ... 8m + 7 bring the rows of matrix m, and in word 4 the number of their 16 bytes in memory. Eight rows are
// read at once; two of them in the same four of the 32 banks are read one after the other.
void count_conflicts(const Lane* in) {
    for (int matrix = 0; matrix < 4; ++matrix) {
        unsigned seen = 0;
        for (int row = 0; row < 8; ++row) {
            unsigned banks = 1u << in[8 * matrix + row].word[4] % 8;
            conflicts += (seen & banks) != 0;
            seen |= banks;
        }
    }
}
uint16_t element(const Lane* in, int matrix, int row, int column) {
    return (uint16_t)(in[8 * matrix + row].word[column / 2] >> 16 * (column % 2));
}
// Lane i takes the elements (g, t) and (g, t + 1) of each matrix, or of its transpose: g = i / 4, t = 2 (i % 4).
template <bool TRANSPOSED> void compute_ldmatrix(const Lane* in, Lane* out, unsigned) {
    count_conflicts(in);
    for (int i = 0; i < WARP; ++i) {
        int g = i / 4, t = 2 * (i % 4);
        for (int m = 0; m < 4; ++m) {
            uint16_t low = TRANSPOSED ? element(in, m, t, g) : element(in, m, g, t);
            uint16_t high = TRANSPOSED ? element(in, m, t + 1, g) : element(in, m, g, t + 1);
            out[i].word[m] = low | (uint32_t)high << 16;
        }
    }
}

// ---- mma: sum (16 x 8) += left (16 x depth) @ right (depth x 8) -----------------------------------------------------
// A lane brings left in words 0 ... 3, right in 4 and 5, sum in 6 ... 9. With g = i / 4 and t = i % 4 it holds of
//   sum      (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
//   left     (g, t'), (g + 8, t'), (g, t' + depth / 2), (g + 8, t' + depth / 2)    t' = t, or the pair 2t, 2t + 1
//   right    (t', g), (t' + depth / 2, g)                                          of 16-bit numbers
float float_of(uint32_t word) {
    float number;
    memcpy(&number, &word, 4);
    return number;
}
uint32_t word_of(float number) {
    uint32_t word;
    memcpy(&word, &number, 4);
    return word;
}
template <int DEPTH> struct Operands {
    float left[16][DEPTH], right[8][DEPTH];  // right is transposed: both are read along the depth
    void put(int lane, int word, int t, float number) {
        int g = lane / 4;
        if (word < 4) left[g + 8 * (word % 2)][t + DEPTH / 2 * (word / 2)] = number;
        else right[g][t + DEPTH / 2 * (word - 4)] = number;
    }
};
template <int DEPTH, class Add> void add_products(const Operands<DEPTH>& operands, const Lane* in, Lane* out, Add add) {
    for (int i = 0; i < WARP; ++i)
        for (int e = 0; e < 4; ++e) {
            const float* left = operands.left[i / 4 + 8 * (e / 2)];
            const float* right = operands.right[2 * (i % 4) + e % 2];
            out[i].word[e] = word_of(add(float_of(in[i].word[6 + e]), left, right));
        }
}
template <float (*NUMBER)(uint16_t)> void compute_mma_16(const Lane* in, Lane* out, unsigned) {
    Operands<16> operands;
    for (int i = 0; i < WARP; ++i)
        for (int word = 0; word < 6; ++word) {
            uint32_t pair = in[i].word[word];
            operands.put(i, word, 2 * (i % 4), NUMBER((uint16_t)pair));
            operands.put(i, word, 2 * (i % 4) + 1, NUMBER((uint16_t)(pair >> 16)));
        }
    add_products(operands, in, out, [](float sum, const float* left, const float* right) {
        for (int k = 0; k < 16; ++k) sum += left[k] * right[k];
        return sum;
    });
}
float cut_off(double x) {  // rounded towards zero
    float nearest = (float)x;
    return fabs((double)nearest) > fabs(x) ? nextafterf(nearest, 0) : nearest;
}
// Four products at a time are added exactly, and what does not fit is cut off, which is not rounding: errors of a long
// sum have one sign (Fasi et al. 2021, "Numerical behavior of NVIDIA tensor cores").
void compute_mma_tf32(const Lane* in, Lane* out, unsigned) {
    Operands<8> operands;
    for (int i = 0; i < WARP; ++i)
        for (int word = 0; word < 6; ++word)  // the tensor core looks at 10 bits of the mantissa
            operands.put(i, word, i % 4, float_of(in[i].word[word] & 0xffffe000u));
    add_products(operands, in, out, [](float sum, const float* left, const float* right) {
        for (int k = 0; k < 8; k += 4) {
            double exact = sum;
            for (int i = k; i < k + 4; ++i) exact += (double)left[i] * right[i];
            sum = cut_off(exact);
        }
        return sum;
    });
}

}  // namespace

extern const WarpOperation SYNCWARP = {"__syncwarp", nullptr, true, false};
extern const WarpOperation SHUFFLE = {"__shfl_sync", compute_shuffle, false, false};
extern const WarpOperation SHUFFLE_UP = {"__shfl_up_sync", compute_shuffle, false, false};
extern const WarpOperation SHUFFLE_DOWN = {"__shfl_down_sync", compute_shuffle, false, false};
extern const WarpOperation SHUFFLE_XOR = {"__shfl_xor_sync", compute_shuffle, false, false};
extern const WarpOperation BALLOT = {"__ballot_sync", compute_ballot, false, false};
extern const WarpOperation ANY = {"__any_sync", compute_any, false, false};
extern const WarpOperation ALL = {"__all_sync", compute_all, false, false};
extern const WarpOperation LDMATRIX = {"ldmatrix", compute_ldmatrix<false>, false, true};
extern const WarpOperation LDMATRIX_TRANS = {"ldmatrix.trans", compute_ldmatrix<true>, false, true};
extern const WarpOperation MMA_F16 = {"mma", compute_mma_16<half_to_float>, false, true};
extern const WarpOperation MMA_BF16 = {"mma", compute_mma_16<bfloat_to_float>, false, true};
extern const WarpOperation MMA_TF32 = {"mma", compute_mma_tf32, false, true};

extern "C" long cuda_cpu_take_conflicts() {  // since the last time it was asked
    long count = conflicts;
    conflicts = 0;
    return count;
}

}  // namespace cuda_cpu
