// Exact attention of fp16 or bf16 tensors on tensor cores (sm_80 and later), forward and backward; all sums are fp32.
// Options, shapes, masks and dropout: attention.cuh; the instructions: ptx.cuh; what a warp owns and how tiles stream:
// attention_warps.cuh. They come before this text. Tile sizes: kernels/tiles.py.
//
// Three kernels have one shape: a block OWNS rows of one side and STREAMS tiles of the other through shared memory.
//
//     attention_forward   owns queries, streams K, V     S = Q K^T,  P = softmax(S),  O += P V         (online softmax)
//     attention_dq        owns queries, streams K, V     S,  dP = dO V^T,  dS = P (dP - delta),  dQ += dS K
//     attention_dkdv      owns keys, streams Q, dO       S^T = K Q^T,  dV += P^T dO,  dP^T,  dK += dS^T Q
//
// A tile of S is born in registers as a sum of products, and its numbers lie there just as the left operand of the next
// product wants them: so P and dS, rounded to 16 bits, never pass through shared memory. That is why attention_dkdv
// works on S^T. Backward computes P = exp(S - lse) again (Dao 2023, "FlashAttention-2", algorithms 1 and 2). Nothing is
// added atomically: the same call gives the same bits.

// ---- options --------------------------------------------------------------------------------------------------------
#ifndef USE_BF16
#define USE_BF16 0
#endif
#ifndef IN_REGISTERS
#define IN_REGISTERS 1  // keep the owned rows there; else they are read from shared memory for every streamed tile
#endif
#define STEPS (HEAD_DIM / 16)  // of a product that sums over d
#define OWN_TILE (OWN * HEAD_DIM)
#define STREAM_TILE (STREAM * HEAD_DIM)

// ---- what a lane holds ----------------------------------------------------------------------------------------------
typedef unsigned short h16;  // the bits of a number
typedef u32 Fragments[ROW_TILES][STEPS][4];  // rows of d numbers as left operands

// ---- tiles in shared memory -----------------------------------------------------------------------------------------
// Chunk c of row r, 16 bytes, lies in the place c ^ (r % 8) of its row: 8 rows that ldmatrix reads at once then lie in
// 8 different groups of banks. Rows shorter than 128 bytes share a line of all banks, and have fewer places.
INLINE int place(int r, int c) {
    constexpr int per_line = CHUNKS < 8 ? 8 / CHUNKS : 1, places = CHUNKS < 8 ? CHUNKS : 8;
    return r * HEAD_DIM + 8 * (c ^ (r / per_line % places));
}

// Starts to copy x[row0 ...] to a tile. A thread copies the same chunk of every `step`-th row.
template <int rows, class Number> INLINE void load_tile(Number* tile, const Rows<Number>& x, int row0) {
    constexpr int step = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0 && (rows % step == 0 || step > rows), "HEAD_DIM or WARPS");
    const int r = threadIdx.x / CHUNKS, c = threadIdx.x % CHUNKS;
    if (step > rows && r >= rows) return;
    const int bytes = max(0, min(16, 2 * (x.width - 8 * c))), left = x.end - row0 - r;
    const Number* from = x.first + (row0 + r) * x.stride + 8 * c;
    EACH(i, (rows + step - 1) / step) {
        cp_async_16(tile + place(r + i * step, c), from, i * step < left ? bytes : 0);
        from += step * x.stride;
    }
}
INLINE void wait_for_owned() {
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
}

// ---- operands -------------------------------------------------------------------------------------------------------
// Of a tile, 16 rows from `row` on (a multiple of 16) and 16 numbers of d from 16 * step on. A lane's place for chunk
// 2 * step + c differs from the one for chunk c by an exclusive or: so it is computed once for all rows and steps.
// As a left operand:
INLINE void load_left(u32 (&a)[4], const h16* tile, int row, int step) {
    ldmatrix_x4(a, tile + row * HEAD_DIM + (place(lane() % 16, lane() / 16) ^ 16 * step));
}
// As two right operands, (b0, b1) and (b2, b3), whose columns are these rows, for a sum over d:
INLINE void load_columns(u32 (&b)[4], const h16* tile, int row, int step) {
    ldmatrix_x4(b, tile + row * HEAD_DIM + (place(lane() % 8 + lane() / 16 * 8, lane() / 8 % 2) ^ 16 * step));
}
// As two right operands whose rows are these rows, for a sum over them:
INLINE void load_rows(u32 (&b)[4], const h16* tile, int row, int step) {
    ldmatrix_x4_trans(b, tile + row * HEAD_DIM + (place(lane() % 16, lane() / 16) ^ 16 * step));
}
INLINE void load_owned(Fragments& own, const h16* tile) {
#if IN_REGISTERS
    EACH(m, ROW_TILES) EACH(k, STEPS) load_left(own[m][k], tile, warp_row() + 16 * m, k);
#endif
}

