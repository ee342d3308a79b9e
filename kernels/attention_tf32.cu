// Exact attention in fp32 on tensor cores (sm_80 and later), forward and backward, in memory of the sequence's length.
// Options, shapes, masks and dropout: attention.cuh; the instructions: ptx.cuh; what a warp owns and how tiles stream:
// attention_warps.cuh. They come before this text. Tile sizes: kernels/tiles.py. On CUDA cores: attention_f32.cu.
//
// Three kernels have one shape: a block OWNS rows of one side and STREAMS tiles of the other through shared memory.
//
//     attention_forward   owns queries, streams K, V     S = Q K^T,  P = softmax(S),  O += P V         (online softmax)
//     attention_dq        owns queries, streams K, V     S,  dP = dO V^T,  dS = P (dP - delta),  dQ += dS K
//     attention_dkdv      owns keys, streams Q, dO       S^T = K Q^T,  dV += P^T dO,  dP^T,  dK += dS^T Q
//
// Tensor cores multiply TF32: of a number of fp32 they see 11 significant bits. So x is split into two such numbers,
// big + small, and a product is three: small b_big + big b_small + big b_big. (small b_small is 2^-22 of it or less.)
//
// A tile of S is born in registers as a sum of products, and stays there as the left operand of the next product: see
// left_of. That is why attention_dkdv works on S^T. Backward computes P = exp(S - lse) again (Dao 2023,
// "FlashAttention-2", algorithms 1 and 2). Nothing is added atomically: the same call gives the same bits.

// ---- sizes ----------------------------------------------------------------------------------------------------------
#define GROUP (HEAD_DIM < 256 ? 4 : 2)  // chunks of an output row that are left out together if they lie behind its end
// Rows in shared memory are 4 numbers longer than d, so that 8 rows begin in 8 different groups of four banks.
#define TILE_ROW (HEAD_DIM + 4)
#define OWN_TILE (OWN * TILE_ROW)
#define STREAM_TILE (STREAM * TILE_ROW)

// ---- tiles in shared memory -----------------------------------------------------------------------------------------
// Starts to copy x[row0 ...] to a tile. Of a row `across` lanes of a warp copy 16 bytes each, `step` rows at a time.
// (The owned rows need no wait of their own: copied first, they are there when the first streamed tiles are.)
template <int rows, class Number> INLINE void load_tile(Number* tile, const Rows<Number>& x, int row0) {
    constexpr int fours = HEAD_DIM / 4, across = fours < 32 ? fours : 32, step = THREADS / across;
    static_assert(rows % step == 0 || step > rows, "each thread copies as many rows as any other, or one at most");
    const int r = threadIdx.x / across, left = x.end - row0 - r;
    if (step > rows && r >= rows) return;
    const Number* from = x.first + (row0 + r) * x.stride;
#pragma unroll 1  // more would need more registers
    for (int i = 0; i < (rows + step - 1) / step; ++i) {
#pragma unroll 1
        for (int j = 0; j < fours / across; ++j) {
            const int c = 4 * (threadIdx.x % across + j * across);
            const int bytes = i * step < left ? max(0, min(16, 4 * (x.width - c))) : 0;
            cp_async_16(tile + (r + i * step) * TILE_ROW + c, from + c, bytes);
        }
        from += step * x.stride;
    }
}

// ---- operands -------------------------------------------------------------------------------------------------------
// Numbers of fp32 as two of TF32 each, for two instructions, of which each multiplies to a depth of 8.
struct Left {  // 16 x 16
    u32 big[2][4], small[2][4];
};
struct Right {  // 16 x 8
    u32 big[2][2], small[2][2];
};
// big is x rounded to nearest. (cvt.rna.tf32 does the same in six instructions instead of two. With these, a NaN may
// vanish from big, but is then in small.) The last bits of small are left to the tensor core, which does not see them.
INLINE void split(u32& big, u32& small, float x) {
    big = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    small = __float_as_uint(x - __uint_as_float(big));
}
INLINE void put(Left& a, int half, float x0, float x1, float x2, float x3) {
    const float x[4] = {x0, x1, x2, x3};
    EACH(i, 4) split(a.big[half][i], a.small[half][i], x[i]);
}
INLINE void put(Right& b, int half, float x0, float x1) {
    split(b.big[half][0], b.small[half][0], x0);
    split(b.big[half][1], b.small[half][1], x1);
}

