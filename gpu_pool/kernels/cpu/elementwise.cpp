// What lies between the products of a layer, in one pass over each row of bf16: sums in fp32, rounded
// where torch alone or the triton kernels of the same names round.
// Invariant: a row is computed by one thread, alike wherever it stands.

#include "vector.h"

#include <algorithm>
#include <cmath>

constexpr long WORTH_SHARING = 32768; // elements; below, another thread costs more than it takes

static long choose_threads(long num_elements, long num_threads) {
    return num_elements < WORTH_SHARING ? 1 : num_threads;
}

static inline Floats round_off(Floats values) {
    Bf16 rounded[LANES];
    store(rounded, values);
    return load(rounded);
}

// y = x / sqrt(mean(x²) + eps) · w, of a row that is there already.
template <typename W>
static void norm_row(const Bf16* x, const W* weight, Bf16* out, long size, float eps) {
    Floats squares = {};
    float rest = 0;
    long i = 0;
    for (; i + LANES <= size; i += LANES) squares += load(x + i) * load(x + i);
    for (long j = i; j < size; j++) rest += widen(x[j]) * widen(x[j]);
    float scale = 1.0f / std::sqrt((add_lanes(squares) + rest) / size + eps);
    for (i = 0; i + LANES <= size; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
    for (; i < size; i++) store_one(out + i, widen(x[i]) * scale * widen(weight[i]));
}

// sum = residual + x, y = norm(sum); without a residual the norm of x alone.
template <typename W>
static void add_norm(const Bf16* x, long x_stride, const Bf16* residual, long residual_stride,
                     const W* weight, Bf16* sum, Bf16* out, long num_rows, long size, float eps,
                     long num_threads) {
    num_threads = choose_threads(num_rows * size, num_threads);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (long row = 0; row < num_rows; row++) {
        const Bf16* from = x + row * x_stride;
        if (residual) {
            const Bf16* other = residual + row * residual_stride;
            Bf16* to = sum + row * size;
            long i = 0;
            for (; i + LANES <= size; i += LANES) store(to + i, load(other + i) + load(from + i));
            for (; i < size; i++) store_one(to + i, widen(other[i]) + widen(from[i]));
            from = to;
        }
        norm_row(from, weight, out + row * size, size, eps);
    }
}

static inline Floats silu(Floats x) {
    x = choose(x < -87.0f, fill(-87.0f), x); // nothing is left of it; a NaN stays one
    Floats shrunk = exponential((Floats)((Words)x | 0x80000000)); // of minus its size
    return x * (choose(x < 0.0f, shrunk, fill(1.0f)) / (1.0f + shrunk));
}

// What Python fills in; the order is that of `gpu_pool.kernels.cpu.library`.
struct Turn {
    Bf16* heads; // [T][heads][head_dim], rows apart by token_stride elements
    const void* weight; // [turned heads][head_dim], or null
    const Bf16 *cos, *sin; // [T][head_dim], rows apart by table_stride, or null
    int64_t token_stride, table_stride;
    int64_t num_tokens, num_turned, head_dim, is_weight_fp32;
    float eps;
};

// Norms and turns one head in place; the sine carries the sign. Its halves are whole vectors.
template <typename W>
static void turn_head(const Turn& t, Bf16* head, const W* weight, const Bf16* cos, const Bf16* sin) {
    long half = t.head_dim / 2;
    if (weight) {
        Floats squares = {};
        for (long i = 0; i < t.head_dim; i += LANES) squares += load(head + i) * load(head + i);
        float scale = 1.0f / std::sqrt(add_lanes(squares) / t.head_dim + t.eps);
        for (long i = 0; i < t.head_dim; i += LANES) {
            Floats normed = load(head + i) * scale;
            if (sizeof(W) == sizeof(Bf16)) normed = round_off(normed);
            store(head + i, normed * load(weight + i));
        }
    }
    if (!cos) return;
    for (long i = 0; i < half; i += LANES) {
        Floats a = load(head + i), b = load(head + half + i);
        store(head + i, a * load(cos + i) + b * load(sin + i));
        store(head + half + i, b * load(cos + half + i) + a * load(sin + half + i));
    }
}

template <typename W> static void turn(const Turn& t, long num_threads) {
    num_threads = choose_threads(t.num_tokens * t.num_turned * t.head_dim, num_threads);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (long token = 0; token < t.num_tokens; token++)
        for (long head = 0; head < t.num_turned; head++) {
            const W* weight = t.weight ? (const W*)t.weight + head * t.head_dim : nullptr;
            const Bf16* cos = t.cos ? t.cos + token * t.table_stride : nullptr;
            const Bf16* sin = t.sin ? t.sin + token * t.table_stride : nullptr;
            turn_head(t, t.heads + token * t.token_stride + head * t.head_dim, weight, cos, sin);
        }
}

extern "C" {

void hearth_add_norm(const Bf16* x, long x_stride, const Bf16* residual, long residual_stride,
                     const void* weight, long is_weight_fp32, Bf16* sum, Bf16* out, long num_rows,
                     long size, float eps, long num_threads) {
    if (is_weight_fp32)
        add_norm(x, x_stride, residual, residual_stride, (const float*)weight, sum, out, num_rows,
                 size, eps, num_threads);
    else
        add_norm(x, x_stride, residual, residual_stride, (const Bf16*)weight, sum, out, num_rows,
                 size, eps, num_threads);
}

// y = silu(g) · u, of rows that hold g and then u.
void hearth_silu_mul(const Bf16* gate_up, long stride, Bf16* out, long num_rows, long size,
                     long num_threads) {
    num_threads = choose_threads(num_rows * size, num_threads);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (long row = 0; row < num_rows; row++) {
        const Bf16 *gate = gate_up + row * stride, *up = gate + size;
        Bf16* to = out + row * size;
        long i = 0;
        for (; i + LANES <= size; i += LANES)
            store(to + i, round_off(silu(load(gate + i))) * load(up + i));
        for (; i < size; i++)
            store_one(to + i, round_off(silu(fill(widen(gate[i]))))[0] * widen(up[i]));
    }
}

void hearth_turn(const Turn* t, long num_threads) {
    t->is_weight_fp32 ? turn<float>(*t, num_threads) : turn<Bf16>(*t, num_threads);
}
}
