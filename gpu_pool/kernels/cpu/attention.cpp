// Causal attention over paged KV memory, read where it lies: softmax(q · Kᵀ · scale) · V.
//
// A tile is some query tokens of one sequence with all their heads; it walks the keys in blocks of
// 32 that begin at multiples of 32, widens a block once and keeps an online softmax for every row.
// Invariant: what a row computes depends on its position alone. Blocks of which it sees nothing are
// passed over, blocks of which it sees a part give the other keys a weight of exactly nothing, so
// neither its neighbours in the tile nor chunk sizes can change its last bit.
// Keys that no row of the tile sees are never read: they may be another sequence's, or garbage.

#include "vector.h"

#include <algorithm>
#include <cmath>

constexpr int KEYS = 32;
constexpr long TILE_ROWS = 32; // query rows of a KV head that share what is widened

// What Python fills in; the order is that of `gpu_pool.kernels.cpu.library`.
struct Attention {
    const void* q; // [T][heads][head_dim], rows apart by q_stride elements
    const void* kv; // what the step's tokens add, rows apart by kv_stride
    const int64_t* slot_ids; // where to, counted in slots
    void* slots;
    void* out; // [T][heads][value_dim]
    const int32_t* tables; // [sequences][table_stride]
    const int32_t* starts; // first row of each sequence, and the end
    const int32_t* lengths;
    const float* sinks; // or null
    int64_t q_stride, kv_stride, table_stride;
    int64_t num_sequences;
    int64_t num_heads, num_kv_heads, head_dim, value_dim, slot_elements;
    int64_t layer, num_layers, block_size;
    int64_t window, is_chunked;
    float scale, soft_cap;
};

// -- arithmetic -----------------------------------------------------------------------------------

// e^x for x up to 0, and exactly 1 at 0; below -87 what is left of it.
static inline Floats exponential(Floats x) {
    constexpr float magic = 12582912.0f; // 1.5 · 2^23: what is added to it is rounded to a whole
    x = largest(x, fill(-87.0f));
    Floats shifted = x * 1.44269504f + magic;
    Floats power = shifted - magic;
    Floats rest = x - power * 0.693359375f;
    rest = rest - power * -2.12194440e-4f;
    Floats sum = fill(1.0f / 720);
    sum = sum * rest + 1.0f / 120;
    sum = sum * rest + 1.0f / 24;
    sum = sum * rest + 1.0f / 6;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1.0f;
    sum = sum * rest + 1.0f;
    return sum * (Floats)(((Words)shifted + 127) << 23);
}

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

template <int STEP> static inline Floats turn(Floats values) {
    Ints order;
    for (int lane = 0; lane < LANES; lane++) order[lane] = (lane + STEP) % LANES;
    return __builtin_shuffle(values, order);
}

template <int STEP = LANES / 2> static inline float find_largest(Floats values) {
    values = largest(values, turn<STEP>(values));
    if constexpr (STEP > 1) return find_largest<STEP / 2>(values);
    return values[0];
}

template <int STEP = LANES / 2> static inline float add_lanes(Floats values) {
    values = values + turn<STEP>(values);
    if constexpr (STEP > 1) return add_lanes<STEP / 2>(values);
    return values[0];
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

// -- one row against one block of keys ------------------------------------------------------------

// Scores of a block's keys, `stride` floats (a multiple of the lanes) apart.
static void score_keys(const float* q, const float* keys, long stride, float* scores) {
    for (int key = 0; key < KEYS; key += LANES) {
        Floats sums[LANES] = {};
        for (long dim = 0; dim < stride; dim += LANES) {
            Floats part = load(q + dim);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                sums[i] += part * load(keys + (key + i) * stride + dim);
        }
        store(scores + key, add_across(sums));
    }
}

template <int VECTORS>
static void mix_columns(const float* weights, const float* values, long stride, float shrink,
                        float* mixed) {
    Floats sums[VECTORS];
    for (int v = 0; v < VECTORS; v++) sums[v] = load(mixed + v * LANES) * shrink;
    for (int key = 0; key < KEYS; key++) {
        float weight = weights[key];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) sums[v] += load(values + key * stride + v * LANES) * weight;
    }
    for (int v = 0; v < VECTORS; v++) store(mixed + v * LANES, sums[v]);
}

