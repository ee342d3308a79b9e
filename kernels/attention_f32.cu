// Exact attention in fp32 on the CUDA cores, forward and backward, in memory of the sequence's length.
// Options, shapes, masks and dropout: attention.cuh, which comes before this text. Tile sizes: kernels/tiles.py.
//
// Three kernels have one shape: a block OWNS rows of one side and STREAMS tiles of the other through shared memory.
//
//     attention_forward   owns queries, streams K, V     S = Q K^T,  P = softmax(S),  O += P V         (online softmax)
//     attention_dq        owns queries, streams K, V     S,  dP = dO V^T,  dS = P (dP - delta),  dQ += dS K
//     attention_dkdv      owns keys, streams Q, dO       S^T = K Q^T,  dV += P^T dO,  dP^T,  dK += dS^T Q
//
// Backward computes P = exp(S - lse) again instead of keeping it (Dao 2023, "FlashAttention-2", algorithms 1 and 2).
// Nothing is added atomically: the same call gives the same bits.

// ---- options --------------------------------------------------------------------------------------------------------
#ifndef HEAD_DIM
#define HEAD_DIM 64  // d is at most this: a multiple of 16
#endif
#ifndef OWN
#define OWN 64  // rows that a block owns
#endif
#ifndef STREAM
#define STREAM 64  // rows of a streamed tile
#endif
#ifndef THREADS_X
#define THREADS_X 16  // a block is THREADS_X x THREADS_Y threads, each with ROWS x COLUMNS scores
#endif
#ifndef THREADS_Y
#define THREADS_Y 16
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1  // that a multiprocessor must have registers for: of two, one computes while the other loads
#endif
#ifndef BACKWARD
#define BACKWARD 0  // which kernels are compiled
#endif
#ifndef ALIGNED
#define ALIGNED 1  // every row of q, k, v, d_o starts at a multiple of 16 bytes, and d is a multiple of 4
#endif
#define THREADS (THREADS_X * THREADS_Y)
#define BLOCKS (BACKWARD && (BIAS != NO_BIAS || DROPOUT || !ALIGNED) ? 1 : MIN_BLOCKS)  // options need registers too
#define ROWS (OWN / THREADS_Y)
#define COLUMNS (STREAM / THREADS_X)
#define WIDTH (HEAD_DIM / THREADS_X)  // elements of an output row that are one thread's
#if HEAD_DIM / THREADS_X % 4 == 0
#define GROUP 4  // of them, side by side, read at once
#else
#define GROUP WIDTH
#endif
static_assert(ROWS % 2 == 0 && COLUMNS % 2 == 0, "a thread's scores come in squares of 2 x 2, as dropout draws them");
static_assert(32 % THREADS_X == 0 && THREADS_X % 8 == 0, "a row of scores is held within one warp");
// Lengths of rows in shared memory. 8 threads that read 16 bytes each of 8 rows meet 8 different groups of banks;
// two rows of scores that one warp writes meet different banks.
#define TILE_ROW (HEAD_DIM + 4)
#define SCORE_ROW (STREAM + 8)

typedef float Scores[ROWS][COLUMNS];
typedef float Outputs[ROWS][WIDTH];

// ---- which rows and columns are one thread's ------------------------------------------------------------------------
struct Thread {
    int x, y;
};
INLINE Thread this_thread() { return {(int)threadIdx.x % THREADS_X, (int)threadIdx.x / THREADS_X}; }
// The i-th place of thread t among `threads`: places 2i and 2i + 1 differ in bit 3 alone.
template <int threads> INLINE int place(int t, int i) {
    return t % 8 + i % 2 * 8 + (t / 8 + i / 2 * (threads / 8)) * 16;
}
INLINE int row_of(Thread t, int i) { return place<THREADS_Y>(t.y, i); }
INLINE int column_of(Thread t, int j) { return place<THREADS_X>(t.x, j); }
// The c-th element of an output row that is one thread's.
INLINE int output_column(Thread t, int c) { return (c / GROUP * THREADS_X + t.x) * GROUP + c % GROUP; }

