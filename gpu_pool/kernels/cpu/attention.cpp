// Causal attention over paged KV memory, read where it lies: softmax(q · Kᵀ · scale) · V.
//
// A tile is some query tokens of one sequence with some or all of their heads; it walks the keys in
// blocks of 32 that begin at multiples of 32 and keeps an online softmax for every row. Both halves
// are products of rows with panels: scores are q · Kᵀ, with a block's keys for columns, and what is
// mixed is weights · V, with dims for columns. Where the CPU multiplies pairs or tiles of bf16, weights
// are rounded to bf16, as GPUs do.
// Invariant: what a row computes depends on its position alone. Blocks of which it sees nothing are
// passed over, blocks of which it sees a part give the other keys a weight of exactly nothing, so
// neither its neighbours in the tile nor chunk sizes can change its last bit.
// Keys that no row of the tile sees are never read: they may be another sequence's, or garbage. A row
// whose queries, keys or values are no numbers is none; so may be one beside it that sees others.

#include "kernels.h"
#include "near_products.h"
#include "panels.h"
#include "softmax.h"

#include <algorithm>
#include <utility>

static_assert(KEYS == PANEL, "a block of keys is one panel");

constexpr long SHARING_ROWS = 256; // of a KV head, which share what is laid out
constexpr long PARTED_ROWS = 32; // so many go head by head

// -- where things are ----------------------------------------------------------------------------

static long pad(long size) { return (size + PANEL - 1) / PANEL * PANEL; }

static void copy_row(const Bf16* from, long size, long padded, Bf16* to) {
    memcpy(to, from, size * sizeof(Bf16));
    memset(to + size, 0, (padded - size) * sizeof(Bf16));
}

// The form in which queries are multiplied on CPUs that multiply no pairs.
[[maybe_unused]] static void copy_row(const Bf16* from, long size, long padded, float* to) {
    for (long i = 0; i < size; i++) to[i] = widen(from[i]);
    for (long i = size; i < padded; i++) to[i] = 0;
}

static long find_first(const Attention& a, long position) {
    if (a.window == 0) return 0;
    return a.is_chunked ? position - position % a.window : std::max(0L, position - (long)a.window + 1);
}

static const Bf16* find_slot(const Attention& a, long sequence, long position) {
    long block = a.tables[sequence * a.table_stride + position / a.block_size];
    long slot = (block * a.num_layers + a.layer) * a.block_size + position % a.block_size;
    return (const Bf16*)a.slots + slot * a.slot_elements;
}

namespace { // their memory of a thread is this library's alone

struct Tile {
    long sequence, first, num_tokens; // `first` counts from the sequence's first row
    long first_head, end_head; // KV heads
};

// The rows of a tile, in the order: KV head, token, query head. Sizes are padded to whole panels.
struct Rows {
    long sequence, start, first_head, end_head, num_tokens, num_shared;
    long position, end; // of the first token, and behind the last
    long q_size, value_size, head_rows, num_rows;
    Input* q; // [rows][q_size], zeros behind head_dim
    float* mixed; // [rows][value_size]
    RowState* states;

    Rows(const Attention& a, const Tile& tile)
        : sequence(tile.sequence), start(a.starts[tile.sequence] + tile.first),
          first_head(tile.first_head), end_head(tile.end_head), num_tokens(tile.num_tokens),
          num_shared(a.num_heads / a.num_kv_heads),
          position(a.lengths[sequence] - a.starts[sequence + 1] + start),
          end(position + num_tokens), q_size(pad(a.head_dim)), value_size(pad(a.value_dim)),
          head_rows(num_tokens * num_shared), num_rows((end_head - first_head) * head_rows) {
        thread_local std::vector<Input> q_buffer;
        thread_local std::vector<float> mixed_buffer;
        thread_local std::vector<RowState> states_buffer;
        q = reserve(q_buffer, num_rows * q_size);
        mixed = reserve(mixed_buffer, num_rows * value_size);
        std::fill(mixed, mixed + num_rows * value_size, 0.0f);
        if ((long)states_buffer.size() < num_rows) states_buffer.resize(num_rows);
        states = states_buffer.data();
        each([&](long row, long token, long head) {
            const Bf16* from = (const Bf16*)a.q + token * a.q_stride + head * a.head_dim;
            copy_row(from, a.head_dim, q_size, q + row * q_size);
            states[row] = a.sinks ? RowState{a.sinks[head], 1} : RowState{-INFINITY, 0};
        });
    }

