// What the attention kernels for tensor cores share: attention_16.cu and attention_tf32.cu, which come after this text.
// attention.cuh and ptx.cuh come before it.
//
// A warp owns rows of scores, and of the sums that are made with them, in tiles of 16 x 8, as instructions make them.
// Of the other side, tiles stream through shared memory, two pairs at a time: one is used while the next one arrives.

// ---- options --------------------------------------------------------------------------------------------------------
#ifndef HEAD_DIM
#define HEAD_DIM 64  // d is at most this: 16, 32, 64, 128 or 256
#endif
#ifndef BACKWARD
#define BACKWARD 0  // which kernels are compiled: their tiles have different sizes
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef ROW_TILES
#define ROW_TILES 1  // a warp owns so many times 16 rows
#endif
#ifndef STREAM
#define STREAM 32  // rows of a streamed tile: a multiple of 16
#endif
#ifndef PARTS
#define PARTS 1  // 2: dK and dV are made by a block each, as the sums of both have no room in one's registers
#endif
#define THREADS (WARPS * 32)
// Without the 1 the compiler spills registers to make room for more blocks at a time.
#define BOUNDS __launch_bounds__(THREADS, 1)
#define OWN (WARPS * ROW_TILES * 16)
#define COLUMN_TILES (STREAM / 8)
#define CHUNKS (HEAD_DIM / 8)  // of 8 numbers, in a row

// ---- what a lane holds ----------------------------------------------------------------------------------------------
// Tiles of 16 x 8 numbers, of which a lane holds two rows x two columns: element e is in the row e / 2, column e % 2.
typedef float Scores[ROW_TILES][COLUMN_TILES][4];
typedef float Sums[ROW_TILES][CHUNKS][4];  // the same of outputs, whose columns are d
typedef float PerRow[ROW_TILES][2];
#define EACH_SCORE(m, n, e) EACH(m, ROW_TILES) EACH(n, COLUMN_TILES) EACH(e, 4)
#define EACH_ROW(m, i) EACH(m, ROW_TILES) EACH(i, 2)

INLINE int lane() { return threadIdx.x % 32; }
INLINE int warp_row() { return threadIdx.x / 32 * (ROW_TILES * 16); }
// The i-th of this lane's two rows in row tile m, within the rows that the block owns.
INLINE int row_of(int m, int i) { return warp_row() + 16 * m + 8 * i + lane() / 4; }
// The i-th of its two columns in column tile n.
INLINE int column_of(int n, int i) { return 8 * n + 2 * (lane() % 4) + i; }