// ---- tiles in shared memory -----------------------------------------------------------------------------------------
// Four elements from element c on of a row; zeros from element `width` on.
INLINE float4 load_four(const float* row, int c, int width) {
    if (ALIGNED) return c < width ? *(const float4*)(row + c) : make_float4(0, 0, 0, 0);
    return make_float4(c < width ? row[c] : 0, c + 1 < width ? row[c + 1] : 0, c + 2 < width ? row[c + 2] : 0,
                       c + 3 < width ? row[c + 3] : 0);
}
// tile[r] = x[row0 + r], zeros from row `end` on. A thread's place within a row is the same in all its rows.
template <int rows> INLINE void load_tile(float* tile, const float* x, long long stride, int row0, int end, int width) {
    constexpr int fours = HEAD_DIM / 4, at_once = THREADS / fours;  // rows that the threads load at once
    static_assert(THREADS % fours == 0 && rows % at_once == 0, "each thread loads as many fours as any other");
    const int r = threadIdx.x / fours, c = threadIdx.x % fours * 4;
    x += (row0 + r) * stride;
#pragma unroll 4  // loads under way at the same time
    for (int i = 0; i < rows / at_once; ++i) {
        const bool inside = row0 + r + i * at_once < end;
        *(float4*)(tile + (r + i * at_once) * TILE_ROW + c) = inside ? load_four(x, c, width) : make_float4(0, 0, 0, 0);
        x += at_once * stride;
    }
}
INLINE void store_scores(float* tile, const Scores& s, Thread t) {
    EACH(i, ROWS) EACH(j, COLUMNS) tile[row_of(t, i) * SCORE_ROW + column_of(t, j)] = s[i][j];
}
// x[row0 + r] = factor[r] out[r]
INLINE void store_rows(float* x, long long stride, const Outputs& out, const float (&factor)[ROWS], int row0, int end,
                       int width, Thread t) {
    EACH(i, ROWS) {
        int row = row0 + row_of(t, i);
        EACH(c, WIDTH) {
            int column = output_column(t, c);
            if (row < end && column < width) x[row * stride + column] = factor[i] * out[i][c];
        }
    }
}

// ---- the two products -----------------------------------------------------------------------------------------------
// s = a b^T, of the rows of two tiles. Products are added one by one: a sum of four would cost a multiplication more.
INLINE void products(Scores& s, const float* a, const float* b, Thread t) {
    EACH(i, ROWS) EACH(j, COLUMNS) s[i][j] = 0;
#pragma unroll 1  // more would need more registers
    for (int c = 0; c < HEAD_DIM; c += 4) {
        float4 x[ROWS];
        EACH(i, ROWS) x[i] = *(const float4*)(a + row_of(t, i) * TILE_ROW + c);
        EACH(j, COLUMNS) {
            float4 y = *(const float4*)(b + column_of(t, j) * TILE_ROW + c);
            EACH(i, ROWS) {
                s[i][j] += x[i].x * y.x;
                s[i][j] += x[i].y * y.y;
                s[i][j] += x[i].z * y.z;
                s[i][j] += x[i].w * y.w;
            }
        }
    }
}
INLINE float element(const float4& x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }
INLINE void load_group(float (&y)[GROUP], const float* from) {
#if GROUP == 4
    const float4 four = *(const float4*)from;
    EACH(c, GROUP) y[c] = element(four, c);
#else
    EACH(c, GROUP) y[c] = from[c];
#endif
}
// out += p b, of a tile of scores and a tile of rows. The tile is summed by itself first: if thousands of terms were
// added to one sum, rounding would grow with their number.
INLINE void weighted_sum(Outputs& out, const float* p, const float* b, Thread t) {
    EACH(group, WIDTH / GROUP) {
        float part[ROWS][GROUP] = {};
        const float* columns = b + output_column(t, group * GROUP);
#pragma unroll 1
        for (int k = 0; k < STREAM; k += 4) {
            float4 w[ROWS];
            EACH(i, ROWS) w[i] = *(const float4*)(p + row_of(t, i) * SCORE_ROW + k);
            EACH(e, 4) {
                float y[GROUP];
                load_group(y, columns + (k + e) * TILE_ROW);
                EACH(i, ROWS) EACH(c, GROUP) part[i][c] += element(w[i], e) * y[c];
            }
        }
        EACH(i, ROWS) EACH(c, GROUP) out[i][group * GROUP + c] += part[i][c];
    }
}
INLINE float row_maximum(float x) {  // over the threads that share a row
    for (int m = THREADS_X / 2; m; m /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, m));
    return x;
}
INLINE float row_sum(float x) {
    for (int m = THREADS_X / 2; m; m /= 2) x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
}

