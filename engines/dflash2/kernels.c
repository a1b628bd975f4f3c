// The engine's inner loops in float32 for the CPU: what `kernels.py` calls, and what it means.
//
// Every sum is formed in one order that depends on nothing but its own terms: a row's result is
// the same to the bit in whatever company it is computed. Knows arrays and strides, no models.

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16  // of a vector; where registers are shorter the compiler takes several
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define IN_REGISTER(v) __asm__("" : "+v"(v))  // load it once, not again for each use

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

INLINE vec load(const float *from) {
    vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void store(float *to, vec v) { memcpy(to, &v, sizeof v); }

// --- products of rows: y[r, c] = sum over k of x[r, k] * w[c, k] ---

// Halve two lots of sums at once: lanes i and i + half of each group of 2 * half lanes are added.
// Sixteen vectors that are folded pairwise four times become one that holds the sum of each.
INLINE vec fold(vec a, vec b, int half) {
    ints low;
    UNROLL for (int lane = 0; lane < LANES; lane++) {
        int group = lane / half;
        low[lane] = group % 2 * LANES + group / 2 * 2 * half + lane % half;
    }
    return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, low + half);
}

// rows * columns results at once, at most LANES. The next tile's weights are asked for meanwhile.
INLINE void tile(int rows, int columns, const float *x, long x_stride, const float *w,
                 long w_stride, float *y, long y_stride, long k) {
    vec sum[LANES];
    UNROLL for (int i = 0; i < LANES; i++) sum[i] = (vec){0};
    for (long at = 0; at < k; at += LANES) {
        vec weight[LANES];
        UNROLL for (int c = 0; c < columns; c++) {
            weight[c] = load(w + c * w_stride + at);
            __builtin_prefetch(w + (c + 4 * columns) * w_stride + at);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            vec value = load(x + r * x_stride + at);
            IN_REGISTER(value);
            UNROLL for (int c = 0; c < columns; c++) sum[r * columns + c] += value * weight[c];
        }
    }
    UNROLL for (int i = 0; i < 8; i++) sum[i] = fold(sum[i], sum[i + 8], 8);
    UNROLL for (int i = 0; i < 4; i++) sum[i] = fold(sum[i], sum[i + 4], 4);
    UNROLL for (int i = 0; i < 2; i++) sum[i] = fold(sum[i], sum[i + 2], 2);
    vec sums = fold(sum[0], sum[1], 1);
    UNROLL for (int r = 0; r < rows; r++)
        memcpy(y + r * y_stride, (float *)&sums + r * columns, sizeof(float) * columns);
}

INLINE void strip(int rows, int columns, const float *x, long x_stride, const float *w,
                  long w_stride, float *y, long y_stride, long n, long k) {
    long c = 0;
    for (; c + columns <= n; c += columns)
        tile(rows, columns, x, x_stride, w + c * w_stride, w_stride, y + c, y_stride, k);
    for (; c < n; c++) tile(rows, 1, x, x_stride, w + c * w_stride, w_stride, y + c, y_stride, k);
}

// All rows by n columns: the columns' weights stay in the cache, and the rows go past them.
static void block(const float *x, long x_stride, const float *w, long w_stride, float *y,
                  long y_stride, long m, long n, long k) {
    long r = 0;
#define STRIPS(rows, columns)                                                                 \
    for (; r + rows <= m; r += rows)                                                          \
        strip(rows, columns, x + r * x_stride, x_stride, w, w_stride, y + r * y_stride,       \
              y_stride, n, k);
    STRIPS(8, 2)
    STRIPS(4, 4)
    STRIPS(2, 8)
    STRIPS(1, 16)
#undef STRIPS
}

#define COLUMNS_AT_ONCE 64

// x: [m, k] by several matrices w: [widths[i], k], their results side by side in y: [m, sum].
void product(const float *x, float *y, long m, long k, int num_matrices, const float **w,
             const long *widths, int num_threads) {
    long width = 0;
    for (int i = 0; i < num_matrices; i++) width += widths[i];
#pragma omp parallel num_threads(num_threads)
    for (long i = 0, start = 0; i < num_matrices; start += widths[i++]) {
#pragma omp for schedule(static) nowait
        for (long first = 0; first < widths[i]; first += COLUMNS_AT_ONCE) {
            long n = widths[i] - first < COLUMNS_AT_ONCE ? widths[i] - first : COLUMNS_AT_ONCE;
            block(x, k, w[i] + first * k, k, y + start + first, width, m, n, k);
        }
    }
}

