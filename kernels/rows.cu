// Functions of rows, forward and backward: layer norm, and the cross entropy of logits. A row lies along the last axis.
// Types, and sums over a row: elements.cuh, which comes before this text.
//
// A block has the shape (threads of a row, rows): short rows have a warp each, long ones a block, and blocks go on to
// further rows if the grid is too small. Each thread takes every blockDim.x-th element of its row.

#define MINUS_INFINITY __uint_as_float(0xff800000u)

// The rows that this thread works on, and the elements of them that are its own.
#define EACH_ROW_OF_BLOCK(row, rows)                                                         \
    for (i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y; row < (rows); row += (i64)gridDim.x * blockDim.y)
#define EACH_COLUMN(j, columns) for (i64 j = threadIdx.x; j < (columns); j += blockDim.x)

// ---- layer norm -----------------------------------------------------------------------------------------------------
// y = x^ w + b with the normalized row x^ = (x - mean) / deviation and deviation = sqrt(variance + eps): Ba et al.
// 2016, "Layer normalization", equations 3 and 4. w and b may be null: 1 and 0. Kept for backward: mean and
// 1 / deviation.
extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm_forward(const Element* x, const Element* w, const Element* b, Element* y, float* means, float* inverses,
                   i64 rows, i64 columns, float eps) {
    EACH_ROW_OF_BLOCK(row, rows) {
        const Element* x_row = x + row * columns;
        Element* y_row = y + row * columns;
        float sum = 0, squares = 0;
        EACH_COLUMN(j, columns) sum += value_of(x_row[j]);
        const float mean = row_sum(sum) / columns;
        EACH_COLUMN(j, columns) {
            const float away = value_of(x_row[j]) - mean;
            squares += away * away;
        }
        const float inverse = 1 / sqrtf(row_sum(squares) / columns + eps);
        EACH_COLUMN(j, columns) {
            const float normalized = (value_of(x_row[j]) - mean) * inverse;
            y_row[j] = rounded(normalized * (w ? value_of(w[j]) : 1) + (b ? value_of(b[j]) : 0));
        }
        if (threadIdx.x == 0) means[row] = mean, inverses[row] = inverse;
    }
}

// dx = (g^ - mean(g^) - x^ mean(g^ x^)) / deviation, with g^ = g w.
extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm_backward(const Element* g, const Element* x, const Element* w, const float* means, const float* inverses,
                    Element* d_x, i64 rows, i64 columns) {
    EACH_ROW_OF_BLOCK(row, rows) {
        const i64 start = row * columns;
        const float mean = means[row], inverse = inverses[row];
        float sum = 0, products = 0;
        EACH_COLUMN(j, columns) {
            const float g_hat = value_of(g[start + j]) * (w ? value_of(w[j]) : 1);
            sum += g_hat;
            products += g_hat * ((value_of(x[start + j]) - mean) * inverse);
        }
        const float mean_g = row_sum(sum) / columns, mean_product = row_sum(products) / columns;
        EACH_COLUMN(j, columns) {
            const float g_hat = value_of(g[start + j]) * (w ? value_of(w[j]) : 1);
            const float normalized = (value_of(x[start + j]) - mean) * inverse;
            d_x[start + j] = rounded((g_hat - mean_g - normalized * mean_product) * inverse);
        }
    }
}

// dw = sum of g x^ and db = sum of g over all rows, in two launches. Here the grid is (columns / WARP, parts): a block
// of the shape (WARP, lines) sums the rows of its part for WARP columns. sums (2, parts, columns): dw's, then db's.
extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm_sums_of_parts(const Element* g, const Element* x, const float* means, const float* inverses, float* sums,
                         i64 rows, i64 columns, i64 rows_of_part) {
    __shared__ float of_lines[2][THREADS / WARP][WARP];
    const i64 column = (i64)blockIdx.x * WARP + threadIdx.x, part = blockIdx.y;
    const i64 end = min(rows, (part + 1) * rows_of_part);
    float products = 0, sum = 0;
    if (column < columns) {
        for (i64 row = part * rows_of_part + threadIdx.y; row < end; row += blockDim.y) {
            const float gradient = value_of(g[row * columns + column]);
            products += gradient * ((value_of(x[row * columns + column]) - means[row]) * inverses[row]);
            sum += gradient;
        }
    }
    of_lines[0][threadIdx.y][threadIdx.x] = products;
    of_lines[1][threadIdx.y][threadIdx.x] = sum;
    __syncthreads();  // the sums of all lines are there
    if (threadIdx.y < 2 && column < columns) {  // the first line adds up dw's, the second db's
        float total = 0;
        for (int line = 0; line < blockDim.y; ++line) total += of_lines[threadIdx.y][line][threadIdx.x];
        sums[(threadIdx.y * gridDim.y + part) * columns + column] = total;
    }
}

