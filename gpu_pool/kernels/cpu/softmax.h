// The softmax of one row that walks its keys block by block.
#pragma once

#include "kernels.h"
#include "tile.h"

#include <cmath>

constexpr int KEYS = 32; // of a block

static inline Floats tangent(Floats x) {
    Floats size = (Floats)((Words)x & 0x7fffffff);
    Floats shrunk = exponential(size * -2.0f);
    Floats far = (1.0f - shrunk) / (1.0f + shrunk);
    Floats square = size * size; // near 0 the difference above has lost its digits
    Floats near = fill(62.0f / 2835);
    near = near * square - 17.0f / 315;
    near = near * square + 2.0f / 15;
    near = near * square - 1.0f / 3;
    near = (near * square + 1.0f) * size;
    Floats result = choose(size < 0.25f, near, far);
    return (Floats)((Words)result | ((Words)x & 0x80000000));
}

// A row's softmax so far.
struct RowState {
    float best; // the largest score
    float totals[LANES]; // sums of weights relative to it, each of its own keys

    RowState() = default;
    RowState(float best, float total) : best(best), totals{total} {}

    float add_up() const { return add_lanes(load(totals)); }
};

static inline bool is_any(Ints condition) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)condition, (__m512i)condition);
#elif defined(__AVX2__)
    return _mm256_movemask_epi8((__m256i)condition);
#else
    for (int lane = 0; lane < LANES; lane++)
        if (condition[lane]) return true;
    return false;
#endif
}

// Turns a row's scores of a block into weights, of which those before `first` and from `end` on are
// nothing, and takes them into its softmax. Returns what all that was mixed before is worth now.
static float weigh_keys(const Attention& a, int first, int end, RowState& state, const float* scores,
                        Input* weights) {
    constexpr int VECTORS = KEYS / LANES;
    bool sees_all = first <= 0 && end >= KEYS;
    Floats found[VECTORS];
    Ints seen[VECTORS], is_better = {};
    for (int i = 0; i < VECTORS; i++) {
        found[i] = load(scores + i * LANES) * a.scale;
        if (a.soft_cap > 0) found[i] = tangent(found[i] / a.soft_cap) * a.soft_cap;
        if (!sees_all) {
            Ints index;
            for (int lane = 0; lane < LANES; lane++) index[lane] = i * LANES + lane;
            seen[i] = (index >= first) & (index < end);
            found[i] = choose(seen[i], found[i], fill(-INFINITY));
        }
        is_better |= found[i] > state.best;
    }
    float shrink = 1;
    if (is_any(is_better)) {
        Floats top = found[0];
        for (int i = 1; i < VECTORS; i++) top = largest(found[i], top);
        float best = find_largest(top);
        // The first block finds nothing to shrink; its totals and mixed values are 0.
        shrink = state.best == -INFINITY ? 0.0f : exponential(fill(state.best - best))[0];
        store(state.totals, load(state.totals) * shrink);
        state.best = best;
    }
    Floats totals = load(state.totals);
    for (int i = 0; i < VECTORS; i++) {
        Floats weight = exponential(found[i] - state.best);
        if (!sees_all) weight = choose(seen[i], weight, Floats{});
        store(weights + i * LANES, weight);
        totals += weight;
    }
    store(state.totals, totals);
    return shrink;
}