// --- rows by themselves ---

#define MANY_ROWS 32  // from so many on it pays to wake the other threads

INLINE float sum_of(vec v) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += v[lane];
    return sum;
}

// y = (offset + weight) * x / rms(x); size is a multiple of LANES.
INLINE void normalise(const float *x, const float *weight, float offset, float eps, float *y,
                      long size) {
    vec squares = {0};
    for (long at = 0; at < size; at += LANES) squares += load(x + at) * load(x + at);
    float scale = 1 / sqrtf(sum_of(squares) / size + eps);
    for (long at = 0; at < size; at += LANES)
        store(y + at, (offset + load(weight + at)) * (scale * load(x + at)));
}

void rms_norm(const float *x, const float *weight, float offset, float eps, float *y, long rows,
              long size, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (rows >= MANY_ROWS)
    for (long r = 0; r < rows; r++)
        normalise(x + r * size, weight, offset, eps, y + r * size, size);
}

// Heads in their places: each is normalised (weight NULL: it is not), then its first num_turned
// channels are turned by the angles of its row. x: [rows, heads, size], a row every x_stride;
// cos, sin: [num_angles, num_turned], repeated where there are more rows; y: without gaps.
void turn_heads(const float *x, long x_stride, const float *weight, float offset, float eps,
                const float *cos, const float *sin, long num_angles, long num_turned, float *y,
                long rows, long heads, long size, int num_threads) {
    long half = num_turned / 2;
#pragma omp parallel for num_threads(num_threads) if (rows >= MANY_ROWS)
    for (long r = 0; r < rows; r++) {
        const float *c = cos + r % num_angles * num_turned, *s = sin + r % num_angles * num_turned;
        for (long h = 0; h < heads; h++) {
            float *to = y + (r * heads + h) * size, turned[num_turned];
            if (weight)
                normalise(x + r * x_stride + h * size, weight, offset, eps, to, size);
            else
                memcpy(to, x + r * x_stride + h * size, sizeof(float) * size);
            for (long i = 0; i < half; i++) {
                turned[i] = to[i] * c[i] + to[i + half] * s[i];
                turned[i + half] = to[i + half] * c[i + half] + to[i] * s[i + half];
            }
            memcpy(to, turned, sizeof turned);
        }
    }
}

// exp to about one unit in the last place, 0 below what float32 holds; NaN stays NaN.
INLINE vec exponential(vec x) {
    const float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
    vec scaled = x * 1.44269504f + round, whole = scaled - round;
    vec rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec power = 1.98756915e-4f * rest + 1.39819995e-3f;
    power = power * rest + 8.33345193e-3f;
    power = power * rest + 4.16657962e-2f;
    power = power * rest + 1.66666655e-1f;
    power = power * rest + 5.00000012e-1f;
    power = power * (rest * rest) + rest + 1;
    ints exponent = ((ints)scaled << 23) + 0x3f800000;
    vec result = power * (vec)exponent;
    ints is_tiny = x < -87.0f;
    return (vec)(~is_tiny & (ints)result);
}

INLINE vec at_least(vec x, float limit) {
    ints is_less = x < limit;
    return (vec)((is_less & (ints)(limit - (vec){0})) | (~is_less & (ints)x));
}

// y[r, i] = silu(x[r, i]) * x[r, size + i]
void swiglu(const float *x, float *y, long rows, long size, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (rows >= MANY_ROWS)
    for (long r = 0; r < rows; r++)
        for (long at = 0; at < size; at += LANES) {
            vec gate = at_least(load(x + 2 * r * size + at), -87.0f);  // where silu is nearly 0
            vec up = load(x + (2 * r + 1) * size + at);
            store(y + r * size + at, gate / (1 + exponential(-gate)) * up);
        }
}

// --- attention ---