// What the parts have found is added up in their order; d_w or d_b may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm_sums(const float* sums, Element* d_w, Element* d_b, i64 columns, int parts) {
    const i64 column = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (column >= columns) return;
    float products = 0, sum = 0;
    for (int part = 0; part < parts; ++part) {
        products += sums[part * columns + column];
        sum += sums[(parts + part) * columns + column];
    }
    if (d_w) d_w[column] = rounded(products);
    if (d_b) d_b[column] = rounded(sum);
}

// ---- cross entropy --------------------------------------------------------------------------------------------------
// loss = -sum of q log p over the classes, with p = softmax(x) and q = (1 - smoothing) [j = target] + smoothing /
// classes: Szegedy et al. 2016, "Rethinking the inception architecture", section 7. A target that is `ignored`, or no
// class, counts for nothing: 0, whatever the row holds. Kept for backward: the row's maximum and sum of exponentials.
INLINE bool counts(i64 target, i64 ignored, i64 classes) {
    return target != ignored && 0 <= target && target < classes;
}

extern "C" __global__ void __launch_bounds__(THREADS)
cross_entropy_forward(const Element* x, const i64* targets, float* losses, float* peaks, float* totals, i64 rows,
                      i64 classes, i64 ignored, float smoothing) {
    EACH_ROW_OF_BLOCK(row, rows) {
        const i64 target = targets[row];
        if (!counts(target, ignored, classes)) {
            if (threadIdx.x == 0) losses[row] = 0;
            continue;
        }
        const Element* x_row = x + row * classes;
        float peak = MINUS_INFINITY, total = 0, sum = 0;
        EACH_COLUMN(j, classes) peak = fmaxf(peak, value_of(x_row[j]));
        peak = row_max(peak);
        EACH_COLUMN(j, classes) {
            const float below = value_of(x_row[j]) - peak;
            total += expf(below);
            sum += below;
        }
        total = row_sum(total);
        sum = row_sum(sum);
        if (threadIdx.x == 0) {
            float loss = logf(total) + (smoothing - 1) * (value_of(x_row[target]) - peak);
            if (smoothing != 0) loss -= smoothing / classes * sum;  // 0 times -infinity would be NaN
            losses[row] = loss, peaks[row] = peak, totals[row] = total;
        }
    }
}

// dx = g (p - q). The loss's gradients g are g_step elements apart: 0 where one number is that of all rows.
extern "C" __global__ void __launch_bounds__(THREADS)
cross_entropy_backward(const float* g, i64 g_step, const Element* x, const i64* targets, const float* peaks,
                       const float* totals, Element* d_x, i64 rows, i64 classes, i64 ignored, float smoothing) {
    EACH_ROW_OF_BLOCK(row, rows) {
        const i64 target = targets[row], start = row * classes;
        const bool counted = counts(target, ignored, classes);
        const float gradient = counted ? g[row * g_step] : 0;
        const float peak = counted ? peaks[row] : 0, share = counted ? gradient / totals[row] : 0;
        EACH_COLUMN(j, classes) {
            float d = 0;
            if (counted) {
                d = expf(value_of(x[start + j]) - peak) * share - gradient * (smoothing / classes);
                if (j == target) d -= (1 - smoothing) * gradient;
            }
            d_x[start + j] = rounded(d);
        }
    }
}