// mixed · shrink + weights · values, over `size` columns.
static void mix_values(const float* weights, const float* values, long stride, long size,
                       float shrink, float* mixed) {
    long dim = 0;
    for (; dim + 8 * LANES <= size; dim += 8 * LANES)
        mix_columns<8>(weights, values + dim, stride, shrink, mixed + dim);
    for (; dim + 4 * LANES <= size; dim += 4 * LANES)
        mix_columns<4>(weights, values + dim, stride, shrink, mixed + dim);
    for (; dim < size; dim += LANES)
        mix_columns<1>(weights, values + dim, stride, shrink, mixed + dim);
}

struct RowState {
    float best, total; // largest score so far, sum of weights relative to it
};

// Takes the keys from `first` to `end` of a block into a row's softmax; the others weigh nothing.
static void attend_block(const Attention& a, const float* q, const float* keys, const float* values,
                         long key_stride, long value_stride, long value_size, int first, int end,
                         RowState& state, float* mixed) {
    alignas(64) float scores[KEYS];
    score_keys(q, keys, key_stride, scores);
    Floats top = fill(-INFINITY);
    Ints seen[KEYS / LANES];
    for (int i = 0; i < KEYS / LANES; i++) {
        Ints index;
        for (int lane = 0; lane < LANES; lane++) index[lane] = i * LANES + lane;
        seen[i] = (index >= first) & (index < end);
        Floats score = load(scores + i * LANES) * a.scale;
        if (a.soft_cap > 0) score = tangent(score / a.soft_cap) * a.soft_cap;
        score = choose(seen[i], score, fill(-INFINITY));
        store(scores + i * LANES, score);
        top = largest(score, top);
    }
    float best = std::max(state.best, find_largest(top));
    Floats total = {};
    for (int i = 0; i < KEYS / LANES; i++) {
        Floats weights = exponential(load(scores + i * LANES) - best);
        weights = choose(seen[i], weights, Floats{});
        store(scores + i * LANES, weights);
        total += weights;
    }
    // The first block finds nothing to shrink; its total and mixed values are 0.
    float shrink = state.best == -INFINITY ? 0.0f : exponential(fill(state.best - best))[0];
    state.total = state.total * shrink + add_lanes(total);
    state.best = best;
    mix_values(scores, values, value_stride, value_size, shrink, mixed);
}

// -- tiles ----------------------------------------------------------------------------------------

template <typename T> static void widen_row(const T* from, long size, long padded, float* to) {
    long i = 0;
    for (; i + LANES <= size; i += LANES) store(to + i, load(from + i));
    for (; i < size; i++) to[i] = widen(from[i]);
    for (; i < padded; i++) to[i] = 0;
}

static long pad(long size) { return (size + LANES - 1) / LANES * LANES; }

static long find_first(const Attention& a, long position) {
    if (a.window == 0) return 0;
    return a.is_chunked ? position - position % a.window : std::max(0L, position - (long)a.window + 1);
}

template <typename T> static const T* find_slot(const Attention& a, long sequence, long position) {
    long block = a.tables[sequence * a.table_stride + position / a.block_size];
    long slot = (block * a.num_layers + a.layer) * a.block_size + position % a.block_size;
    return (const T*)a.slots + slot * a.slot_elements;
}

struct Tile {
    long sequence, first, num_tokens; // `first` counts from the sequence's first row
};

