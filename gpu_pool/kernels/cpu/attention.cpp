// Causal attention over paged KV memory, read where it lies: softmax(q · Kᵀ · scale) · V.
//
// A tile is some query tokens of one sequence with all their heads; it walks the keys in blocks of
// 32 that begin at multiples of 32 and keeps an online softmax for every row. How rows go through a
// block depends on the level: `attention_pairs.h`, `attention_wide.h`.
// Invariant: what a row computes depends on its position alone. Blocks of which it sees nothing are
// passed over, blocks of which it sees a part give the other keys a weight of exactly nothing, so
// neither its neighbours in the tile nor chunk sizes can change its last bit.
// Keys that no row of the tile sees are never read: they may be another sequence's, or garbage.

#include "attention_wide.h"
#if defined(__AVX512BF16__)
#include "attention_pairs.h"
#endif

// How queries of type `T` are multiplied: as pairs where the CPU does that, and widened elsewhere.
template <typename T> struct Way {
    typedef float Query;
    static constexpr long UNIT = LANES;
    static constexpr long TILE_ROWS = 32; // of a KV head, which share a block
    static constexpr long PARTED_ROWS = 1L << 30; // so many go head by head; it gains nothing here

    static void attend_block(const Attention& a, const Work<float>& work, long block) {
        attend_wide<T>(a, work, block);
    }
};

#if defined(__AVX512BF16__)
template <> struct Way<Bf16> {
    typedef Bf16 Query;
    static constexpr long UNIT = PANEL, TILE_ROWS = 256, PARTED_ROWS = 32;

    static void attend_block(const Attention& a, const Work<Bf16>& work, long block) {
        attend_pairs(a, work, block);
    }
};
#endif

template <typename T> static void attend_tile(const Attention& a, const Tile& tile) {
    Work<typename Way<T>::Query> work(a, tile, Way<T>::UNIT, (const T*)a.q);
    for (long block = find_first(a, work.position) / KEYS * KEYS; block < work.end; block += KEYS)
        Way<T>::attend_block(a, work, block);
    work.each_row([&](long row, long token, long head) {
        T* out = (T*)a.out + (token * a.num_heads + head) * a.value_dim;
        float rest = 1.0f / work.states[row].add_up();
        const float* sums = work.mixed + row * work.value_size;
        long dim = 0;
        for (; dim + LANES <= a.value_dim; dim += LANES)
            store(out + dim, load(sums + dim) * rest);
        for (; dim < a.value_dim; dim++) store_one(out + dim, sums[dim] * rest);
    });
}

// A step's tiles. Those of many rows go head by head, so that queries and sums stay near; the heads of
// others are read together, as slots lie, and part where threads would go without.
template <typename T>
static const std::vector<Tile>& list_tiles(const Attention& a, long num_threads) {
    thread_local std::vector<Tile> whole, tiles;
    whole.clear();
    tiles.clear();
    long num_shared = a.num_heads / a.num_kv_heads;
    long tile_tokens = std::max(Way<T>::TILE_ROWS / num_shared, 1L);
    for (long sequence = 0; sequence < a.num_sequences; sequence++) {
        long num_new = a.starts[sequence + 1] - a.starts[sequence];
        for (long first = 0; first < num_new; first += tile_tokens)
            whole.push_back({sequence, first, std::min(tile_tokens, num_new - first), 0, 0});
    }
    long num_whole = whole.size(), num_needed = 1;
    if (num_threads > 1 && num_whole) num_needed = (2 * num_threads - 1) / num_whole + 1;
    for (Tile& tile : whole) {
        bool are_many = tile.num_tokens * num_shared >= Way<T>::PARTED_ROWS;
        long num_parts = are_many ? a.num_kv_heads : std::min((long)a.num_kv_heads, num_needed);
        for (long part = 0; part < num_parts; part++) {
            tile.first_head = a.num_kv_heads * part / num_parts;
            tile.end_head = a.num_kv_heads * (part + 1) / num_parts;
            tiles.push_back(tile);
        }
    }
    return tiles;
}

template <typename T> static void attend(Team& team, const Attention& a) {
    const std::vector<Tile>& tiles = list_tiles<T>(a, team.count_threads());
    if (tiles.empty()) return;
    team.share(a.starts[a.num_sequences], [&](long token) {
        memcpy((T*)a.slots + a.slot_ids[token] * a.slot_elements,
               (const T*)a.kv + token * a.kv_stride, a.slot_elements * sizeof(T));
    });
    team.share(tiles.size(), [&](long item) { attend_tile<T>(a, tiles[item]); });
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