    template <typename Do> void each(Do&& act) const {
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

// -- a block of keys ------------------------------------------------------------------------------

// The slots of a block from their first head on; where nobody sees one, `unseen`.
static void find_slots(const Attention& a, const Rows& rows, long block, const Bf16* unseen,
                       const Bf16** slots) {
    Sight sight(a, rows, block);
    for (long key = 0; key < KEYS; key++) {
        bool is_seen = key >= sight.first && key < sight.end;
        slots[key] = is_seen ? find_slot(a, rows.sequence, block + key) : unseen;
        slots[key] += rows.first_head * a.head_dim;
    }
}

// The slots of the next block, whose lines come nearer one by one while this block is computed, from
// end to end: memory is what few rows wait for. Many at once are dropped, or hold up what is read.
class Ahead {
  public:
    Ahead(const Attention& a, const Rows& rows, bool has_values) {
        long num_heads = rows.end_head - rows.first_head, size = num_heads * a.head_dim;
        bool is_whole = num_heads == a.num_kv_heads;
        to_values = a.num_kv_heads * a.head_dim;
        parts_each = has_values && !is_whole ? 2 : 1;
        part_lines = ((is_whole ? a.slot_elements : size) + LINE - 1) / LINE;
    }

    void begin(const Bf16* const* next_slots) {
        slots = next_slots;
        part = -1;
        num_parts = KEYS * parts_each;
        enter();
    }

    // The next lines, of which there are at most so many.
    Coming take(long most) {
        if (num_left == 0) enter();
        Coming coming{from, std::min(most, num_left)};
        from += coming.num_lines * LINE;
        num_left -= coming.num_lines;
        return coming;
    }

    void fetch(long most) {
        Coming coming = take(most);
        for (long i = 0; i < coming.num_lines; i++) __builtin_prefetch(coming.from + i * LINE, 0, 2);
    }

  private:
    // The next part, if there is one.
    void enter() {
        if (part + 1 >= num_parts) return;
        part++;
        from = slots[part / parts_each] + part % parts_each * to_values;
        num_left = part_lines;
    }

    long parts_each, part_lines, to_values; // of a slot: all of it, or its keys and its values
    const Bf16* const* slots = nullptr;
    const Bf16* from = nullptr;
    long part = 0, num_parts = 0, num_left = 0;
};

// Keys and values of one head in the slots of a block, in panels.
struct Panels {
    bool has_values; // of their own; otherwise they are the beginnings of the keys
    Bf16 *keys, *values;

    Panels(const Attention& a, const Rows& rows)
        : has_values(a.slot_elements == 2 * a.num_kv_heads * a.head_dim) {
        thread_local std::vector<Bf16> buffer;
        keys = reserve(buffer, PANEL * (rows.q_size + rows.value_size));
        values = keys + PANEL * rows.q_size;
    }

    // `head` counts from where the slots begin.
    void lay_out(const Attention& a, const Rows& rows, const Bf16* const* slots, long head,
                 Ahead& ahead) {
        const Bf16 *from[KEYS], *from_values[KEYS];
        for (long key = 0; key < KEYS; key++) {
            from[key] = slots[key] + head * a.head_dim;
            from_values[key] = from[key] + (has_values ? a.num_kv_heads * a.head_dim : 0);
        }
        if (rows.q_size != a.head_dim) pad_rows<0>(from, a.head_dim, rows.q_size);
        if (rows.value_size != a.value_dim) pad_rows<1>(from_values, a.value_dim, rows.value_size);
        lay_out_keys(from, rows.q_size, keys, [&] { ahead.fetch(LANES / 2); });
        lay_out_values(from_values, rows.value_size, values, [&] { ahead.fetch(1); });
    }

  private:
    // Rows that are no whole panels are copied, with zeros behind.
    template <int WHICH> static void pad_rows(const Bf16** rows, long size, long padded) {
        thread_local std::vector<Bf16> buffer;
        Bf16* to = reserve(buffer, KEYS * padded);
        for (long key = 0; key < KEYS; key++, to += padded) {
            copy_row(rows[key], size, padded, to);
            rows[key] = to;
        }
    }
};

static void attend_head(const Attention& a, const Rows& rows, long block, const Panels& panels,
                        long head, Ahead& ahead, NearTiles& tiles) {
    thread_local std::vector<float> scores_buffer;
    thread_local std::vector<Input> weights_buffer;
    long size = rows.value_size, before = head * rows.head_rows;
    auto [first, end] = Sight::find_rows(a, rows, block);
    float* scores = reserve(scores_buffer, rows.head_rows * KEYS);
    Input* weights = reserve(weights_buffer, rows.head_rows * KEYS);
    float* mixed = rows.mixed + before * size;
    std::fill(scores + first * KEYS, scores + end * KEYS, 0.0f);
    multiply_near(tiles, rows.q + before * rows.q_size, rows.q_size, panels.keys, rows.q_size / 2,
                  scores, KEYS, first, end, ahead);
    for (long row = first; row < end; row++) {
        auto [left, right] = Sight::of(a, rows, block, row / rows.num_shared);
        float shrink = weigh_keys(a, left, right, rows.states[before + row], scores + row * KEYS,
                                  weights + row * KEYS);
        if (shrink == 1) continue;
        for (long dim = row * size; dim < (row + 1) * size; dim += LANES)
            store(mixed + dim, load(mixed + dim) * shrink);
    }
    for (long dim = 0; dim < size; dim += PANEL)
        multiply_near(tiles, weights, KEYS, panels.values + dim * PANEL, KEYS / 2, mixed + dim, size,
                      first, end, ahead);
}

// While one block is laid out and multiplied, the next one comes nearer.
static void attend_blocks(const Attention& a, const Rows& rows) {
    thread_local std::vector<Bf16> zeros_buffer; // nobody writes there
    const Bf16* zeros = reserve(zeros_buffer, a.slot_elements);
    Panels panels(a, rows);
    Ahead ahead(a, rows, panels.has_values);
    NearTiles tiles;
    const Bf16 *slots[KEYS], *next[KEYS];
    long block = find_first(a, rows.position) / KEYS * KEYS;
    find_slots(a, rows, block, zeros, slots);
    for (; block < rows.end; block += KEYS) {
        bool has_next = block + KEYS < rows.end;
        if (has_next) {
            find_slots(a, rows, block + KEYS, zeros, next);
            ahead.begin(next);
        }
        for (long head = 0; head < rows.end_head - rows.first_head; head++) {
            panels.lay_out(a, rows, slots, head, ahead);
            attend_head(a, rows, block, panels, head, ahead, tiles);
        }
        if (has_next) std::copy_n(next, KEYS, slots);
    }
}

// -- tiles ----------------------------------------------------------------------------------------

static void attend_tile(const Attention& a, const Tile& tile) {
    Rows rows(a, tile);
    attend_blocks(a, rows);
    rows.each([&](long row, long token, long head) {
        Bf16* out = (Bf16*)a.out + (token * a.num_heads + head) * a.value_dim;
        float rest = 1.0f / rows.states[row].add_up();
        const float* sums = rows.mixed + row * rows.value_size;
        long dim = 0;
        for (; dim + LANES <= a.value_dim; dim += LANES) store(out + dim, load(sums + dim) * rest);
        for (; dim < a.value_dim; dim++) store_one(out + dim, sums[dim] * rest);
    });
}

// A step's tiles. Those of many rows go head by head, so that queries and sums stay near; the heads of
// others are read together, as slots lie, and part where threads would go without.
static const std::vector<Tile>& list_tiles(const Attention& a, long num_threads) {
    thread_local std::vector<Tile> whole, tiles;
    whole.clear();
    tiles.clear();
    long tile_tokens = std::max(SHARING_ROWS * a.num_kv_heads / a.num_heads, 1L);
    for (long sequence = 0; sequence < a.num_sequences; sequence++) {
        long num_new = a.starts[sequence + 1] - a.starts[sequence];
        for (long first = 0; first < num_new; first += tile_tokens)
            whole.push_back({sequence, first, std::min(tile_tokens, num_new - first), 0, 0});
    }
    long num_whole = whole.size(), num_needed = 1;
    if (num_threads > 1 && num_whole) num_needed = (2 * num_threads - 1) / num_whole + 1;
    for (Tile& tile : whole) {
        bool are_many = tile.num_tokens * a.num_heads >= PARTED_ROWS * a.num_kv_heads;
        long num_parts = are_many ? a.num_kv_heads : std::min((long)a.num_kv_heads, num_needed);
        for (long part = 0; part < num_parts; part++) {
            tile.first_head = a.num_kv_heads * part / num_parts;
            tile.end_head = a.num_kv_heads * (part + 1) / num_parts;
            tiles.push_back(tile);
        }
    }
    return tiles;
}

void attend(Team& team, const Attention& a) {
    const std::vector<Tile>& tiles = list_tiles(a, team.count_threads());
    if (tiles.empty()) return;
    team.share(a.starts[a.num_sequences], [&](long token) {
        memcpy((Bf16*)a.slots + a.slot_ids[token] * a.slot_elements,
               (const Bf16*)a.kv + token * a.kv_stride, a.slot_elements * sizeof(Bf16));
    });
    team.share(tiles.size(), [&](long item) { attend_tile(a, tiles[item]); });
}

extern "C" {

// Writes the step's keys and values into their slots, then attends.
void hearth_attend(const Attention* attention, long num_threads) {
    run_team(num_threads, ATTENTION_STAGES, [&](Team& team) { attend(team, *attention); });
}
}