// ---- the two products -----------------------------------------------------------------------------------------------
// s = own rows @ tile^T
INLINE void products(Scores& s, const Fragments& own, const h16* own_tile, const h16* tile) {
    EACH_SCORE(m, n, e) s[m][n][e] = 0;
    EACH(k, STEPS) {
        u32 a[ROW_TILES][4];
        EACH(m, ROW_TILES) {
#if IN_REGISTERS
            EACH(i, 4) a[m][i] = own[m][k][i];
#else
            load_left(a[m], own_tile, warp_row() + 16 * m, k);
#endif
        }
        EACH(pair, COLUMN_TILES / 2) {
            u32 b[4];
            load_columns(b, tile, 16 * pair, k);
            EACH(m, ROW_TILES) {
                mma_16x8x16<USE_BF16>(s[m][2 * pair], a[m], b[0], b[1]);
                mma_16x8x16<USE_BF16>(s[m][2 * pair + 1], a[m], b[2], b[3]);
            }
        }
    }
}
// sums += p @ tile. Two neighbouring tiles of p are, rounded, one left operand.
INLINE void weighted_sum(Sums& sums, const Scores& p, const h16* tile) {
    EACH(k, STREAM / 16) {
        u32 a[ROW_TILES][4];
        EACH(m, ROW_TILES) EACH(i, 4) {
            const float* pair = &p[m][2 * k + i / 2][i % 2 * 2];
            a[m][i] = pack16<USE_BF16>(pair[0], pair[1]);
        }
        EACH(pair, CHUNKS / 2) {
            u32 b[4];
            load_rows(b, tile, 16 * k, pair);
            EACH(m, ROW_TILES) {
                mma_16x8x16<USE_BF16>(sums[m][2 * pair], a[m], b[0], b[1]);
                mma_16x8x16<USE_BF16>(sums[m][2 * pair + 1], a[m], b[2], b[3]);
            }
        }
    }
}
// x[row0 ...] = factor * sums, the rows that the block owns
INLINE void store_rows(h16* x, long long stride, const Sums& sums, const PerRow& factor, int row0, int end, int width) {
    EACH_ROW(m, i) {
        const int row = row0 + row_of(m, i);
        if (row < end)
            EACH(n, CHUNKS) {
                const int column = column_of(n, 0);
                const float *pair = &sums[m][n][2 * i], f = factor[m][i];
                const u32 bits = pack16<USE_BF16>(f * pair[0], f * pair[1]);
                h16* to = x + row * stride + column;
                if (width % 2 == 0) {  // then so is the stride, and pairs are aligned
                    if (column < width) *(u32*)to = bits;
                } else {
                    if (column < width) to[0] = (h16)bits;
                    if (column + 1 < width) to[1] = (h16)(bits >> 16);
                }
            }
    }
}

// ---- scores and weights ---------------------------------------------------------------------------------------------
// exp(S) = exp2(s * unit(a)): without a bias scores stay products, and the scale costs nothing. (It is positive then.)
INLINE float unit(const Attention& a) { return BIAS == NO_BIAS ? a.scale * LOG2E : LOG2E; }

// exp(S - base), where S = s * unit / LOG2E, is one FMA and one power of 2 if base is scaled beforehand. A float bias
// may make scores of a whole row as large as -1e9, where the rounding of that product alone is worth factors of 2^64:
// then the difference is taken first.
INLINE float scaled_base(float base, float unit) { return BIAS == FLOAT_BIAS ? base : base * unit; }
INLINE float weight(float s, float scaled_base, float unit) {
    return exp2_fast(BIAS == FLOAT_BIAS ? (s - scaled_base) * unit : s * unit - scaled_base);
}

// Products become scores: hidden ones -infinity; with a bias they are scaled and it is added. Rows are queries; if
// transposed, keys.
template <bool transposed>
INLINE void finish_scores(Scores& s, const Attention& a, const Head& h, int row0, int column0) {
    const int query0 = transposed ? column0 : row0, key0 = transposed ? row0 : column0;
    const int last_key = key0 + (transposed ? OWN : STREAM) - 1;
    if (BIAS == NO_BIAS && visible(a, h, query0, last_key)) return;  // then all are
    EACH_SCORE(m, n, e) {
        const int row = row_of(m, e / 2), column = column_of(n, e % 2);
        const int query = query0 + (transposed ? column : row), key = key0 + (transposed ? row : column);
        if (BIAS != NO_BIAS)
            s[m][n][e] = score(a, h, query, key, s[m][n][e]);
        else if (!visible(a, h, query, key))
            s[m][n][e] = MINUS_INFINITY;
    }
}