// Over the 4 lanes that share a row:
INLINE float row_maximum(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
INLINE float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// ---- tiles in shared memory -----------------------------------------------------------------------------------------
// The rows of one head. Rows from `end` on, and numbers from d = width on, count as zeros.
template <class Number> struct Rows {
    const Number* first;
    long long stride;
    int end, width;
};
template <class Number>
INLINE Rows<Number> rows_at(const Number* x, const Strides& s, int batch, int head, int end, int width) {
    return {rows_of(x, s, batch, head), s.row, end, width};
}
// Starts to copy x[row0 ...] to a tile. How numbers lie in one is each source's own.
template <int rows, class Number> INLINE void load_tile(Number* tile, const Rows<Number>& x, int row0);

// Calls work(tile of x, tile of y, first row, stage) for the tiles from row `begin` on; the next ones arrive meanwhile.
// `beside(first row, stage)` stores what else belongs to a pair of tiles. tile_size: of a tile, in numbers.
template <int tile_size, class Number, class Beside, class Work>
INLINE void stream(Number* buffers, const Rows<Number>& x, const Rows<Number>& y, int begin, int end, Beside beside,
                   Work work) {
    auto load = [&](int row0, int stage) {
        Number* tiles = buffers + stage * (2 * tile_size);
        load_tile<STREAM>(tiles, x, row0);
        load_tile<STREAM>(tiles + tile_size, y, row0);
        beside(row0, stage);
    };
    if (begin < end) load(begin, 0);
    cp_async_commit();
    int stage = 0;
    for (int row0 = begin; row0 < end; row0 += STREAM) {
        if (row0 + STREAM < end) load(row0 + STREAM, stage ^ 1);
        cp_async_commit();   // an empty group at the end, so that waiting for all but one group is right there too
        cp_async_wait<1>();  // this thread's part of the present tiles has arrived,
        __syncthreads();     // and everyone's
        const Number* tiles = buffers + stage * (2 * tile_size);
        work(tiles, tiles + tile_size, row0, stage);
        __syncthreads();  // everyone is done with the tiles that the next turn writes over
        stage ^= 1;
    }
}

// ---- dropout --------------------------------------------------------------------------------------------------------
// Weights that dropout takes become negative. Rows are queries; if transposed, keys.
template <bool transposed>
INLINE void mark_dropped(Scores& p, const Attention& a, const Head& h, int row0, int column0) {
#if DROPOUT
    EACH(m, ROW_TILES) EACH(pair, COLUMN_TILES / 2) EACH(e, 2) {
        const int row = row0 + row_of(m, 0), column = column0 + column_of(2 * pair, e);
        bool kept[2][2];
        if (transposed) draw_kept(kept, a, h, column, row);
        else draw_kept(kept, a, h, row, column);
        EACH(i, 2) EACH(j, 2) {
            float& weight = p[m][2 * pair + j][2 * i + e];
            if (!(transposed ? kept[j][i] : kept[i][j])) weight = -weight;
        }
    }
#endif
}

// ---- what is found of a row -----------------------------------------------------------------------------------------
// lse of the rows that the block owns, which begin at row0, and the factor of their outputs, from the largest score,
// which is to be multiplied by `scale`, and the sum of exp(score - largest).
INLINE void finish_rows(PerRow& factor, float* lse, const PerRow& largest, const PerRow& total, float scale,
                        const Attention& a, int row0) {
    EACH_ROW(m, i) {
        const float sum = row_sum(total[m][i]);
        const int query = row0 + row_of(m, i);
        factor[m][i] = sum == 0 ? 0 : a.keep_scale / sum;  // nothing visible: the output is 0
        if (lane() % 4 == 0 && query < a.queries)
            lse[query] = sum == 0 ? MINUS_INFINITY : largest[m][i] * scale + logf(sum);
    }
}
// share of these rows, 1 / total, for the kernels after attention_dq, and the factor of dQ.
INLINE void finish_share(PerRow& factor, float* share, const PerRow& total, const Attention& a, int row0) {
    EACH_ROW(m, i) {
        const float sum = row_sum(total[m][i]), inverse = sum == 0 ? 0 : 1 / sum;
        const int query = row0 + row_of(m, i);
        factor[m][i] = inverse * a.scale;
        if (lane() % 4 == 0 && query < a.queries) share[query] = inverse;
    }
}

// ---- what backward knows of queries ---------------------------------------------------------------------------------
// What belongs to a tile of streamed queries.
struct Queries {
    float base[STREAM], share[STREAM], delta[STREAM];
};

// ---- parts of keys' gradients ---------------------------------------------------------------------------------------
// What attention_dkdv does in block `block`, of dK, dV or both; each source's own.
template <bool with_k, bool with_v, class Number>
INLINE void key_gradients(Number* shared, int block, const Number* q, const Number* k, const Number* v,
                          const Number* d_o, const float* lse, const float* delta, const float* share, Number* d_k,
                          Number* d_v, const BiasElement* bias, const int* key_lengths, const Attention& a);

// The same in PARTS blocks.
template <class Number>
INLINE void parts_of_key_gradients(Number* shared, const Number* q, const Number* k, const Number* v, const Number* d_o,
                                   const float* lse, const float* delta, const float* share, Number* d_k, Number* d_v,
                                   const BiasElement* bias, const int* key_lengths, const Attention& a) {
    const int block = blockIdx.x / PARTS;
#if PARTS == 1
    key_gradients<true, true>(shared, block, q, k, v, d_o, lse, delta, share, d_k, d_v, bias, key_lengths, a);
#else
    if (blockIdx.x % PARTS == 0)
        key_gradients<true, false>(shared, block, q, k, v, d_o, lse, delta, share, d_k, d_v, bias, key_lengths, a);
    else
        key_gradients<false, true>(shared, block, q, k, v, d_o, lse, delta, share, d_k, d_v, bias, key_lengths, a);
#endif
}