// ---- weights --------------------------------------------------------------------------------------------------------
// exp(x), where x <= 0 or so; 0 for -infinity
INLINE float exponential(float x) { return exp2f(x * LOG2E); }

// Weights that dropout takes become negative. Rows are queries; if transposed, keys.
template <bool transposed>
INLINE void mark_dropped(Scores& p, const Attention& a, const Head& h, int row0, int column0, Thread t) {
#if DROPOUT
    for (int i = 0; i < ROWS; i += 2)
        for (int j = 0; j < COLUMNS; j += 2) {
            int row = row0 + row_of(t, i), column = column0 + column_of(t, j);
            bool kept[2][2];
            if (transposed) draw_kept(kept, a, h, column, row);
            else draw_kept(kept, a, h, row, column);
            EACH(m, 2) EACH(n, 2)
                if (!(transposed ? kept[n][m] : kept[m][n])) p[i + m][j + n] = -p[i + m][j + n];
        }
#endif
}

// ---- the kernels ----------------------------------------------------------------------------------------------------
#if !BACKWARD
// Owns queries. With m the largest score of a row so far, the sums are kept times exp(-m) and shrunk when m grows:
// Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_forward(const float* q, const float* k, const float* v, float* o, float* lse, const BiasElement* bias,
                  const int* key_lengths, const Attention a) {
    DYNAMIC_SHARED(float, shared);
    float *Q = shared, *K = Q + OWN * TILE_ROW, *V = K + STREAM * TILE_ROW, *P = V + STREAM * TILE_ROW;
    const Thread t = this_thread();
    const int blocks = (a.queries + OWN - 1) / OWN;
    const int row0 = (blocks - 1 - blockIdx.x % blocks) * OWN;  // causal: the rows with most keys first
    const Head h = head_at(a, blockIdx.x / blocks, bias, key_lengths);
    k = rows_of(k, a.k, h.batch, h.key_head);
    v = rows_of(v, a.v, h.batch, h.key_head);
    load_tile<OWN>(Q, rows_of(q, a.q, h.batch, h.head), a.q.row, row0, a.queries, a.width);
    Outputs out = {};
    float largest[ROWS], total[ROWS];
    EACH(i, ROWS) largest[i] = MINUS_INFINITY, total[i] = 0;

    const int end = end_of_keys(a, h, row0 + OWN);
    for (int key0 = 0; key0 < end; key0 += STREAM) {
        __syncthreads();  // the last tiles have been used
        load_tile<STREAM>(K, k, a.k.row, key0, h.keys, a.width);
        load_tile<STREAM>(V, v, a.v.row, key0, h.keys, a.width);
        __syncthreads();  // the tiles are there
        Scores s;
        products(s, Q, K, t);
        EACH(i, ROWS) {
            float now = largest[i];
            EACH(j, COLUMNS) {
                s[i][j] = score(a, h, row0 + row_of(t, i), key0 + column_of(t, j), s[i][j]);
                now = fmaxf(now, s[i][j]);
            }
            now = row_maximum(now);
            const float base = now == MINUS_INFINITY ? 0 : now;  // nothing seen yet: exp(-infinity - 0) is 0
            const float shrink = exponential(largest[i] - base);
            largest[i] = now;
            float sum = 0;
            EACH(j, COLUMNS) sum += s[i][j] = exponential(s[i][j] - base);
            total[i] = total[i] * shrink + sum;
            EACH(c, WIDTH) out[i][c] *= shrink;
        }
        mark_dropped<false>(s, a, h, row0, key0, t);
        EACH(i, ROWS) EACH(j, COLUMNS) s[i][j] = remaining(s[i][j]);
        store_scores(P, s, t);
        __syncwarp();  // a row of P is written and read by one warp
        weighted_sum(out, P, V, t);
    }
    float factor[ROWS];
    EACH(i, ROWS) {
        const float sum = row_sum(total[i]);
        const int query = row0 + row_of(t, i);
        factor[i] = sum == 0 ? 0 : a.keep_scale / sum;  // nothing visible: the output is 0
        if (t.x == 0 && query < a.queries)
            lse[(long long)h.index * a.queries + query] = sum == 0 ? MINUS_INFINITY : largest[i] + logf(sum);
    }
    store_rows(rows_of(o, a.o, h.batch, h.head), a.o.row, out, factor, row0, a.queries, a.width, t);
}