// sum += a b. Tensor cores do not round what they add up, they cut off what does not fit: errors of one sign, which
// would grow with the number of terms. So a sum there is short, its smallest terms come first, and the long sum is made
// outside. (Ootomo and Yokota 2022, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
// theoretical peak performance".)
INLINE void add_product(float (&sum)[4], const Left& a, const Right& b) {
    float part[4] = {};
    EACH(half, 2) mma_16x8x8_tf32(part, a.small[half], b.big[half][0], b.big[half][1]);
    EACH(half, 2) mma_16x8x8_tf32(part, a.big[half], b.small[half][0], b.small[half][1]);
    EACH(half, 2) mma_16x8x8_tf32(part, a.big[half], b.big[half][0], b.big[half][1]);
    EACH(e, 4) sum[e] += part[e];
}

// Four tiles of 8 rows x 4 numbers: ldmatrix, which is made for numbers of 16 bits, gives a lane two of them at a time.
INLINE void load_numbers(float (&x)[4], const float* row) {
    u32 bits[4];
    ldmatrix_x4(bits, row);
    EACH(i, 4) x[i] = __uint_as_float(bits[i]);
}
// Of a tile, rows from `row` on and 16 numbers of d from 16 * step on.
// As a left operand, 16 rows:
INLINE Left load_left(const float* tile, int row, int step) {
    Left a;
    EACH(half, 2) {
        float x[4];
        load_numbers(x, tile + (row + lane() % 16) * TILE_ROW + 16 * step + 8 * half + lane() / 16 * 4);
        put(a, half, x[0], x[1], x[2], x[3]);
    }
    return a;
}
// As a right operand whose columns are these 8 rows, for a sum over d:
INLINE Right load_columns(const float* tile, int row, int step) {
    Right b;
    float x[4];
    load_numbers(x, tile + (row + lane() % 8) * TILE_ROW + 16 * step + lane() / 8 * 4);
    EACH(half, 2) put(b, half, x[2 * half], x[2 * half + 1]);
    return b;
}
// Two neighbouring tiles of scores as a left operand. What a lane holds of a row, the columns 2t and 2t + 1, would have
// to be t and t + 4; but a sum has no order: so they are taken for these,
INLINE Left left_of(const float (*p)[4]) {
    Left a;
    EACH(half, 2) put(a, half, p[half][0], p[half][2], p[half][1], p[half][3]);
    return a;
}
// and of 16 rows as the rows of a right operand, for a sum over them, 2t and 2t + 1 are taken for t and t + 4.
INLINE int place_of_rows() { return 2 * (lane() % 4) * TILE_ROW + lane() / 4; }
INLINE Right load_rows(const float* tile, int row, int chunk) {
    Right b;
    const float* x = tile + place_of_rows() + row * TILE_ROW + 8 * chunk;
    EACH(half, 2) put(b, half, x[8 * half * TILE_ROW], x[(8 * half + 1) * TILE_ROW]);
    return b;
}

// ---- the two products -----------------------------------------------------------------------------------------------
// Both go as far as there are numbers: from d = width on there are zeros. (Where they ask for that, the compiler begins
// no loads of what comes behind it; unrolled whole, it began so many that it spilled registers.)

