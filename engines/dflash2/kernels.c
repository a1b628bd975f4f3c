// The engine's inner loops in float32 for the CPU: what `kernels.py` calls, and what it means.
//
// Every sum is formed in one order that depends on nothing but its own terms: a row's result is
// the same to the bit in whatever company it is computed. Knows arrays and strides, no models.

#include <math.h>
#include <omp.h>
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

// rows * columns results at once, at most LANES. x: [rows, k]; w: [columns, k]; y has rows of
// `width`. The weights of a later tile are asked for meanwhile, into the cache's second level: into
// the first one half as fast here.
INLINE void tile(int rows, int columns, const float *x, const float *w, float *y, long width,
                 long k) {
    vec sum[LANES];
    UNROLL for (int i = 0; i < LANES; i++) sum[i] = (vec){0};
    for (long at = 0; at < k; at += LANES) {
        vec weight[LANES];
        UNROLL for (int c = 0; c < columns; c++) {
            weight[c] = load(w + c * k + at);
            __builtin_prefetch(w + (c + 4 * columns) * k + at, 0, 2);  // to the second level
        }
        UNROLL for (int r = 0; r < rows; r++) {
            vec value = load(x + r * k + at);
            IN_REGISTER(value);
            UNROLL for (int c = 0; c < columns; c++) sum[r * columns + c] += value * weight[c];
        }
    }
    UNROLL for (int i = 0; i < 8; i++) sum[i] = fold(sum[i], sum[i + 8], 8);
    UNROLL for (int i = 0; i < 4; i++) sum[i] = fold(sum[i], sum[i + 4], 4);
    UNROLL for (int i = 0; i < 2; i++) sum[i] = fold(sum[i], sum[i + 2], 2);
    vec sums = fold(sum[0], sum[1], 1);
    UNROLL for (int r = 0; r < rows; r++)
        memcpy(y + r * width, (float *)&sums + r * columns, sizeof(float) * columns);
}

INLINE void strip(int rows, int columns, const float *x, const float *w, float *y, long width,
                  long n, long k) {
    long c = 0;
    for (; c + columns <= n; c += columns) tile(rows, columns, x, w + c * k, y + c, width, k);
    for (; c < n; c++) tile(rows, 1, x, w + c * k, y + c, width, k);
}

// All m rows by n columns: the columns' weights stay in the cache, and the rows go past them.
static void block(const float *x, const float *w, float *y, long width, long m, long n, long k) {
    long r = 0;
    for (; r + 8 <= m; r += 8) strip(8, 2, x + r * k, w, y + r * width, width, n, k);
    for (; r + 4 <= m; r += 4) strip(4, 4, x + r * k, w, y + r * width, width, n, k);
    for (; r + 2 <= m; r += 2) strip(2, 8, x + r * k, w, y + r * width, width, n, k);
    for (; r < m; r++) strip(1, 16, x + r * k, w, y + r * width, width, n, k);
}

#define COLUMNS_AT_ONCE 64

// Where a thread's part of n columns begins: all parts are equal, up to LANES columns.
INLINE long part_begin(long n, int thread, int num_threads) {
    return thread == num_threads ? n : n * thread / num_threads / LANES * LANES;
}

// x: [m, k] by several matrices w: [widths[i], k], their results side by side in y: [m, sum].
// added: as large as y, comes on top; or NULL.
void product(const float *x, float *y, long m, long k, int num_matrices, const float *const *w,
             const long *widths, const float *added, int num_threads) {
    long width = 0;
    for (int i = 0; i < num_matrices; i++) width += widths[i];
#pragma omp parallel num_threads(num_threads)
    for (long i = 0, start = 0; i < num_matrices; start += widths[i++]) {
        int thread = omp_get_thread_num(), num_parts = omp_get_num_threads();
        long first = part_begin(widths[i], thread, num_parts), n;
        for (long end = part_begin(widths[i], thread + 1, num_parts); first < end; first += n) {
            n = end - first < COLUMNS_AT_ONCE ? end - first : COLUMNS_AT_ONCE;
            block(x, w[i] + first * k, y + start + first, width, m, n, k);
            for (long r = 0; added && r < m; r++)
                for (long c = r * width + start + first, last = c + n; c < last; c++)
                    y[c] += added[c];
        }
    }
}