#else
extern "C" __global__ void __launch_bounds__(256)
attention_delta(const float* o, const float* d_o, float* delta, const Attention a) {
    find_delta<float, same>(o, d_o, delta, a);
}

// Owns queries; dQ = scale dS K. For the kernels after it, finds share: 1 / the sum of a row of exp(S - lse).
// That is not quite 1, as lse is rounded, and far from it where all scores of a row are large, as -1e9 is.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_dq(const float* q, const float* k, const float* v, const float* d_o, const float* lse, const float* delta,
             float* share, float* d_q, const BiasElement* bias, const int* key_lengths, const Attention a) {
    DYNAMIC_SHARED(float, shared);
    float *Q = shared, *G = Q + OWN * TILE_ROW, *K = G + OWN * TILE_ROW, *V = K + STREAM * TILE_ROW;
    float* dS = V + STREAM * TILE_ROW;
    const Thread t = this_thread();
    const int blocks = (a.queries + OWN - 1) / OWN;
    const int row0 = (blocks - 1 - blockIdx.x % blocks) * OWN;
    const Head h = head_at(a, blockIdx.x / blocks, bias, key_lengths);
    k = rows_of(k, a.k, h.batch, h.key_head);
    v = rows_of(v, a.v, h.batch, h.key_head);
    load_tile<OWN>(Q, rows_of(q, a.q, h.batch, h.head), a.q.row, row0, a.queries, a.width);
    load_tile<OWN>(G, rows_of(d_o, a.d_o, h.batch, h.head), a.d_o.row, row0, a.queries, a.width);
    Outputs out = {};
    const long long rows = (long long)h.index * a.queries;
    float base[ROWS], mean[ROWS], total[ROWS];
    EACH(i, ROWS) {
        base[i] = base_of(lse + rows, row0 + row_of(t, i), a.queries);
        mean[i] = value_of(delta + rows, row0 + row_of(t, i), a.queries);
        total[i] = 0;
    }

    const int end = end_of_keys(a, h, row0 + OWN);
    for (int key0 = 0; key0 < end; key0 += STREAM) {
        __syncthreads();  // K and V have been used
        load_tile<STREAM>(K, k, a.k.row, key0, h.keys, a.width);
        load_tile<STREAM>(V, v, a.v.row, key0, h.keys, a.width);
        __syncthreads();  // K and V are there
        Scores s, dp;
        products(s, Q, K, t);
        products(dp, G, V, t);
        EACH(i, ROWS) {
            float sum = 0;
            EACH(j, COLUMNS) {
                s[i][j] = score(a, h, row0 + row_of(t, i), key0 + column_of(t, j), s[i][j]);
                sum += s[i][j] = exponential(s[i][j] - base[i]);
            }
            total[i] += sum;
        }
        mark_dropped<false>(s, a, h, row0, key0, t);
        EACH(i, ROWS) EACH(j, COLUMNS) s[i][j] = score_gradient(a, s[i][j], dp[i][j], mean[i]);
        store_scores(dS, s, t);
        __syncwarp();  // a row of dS is written and read by one warp
        weighted_sum(out, dS, K, t);
    }
    float factor[ROWS];
    EACH(i, ROWS) {
        const float sum = row_sum(total[i]), inverse = sum == 0 ? 0 : 1 / sum;
        const int query = row0 + row_of(t, i);
        factor[i] = inverse * a.scale;
        if (t.x == 0 && query < a.queries) share[rows + query] = inverse;
    }
    store_rows(rows_of(d_q, a.d_q, h.batch, h.head), a.d_q.row, out, factor, row0, a.queries, a.width, t);
}