// s = own rows @ tile^T
INLINE void products(Scores& s, const float* own_tile, const float* tile, int width) {
    EACH_SCORE(m, n, e) s[m][n][e] = 0;
#pragma unroll 1
    for (int k = 0; 16 * k < width; ++k) {
        Left a[ROW_TILES];
        EACH(m, ROW_TILES) a[m] = load_left(own_tile, warp_row() + 16 * m, k);
        EACH(n, COLUMN_TILES) {
            const Right b = load_columns(tile, 8 * n, k);
            EACH(m, ROW_TILES) add_product(s[m][n], a[m], b);
        }
    }
}
// sums += p @ tile
INLINE void weighted_sum(Sums& sums, const Scores& p, const float* tile, int width) {
    EACH(k, STREAM / 16) {
        Left a[ROW_TILES];
        EACH(m, ROW_TILES) a[m] = left_of(&p[m][2 * k]);
        EACH(n, CHUNKS) {
            if (n % GROUP == 0 && 8 * n >= width) break;
            const Right b = load_rows(tile, 16 * k, n);
            EACH(m, ROW_TILES) add_product(sums[m][n], a[m], b);
        }
    }
}
// x[row0 ...] = factor * sums, the rows that the block owns
INLINE void store_rows(float* x, long long stride, const Sums& sums, const PerRow& factor, int row0, int end,
                       int width) {
    EACH_ROW(m, i) {
        const int row = row0 + row_of(m, i);
        if (row < end)
            EACH(n, CHUNKS) {
                const int column = column_of(n, 0);
                const float first = factor[m][i] * sums[m][n][2 * i], second = factor[m][i] * sums[m][n][2 * i + 1];
                float* to = x + row * stride + column;
                if (width % 2 == 0) {  // then so is the stride, and pairs are aligned
                    if (column < width) *(float2*)to = make_float2(first, second);
                } else {
                    if (column < width) to[0] = first;
                    if (column + 1 < width) to[1] = second;
                }
            }
    }
}

// ---- scores and weights ---------------------------------------------------------------------------------------------
INLINE float weight(float s, float base) { return exp2f((s - base) * LOG2E); }

// Products become scores, -infinity where hidden. Rows are queries; if transposed, keys.
template <bool transposed>
INLINE void finish_scores(Scores& s, const Attention& a, const Head& h, int row0, int column0) {
    const int query0 = transposed ? column0 : row0, key0 = transposed ? row0 : column0;
    const int last_key = key0 + (transposed ? OWN : STREAM) - 1;
    if (BIAS == NO_BIAS && visible(a, h, query0, last_key)) {  // then all are
        EACH_SCORE(m, n, e) s[m][n][e] *= a.scale;
        return;
    }
    EACH_SCORE(m, n, e) {
        const int row = row_of(m, e / 2), column = column_of(n, e % 2);
        const int query = query0 + (transposed ? column : row), key = key0 + (transposed ? row : column);
        s[m][n][e] = score(a, h, query, key, s[m][n][e]);
    }
}

#if !BACKWARD
// ---- forward --------------------------------------------------------------------------------------------------------
// Scores become weights exp(S - m), with m the largest score of a row so far; what was summed with a smaller m shrinks.
// Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3.
INLINE void online_softmax(Scores& s, Sums& out, PerRow& largest, PerRow& total) {
    EACH_ROW(m, i) {
        float now = largest[m][i];
        EACH(n, COLUMN_TILES) now = fmaxf(now, fmaxf(s[m][n][2 * i], s[m][n][2 * i + 1]));
        now = row_maximum(now);
        const float base = now == MINUS_INFINITY ? 0 : now;  // nothing seen yet: exp(-infinity - 0) is 0
        const float shrink = weight(largest[m][i], base);
        largest[m][i] = now;
        float sum = 0;
        EACH(n, COLUMN_TILES) EACH(j, 2) sum += s[m][n][2 * i + j] = weight(s[m][n][2 * i + j], base);
        total[m][i] = total[m][i] * shrink + sum;
        EACH(n, CHUNKS) EACH(j, 2) out[m][n][2 * i + j] *= shrink;
    }
}

