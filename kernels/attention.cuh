// What the attention kernels of every precision share: the sizes and options of a call, which keys a query sees, the
// bias, and dropout. The kernels themselves are in attention_f32.cu, attention_tf32.cu and attention_16.cu;
// kernels/launch.py fills the struct. No header of CUDA is included, so that the source compiles wherever CuPy does.
//
//     S = scale Q K^T + bias, hidden where a key may not be seen;  P = softmax(S);  O = dropout(P) V
//
// Shapes: q, o (B, H, N_q, d); k, v (B, H_kv, N_k, d); lse, delta (B, H, N_q). H_kv divides H: as many heads of the
// query, side by side, share one of key and value.

#ifndef CUDA_CPU  // the emulator has its own
#define DYNAMIC_SHARED(type, name)                                  \
    extern __shared__ __align__(128) unsigned char name##_bytes[]; \
    type* name = (type*)name##_bytes
#endif

// ---- options, set with -D -------------------------------------------------------------------------------------------
#define NO_BIAS 0
#define BOOLEAN_BIAS 1  // bytes: 0 hides the key
#define FLOAT_BIAS 2    // float, added to the scores
#ifndef BIAS
#define BIAS NO_BIAS
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif

#define MINUS_INFINITY __uint_as_float(0xff800000u)
#define LOG2E 1.4426950408889634f
#define INLINE static __device__ __forceinline__
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)  // unrolled, so that arrays stay in registers
typedef unsigned int u32;

// ---- a call ---------------------------------------------------------------------------------------------------------
struct Strides {  // in elements; the elements of a row lie side by side
    long long batch, head, row;
};
struct BiasStrides {  // in elements, 0 along a broadcast axis
    long long batch, head, query, key;
};
struct Attention {
    Strides q, k, v, o, d_o, d_q, d_k, d_v;
    BiasStrides bias, d_bias;
    int batches, heads, key_heads, queries, keys, width;  // B, H, H_kv, N_q, N_k, d
    int causal_offset;   // query i sees key j only if j <= i + causal_offset; N_k where all see all, never below -N_q
    float scale;
    u32 dropout_key[2];  // of the random numbers
    u32 drop_below;      // a weight whose random number lies below it is dropped: p * 2^32
    float keep_scale;    // the others are multiplied by it: 1 / (1 - p)
};

#if BIAS == BOOLEAN_BIAS
typedef unsigned char BiasElement;
#else
typedef float BiasElement;
#endif

// One head of the query in one batch entry, and what belongs to it.
struct Head {
    int batch, head, key_head;
    int index;                // b H + h, its place in (B, H)
    int keys;                 // how many of the first keys may be seen
    const BiasElement* bias;  // of query 0, key 0
};

INLINE int visible_keys(const Attention& a, const int* key_lengths, int batch) {
    return key_lengths ? key_lengths[batch] : a.keys;
}
INLINE Head head_at(const Attention& a, int index, const BiasElement* bias, const int* key_lengths) {
    Head h;
    h.index = index;
    h.batch = index / a.heads;
    h.head = index % a.heads;
    h.key_head = h.head / (a.heads / a.key_heads);
    h.keys = visible_keys(a, key_lengths, h.batch);
    h.bias = bias + (h.batch * a.bias.batch + h.head * a.bias.head);
    return h;
}
template <class T> INLINE T* rows_of(T* x, const Strides& s, int batch, int head) {
    return x + (batch * s.batch + head * s.head);
}

// ---- which keys a query sees ----------------------------------------------------------------------------------------
// Keys from here on are hidden from every query before end_query.
INLINE int end_of_keys(const Attention& a, const Head& h, int end_query) {
    return min(h.keys, end_query + a.causal_offset);
}
// Queries before this one see no key from first_key on.
INLINE int begin_of_queries(const Attention& a, int first_key) { return max(0, first_key - a.causal_offset); }

INLINE bool visible(const Attention& a, const Head& h, int query, int key) {
    return key < h.keys && key <= query + a.causal_offset;
}
// The score of a pair whose product q.k is given: -infinity if the key is hidden. A query past the last one is allowed.
INLINE float score(const Attention& a, const Head& h, int query, int key, float product) {
    if (!visible(a, h, query, key)) return MINUS_INFINITY;
    float s = product * a.scale;
#if BIAS != NO_BIAS
    if (query >= a.queries) return MINUS_INFINITY;  // the bias has no such row
    BiasElement b = h.bias[query * a.bias.query + key * a.bias.key];
#if BIAS == BOOLEAN_BIAS
    if (!b) return MINUS_INFINITY;
#else
    s += b;
#endif
#endif
    return s;
}

// ---- dropout --------------------------------------------------------------------------------------------------------
// The random numbers are a function of the place and the key alone, so backward draws the same ones again: philox.cuh,
// which comes before this text.
// kept[m][n]: whether dropout keeps the weight of (query + 8 m, key + 8 n), where bit 3 of query and of key is 0.
// One call of the generator gives four numbers, and four weights that lie so are one thread's in every kernel: in those
// that own queries, and in those that own keys, where rows and columns are exchanged.
INLINE void draw_kept(bool (&kept)[2][2], const Attention& a, const Head& h, int query, int key) {
    u32 random[4] = {(u32)key, (u32)query, (u32)h.index, 0};
    philox(random, a.dropout_key[0], a.dropout_key[1]);
    EACH(i, 4) kept[i / 2][i % 2] = random[i] >= a.drop_below;
}
// A weight that dropout takes is kept as its negative: the sign is free, and backward needs the weight too.
INLINE float remaining(float p) { return DROPOUT && p < 0 ? 0 : p; }  // times keep_scale, which comes at the end
// dS = P (dP - delta), where dP is the gradient of P before dropout
INLINE float score_gradient(const Attention& a, float p, float dp, float delta) {
    return DROPOUT ? fabsf(p) * ((p > 0 ? dp * a.keep_scale : 0) - delta) : p * (dp - delta);
}

// ---- what backward knows of a query ---------------------------------------------------------------------------------
// What exponents of a row are taken from: +infinity where nothing is visible and past the last query, so that P is 0.
INLINE float base_of(const float* lse, int query, int queries) {
    const float base = query < queries ? lse[query] : MINUS_INFINITY;
    return base == MINUS_INFINITY ? -MINUS_INFINITY : base;
}
INLINE float value_of(const float* x, int query, int queries) { return query < queries ? x[query] : 0; }

// delta_i = sum over d of O_id dO_id, which is sum over j of P_ij dP_ij: one warp for a row.
template <class Number, float to_float(Number)>
INLINE void find_delta(const Number* o, const Number* d_o, float* delta, const Attention& a) {
    const int lane = threadIdx.x % 32;
    const long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= (long long)a.batches * a.heads * a.queries) return;
    const int query = row % a.queries, index = row / a.queries, batch = index / a.heads, head = index % a.heads;
    o = rows_of(o, a.o, batch, head) + query * a.o.row;
    d_o = rows_of(d_o, a.d_o, batch, head) + query * a.d_o.row;
    float sum = 0;
    for (int c = lane; c < a.width; c += 32) sum += to_float(o[c]) * to_float(d_o[c]);
    for (int m = 16; m; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    if (lane == 0) delta[row] = sum;
}
INLINE float same(float x) { return x; }
