// Causal attention over paged KV memory, read where it lies: softmax(q · Kᵀ · scale) · V.
//
// A tile is some query tokens of one sequence with all their heads; it walks the keys in blocks of
// 32 that begin at multiples of 32 and keeps an online softmax for every row. Many rows share a block
// that was widened once, head by head; few rows, as in decoding, read slots from end to end as they
// lie, with every head, because memory is what they wait for. Both make the same additions.
// Invariant: what a row computes depends on its position alone. Blocks of which it sees nothing are
// passed over, blocks of which it sees a part give the other keys a weight of exactly nothing, so
// neither its neighbours in the tile nor chunk sizes can change its last bit.
// Keys that no row of the tile sees are never read: they may be another sequence's, or garbage.

#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

constexpr int KEYS = 32;
constexpr long TILE_ROWS = 32; // query rows of a KV head that share what is widened
constexpr long FEW_ROWS = 8; // of a KV head; so many read slots as they lie
constexpr int MIXED_KEYS = 4; // whose values few rows take at once

// -- arithmetic -----------------------------------------------------------------------------------

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

// -- rows against one block of keys ---------------------------------------------------------------

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

struct RowState {
    float best, total; // largest score so far, sum of weights relative to it
};

// Turns a row's scores of a block into weights, of which those before `first` and from `end` on are
// nothing, and takes them into its softmax. Returns what all that was mixed before is worth now.
static float weigh_keys(const Attention& a, int first, int end, RowState& state, float* scores) {
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
    return shrink;
}

// -- where things are ----------------------------------------------------------------------------

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

namespace { // their memory of a thread is this library's alone

struct Tile {
    long sequence, first, num_tokens; // `first` counts from the sequence's first row
};

// Some KV heads of one tile. Rows are in the order: KV head, token, query head.
struct Work {
    long sequence, start, first_head, end_head, num_tokens, num_shared;
    long position, end; // of the first token, and behind the last
    long q_size, value_size, head_rows, num_rows;
    float *q, *mixed;
    RowState* states;