// --- rows by themselves ---

typedef struct {
    float *data;
    long batch, head, row;  // strides of [batch, head, row, size]
} heads;

INLINE float *head_of(heads x, long batch, long head, long row) {
    return x.data + batch * x.batch + head * x.head + row * x.row;
}

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

// Each head is normalised (weight NULL: it is not), then its first num_turned channels are turned by
// the angles of its row. x, y: [batch, num_heads, rows, size]; cos, sin: [num_angles, num_turned],
// one for each row, or for each row of each sequence.
void turn_heads(heads x, const float *weight, float offset, float eps, const float *cos,
                const float *sin, long num_angles, long num_turned, heads y, long batch,
                long num_heads, long rows, long size, int num_threads) {
    long half = num_turned / 2;
#pragma omp parallel for num_threads(num_threads) if (batch * rows >= MANY_ROWS)
    for (long line = 0; line < batch * rows; line++) {
        const float *c = cos + line % num_angles * num_turned;
        const float *s = sin + line % num_angles * num_turned;
        for (long h = 0; h < num_heads; h++) {
            const float *from = head_of(x, line / rows, h, line % rows);
            float *to = head_of(y, line / rows, h, line % rows), turned[num_turned];
            if (weight)
                normalise(from, weight, offset, eps, to, size);
            else
                memmove(to, from, sizeof(float) * size);  // they may be the same
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

// --- what only the drafter does ---

// Of each row the kernels of its convolutions: a base for each channel, plus a correction for its
// group. base: [kernels, groups * group_size]; correction: [rows, kernels, groups].
void convolution_kernels(const float *base, const float *correction, float *y, long rows,
                         long kernels, long groups, long group_size) {
    long num_bases = kernels * groups;
    for (long i = 0; i < rows * num_bases; i++)
        for (long c = 0; c < group_size; c++)
            y[i * group_size + c] = base[i % num_bases * group_size + c] + correction[i];
}

// y[t] = sum over taps of kernel[t, tap] * x[t - tap] in each block. x, y: [batch, length, size];
// kernel: [batch, length, taps, size], a row every kernel_stride.
void convolve(const float *x, const float *kernel, long kernel_stride, float *y, long batch,
              long length, long taps, long size) {
    for (long row = 0; row < batch * length; row++) {
        const float *own = kernel + row * kernel_stride, *from = x + row * size;
        float *to = y + row * size;
        for (long c = 0; c < size; c++) to[c] = own[c] * from[c];
        for (long tap = 1; tap < taps && tap <= row % length; tap++)
            for (long c = 0; c < size; c++) to[c] += own[tap * size + c] * from[c - tap * size];
    }
}

// Whether a score comes before one of a smaller index, in the order that `top_k.py` describes.
INLINE int is_better(float score, float other) {
    return score > other || (isnan(score) && !isnan(other));
}

// The k best of each row, in order: NaN, then from high to low, of equals the smaller index.
void top_candidates(const float *scores, float *best, int64_t *indices, long rows, long n, long k,
                    int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (rows * n >= 65536)
    for (long r = 0; r < rows; r++) {
        float *found = best + r * k;
        int64_t *where = indices + r * k;
        for (long i = 0, num_found = 0; i < n; i++) {
            float score = scores[r * n + i];
            if (num_found == k && !is_better(score, found[k - 1])) continue;
            long place = num_found < k ? num_found++ : k - 1;
            for (; place > 0 && is_better(score, found[place - 1]); place--) {
                found[place] = found[place - 1];
                where[place] = where[place - 1];
            }
            found[place] = score;
            where[place] = i;
        }
    }
}

// --- attention ---

// scores become weights that add up to one. mask is added to the scores first, or NULL.
INLINE void softmax(float *scores, const float *mask, long num_visible, long padded) {
    vec highest = (vec){0} - INFINITY;
    for (long i = num_visible; i < padded; i++) scores[i] = -INFINITY;
    for (long at = 0; at < padded; at += LANES) {
        vec score = load(scores + at);
        if (mask && at + LANES <= num_visible)
            score += load(mask + at);
        else
            for (long i = at; mask && i < num_visible; i++) score[i - at] += mask[i];
        store(scores + at, score);
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

// Of a square of vectors, exchange the upper right and the lower left quarter, and likewise in each
// of the smaller squares that `half` cuts it into. Done for 8, 4, 2 and 1 it turns rows to columns.
INLINE void exchange(vec *square, int half) {
    ints upper, lower;
    UNROLL for (int lane = 0; lane < LANES; lane++) {
        upper[lane] = lane & half ? LANES + lane - half : lane;
        lower[lane] = lane & half ? LANES + lane : lane + half;
    }
    UNROLL for (int i = 0; i < LANES; i++)
        if (!(i & half)) {
            vec a = square[i], b = square[i + half];
            square[i] = __builtin_shuffle(a, b, upper);
            square[i + half] = __builtin_shuffle(a, b, lower);
        }
}

// LANES keys as columns: channel by channel, one key a lane; fewer keys leave zeros.
INLINE void as_columns(const float *keys, long stride, long num_keys, vec *columns, long size) {
    for (long at = 0; at < size; at += LANES) {
        vec square[LANES];
        UNROLL for (int i = 0; i < LANES; i++)
            square[i] = i < num_keys ? load(keys + i * stride + at) : (vec){0};
        exchange(square, 8);
        exchange(square, 4);
        exchange(square, 2);
        exchange(square, 1);
        UNROLL for (int i = 0; i < LANES; i++) columns[at + i] = square[i];
    }
}

INLINE void score(int rows, const float *queries, const vec *columns, float *scores, long padded,
                  long size) {
    vec sum[4] = {{0}};
    for (long i = 0; i < size; i++)
        UNROLL for (int r = 0; r < rows; r++) sum[r] += queries[r * size + i] * columns[i];
    UNROLL for (int r = 0; r < rows; r++) store(scores + r * padded, sum[r]);
}

// Queries, [lines, size], by keys; behind the last score up to LANES - 1 are written that are none.
static void score_all(const float *queries, const float *keys, long stride, long num_keys,
                      float *scores, long padded, long lines, long size) {
    vec columns[size];
    for (long first = 0; first < num_keys; first += LANES) {
        as_columns(keys + first * stride, stride, num_keys - first, columns, size);
        long line = 0;
        for (; line + 4 <= lines; line += 4)
            score(4, queries + line * size, columns, scores + line * padded + first, padded, size);
        const float *rest = queries + line * size;
        float *to = scores + line * padded + first;
        if (lines - line == 3) score(3, rest, columns, to, padded, size);
        if (lines - line == 2) score(2, rest, columns, to, padded, size);
        if (lines - line == 1) score(1, rest, columns, to, padded, size);
    }
}

// Rows that are looked at: those of a context, then those of the block itself.
typedef struct {
    heads context, own;
    long num_context, num_own;
} parts;

// sums += weights[r, i] * v[i, :] over some rows i, for `rows` rows and `vectors` * LANES channels.
INLINE void mix_part(int rows, int vectors, const float *weights, long padded, const float *v,
                     long v_stride, long num_keys, vec *sum) {
    for (long key = 0; key < num_keys; key++)
        UNROLL for (int c = 0; c < vectors; c++) {
            vec value = load(v + key * v_stride + c * LANES);
            UNROLL for (int r = 0; r < rows; r++)
                sum[r * vectors + c] += weights[r * padded + key] * value;
        }
}

// What `rows` neighbouring lines of weights find in the values of one head, a few channels at once.
INLINE void mix(int rows, int vectors, const float *weights, long padded, parts v, long batch,
                long head, long channel, float *y, long y_stride) {
    vec sum[LANES];
    UNROLL for (int i = 0; i < LANES; i++) sum[i] = (vec){0};
    mix_part(rows, vectors, weights, padded, head_of(v.context, batch, head, 0) + channel,
             v.context.row, v.num_context, sum);
    mix_part(rows, vectors, weights + v.num_context, padded,
             head_of(v.own, batch, head, 0) + channel, v.own.row, v.num_own, sum);
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < vectors; c++)
            store(y + r * y_stride + channel + c * LANES, sum[r * vectors + c]);
}

INLINE void mix_all(int rows, const float *weights, long padded, parts v, long batch, long head,
                    float *y, long size) {
    long c = 0;
    for (; c + 4 * LANES <= size; c += 4 * LANES)
        mix(rows, 4, weights, padded, v, batch, head, c, y, size);
    for (; c < size; c += LANES) mix(rows, 1, weights, padded, v, batch, head, c, y, size);
}

INLINE parts first_of(parts of, long num_keys) {
    if (of.num_context > num_keys) of.num_context = num_keys;
    of.num_own = num_keys - of.num_context;
    return of;
}

// How many keys there are up to the last one that any row sees, at least one: behind it lie those
// of longer sequences in the same pass.
static long num_seen(const float *mask, long stride, long rows, long num_keys) {
    long seen = 1;
    for (long r = 0; r < rows; r++)
        for (long i = num_keys; i > seen; i--)
            if (mask[r * stride + i - 1] != -INFINITY) seen = i;
    return seen;
}

// y: [batch, num_heads, rows, size]; k, v: the same rows of both; mask: added to the scores,
// [batch, rows, keys] by its strides, or NULL: every row sees all keys, or, if causal, key i is seen
// by row i and the later ones.
void attend(heads q, parts all_k, parts all_v, const float *mask, long mask_batch, long mask_row,
            int causal, heads y, long batch, long num_heads, long num_key_value_heads, long rows,
            long size, int num_threads) {
    long sharing = num_heads / num_key_value_heads, lines = sharing * rows;
    long most_keys = all_k.num_context + all_k.num_own;
    float factor = 1 / sqrtf(size);
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (long task = 0; task < batch * num_key_value_heads; task++) {
        long b = task / num_key_value_heads, h = task % num_key_value_heads, line;
        const float *own_mask = mask ? mask + b * mask_batch : NULL;
        long num_keys = mask ? num_seen(own_mask, mask_row, rows, most_keys) : most_keys;
        parts k = first_of(all_k, num_keys), v = first_of(all_v, num_keys);
        long padded = (num_keys + 2 * LANES - 2) / LANES * LANES;  // room for scores that are none
        float *queries = malloc(sizeof(float) * lines * (2 * size + padded));
        float *mixed = queries + lines * size, *scores = mixed + lines * size;
        for (line = 0; line < lines; line++) {
            const float *from = head_of(q, b, h * sharing + line / rows, line % rows);
            for (long i = 0; i < size; i++) queries[line * size + i] = factor * from[i];
        }
        score_all(queries, head_of(k.context, b, h, 0), k.context.row, k.num_context, scores,
                  padded, lines, size);
        score_all(queries, head_of(k.own, b, h, 0), k.own.row, k.num_own,
                  scores + k.num_context, padded, lines, size);
        for (line = 0; line < lines; line++) {
            long r = line % rows, num_visible = causal ? r + 1 : num_keys;
            const float *added = mask ? own_mask + r * mask_row : NULL;
            softmax(scores + line * padded, added, num_visible, padded);
        }
        for (line = 0; line + 4 <= lines; line += 4)
            mix_all(4, scores + line * padded, padded, v, b, h, mixed + line * size, size);
        const float *rest = scores + line * padded;
        if (lines - line == 3) mix_all(3, rest, padded, v, b, h, mixed + line * size, size);
        if (lines - line == 2) mix_all(2, rest, padded, v, b, h, mixed + line * size, size);
        if (lines - line == 1) mix_all(1, rest, padded, v, b, h, mixed + line * size, size);
        for (line = 0; line < lines; line++)
            memcpy(head_of(y, b, h * sharing + line / rows, line % rows), mixed + line * size,
                   sizeof(float) * size);
        free(queries);
    }
}

// --- layers ---

// y = added + down(silu(gate(x)) * up(x)); x, y, added: [rows, hidden]; added may be NULL.
static void mlp(const float *x, const float *gate, const float *up, const float *down,
                const float *added, float *y, long rows, long hidden, long intermediate,
                int num_threads) {
    float *both = malloc(sizeof(float) * 3 * rows * intermediate);
    float *gated = both + 2 * rows * intermediate;
    product(x, both, rows, hidden, 2, (const float *[]){gate, up},
            (long[]){intermediate, intermediate}, NULL, num_threads);
    swiglu(both, gated, rows, intermediate, num_threads);
    product(gated, y, rows, intermediate, 1, &down, &hidden, added, num_threads);
    free(both);
}

// A layer's second half: y = x + mlp(norm(x)).
void add_mlp(const float *x, const float *norm, float offset, float eps, const float *gate,
             const float *up, const float *down, float *y, long rows, long hidden,
             long intermediate, int num_threads) {
    float *normed = malloc(sizeof(float) * rows * hidden);
    rms_norm(x, norm, offset, eps, normed, rows, hidden, num_threads);
    mlp(normed, gate, up, down, x, y, rows, hidden, intermediate, num_threads);
    free(normed);
}

typedef struct {
    const float *norm, *q, *k, *v, *o, *q_norm, *k_norm;  // the last two may be NULL
    float offset, eps;
    long hidden, num_heads, num_key_value_heads, size, num_turned;
    int is_gated;  // q makes of each head its queries, and then a gate for what it finds
} attention_weights;

// What the rows of a pass have in common: the angles of their positions, and what they may see.
typedef struct {
    const float *cos, *sin;
    long num_angles;
    const float *mask;  // or NULL, see `attend`
    long mask_batch, mask_row, batch, rows;
} pass;

// Queries, keys and values of a pass: heads in one piece of memory, each row's side by side.
typedef struct {
    float *memory;
    heads q, k, v;
    long width;
} projected;

static projected project(const attention_weights *w, const float *x, const pass *p,
                         int num_threads) {
    long size = w->size, num_lines = p->batch * p->rows;
    long q_head = w->is_gated ? 2 * size : size, q_width = w->num_heads * q_head;
    long kv_width = w->num_key_value_heads * size, width = q_width + 2 * kv_width;
    float *all = malloc(sizeof(float) * num_lines * width);
    heads q = {all, p->rows * width, q_head, width};
    heads k = {all + q_width, p->rows * width, size, width};
    heads v = {k.data + kv_width, p->rows * width, size, width};
    product(x, all, num_lines, w->hidden, 3, (const float *[]){w->q, w->k, w->v},
            (long[]){q_width, kv_width, kv_width}, NULL, num_threads);
    turn_heads(q, w->q_norm, w->offset, w->eps, p->cos, p->sin, p->num_angles, w->num_turned, q,
               p->batch, w->num_heads, p->rows, size, num_threads);
    turn_heads(k, w->k_norm, w->offset, w->eps, p->cos, p->sin, p->num_angles, w->num_turned, k,
               p->batch, w->num_key_value_heads, p->rows, size, num_threads);
    return (projected){all, q, k, v, width};
}

// y = added + o(what the queries find in keys and values)
static void look(const attention_weights *w, projected own, parts keys, parts values,
                 const pass *p, const float *added, float *y, int num_threads) {
    long size = w->size, width = w->num_heads * size, num_lines = p->batch * p->rows;
    float *found = malloc(sizeof(float) * num_lines * width);
    attend(own.q, keys, values, p->mask, p->mask_batch, p->mask_row, !p->mask && p->rows > 1,
           (heads){found, p->rows * width, size, width}, p->batch, w->num_heads,
           w->num_key_value_heads, p->rows, size, num_threads);
    for (long i = 0; w->is_gated && i < num_lines * w->num_heads; i++) {
        long line = i / w->num_heads, head = i % w->num_heads;
        const float *gate = head_of(own.q, 0, head, line) + size;
        for (long at = 0; at < size; at += LANES) {
            float *to = found + line * width + head * size + at;
            store(to, load(to) / (1 + exponential(-at_least(load(gate + at), -87.0f))));
        }
    }
    product(found, y, num_lines, width, 1, &w->o, &w->hidden, added, num_threads);
    free(found);
}

// The target's first half of a layer: y = x + attention of norm(x) to all that keys and values hold
// once the new rows are in them, at their positions: [batch, rows].
void add_attention(attention_weights w, pass p, const float *x, heads keys, heads values,
                   const int64_t *positions, long num_keys, float *y, int num_threads) {
    float *normed = malloc(sizeof(float) * p.batch * p.rows * w.hidden);
    rms_norm(x, w.norm, w.offset, w.eps, normed, p.batch * p.rows, w.hidden, num_threads);
    projected own = project(&w, normed, &p, num_threads);
    for (long line = 0; line < p.batch * p.rows; line++)
        for (long h = 0, b = line / p.rows, r = line % p.rows; h < w.num_key_value_heads; h++) {
            long at = positions[line], num_bytes = sizeof(float) * w.size;
            memcpy(head_of(keys, b, h, at), head_of(own.k, b, h, r), num_bytes);
            memcpy(head_of(values, b, h, at), head_of(own.v, b, h, r), num_bytes);
        }
    look(&w, own, (parts){keys, keys, num_keys, 0}, (parts){values, values, num_keys, 0}, &p, x, y,
         num_threads);
    free(own.memory);
    free(normed);
}

typedef struct {
    attention_weights attention;
    const float *attention_base, *attention_kernels;  // of the convolutions around it
    const float *mlp_norm, *mlp_base, *mlp_kernels, *gate, *up, *down;
    long intermediate, taps, group_size;
} block_weights;

// The convolution's kernels before and after a sublayer, made of its input: [rows, 2, taps, hidden].
static float *kernels_of(const block_weights *w, const float *x, const float *base,
                         const float *projection, long rows, int num_threads) {
    long hidden = w->attention.hidden, groups = hidden / w->group_size, count = 2 * w->taps;
    long width = count * groups;
    float *kernels = malloc(sizeof(float) * rows * (count * hidden + width));
    float *correction = kernels + rows * count * hidden;
    product(x, correction, rows, hidden, 1, &projection, &width, NULL, num_threads);
    convolution_kernels(base, correction, kernels, rows, count, groups, w->group_size);
    return kernels;
}

// A layer of the drafter, on blocks that look at a context and at all of themselves.
void add_block(block_weights w, pass p, const float *x, heads context_keys, heads context_values,
               long num_context, float *y, int num_threads) {
    const attention_weights *a = &w.attention;
    long rows = p.batch * p.rows, hidden = a->hidden, size = rows * hidden;
    long stride = 2 * w.taps * hidden, behind = w.taps * hidden;
    float *h = malloc(sizeof(float) * 3 * size), *convolved = h + size, *made = h + 2 * size;

    rms_norm(x, a->norm, a->offset, a->eps, h, rows, hidden, num_threads);
    float *kernels = kernels_of(&w, h, w.attention_base, w.attention_kernels, rows, num_threads);
    convolve(h, kernels, stride, convolved, p.batch, p.rows, w.taps, hidden);
    projected own = project(a, convolved, &p, num_threads);
    look(a, own, (parts){context_keys, own.k, num_context, p.rows},
         (parts){context_values, own.v, num_context, p.rows}, &p, NULL, made, num_threads);
    convolve(made, kernels + behind, stride, y, p.batch, p.rows, w.taps, hidden);
    for (long i = 0; i < size; i++) y[i] += x[i];
    free(own.memory);
    free(kernels);

    rms_norm(y, w.mlp_norm, a->offset, a->eps, h, rows, hidden, num_threads);
    kernels = kernels_of(&w, h, w.mlp_base, w.mlp_kernels, rows, num_threads);
    convolve(h, kernels, stride, convolved, p.batch, p.rows, w.taps, hidden);
    mlp(convolved, w.gate, w.up, w.down, NULL, made, rows, hidden, w.intermediate, num_threads);
    convolve(made, kernels + behind, stride, convolved, p.batch, p.rows, w.taps, hidden);
    for (long i = 0; i < size; i++) y[i] += convolved[i];
    free(kernels);
    free(h);
}