// Owns keys, so scores are transposed; dV = P^T dO, dK = scale dS^T Q, summed over the heads that share the key's.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_dkdv(const float* q, const float* k, const float* v, const float* d_o, const float* lse, const float* delta,
               const float* share, float* d_k, float* d_v, const BiasElement* bias, const int* key_lengths,
               const Attention a) {
    DYNAMIC_SHARED(float, shared);
    float *K = shared, *V = K + OWN * TILE_ROW, *Q = V + OWN * TILE_ROW, *G = Q + STREAM * TILE_ROW;
    float* P = G + STREAM * TILE_ROW;  // then dS
    const Thread t = this_thread();
    const int blocks = (a.keys + OWN - 1) / OWN, group = a.heads / a.key_heads;
    const int row0 = blockIdx.x % blocks * OWN;
    const int batch = blockIdx.x / blocks / a.key_heads, key_head = blockIdx.x / blocks % a.key_heads;
    const int keys = visible_keys(a, key_lengths, batch);
    load_tile<OWN>(K, rows_of(k, a.k, batch, key_head), a.k.row, row0, keys, a.width);
    load_tile<OWN>(V, rows_of(v, a.v, batch, key_head), a.v.row, row0, keys, a.width);
    Outputs out_k = {}, out_v = {};

    const int begin = row0 < keys ? begin_of_queries(a, row0) / STREAM * STREAM : a.queries;
    for (int member = 0; member < group; ++member) {
        const Head h = head_at(a, batch * a.heads + key_head * group + member, bias, key_lengths);
        const float *q_head = rows_of(q, a.q, batch, h.head), *g_head = rows_of(d_o, a.d_o, batch, h.head);
        const long long rows = (long long)h.index * a.queries;
        for (int query0 = begin; query0 < a.queries; query0 += STREAM) {
            __syncthreads();  // Q and dO have been used
            load_tile<STREAM>(Q, q_head, a.q.row, query0, a.queries, a.width);
            load_tile<STREAM>(G, g_head, a.d_o.row, query0, a.queries, a.width);
            __syncthreads();  // Q and dO are there
            Scores s, dp;
            products(s, K, Q, t);
            EACH(j, COLUMNS) {
                const int query = query0 + column_of(t, j);
                const float base = base_of(lse + rows, query, a.queries);
                const float part = value_of(share + rows, query, a.queries);
                EACH(i, ROWS) {
                    s[i][j] = score(a, h, query, row0 + row_of(t, i), s[i][j]);
                    s[i][j] = part * exponential(s[i][j] - base);
                }
            }
            mark_dropped<true>(s, a, h, row0, query0, t);
            EACH(i, ROWS) EACH(j, COLUMNS) dp[i][j] = remaining(s[i][j]);
            store_scores(P, dp, t);
            __syncwarp();  // P is there
            weighted_sum(out_v, P, G, t);
            products(dp, V, G, t);
            EACH(j, COLUMNS) {
                const float mean = value_of(delta + rows, query0 + column_of(t, j), a.queries);
                EACH(i, ROWS) s[i][j] = score_gradient(a, s[i][j], dp[i][j], mean);
            }
            __syncwarp();  // P has been used
            store_scores(P, s, t);
            __syncwarp();  // dS is there
            weighted_sum(out_k, P, Q, t);
        }
    }
    float factor[ROWS];
    EACH(i, ROWS) factor[i] = a.scale;
    store_rows(rows_of(d_k, a.d_k, batch, key_head), a.d_k.row, out_k, factor, row0, a.keys, a.width, t);
    EACH(i, ROWS) factor[i] = a.keep_scale;
    store_rows(rows_of(d_v, a.d_v, batch, key_head), a.d_v.row, out_v, factor, row0, a.keys, a.width, t);
}

