// Attention in fp32: keys and values are widened, and rows go through them in fours.
//
// Many rows share a block that was widened once, head by head; few rows, as in decoding, read slots
// from end to end as they lie, with every head, because memory is what they wait for. Both make the
// same additions.
#pragma once

#include "attention.h"

constexpr long FEW_ROWS = 8; // of a KV head; so many read slots as they lie
constexpr int MIXED_KEYS = 4; // whose values few rows take at once

static float weigh(const Attention& a, int first, int end, RowState& state, float* scores) {
    return weigh_keys(a, first, end, state, scores, scores);
}

// Lane i is the sum over the lanes of vector i; halves the number of vectors until one is left.
template <int COUNT = LANES> static inline Floats add_across(Floats* vectors) {
    Ints even, odd;
    for (int lane = 0; lane < LANES; lane++) {
        even[lane] = 2 * lane;
        odd[lane] = 2 * lane + 1;
    }
#pragma GCC unroll 8
    for (int i = 0; i < COUNT / 2; i++) {
        Floats a = vectors[2 * i], b = vectors[2 * i + 1];
        vectors[i] = __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, odd);
    }
    if constexpr (COUNT > 2) return add_across<COUNT / 2>(vectors);
    return vectors[0];
}

constexpr int SUMS = LANES == 16 ? 16 : 8; // vectors that stay in registers, beside what they take in

// Scores of a block's keys for each of `ROWS` rows; rows of `q` and of `keys` are `size` floats (a
// multiple of the lanes) apart.
template <int ROWS>
static void score_keys(const float* q, const float* keys, long size, float* scores) {
    constexpr int AT_ONCE = SUMS / 4;
    for (int key = 0; key < KEYS; key += LANES) {
        Floats all[ROWS][LANES];
        for (int first = 0; first < LANES; first += AT_ONCE) {
            Floats sums[ROWS][AT_ONCE] = {};
            for (long dim = 0; dim < size; dim += LANES)
#pragma GCC unroll 4
                for (int i = 0; i < AT_ONCE; i++) {
                    Floats part = load(keys + (key + first + i) * size + dim);
#pragma GCC unroll 4
                    for (int r = 0; r < ROWS; r++) sums[r][i] += load(q + r * size + dim) * part;
                }
            for (int r = 0; r < ROWS; r++)
                for (int i = 0; i < AT_ONCE; i++) all[r][first + i] = sums[r][i];
        }
        for (int r = 0; r < ROWS; r++) store(scores + r * KEYS + key, add_across(all[r]));
    }
}

template <int ROWS, int VECTORS>
static void mix_columns(const float* weights, const float* shrinks, const float* values,
                        long stride, float* mixed, long mixed_stride) {
    Floats sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            sums[r][v] = load(mixed + r * mixed_stride + v * LANES) * shrinks[r];
    for (int key = 0; key < KEYS; key++) {
        Floats parts[VECTORS];
        for (int v = 0; v < VECTORS; v++) parts[v] = load(values + key * stride + v * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            Floats weight = fill(weights[r * KEYS + key]);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) sums[r][v] += parts[v] * weight;
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) store(mixed + r * mixed_stride + v * LANES, sums[r][v]);
}

// mixed · shrink + weights · values for each of `ROWS` rows, over `size` columns.
template <int ROWS>
static void mix_values(const float* weights, const float* shrinks, const float* values, long stride,
                       float* mixed, long size) {
    constexpr int VECTORS = std::min(SUMS / ROWS, 8);
    long dim = 0;
    for (; dim + VECTORS * LANES <= size; dim += VECTORS * LANES)
        mix_columns<ROWS, VECTORS>(weights, shrinks, values + dim, stride, mixed + dim, size);
    for (; dim < size; dim += LANES)
        mix_columns<ROWS, 1>(weights, shrinks, values + dim, stride, mixed + dim, size);
}

// Calls `act` with a compile-time number of rows and the first of them, until all have had their turn.
template <typename Act> static void in_fours(long row, long end, Act&& act) {
    for (; row + 4 <= end; row += 4) act(std::integral_constant<int, 4>{}, row);
    for (; row + 2 <= end; row += 2) act(std::integral_constant<int, 2>{}, row);
    if (row < end) act(std::integral_constant<int, 1>{}, row);
}

// -- many rows ------------------------------------------------------------------------------------

template <typename T> static void attend_many(const Attention& a, const Work<float>& work, long block) {
    thread_local std::vector<float> keys_buffer, scores_buffer, shrinks_buffer;
    bool has_values = a.slot_elements == 2 * a.num_kv_heads * a.head_dim;
    long q_size = work.q_size;
    float* keys = reserve(keys_buffer, KEYS * q_size * (has_values ? 2 : 1));
    float* values = has_values ? keys + KEYS * q_size : keys;
    float* scores = reserve(scores_buffer, work.head_rows * KEYS);
    float* shrinks = reserve(shrinks_buffer, work.head_rows);
    const T* slots[KEYS];
    Sight sight(a, work, block);
    for (long key = sight.first; key < sight.end; key++)
        slots[key] = find_slot<T>(a, work.sequence, block + key);
    for (long head = work.first_head; head < work.end_head; head++) {
        for (long key = 0; key < KEYS; key++) {
            bool is_seen = key >= sight.first && key < sight.end;
            const T* k = is_seen ? slots[key] + head * a.head_dim : nullptr;
            copy_row(k, is_seen ? a.head_dim : 0, q_size, keys + key * q_size);
            if (has_values) {
                const T* v = k + a.num_kv_heads * a.head_dim;
                copy_row(v, is_seen ? a.head_dim : 0, q_size, values + key * q_size);
            }
        }
        long before = (head - work.first_head) * work.head_rows;
        float *q = work.q + before * q_size, *mixed = work.mixed + before * work.value_size;
        auto [first, end] = Sight::find_rows(a, work, block);
        in_fours(first, end, [&](auto count, long row) {
            score_keys<count>(q + row * q_size, keys, q_size, scores + row * KEYS);
        });
        for (long row = first; row < end; row++) {
            auto [left, right] = Sight::of(a, work, block, row / work.num_shared);
            RowState& state = work.states[before + row];
            shrinks[row] = weigh(a, left, right, state, scores + row * KEYS);
        }
        in_fours(first, end, [&](auto count, long row) {
            mix_values<count>(scores + row * KEYS, shrinks + row, values, q_size,
                              mixed + row * work.value_size, work.value_size);
        });
    }
}

