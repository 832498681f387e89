// Attention by instructions that multiply pairs of bf16: nothing is widened.
//
// Both halves are products of rows with panels as `tile.h` has them: scores are q · Kᵀ, with a
// block's keys for columns, and what is mixed is weights · V, with 32 dims for columns and the
// weights rounded to bf16, as GPUs do. A block is laid out in panels once for all rows of a tile,
// few or many, so all make the same additions.
#pragma once

#include "attention.h"
#include "tile.h"

static_assert(KEYS == PANEL, "a block of keys is one panel");

// -- panels ---------------------------------------------------------------------------------------

// Sixteen rows of sixteen pairs become sixteen pairs of sixteen rows, `PANEL` pairs apart.
static inline void turn_square(const Bf16* const* rows, long first, Bf16* to) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(rows[i] + first);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int half = 0; half < 2; half++) {
            a[i + 2 * half] = _mm512_unpacklo_epi64(b[i + half], b[i + 2 + half]);
            a[i + 2 * half + 1] = _mm512_unpackhi_epi64(b[i + half], b[i + 2 + half]);
        }
    // a[4 r + c]: of rows 4 r to 4 r + 3 the pairs c, c + 4, c + 8 and c + 12, a quarter each.
    for (int c = 0; c < 4; c++) {
        __m512i even_low = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);
        __m512i odd_low = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
        __m512i even_high = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
        __m512i odd_high = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
        _mm512_storeu_si512(to + (c + 0) * 2 * PANEL, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
        _mm512_storeu_si512(to + (c + 4) * 2 * PANEL, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        _mm512_storeu_si512(to + (c + 8) * 2 * PANEL, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        _mm512_storeu_si512(to + (c + 12) * 2 * PANEL, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}

// The panel [size / 2][KEYS][2] of a block's keys; `size` is a multiple of 32.
static void lay_out_keys(const Bf16* const* keys, long size, Bf16* panel) {
    for (long dim = 0; dim < size; dim += 2 * LANES)
        for (long key = 0; key < KEYS; key += LANES)
            turn_square(keys + key, dim, panel + dim * PANEL + key * 2);
}

// The panels [size / 32][KEYS / 2][32][2] of a block's values; `size` is a multiple of 32.
static void lay_out_values(const Bf16* const* values, long size, Bf16* panels) {
    alignas(64) uint16_t order[2][32];
    for (int i = 0; i < 64; i++) order[i / 32][i % 32] = i / 2 + i % 2 * 32;
    __m512i low = _mm512_load_si512(order[0]), high = _mm512_load_si512(order[1]);
    for (long key = 0; key < KEYS; key += 2)
        for (long dim = 0; dim < size; dim += PANEL) {
            __m512i even = _mm512_loadu_si512(values[key] + dim);
            __m512i odd = _mm512_loadu_si512(values[key + 1] + dim);
            Bf16* to = panels + dim * KEYS + key * PANEL;
            _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, low, odd));
            _mm512_storeu_si512(to + PANEL, _mm512_permutex2var_epi16(even, high, odd));
        }
}

// -- rows -----------------------------------------------------------------------------------------

// Calls `act` with a compile-time number of rows and the first of them, until all have had their turn.
template <int ROWS = MOST_ROWS, typename Act> static void in_tiles(long row, long end, Act&& act) {
    for (; row + ROWS <= end; row += ROWS) act(std::integral_constant<int, ROWS>{}, row);
    if constexpr (ROWS > 1)
        if (row < end) in_tiles<ROWS - 1>(row, end, act);
}

static void shrink_row(float* mixed, long size, float shrink) {
    for (long dim = 0; dim < size; dim += LANES) store(mixed + dim, load(mixed + dim) * shrink);
}

static void attend_pairs(const Attention& a, const Work<Bf16>& work, long block) {
    thread_local std::vector<Bf16> zeros_buffer, panels_buffer, padded_buffer, weights_buffer;
    thread_local std::vector<float> scores_buffer;
    bool has_values = a.slot_elements == 2 * a.num_kv_heads * a.head_dim;
    long to_values = has_values ? a.num_kv_heads * a.head_dim : 0;
    long q_size = work.q_size, value_size = work.value_size;
    Bf16* zeros = reserve(zeros_buffer, a.slot_elements);
    std::fill(zeros, zeros + a.slot_elements, 0);
    Bf16* key_panel = reserve(panels_buffer, KEYS * (q_size + value_size));
    Bf16* value_panels = key_panel + KEYS * q_size;
    float* scores = reserve(scores_buffer, work.head_rows * KEYS);
    Bf16* weights = reserve(weights_buffer, work.head_rows * KEYS);
    const Bf16 *slots[KEYS], *next_slots[KEYS];
    find_slots<Bf16>(a, work, block, zeros, slots);
    bool has_next = block + KEYS < work.end;
    if (has_next) find_slots<Bf16>(a, work, block + KEYS, zeros, next_slots);
    auto [first, end] = Sight::find_rows(a, work, block);
    for (long head = 0; head < work.end_head - work.first_head; head++) {
        const Bf16 *keys[KEYS], *values[KEYS];
        for (long key = 0; key < KEYS; key++) {
            keys[key] = slots[key] + head * a.head_dim;
            values[key] = keys[key] + to_values;
            if (has_next) {
                prefetch(next_slots[key] + head * a.head_dim, a.head_dim);
                if (has_values) prefetch(next_slots[key] + head * a.head_dim + to_values, a.head_dim);
            }
        }
        if (q_size != a.head_dim || value_size != a.value_dim) {
            Bf16* padded = reserve(padded_buffer, KEYS * (q_size + value_size));
            for (long key = 0; key < KEYS; key++) {
                Bf16 *k = padded + key * (q_size + value_size), *v = k + q_size;
                copy_row(keys[key], a.head_dim, q_size, k);
                copy_row(values[key], a.value_dim, value_size, v);
                keys[key] = k;
                values[key] = v;
            }
        }
        long before = head * work.head_rows;
        const Bf16* q = work.q + before * q_size;
        float* mixed = work.mixed + before * value_size;
        lay_out_keys(keys, q_size, key_panel);
        std::fill(scores + first * KEYS, scores + end * KEYS, 0.0f);
        in_tiles(first, end, [&](auto count, long row) {
            multiply_tile<count, KEYS / LANES, true>(q + row * q_size, q_size, key_panel, q_size / 2,
                                                     {}, scores + row * KEYS);
        });
        for (long row = first; row < end; row++) {
            auto [left, right] = Sight::of(a, work, block, row / work.num_shared);
            RowState& state = work.states[before + row];
            float shrink = weigh_keys(a, left, right, state, scores + row * KEYS,
                                      weights + row * KEYS);
            if (shrink != 1) shrink_row(mixed + row * value_size, value_size, shrink);
        }
        lay_out_values(values, value_size, value_panels);
        for (long dim = 0; dim < value_size; dim += PANEL)
            in_tiles(first, end, [&](auto count, long row) {
                multiply_tile<count, PANEL / LANES, true>(
                    weights + row * KEYS, KEYS, value_panels + dim * KEYS, KEYS / 2, {},
                    mixed + row * value_size + dim, value_size);
            });
    }
}