#if BIAS == FLOAT_BIAS
// Owns a tile of the bias's gradient, OWN queries x STREAM keys, or STREAM keys of a bias that all queries share, and
// sums dS over all that the bias was broadcast to: batch entries, heads and queries, in this order.
// (A bias that all keys of a row share has the gradient 0, since it does not change a softmax: no kernel is needed.)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_dbias(const float* q, const float* k, const float* v, const float* d_o, const float* lse, const float* delta,
                const float* share, float* d_bias, const BiasElement* bias, const int* key_lengths, const Attention a) {
    DYNAMIC_SHARED(float, shared);
    float *Q = shared, *G = Q + OWN * TILE_ROW, *K = G + OWN * TILE_ROW, *V = K + STREAM * TILE_ROW;
    const Thread t = this_thread();
    const BiasStrides& strides = a.d_bias;
    const bool each_batch = strides.batch != 0, each_head = strides.head != 0, each_query = strides.query != 0;
    const int key_tiles = (a.keys + STREAM - 1) / STREAM, row_tiles = each_query ? (a.queries + OWN - 1) / OWN : 1;
    const int key0 = blockIdx.x % key_tiles * STREAM, tile = blockIdx.x / key_tiles % row_tiles;
    const int index = blockIdx.x / key_tiles / row_tiles;  // in (B or 1, H or 1)
    const int own_batch = each_head ? index / a.heads : index, own_head = each_head ? index % a.heads : 0;
    const int begin_batch = each_batch ? own_batch : 0, end_batch = each_batch ? own_batch + 1 : a.batches;
    const int begin_head = own_head, end_head = each_head ? own_head + 1 : a.heads;
    const int begin_row = tile * OWN, end_row = each_query ? begin_row + OWN : a.queries;
    Scores sum = {};
    for (int batch = begin_batch; batch < end_batch; ++batch)
        for (int head = begin_head; head < end_head; ++head) {
            const Head h = head_at(a, batch * a.heads + head, bias, key_lengths);
            for (int row0 = begin_row; row0 < end_row; row0 += OWN) {
                if (key0 >= end_of_keys(a, h, row0 + OWN)) continue;  // all hidden
                __syncthreads();  // the last four tiles have been used
                load_tile<OWN>(Q, rows_of(q, a.q, batch, head), a.q.row, row0, a.queries, a.width);
                load_tile<OWN>(G, rows_of(d_o, a.d_o, batch, head), a.d_o.row, row0, a.queries, a.width);
                load_tile<STREAM>(K, rows_of(k, a.k, batch, h.key_head), a.k.row, key0, h.keys, a.width);
                load_tile<STREAM>(V, rows_of(v, a.v, batch, h.key_head), a.v.row, key0, h.keys, a.width);
                __syncthreads();  // the four tiles are there
                Scores s, dp;
                products(s, Q, K, t);
                products(dp, G, V, t);
                const long long rows = (long long)h.index * a.queries;
                EACH(i, ROWS) {
                    const int query = row0 + row_of(t, i);
                    const float base = base_of(lse + rows, query, a.queries);
                    const float part = value_of(share + rows, query, a.queries);
                    EACH(j, COLUMNS) {
                        s[i][j] = score(a, h, query, key0 + column_of(t, j), s[i][j]);
                        s[i][j] = part * exponential(s[i][j] - base);
                    }
                }
                mark_dropped<false>(s, a, h, row0, key0, t);
                EACH(i, ROWS) {
                    const float mean = value_of(delta + rows, row0 + row_of(t, i), a.queries);
                    EACH(j, COLUMNS) sum[i][j] += score_gradient(a, s[i][j], dp[i][j], mean);
                }
            }
        }
    d_bias += own_batch * strides.batch + own_head * strides.head;
    if (each_query) {
        EACH(i, ROWS) EACH(j, COLUMNS) {
            const int query = begin_row + row_of(t, i), key = key0 + column_of(t, j);
            if (query < a.queries && key < a.keys) d_bias[query * strides.query + key * strides.key] = sum[i][j];
        }
        return;
    }
    float* sums = shared;  // (THREADS_Y, STREAM)
    __syncthreads();  // no tile is used any more
    EACH(j, COLUMNS) {
        float column = 0;
        EACH(i, ROWS) column += sum[i][j];
        sums[t.y * STREAM + column_of(t, j)] = column;
    }
    __syncthreads();  // the sums are there
    for (int c = threadIdx.x; c < STREAM && key0 + c < a.keys; c += THREADS) {
        float column = 0;
        for (int y = 0; y < THREADS_Y; ++y) column += sums[y * STREAM + c];
        d_bias[(key0 + c) * strides.key] = column;
    }
}
#endif
#endif
