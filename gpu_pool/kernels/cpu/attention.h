// What all ways of attending share: what a tile's rows are and see, and their softmax.
#pragma once

#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

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
template <typename Weight>
static float weigh_keys(const Attention& a, int first, int end, RowState& state, const float* scores,
                        Weight* weights) {
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

static long pad(long size, long multiple) { return (size + multiple - 1) / multiple * multiple; }

static inline void copy_row(const Bf16* from, long size, long padded, Bf16* to) {
    memcpy(to, from, size * sizeof(Bf16));
    memset(to + size, 0, (padded - size) * sizeof(Bf16));
}

template <typename T> static void copy_row(const T* from, long size, long padded, float* to) {
    long i = 0;
    for (; i + LANES <= size; i += LANES) store(to + i, load(from + i));
    for (; i < size; i++) to[i] = widen(from[i]);
    for (; i < padded; i++) to[i] = 0;
}

static long find_first(const Attention& a, long position) {
    if (a.window == 0) return 0;
    return a.is_chunked ? position - position % a.window : std::max(0L, position - (long)a.window + 1);
}

template <typename T> static const T* find_slot(const Attention& a, long sequence, long position) {
    long block = a.tables[sequence * a.table_stride + position / a.block_size];
    long slot = (block * a.num_layers + a.layer) * a.block_size + position % a.block_size;
    return (const T*)a.slots + slot * a.slot_elements;
}

namespace { // their memory of a thread is this library's alone

struct Tile {
    long sequence, first, num_tokens; // `first` counts from the sequence's first row
    long first_head, end_head; // KV heads
};

// The rows of a tile, in the order: KV head, token, query head.
struct Rows {
    long sequence, start, first_head, end_head, num_tokens, num_shared;
    long position, end; // of the first token, and behind the last
    long value_size, head_rows, num_rows;
    float* mixed; // [rows][value_size]
    RowState* states;

    // Sizes are padded to a multiple of `unit`.
    Rows(const Attention& a, const Tile& tile, long unit)
        : sequence(tile.sequence), start(a.starts[tile.sequence] + tile.first),
          first_head(tile.first_head), end_head(tile.end_head), num_tokens(tile.num_tokens),
          num_shared(a.num_heads / a.num_kv_heads),
          position(a.lengths[sequence] - a.starts[sequence + 1] + start),
          end(position + num_tokens), value_size(pad(a.value_dim, unit)),
          head_rows(num_tokens * num_shared), num_rows((end_head - first_head) * head_rows) {
        thread_local std::vector<float> mixed_buffer;
        thread_local std::vector<RowState> states_buffer;
        mixed = reserve(mixed_buffer, num_rows * value_size);
        std::fill(mixed, mixed + num_rows * value_size, 0.0f);
        if ((long)states_buffer.size() < num_rows) states_buffer.resize(num_rows);
        states = states_buffer.data();
    }

    template <typename Do> void each_row(Do&& act) const {
        long row = 0;
        for (long head = first_head; head < end_head; head++)
            for (long token = 0; token < num_tokens; token++)
                for (long shared = 0; shared < num_shared; shared++, row++)
                    act(row, start + token, head * num_shared + shared);
    }
};

// Those rows with their queries, in the form that they are multiplied in.
template <typename Query> struct Work : Rows {
    long q_size;
    Query* q; // [rows][q_size], zeros behind head_dim

    template <typename T>
    Work(const Attention& a, const Tile& tile, long unit, const T* from)
        : Rows(a, tile, unit), q_size(pad(a.head_dim, unit)) {
        thread_local std::vector<Query> q_buffer;
        q = reserve(q_buffer, num_rows * q_size);
        each_row([&](long row, long token, long head) {
            copy_row(from + token * a.q_stride + head * a.head_dim, a.head_dim, q_size,
                     q + row * q_size);
            states[row] = a.sinks ? RowState{a.sinks[head], 1} : RowState{-INFINITY, 0};
        });
    }
};

// What a tile's rows see of the block of keys that begins at position `block`.
struct Sight {
    long first, end; // of any row

    Sight(const Attention& a, const Rows& rows, long block)
        : first(std::max(find_first(a, rows.position), block) - block),
          end(std::min(rows.end - block, (long)KEYS)) {}

    // The keys that one token sees; none where the second is not larger.
    static std::pair<long, long> of(const Attention& a, const Rows& rows, long block, long token) {
        long position = rows.position + token;
        return {std::max(find_first(a, position) - block, 0L),
                std::min(position + 1 - block, (long)KEYS)};
    }

    // The rows of a head that see something of the block: those of the others are the first or last.
    static std::pair<long, long> find_rows(const Attention& a, const Rows& rows, long block) {
        auto sees = [&](long token) {
            auto [left, right] = of(a, rows, block, token);
            return left < right;
        };
        long first = 0, end = rows.num_tokens;
        while (!sees(first)) first++;
        while (!sees(end - 1)) end--;
        return {first * rows.num_shared, end * rows.num_shared};
    }
};

} // namespace

// The slots of a block from their first head on; where nobody sees one, `unseen`.
template <typename T>
static void find_slots(const Attention& a, const Rows& rows, long block, const T* unseen,
                       const T** slots) {
    Sight sight(a, rows, block);
    for (long key = 0; key < KEYS; key++) {
        bool is_seen = key >= sight.first && key < sight.end;
        slots[key] = is_seen ? find_slot<T>(a, rows.sequence, block + key) : unseen;
        slots[key] += rows.first_head * a.head_dim;
    }
}

template <typename T> static void prefetch(const T* from, long size) {
    constexpr long LINE = 64 / sizeof(T);
    for (long i = 0; i < size; i += LINE) __builtin_prefetch(from + i, 0, 2);
}