#if !BACKWARD
// ---- forward --------------------------------------------------------------------------------------------------------
// Scores become weights exp(S - m), with m the largest score of a row so far; what was summed with a smaller m shrinks.
// Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3.
INLINE void online_softmax(Scores& s, Sums& out, PerRow& largest, PerRow& total, float unit) {
    EACH_ROW(m, i) {
        float now = largest[m][i];
        EACH(n, COLUMN_TILES) now = fmaxf(now, fmaxf(s[m][n][2 * i], s[m][n][2 * i + 1]));
        now = row_maximum(now);
        const float base = now == MINUS_INFINITY ? 0 : scaled_base(now, unit);  // nothing seen yet: exp(-infinity) is 0
        const float shrink = weight(largest[m][i], base, unit);
        largest[m][i] = now;
        total[m][i] *= shrink;
        EACH(n, COLUMN_TILES) EACH(j, 2) {
            float& p = s[m][n][2 * i + j];
            p = weight(p, base, unit);
            total[m][i] += p;
        }
        EACH(n, CHUNKS) EACH(j, 2) out[m][n][2 * i + j] *= shrink;
    }
}

extern "C" __global__ void BOUNDS
attention_forward(const h16* q, const h16* k, const h16* v, h16* o, float* lse, const BiasElement* bias,
                  const int* key_lengths, const Attention a) {
    DYNAMIC_SHARED(h16, shared);
    h16 *own_q = shared, *buffers = own_q + OWN_TILE;
    const int blocks = (a.queries + OWN - 1) / OWN;
    const int row0 = (blocks - 1 - blockIdx.x % blocks) * OWN;  // causal: the rows with most keys first
    const Head h = head_at(a, blockIdx.x / blocks, bias, key_lengths);
    load_tile<OWN>(own_q, rows_at(q, a.q, h.batch, h.head, a.queries, a.width), row0);
    wait_for_owned();
    Fragments Q;
    load_owned(Q, own_q);
    Sums out = {};
    PerRow largest, total;
    EACH_ROW(m, i) largest[m][i] = MINUS_INFINITY, total[m][i] = 0;

    stream<STREAM_TILE>(buffers, rows_at(k, a.k, h.batch, h.key_head, h.keys, a.width),
           rows_at(v, a.v, h.batch, h.key_head, h.keys, a.width), 0, end_of_keys(a, h, row0 + OWN), [](int, int) {},
           [&](const h16* K, const h16* V, int key0, int) {
               Scores s;
               products(s, Q, own_q, K);
               finish_scores<false>(s, a, h, row0, key0);
               online_softmax(s, out, largest, total, unit(a));
               mark_dropped<false>(s, a, h, row0, key0);
               EACH_SCORE(m, n, e) s[m][n][e] = remaining(s[m][n][e]);
               weighted_sum(out, s, V);
           });

    PerRow factor;
    finish_rows(factor, lse + (long long)h.index * a.queries, largest, total, BIAS == NO_BIAS ? a.scale : 1, a, row0);
    store_rows(rows_of(o, a.o, h.batch, h.head), a.o.row, out, factor, row0, a.queries, a.width);
}

#else
// ---- backward -------------------------------------------------------------------------------------------------------
extern "C" __global__ void __launch_bounds__(256)
attention_delta(const h16* o, const h16* d_o, float* delta, const Attention a) {
    find_delta<h16, from16<USE_BF16>>(o, d_o, delta, a);
}

