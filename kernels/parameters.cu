// What is done with all parameters of a model at once: a step of Adam or AdamW, and the norm and scale of gradients.
// One launch for all, where array operations need several for each. Types and chunks: elements.cuh, which comes before.

struct Parameter {  // what a kernel does not look at may be null
    Element* values;
    Element* gradient;
    Element* mean;         // Adam's running mean of gradients
    Element* mean_square;  // and of their squares
    i64 length;            // of each of the four arrays
    i64 first_block;       // of those that work on it; a block works on one chunk
};

// The last parameter whose blocks begin at or before this one.
INLINE Parameter worked_on(const Parameter* parameters, int count, i64 block) {
    int low = 0, high = count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (parameters[middle].first_block <= block) low = middle;
        else high = middle - 1;
    }
    return parameters[low];
}
INLINE i64 first_of_thread(const Parameter& p) { return (blockIdx.x - p.first_block) * CHUNK + threadIdx.x; }

// ---- Adam -----------------------------------------------------------------------------------------------------------
// Kingma & Ba 2015, "Adam", algorithm 1 in the faster order that the end of its section 2 gives; Loshchilov & Hutter
// 2019, "Decoupled weight decay regularization", algorithm 2. With g the gradient of p:
//
//     p <- keep p                       (AdamW's decay: keep = 1 - lr weight_decay)
//     g <- g + l2 p                     (Adam's)
//     m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2
//     p <- p - rate m / (sqrt(v) + eps)
//
// Both means started at 0 and are too small; that is put right by rate and eps, which the launcher computes.
struct Step {
    float keep, l2;
    float beta1, share1;  // 1 - beta1: in float the difference would lose digits
    float beta2, share2;
    float eps, rate;
};

extern "C" __global__ void __launch_bounds__(THREADS) adam(const Parameter* parameters, int count, Step step) {
    const Parameter p = worked_on(parameters, count, blockIdx.x);
    EACH(k, PER_THREAD) {
        const i64 i = first_of_thread(p) + k * THREADS;
        if (i >= p.length) return;
        float value = step.keep * value_of(p.values[i]);
        const float g = value_of(p.gradient[i]) + step.l2 * value;
        const float m = step.beta1 * value_of(p.mean[i]) + step.share1 * g;
        const float v = step.beta2 * value_of(p.mean_square[i]) + step.share2 * g * g;
        value -= step.rate * (m / (sqrtf(v) + step.eps));
        p.values[i] = rounded(value);
        p.mean[i] = rounded(m);
        p.mean_square[i] = rounded(v);
    }
}

// ---- gradients ------------------------------------------------------------------------------------------------------
// sums[block] = the sum of g^2 over its chunk.
extern "C" __global__ void __launch_bounds__(THREADS)
squares_of_chunks(const Parameter* parameters, int count, float* sums) {
    const Parameter p = worked_on(parameters, count, blockIdx.x);
    float sum = 0;
    EACH(k, PER_THREAD) {
        const i64 i = first_of_thread(p) + k * THREADS;
        const float g = i < p.length ? value_of(p.gradient[i]) : 0;
        sum += g * g;
    }
    sum = row_sum(sum);  // of a row that is this block's
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// g <- factor g, and times *more if that is not null. finite[block], if wanted: whether its whole chunk is finite then.
extern "C" __global__ void __launch_bounds__(THREADS)
scale_gradients(const Parameter* parameters, int count, float factor, const float* more, bool* finite) {
    const Parameter p = worked_on(parameters, count, blockIdx.x);
    if (more) factor *= *more;
    bool all_finite = true;
    EACH(k, PER_THREAD) {
        const i64 i = first_of_thread(p) + k * THREADS;
        if (i < p.length) {
            const Element g = rounded(factor * value_of(p.gradient[i]));
            p.gradient[i] = g;
            all_finite = all_finite && value_of(g) - value_of(g) == 0;  // of infinities it is NaN
        }
    }
    if (!finite) return;
    const bool chunk_is_finite = __syncthreads_and(all_finite);
    if (threadIdx.x == 0) finite[blockIdx.x] = chunk_is_finite;
}
