// What lies between the products of a layer, in one pass over each row of bf16: sums in fp32, rounded
// where torch alone or the triton kernels of the same names round.
// Invariant: a row is computed by one thread, alike wherever it stands.

#include "kernels.h"

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

template <typename W> static void add_norm_row(const Norm& norm, long row) {
    long size = norm.size, i = 0;
    const Bf16* x = norm.x + row * norm.x_stride;
    if (norm.residual) {
        const Bf16* other = norm.residual + row * norm.residual_stride;
        Bf16* sum = norm.sum + row * size;
        for (; i + LANES <= size; i += LANES) store(sum + i, load(other + i) + load(x + i));
        for (; i < size; i++) store_one(sum + i, widen(other[i]) + widen(x[i]));
        x = sum;
    }
    norm_row(x, (const W*)norm.weight, norm.out + row * size, size, norm.eps);
}

void add_norm(Team& team, const Norm& norm) {
    auto act = norm.is_weight_fp32 ? add_norm_row<float> : add_norm_row<Bf16>;
    team.share(norm.num_rows, [&](long row) { act(norm, row); });
}

static inline Floats silu(Floats x) {
    x = choose(x < -87.0f, fill(-87.0f), x); // nothing is left of it; a NaN stays one
    Floats shrunk = exponential((Floats)((Words)x | 0x80000000)); // of minus its size
    return x * (choose(x < 0.0f, shrunk, fill(1.0f)) / (1.0f + shrunk));
}

void silu_mul(Team& team, const Gate& gate) {
    team.share(gate.num_rows, [&](long row) {
        const Bf16 *g = gate.gate_up + row * gate.stride, *up = g + gate.size;
        Bf16* to = gate.out + row * gate.size;
        long i = 0;
        for (; i + LANES <= gate.size; i += LANES)
            store(to + i, round_off(silu(load(g + i))) * load(up + i));
        for (; i < gate.size; i++)
            store_one(to + i, round_off(silu(fill(widen(g[i]))))[0] * widen(up[i]));
    });
}

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

template <typename W> static void turn_token(const Turn& t, long token) {
    for (long head = 0; head < t.num_turned; head++) {
        const W* weight = t.weight ? (const W*)t.weight + head * t.head_dim : nullptr;
        const Bf16* cos = t.cos ? t.cos + token * t.table_stride : nullptr;
        const Bf16* sin = t.sin ? t.sin + token * t.table_stride : nullptr;
        turn_head(t, t.heads + token * t.token_stride + head * t.head_dim, weight, cos, sin);
    }
}

void turn(Team& team, const Turn& t) {
    auto act = t.is_weight_fp32 ? turn_token<float> : turn_token<Bf16>;
    team.share(t.num_tokens, [&](long token) { act(t, token); });
}

extern "C" {

void hearth_add_norm(const Bf16* x, long x_stride, const Bf16* residual, long residual_stride,
                     const void* weight, long is_weight_fp32, Bf16* sum, Bf16* out, long num_rows,
                     long size, float eps, long num_threads) {
    Norm norm{x,   x_stride, residual, residual_stride, weight, is_weight_fp32 != 0,
              sum, out,      num_rows, size,            eps};
    run_team(choose_threads(num_rows * size, num_threads), 1,
             [&](Team& team) { add_norm(team, norm); });
}

void hearth_silu_mul(const Bf16* gate_up, long stride, Bf16* out, long num_rows, long size,
                     long num_threads) {
    Gate gate{gate_up, stride, out, num_rows, size};
    run_team(choose_threads(num_rows * size, num_threads), 1,
             [&](Team& team) { silu_mul(team, gate); });
}

void hearth_turn(const Turn* t, long num_threads) {
    long num_elements = t->num_tokens * t->num_turned * t->head_dim;
    run_team(choose_threads(num_elements, num_threads), 1, [&](Team& team) { turn(team, *t); });
}
}