// Owns queries; dQ = scale dS K. With a float bias it finds share for the kernels after it: 1 / the sum of a row of
// exp(S - lse). Rounding of lse moves that from 1, far where all scores of a row are large, as -1e9 is.
extern "C" __global__ void BOUNDS
attention_dq(const h16* q, const h16* k, const h16* v, const h16* d_o, const float* lse, const float* delta,
             float* share, h16* d_q, const BiasElement* bias, const int* key_lengths, const Attention a) {
    DYNAMIC_SHARED(h16, shared);
    h16 *own_q = shared, *own_g = own_q + OWN_TILE, *buffers = own_g + OWN_TILE;
    const int blocks = (a.queries + OWN - 1) / OWN;
    const int row0 = (blocks - 1 - blockIdx.x % blocks) * OWN;
    const Head h = head_at(a, blockIdx.x / blocks, bias, key_lengths);
    load_tile<OWN>(own_q, rows_at(q, a.q, h.batch, h.head, a.queries, a.width), row0);
    load_tile<OWN>(own_g, rows_at(d_o, a.d_o, h.batch, h.head, a.queries, a.width), row0);
    wait_for_owned();
    Fragments Q, G;
    load_owned(Q, own_q);
    load_owned(G, own_g);
    Sums out = {};
    const long long rows = (long long)h.index * a.queries;
    PerRow base, row_delta, total = {};
    EACH_ROW(m, i) {
        base[m][i] = scaled_base(base_of(lse + rows, row0 + row_of(m, i), a.queries), LOG2E);
        row_delta[m][i] = value_of(delta + rows, row0 + row_of(m, i), a.queries);
    }

    stream<STREAM_TILE>(buffers, rows_at(k, a.k, h.batch, h.key_head, h.keys, a.width),
           rows_at(v, a.v, h.batch, h.key_head, h.keys, a.width), 0, end_of_keys(a, h, row0 + OWN), [](int, int) {},
           [&](const h16* K, const h16* V, int key0, int) {
               Scores s, dp;
               products(s, Q, own_q, K);
               products(dp, G, own_g, V);
               finish_scores<false>(s, a, h, row0, key0);
               EACH_SCORE(m, n, e) s[m][n][e] = weight(s[m][n][e], base[m][e / 2], unit(a));
               if (BIAS == FLOAT_BIAS) EACH_SCORE(m, n, e) total[m][e / 2] += s[m][n][e];
               mark_dropped<false>(s, a, h, row0, key0);
               EACH_SCORE(m, n, e) s[m][n][e] = score_gradient(a, s[m][n][e], dp[m][n][e], row_delta[m][e / 2]);
               weighted_sum(out, s, K);
           });

    PerRow factor;
    EACH_ROW(m, i) factor[m][i] = a.scale;
    if (BIAS == FLOAT_BIAS) finish_share(factor, share + rows, total, a, row0);
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
    wait_for_owned();
    Fragments K, V;
    load_owned(K, own_k);
    load_owned(V, own_v);
    Sums out_k = {}, out_v = {};

    const int begin = row0 < keys ? begin_of_queries(a, row0) / STREAM * STREAM : a.queries;
    for (int member = 0; member < group; ++member) {
        const Head h = head_at(a, batch * a.heads + key_head * group + member, bias, key_lengths);
        const long long rows = (long long)h.index * a.queries;
        auto load_queries = [&](int query0, int stage) {
            for (int i = threadIdx.x; i < STREAM; i += THREADS) {
                queries[stage].base[i] = scaled_base(base_of(lse + rows, query0 + i, a.queries), LOG2E);
                if (BIAS == FLOAT_BIAS) queries[stage].share[i] = value_of(share + rows, query0 + i, a.queries);
                queries[stage].delta[i] = value_of(delta + rows, query0 + i, a.queries);
            }
        };
        stream<STREAM_TILE>(buffers, rows_at(q, a.q, batch, h.head, a.queries, a.width),
               rows_at(d_o, a.d_o, batch, h.head, a.queries, a.width), begin, a.queries, load_queries,
               [&](const Number* Q, const Number* G, int query0, int stage) {
                   const float *base = queries[stage].base, *row_delta = queries[stage].delta;
                   Scores s, dp;
                   products(s, K, own_k, Q);
                   finish_scores<true>(s, a, h, row0, query0);
                   EACH_SCORE(m, n, e) s[m][n][e] = weight(s[m][n][e], base[column_of(n, e % 2)], unit(a));
                   if (BIAS == FLOAT_BIAS) EACH_SCORE(m, n, e) s[m][n][e] *= queries[stage].share[column_of(n, e % 2)];
                   mark_dropped<true>(s, a, h, row0, query0);
                   if (with_v) {
                       EACH_SCORE(m, n, e) dp[m][n][e] = remaining(s[m][n][e]);
                       weighted_sum(out_v, dp, G);
                   }
                   if (with_k) {
                       products(dp, V, own_v, G);
                       EACH_SCORE(m, n, e)
                           dp[m][n][e] = score_gradient(a, s[m][n][e], dp[m][n][e], row_delta[column_of(n, e % 2)]);
                       weighted_sum(out_k, dp, Q);
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
attention_dkdv(const h16* q, const h16* k, const h16* v, const h16* d_o, const float* lse, const float* delta,
               const float* share, h16* d_k, h16* d_v, const BiasElement* bias, const int* key_lengths,
               const Attention a) {
    DYNAMIC_SHARED(h16, shared);
    parts_of_key_gradients(shared, q, k, v, d_o, lse, delta, share, d_k, d_v, bias, key_lengths, a);
}
#endif