// The KV heads from `first_head` to `end_head` of one tile.
template <typename T>
static void attend_tile(const Attention& a, const Tile& tile, long first_head, long end_head) {
    thread_local std::vector<float> q_buffer, mixed_buffer, keys_buffer;
    thread_local std::vector<RowState> states;
    long sequence = tile.sequence, first = tile.first, num_tokens = tile.num_tokens;
    long start = a.starts[sequence], num_new = a.starts[sequence + 1] - start;
    long num_shared = a.num_heads / a.num_kv_heads;
    long position = a.lengths[sequence] - num_new + first, end = position + num_tokens;
    bool has_values = a.slot_elements == 2 * a.num_kv_heads * a.head_dim;
    long q_size = pad(a.head_dim), value_size = pad(a.value_dim);
    long num_rows = (end_head - first_head) * num_tokens * num_shared;

    // Rows in the order: KV head, token, query head.
    float* q = reserve(q_buffer, num_rows * q_size);
    float* mixed = reserve(mixed_buffer, num_rows * value_size);
    float* keys = reserve(keys_buffer, KEYS * q_size * (has_values ? 2 : 1));
    float* values = has_values ? keys + KEYS * q_size : keys;
    if ((long)states.size() < num_rows) states.resize(num_rows);
    std::fill(mixed, mixed + num_rows * value_size, 0.0f);
    long row = 0;
    for (long head = first_head; head < end_head; head++)
        for (long token = 0; token < num_tokens; token++)
            for (long shared = 0; shared < num_shared; shared++, row++) {
                long q_head = head * num_shared + shared;
                const T* from = (const T*)a.q + (start + first + token) * a.q_stride;
                widen_row(from + q_head * a.head_dim, a.head_dim, q_size, q + row * q_size);
                states[row] = a.sinks ? RowState{a.sinks[q_head], 1} : RowState{-INFINITY, 0};
            }

    long oldest = find_first(a, position);
    for (long block = oldest / KEYS * KEYS; block < end; block += KEYS) {
        const T* slots[KEYS];
        long from = std::max(oldest, block) - block, to = std::min(end - block, (long)KEYS);
        for (long key = from; key < to; key++) slots[key] = find_slot<T>(a, sequence, block + key);
        for (long head = first_head; head < end_head; head++) {
            for (long key = 0; key < KEYS; key++) {
                bool is_seen = key >= from && key < to;
                const T* k = is_seen ? slots[key] + head * a.head_dim : nullptr;
                widen_row(k, is_seen ? a.head_dim : 0, q_size, keys + key * q_size);
                if (has_values) {
                    const T* v = k + a.num_kv_heads * a.head_dim;
                    widen_row(v, is_seen ? a.head_dim : 0, q_size, values + key * q_size);
                }
            }
            row = (head - first_head) * num_tokens * num_shared;
            for (long token = 0; token < num_tokens; token++) {
                long left = std::max(find_first(a, position + token) - block, 0L);
                long right = std::min(position + token + 1 - block, (long)KEYS);
                for (long shared = 0; shared < num_shared; shared++, row++)
                    if (left < right)
                        attend_block(a, q + row * q_size, keys, values, q_size, q_size, value_size,
                                     left, right, states[row], mixed + row * value_size);
            }
        }
    }

    row = 0;
    for (long head = first_head; head < end_head; head++)
        for (long token = 0; token < num_tokens; token++)
            for (long shared = 0; shared < num_shared; shared++, row++) {
                long out_row = (start + first + token) * a.num_heads + head * num_shared + shared;
                T* out = (T*)a.out + out_row * a.value_dim;
                float rest = 1.0f / states[row].total;
                const float* sums = mixed + row * value_size;
                long dim = 0;
                for (; dim + LANES <= a.value_dim; dim += LANES)
                    store(out + dim, load(sums + dim) * rest);
                for (; dim < a.value_dim; dim++) store_one(out + dim, sums[dim] * rest);
            }
}

template <typename T> static void attend(const Attention& a, long num_threads) {
    thread_local std::vector<Tile> tiles;
    tiles.clear();
    long tile_tokens = std::max(TILE_ROWS * a.num_kv_heads / a.num_heads, 1L);
    for (long sequence = 0; sequence < a.num_sequences; sequence++) {
        long num_new = a.starts[sequence + 1] - a.starts[sequence];
        for (long first = 0; first < num_new; first += tile_tokens)
            tiles.push_back({sequence, first, std::min(tile_tokens, num_new - first)});
    }
    // A tile's heads are read together, as they lie; they part where threads would go without.
    const Tile* listed = tiles.data();
    long num_tiles = tiles.size(), num_tokens = a.starts[a.num_sequences], num_parts = 1;
    if (num_threads > 1)
        num_parts = std::min((long)a.num_kv_heads, (2 * num_threads - 1) / num_tiles + 1);
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
    {
#pragma omp for schedule(static)
        for (long token = 0; token < num_tokens; token++)
            memcpy((T*)a.slots + a.slot_ids[token] * a.slot_elements,
                   (const T*)a.kv + token * a.kv_stride, a.slot_elements * sizeof(T));
#pragma omp for schedule(dynamic, 1)
        for (long item = 0; item < num_tiles * num_parts; item++) {
            long part = item % num_parts;
            attend_tile<T>(a, listed[item / num_parts], a.num_kv_heads * part / num_parts,
                           a.num_kv_heads * (part + 1) / num_parts);
        }
    }
}

extern "C" {

// Writes the step's keys and values into their slots, then attends.
void hearth_attend_bf16(const Attention* attention, long num_threads) {
    attend<Bf16>(*attention, num_threads);
}

void hearth_attend_fp32(const Attention* attention, long num_threads) {
    attend<float>(*attention, num_threads);
}
}