// scores become weights that add up to one. mask is added to the scores first, or NULL.
INLINE void softmax(float *scores, const float *mask, long num_visible, long padded) {
    vec highest = {0};
    for (long i = num_visible; i < padded; i++) scores[i] = -INFINITY;
    highest += -INFINITY;
    for (long at = 0; at < padded; at += LANES) {
        vec score = load(scores + at);
        if (mask) {
            for (int lane = 0; lane < LANES && at + lane < num_visible; lane++)
                score[lane] += mask[at + lane];
            store(scores + at, score);
        }
        ints is_higher = score > highest;
        highest = (vec)((is_higher & (ints)score) | (~is_higher & (ints)highest));
    }
    float most = -INFINITY;
    for (int lane = 0; lane < LANES; lane++) most = fmaxf(most, highest[lane]);
    vec total = {0};
    for (long at = 0; at < padded; at += LANES) {
        vec weight = exponential(load(scores + at) - most);
        store(scores + at, weight);
        total += weight;
    }
    float scale = 1 / sum_of(total);
    for (long at = 0; at < padded; at += LANES) store(scores + at, scale * load(scores + at));
}

// y[r, :] = sum over i of weights[r, i] * v[i, :], for `rows` rows and `vectors` * LANES channels.
INLINE void mix(int rows, int vectors, const float *weights, long padded, const float *v,
                long v_stride, float *y, long y_stride, long num_keys) {
    vec sum[LANES];
    UNROLL for (int i = 0; i < LANES; i++) sum[i] = (vec){0};
    for (long key = 0; key < num_keys; key++)
        UNROLL for (int c = 0; c < vectors; c++) {
            vec value = load(v + key * v_stride + c * LANES);
            UNROLL for (int r = 0; r < rows; r++)
                sum[r * vectors + c] += weights[r * padded + key] * value;
        }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < vectors; c++)
            store(y + r * y_stride + c * LANES, sum[r * vectors + c]);
}

INLINE void mix_rows(int rows, const float *weights, long padded, const float *v, long v_stride,
                     float *y, long size, long num_keys) {
    long c = 0;
    for (; c + 4 * LANES <= size; c += 4 * LANES)
        mix(rows, 4, weights, padded, v + c, v_stride, y + c, size, num_keys);
    for (; c < size; c += LANES)
        mix(rows, 1, weights, padded, v + c, v_stride, y + c, size, num_keys);
}

typedef struct {
    const float *data;
    long batch, head, row;  // strides
} heads;

// y: [batch, rows, heads, size]; mask: added to the scores, [batch, rows, keys] by its strides, or
// NULL: every row sees all keys, or, if causal, key i is seen by row i and the later ones.
void attend(heads q, heads k, heads v, const float *mask, long mask_batch, long mask_row,
            int causal, float *y, long batch, long num_heads, long num_key_value_heads, long rows,
            long num_keys, long size, int num_threads) {
    long sharing = num_heads / num_key_value_heads, lines = sharing * rows;
    long padded = (num_keys + LANES - 1) / LANES * LANES;
    float factor = 1 / sqrtf(size);
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (long task = 0; task < batch * num_key_value_heads; task++) {
        long b = task / num_key_value_heads, h = task % num_key_value_heads;
        const float *keys = k.data + b * k.batch + h * k.head;
        const float *values = v.data + b * v.batch + h * v.head;
        float *queries = malloc(sizeof(float) * lines * (2 * size + padded));
        float *mixed = queries + lines * size, *scores = mixed + lines * size;
        for (long line = 0; line < lines; line++) {
            const float *from = q.data + b * q.batch + (h * sharing + line / rows) * q.head +
                                line % rows * q.row;
            for (long i = 0; i < size; i++) queries[line * size + i] = factor * from[i];
        }
        block(queries, size, keys, k.row, scores, padded, lines, num_keys, size);
        for (long line = 0; line < lines; line++) {
            long r = line % rows, num_visible = causal ? r + 1 : num_keys;
            const float *added = mask ? mask + b * mask_batch + r * mask_row : NULL;
            softmax(scores + line * padded, added, num_visible, padded);
        }
        long line = 0;
        for (; line + 4 <= lines; line += 4)
            mix_rows(4, scores + line * padded, padded, values, v.row, mixed + line * size, size,
                     num_keys);
        for (; line < lines; line++)
            mix_rows(1, scores + line * padded, padded, values, v.row, mixed + line * size, size,
                     num_keys);
        for (line = 0; line < lines; line++)
            memcpy(y + ((b * rows + line % rows) * num_heads + h * sharing + line / rows) * size,
                   mixed + line * size, sizeof(float) * size);
        free(queries);
    }
}