extern "C" __global__ void BOUNDS
attention_forward(const float* q, const float* k, const float* v, float* o, float* lse, const BiasElement* bias,
                  const int* key_lengths, const Attention a) {
    DYNAMIC_SHARED(float, shared);
    float *own_q = shared, *buffers = own_q + OWN_TILE;
    const int blocks = (a.queries + OWN - 1) / OWN;
    const int row0 = (blocks - 1 - blockIdx.x % blocks) * OWN;  // causal: the rows with most keys first
    const Head h = head_at(a, blockIdx.x / blocks, bias, key_lengths);
    load_tile<OWN>(own_q, rows_at(q, a.q, h.batch, h.head, a.queries, a.width), row0);
    Sums out = {};
    PerRow largest, total;
    EACH_ROW(m, i) largest[m][i] = MINUS_INFINITY, total[m][i] = 0;

    stream<STREAM_TILE>(buffers, rows_at(k, a.k, h.batch, h.key_head, h.keys, a.width),
           rows_at(v, a.v, h.batch, h.key_head, h.keys, a.width), 0, end_of_keys(a, h, row0 + OWN), [](int, int) {},
           [&](const float* K, const float* V, int key0, int) {
               Scores s;
               products(s, own_q, K, a.width);
               finish_scores<false>(s, a, h, row0, key0);
               online_softmax(s, out, largest, total);
               mark_dropped<false>(s, a, h, row0, key0);
               EACH_SCORE(m, n, e) s[m][n][e] = remaining(s[m][n][e]);
               weighted_sum(out, s, V, a.width);
           });

    PerRow factor;
    finish_rows(factor, lse + (long long)h.index * a.queries, largest, total, 1, a, row0);
    store_rows(rows_of(o, a.o, h.batch, h.head), a.o.row, out, factor, row0, a.queries, a.width);
}

#else
// ---- backward -------------------------------------------------------------------------------------------------------
extern "C" __global__ void __launch_bounds__(256)
attention_delta(const float* o, const float* d_o, float* delta, const Attention a) {
    find_delta<float, same>(o, d_o, delta, a);
}

// Owns queries; dQ = scale dS K. For the kernels after it, finds share: 1 / the sum of a row of exp(S - lse).
// That is not quite 1, as lse is rounded, and far from it where all scores of a row are large, as -1e9 is.
extern "C" __global__ void BOUNDS
attention_dq(const float* q, const float* k, const float* v, const float* d_o, const float* lse, const float* delta,
             float* share, float* d_q, const BiasElement* bias, const int* key_lengths, const Attention a) {
    DYNAMIC_SHARED(float, shared);
    float *own_q = shared, *own_g = own_q + OWN_TILE, *buffers = own_g + OWN_TILE;
    const int blocks = (a.queries + OWN - 1) / OWN;
    const int row0 = (blocks - 1 - blockIdx.x % blocks) * OWN;
    const Head h = head_at(a, blockIdx.x / blocks, bias, key_lengths);
    load_tile<OWN>(own_q, rows_at(q, a.q, h.batch, h.head, a.queries, a.width), row0);
    load_tile<OWN>(own_g, rows_at(d_o, a.d_o, h.batch, h.head, a.queries, a.width), row0);
    Sums out = {};
    const long long rows = (long long)h.index * a.queries;
    PerRow base, row_delta, total = {};
    EACH_ROW(m, i) {
        base[m][i] = base_of(lse + rows, row0 + row_of(m, i), a.queries);
        row_delta[m][i] = value_of(delta + rows, row0 + row_of(m, i), a.queries);
    }

    stream<STREAM_TILE>(buffers, rows_at(k, a.k, h.batch, h.key_head, h.keys, a.width),
           rows_at(v, a.v, h.batch, h.key_head, h.keys, a.width), 0, end_of_keys(a, h, row0 + OWN), [](int, int) {},
           [&](const float* K, const float* V, int key0, int) {
               Scores s, dp;
               products(s, own_q, K, a.width);
               products(dp, own_g, V, a.width);
               finish_scores<false>(s, a, h, row0, key0);
               EACH_ROW(m, i) {
                   float sum = 0;
                   EACH(n, COLUMN_TILES) EACH(j, 2) sum += s[m][n][2 * i + j] = weight(s[m][n][2 * i + j], base[m][i]);
                   total[m][i] += sum;
               }
               mark_dropped<false>(s, a, h, row0, key0);
               EACH_SCORE(m, n, e) s[m][n][e] = score_gradient(a, s[m][n][e], dp[m][n][e], row_delta[m][e / 2]);
               weighted_sum(out, s, K, a.width);
           });

    PerRow factor;
    finish_share(factor, share + rows, total, a, row0);
    store_rows(rows_of(d_q, a.d_q, h.batch, h.head), a.d_q.row, out, factor, row0, a.queries, a.width);
}