// -- few rows -------------------------------------------------------------------------------------

// For each of `COUNT` rows one vector of partial sums of its score of a key.
template <int COUNT, typename T>
static void score_key(const float* q, long q_size, const T* key, float* partial, long stride) {
    Floats sums[COUNT] = {};
    for (long dim = 0; dim < q_size; dim += LANES) {
        Floats part = load(key + dim);
#pragma GCC unroll 4
        for (int r = 0; r < COUNT; r++) sums[r] += load(q + r * q_size + dim) * part;
    }
    for (int r = 0; r < COUNT; r++) store(partial + r * stride, sums[r]);
}

// Adds weights · values of `MIXED_KEYS` keys to what `COUNT` rows have mixed.
template <int COUNT, typename T>
static void mix_keys(const float* weights, const T* const* values, long size, float* mixed) {
    for (long dim = 0; dim < size; dim += LANES) {
        Floats parts[MIXED_KEYS];
        for (int key = 0; key < MIXED_KEYS; key++) parts[key] = load(values[key] + dim);
#pragma GCC unroll 4
        for (int r = 0; r < COUNT; r++) {
            Floats sum = load(mixed + r * size + dim);
            for (int key = 0; key < MIXED_KEYS; key++) sum += parts[key] * weights[r * KEYS + key];
            store(mixed + r * size + dim, sum);
        }
    }
}

// While keys are read their values come nearer, and while values are read the next block's keys do.
template <typename T> static void attend_few(const Attention& a, const Work<float>& work, long block) {
    thread_local std::vector<float> partial_buffer, scores_buffer;
    thread_local std::vector<T> zeros_buffer;
    long num_heads = work.end_head - work.first_head, size = num_heads * a.head_dim;
    bool has_values = a.slot_elements == 2 * a.num_kv_heads * a.head_dim;
    long to_values = has_values ? a.num_kv_heads * a.head_dim : 0;
    float* partial = reserve(partial_buffer, work.num_rows * LANES * LANES);
    float* scores = reserve(scores_buffer, work.num_rows * KEYS);
    T* zeros = reserve(zeros_buffer, a.slot_elements);
    std::fill(zeros, zeros + a.slot_elements, T{});
    const T *slots[KEYS], *next_slots[KEYS];
    find_slots(a, work, block, zeros, slots);
    bool has_next = block + KEYS < work.end;
    if (has_next) find_slots(a, work, block + KEYS, zeros, next_slots);
    auto [first, end] = Sight::find_rows(a, work, block);
    long first_row = first, end_row = end; // lambdas take no parts of a pair
    for (long key = 0; key < KEYS; key++) {
        if (has_values) prefetch(slots[key] + to_values, size);
        for (long head = 0; head < num_heads; head++)
            in_fours(first_row, end_row, [&](auto count, long row) {
                row += head * work.head_rows;
                score_key<count>(work.q + row * work.q_size, work.q_size,
                                 slots[key] + head * a.head_dim,
                                 partial + (row * LANES + key % LANES) * LANES, LANES * LANES);
            });
        if (key % LANES == LANES - 1)
            for (long row = 0; row < work.num_rows; row++)
                store(scores + row * KEYS + key - key % LANES,
                      add_across((Floats*)(partial + row * LANES * LANES)));
    }
    for (long head = 0; head < num_heads; head++)
        for (long row = first_row; row < end_row; row++) {
            auto [left, right] = Sight::of(a, work, block, row / work.num_shared);
            long index = head * work.head_rows + row;
            float* mixed = work.mixed + index * work.value_size;
            float shrink = weigh(a, left, right, work.states[index], scores + index * KEYS);
            for (long dim = 0; dim < work.value_size; dim += LANES)
                store(mixed + dim, load(mixed + dim) * shrink);
        }
    for (long key = 0; key < KEYS; key += MIXED_KEYS) {
        for (int i = 0; has_next && i < MIXED_KEYS; i++) prefetch(next_slots[key + i], size);
        for (long head = 0; head < num_heads; head++) {
            const T* values[MIXED_KEYS];
            for (int i = 0; i < MIXED_KEYS; i++)
                values[i] = slots[key + i] + to_values + head * a.head_dim;
            in_fours(first_row, end_row, [&](auto count, long row) {
                row += head * work.head_rows;
                mix_keys<count>(scores + row * KEYS + key, values, work.value_size,
                                work.mixed + row * work.value_size);
            });
        }
    }
}

template <typename T> static void attend_wide(const Attention& a, const Work<float>& work, long block) {
    bool is_whole = work.q_size == a.head_dim && work.value_size == a.value_dim;
    bool are_few = work.head_rows <= FEW_ROWS && is_whole;
    are_few ? attend_few<T>(a, work, block) : attend_many<T>(a, work, block);
}