    Work(const Attention& a, const Tile& tile, long first_head, long end_head)
        : sequence(tile.sequence), start(a.starts[tile.sequence] + tile.first),
          first_head(first_head), end_head(end_head), num_tokens(tile.num_tokens),
          num_shared(a.num_heads / a.num_kv_heads),
          position(a.lengths[sequence] - a.starts[sequence + 1] + start),
          end(position + num_tokens), q_size(pad(a.head_dim)), value_size(pad(a.value_dim)),
          head_rows(num_tokens * num_shared), num_rows((end_head - first_head) * head_rows) {
        thread_local std::vector<float> q_buffer, mixed_buffer;
        thread_local std::vector<RowState> states_buffer;
        q = reserve(q_buffer, num_rows * q_size);
        mixed = reserve(mixed_buffer, num_rows * value_size);
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

// What a tile's rows see of the block of keys that begins at position `block`.
struct Sight {
    long first, end; // of any row

    Sight(const Attention& a, const Work& work, long block)
        : first(std::max(find_first(a, work.position), block) - block),
          end(std::min(work.end - block, (long)KEYS)) {}

    // The keys that one token sees; none where the second is not larger.
    static std::pair<long, long> of(const Attention& a, const Work& work, long block, long token) {
        long position = work.position + token;
        return {std::max(find_first(a, position) - block, 0L),
                std::min(position + 1 - block, (long)KEYS)};
    }

    // The rows of a head that see something of the block: those of the others are the first or last.
    static std::pair<long, long> find_rows(const Attention& a, const Work& work, long block) {
        auto sees = [&](long token) {
            auto [left, right] = of(a, work, block, token);
            return left < right;
        };
        long first = 0, end = work.num_tokens;
        while (!sees(first)) first++;
        while (!sees(end - 1)) end--;
        return {first * work.num_shared, end * work.num_shared};
    }
};

} // namespace

// Calls `act` with a compile-time number of rows and the first of them, until all have had their turn.
template <typename Act> static void in_fours(long row, long end, Act&& act) {
    for (; row + 4 <= end; row += 4) act(std::integral_constant<int, 4>{}, row);
    for (; row + 2 <= end; row += 2) act(std::integral_constant<int, 2>{}, row);
    if (row < end) act(std::integral_constant<int, 1>{}, row);
}

// -- many rows ------------------------------------------------------------------------------------

template <typename T> static void attend_many(const Attention& a, const Work& work, long block) {
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
            widen_row(k, is_seen ? a.head_dim : 0, q_size, keys + key * q_size);
            if (has_values) {
                const T* v = k + a.num_kv_heads * a.head_dim;
                widen_row(v, is_seen ? a.head_dim : 0, q_size, values + key * q_size);
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
            shrinks[row] = weigh_keys(a, left, right, state, scores + row * KEYS);
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

// The slots of a block from their first head on; where nobody sees one, `unseen`.
template <typename T>
static void find_slots(const Attention& a, const Work& work, long block, const T* unseen,
                       const T** slots) {
    Sight sight(a, work, block);
    for (long key = 0; key < KEYS; key++) {
        bool is_seen = key >= sight.first && key < sight.end;
        slots[key] = is_seen ? find_slot<T>(a, work.sequence, block + key) : unseen;
        slots[key] += work.first_head * a.head_dim;
    }
}

template <typename T> static void prefetch(const T* from, long size) {
    constexpr long LINE = 64 / sizeof(T);
    for (long i = 0; i < size; i += LINE) __builtin_prefetch(from + i, 0, 2);
}

// While keys are read their values come nearer, and while values are read the next block's keys do.
template <typename T> static void attend_few(const Attention& a, const Work& work, long block) {
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
            float shrink = weigh_keys(a, left, right, work.states[index], scores + index * KEYS);
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

// -- tiles ----------------------------------------------------------------------------------------

// The KV heads from `first_head` to `end_head` of one tile.
template <typename T>
static void attend_tile(const Attention& a, const Tile& tile, long first_head, long end_head) {
    Work work(a, tile, first_head, end_head);
    std::fill(work.mixed, work.mixed + work.num_rows * work.value_size, 0.0f);
    work.each_row([&](long row, long token, long head) {
        const T* from = (const T*)a.q + token * a.q_stride + head * a.head_dim;
        widen_row(from, a.head_dim, work.q_size, work.q + row * work.q_size);
        work.states[row] = a.sinks ? RowState{a.sinks[head], 1} : RowState{-INFINITY, 0};
    });
    bool is_whole = work.q_size == a.head_dim && work.value_size == a.value_dim;
    bool are_few = work.head_rows <= FEW_ROWS && is_whole;
    for (long block = find_first(a, work.position) / KEYS * KEYS; block < work.end; block += KEYS)
        are_few ? attend_few<T>(a, work, block) : attend_many<T>(a, work, block);
    work.each_row([&](long row, long token, long head) {
        T* out = (T*)a.out + (token * a.num_heads + head) * a.value_dim;
        float rest = 1.0f / work.states[row].total;
        const float* sums = work.mixed + row * work.value_size;
        long dim = 0;
        for (; dim + LANES <= a.value_dim; dim += LANES)
            store(out + dim, load(sums + dim) * rest);
        for (; dim < a.value_dim; dim++) store_one(out + dim, sums[dim] * rest);
    });
}

template <typename T> static void attend(Team& team, const Attention& a) {
    thread_local std::vector<Tile> tiles;
    tiles.clear();
    long tile_tokens = std::max(TILE_ROWS * a.num_kv_heads / a.num_heads, 1L);
    for (long sequence = 0; sequence < a.num_sequences; sequence++) {
        long num_new = a.starts[sequence + 1] - a.starts[sequence];
        for (long first = 0; first < num_new; first += tile_tokens)
            tiles.push_back({sequence, first, std::min(tile_tokens, num_new - first)});
    }
    if (tiles.empty()) return;
    // A tile's heads are read together, as they lie; they part where threads would go without.
    long num_tiles = tiles.size(), num_threads = team.count_threads(), num_parts = 1;
    if (num_threads > 1)
        num_parts = std::min((long)a.num_kv_heads, (2 * num_threads - 1) / num_tiles + 1);
    team.share(a.starts[a.num_sequences], [&](long token) {
        memcpy((T*)a.slots + a.slot_ids[token] * a.slot_elements,
               (const T*)a.kv + token * a.kv_stride, a.slot_elements * sizeof(T));
    });
    team.share(num_tiles * num_parts, [&](long item) {
        long part = item % num_parts;
        attend_tile<T>(a, tiles[item / num_parts], a.num_kv_heads * part / num_parts,
                       a.num_kv_heads * (part + 1) / num_parts);
    });
}

void attend_bf16(Team& team, const Attention& a) { attend<Bf16>(team, a); }

extern "C" {

// Writes the step's keys and values into their slots, then attends.
void hearth_attend_bf16(const Attention* attention, long num_threads) {
    run_team(num_threads, ATTENTION_STAGES, [&](Team& team) { attend<Bf16>(team, *attention); });
}

void hearth_attend_fp32(const Attention* attention, long num_threads) {
    run_team(num_threads, ATTENTION_STAGES, [&](Team& team) { attend<float>(team, *attention); });
}
}