// Owns keys, so scores are transposed; dV = P^T dO, dK = scale dS^T Q, summed over the heads that share the key's.
template <bool with_k, bool with_v, class Number>
INLINE void key_gradients(Number* shared, int block, const Number* q, const Number* k, const Number* v,
                          const Number* d_o, const float* lse, const float* delta, const float* share, Number* d_k,
                          Number* d_v, const BiasElement* bias, const int* key_lengths, const Attention& a) {
    Number *own_k = shared, *own_v = own_k + OWN_TILE, *buffers = own_v + OWN_TILE;
    Queries* queries = (Queries*)(buffers + 4 * STREAM_TILE);  // of each stage
    const int blocks = (a.keys + OWN - 1) / OWN, group = a.heads / a.key_heads;
    const int row0 = block % blocks * OWN;
    const int batch = block / blocks / a.key_heads, key_head = block / blocks % a.key_heads;
    const int keys = visible_keys(a, key_lengths, batch);
    load_tile<OWN>(own_k, rows_at(k, a.k, batch, key_head, keys, a.width), row0);
    load_tile<OWN>(own_v, rows_at(v, a.v, batch, key_head, keys, a.width), row0);
    Sums out_k = {}, out_v = {};

    const int begin = row0 < keys ? begin_of_queries(a, row0) / STREAM * STREAM : a.queries;
    for (int member = 0; member < group; ++member) {
        const Head h = head_at(a, batch * a.heads + key_head * group + member, bias, key_lengths);
        const long long rows = (long long)h.index * a.queries;
        auto load_queries = [&](int query0, int stage) {
            for (int i = threadIdx.x; i < STREAM; i += THREADS) {
                queries[stage].base[i] = base_of(lse + rows, query0 + i, a.queries);
                queries[stage].share[i] = value_of(share + rows, query0 + i, a.queries);
                queries[stage].delta[i] = value_of(delta + rows, query0 + i, a.queries);
            }
        };
        stream<STREAM_TILE>(buffers, rows_at(q, a.q, batch, h.head, a.queries, a.width),
               rows_at(d_o, a.d_o, batch, h.head, a.queries, a.width), begin, a.queries, load_queries,
               [&](const Number* Q, const Number* G, int query0, int stage) {
                   Scores s, dp;
                   products(s, own_k, Q, a.width);
                   finish_scores<true>(s, a, h, row0, query0);
                   EACH_SCORE(m, n, e) {
                       const int column = column_of(n, e % 2);
                       s[m][n][e] = queries[stage].share[column] * weight(s[m][n][e], queries[stage].base[column]);
                   }
                   mark_dropped<true>(s, a, h, row0, query0);
                   if (with_v) {
                       EACH_SCORE(m, n, e) dp[m][n][e] = remaining(s[m][n][e]);
                       weighted_sum(out_v, dp, G, a.width);
                   }
                   if (with_k) {
                       products(dp, own_v, G, a.width);
                       EACH_SCORE(m, n, e) {
                           const float row_delta = queries[stage].delta[column_of(n, e % 2)];
                           dp[m][n][e] = score_gradient(a, s[m][n][e], dp[m][n][e], row_delta);
                       }
                       weighted_sum(out_k, dp, Q, a.width);
                   }
               });
    }
    PerRow factor;
    EACH_ROW(m, i) factor[m][i] = a.scale;
    if (with_k) store_rows(rows_of(d_k, a.d_k, batch, key_head), a.d_k.row, out_k, factor, row0, a.keys, a.width);
    EACH_ROW(m, i) factor[m][i] = a.keep_scale;
    if (with_v) store_rows(rows_of(d_v, a.d_v, batch, key_head), a.d_v.row, out_v, factor, row0, a.keys, a.width);
}

extern "C" __global__ void BOUNDS
attention_dkdv(const float* q, const float* k, const float* v, const float* d_o, const float* lse, const float* delta,
               const float* share, float* d_k, float* d_v, const BiasElement* bias, const int* key_lengths,
               const Attention a) {
    DYNAMIC_SHARED(float, shared);
    parts_of_key_gradients(shared, q, k, v, d_o, lse, delta, share, d_k, d_v, bias, key_lengths, a);
}
#endif
