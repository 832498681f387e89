// Products of rows with panels by vectors, on CPUs without instructions for whole tiles.
#pragma once

#include "product.h"

// Whether tiles fetch their own weights ahead rather than the next panel, which comes from memory
// while this one is multiplied. What is quicker depends on the CPU (ADR 0077): with instructions for
// bf16, on how long a tile computes; with AVX2, on how many tiles go past a panel.
static Fetched choose_fetched(long num_rows, long num_tiles) {
#if defined(__AVX512BF16__)
    return num_rows <= 4 ? Fetched::AHEAD : Fetched::COMING;
#else
    return LANES == 8 && num_tiles <= 8 ? Fetched::COMING : Fetched::AHEAD;
#endif
}

// A tile of as many columns as have sums in registers goes down some pairs before the next one, so
// that a panel comes from memory once, from its beginning to its end.
template <int ROWS, Fetched FETCHED>
static void multiply_rows(const Input* x, long x_stride, const Bf16* weights, long num_pairs,
                          Coming coming, float* sums) {
    constexpr int VECTORS = ROWS <= 2 && LANES == 8 ? 4 : 2;
    constexpr long COLUMNS = VECTORS * LANES;
    std::fill_n(sums, ROWS * PANEL, 0.0f);
    long step = COLUMNS == PANEL ? num_pairs : BLOCK_PAIRS;
    long num_steps = (num_pairs + step - 1) / step * (PANEL / COLUMNS), number = 0, line = 0;
    for (long pair = 0; pair < num_pairs; pair += step)
        for (long column = 0; column < PANEL; column += COLUMNS) {
            long end = coming.num_lines * ++number / num_steps;
            Coming part{coming.from + line * LINE, end - line};
            line = end;
            multiply_tile<ROWS, VECTORS, FETCHED>(
                x + pair * 2, x_stride, weights + (pair * PANEL + column) * 2,
                std::min(step, num_pairs - pair), part, sums + column);
        }
}

typedef void (*MultiplyRows)(const Input*, long, const Bf16*, long, Coming, float*);

template <Fetched FETCHED, int ROWS = MOST_ROWS> static MultiplyRows find_rows(long num_rows) {
    if constexpr (ROWS > 1)
        return num_rows == ROWS ? multiply_rows<ROWS, FETCHED>
                                : find_rows<FETCHED, ROWS - 1>(num_rows);
    else
        return multiply_rows<1, FETCHED>;
}

static MultiplyRows find_rows(long num_rows, long num_tiles) {
    return choose_fetched(num_rows, num_tiles) == Fetched::AHEAD
               ? find_rows<Fetched::AHEAD>(num_rows)
               : find_rows<Fetched::COMING>(num_rows);
}

static void begin_panels(const Product&) {}
static void end_panels() {}

// A thread takes panels one by one.
static long choose_panels(const Product&) { return 1; }

// Some rows of a panel in tiles of even height. Where a tile is written to comes nearer meanwhile:
// stores that miss wait for one another.
static void multiply_panel(const Product& product, const Input* x, long x_stride, long panel,
                           long first, long end) {
    long padded = pad(product.num_inputs, K_MULTIPLE);
    const Bf16* weights = (const Bf16*)product.packed + panel * PANEL * padded;
    alignas(64) float sums[MOST_ROWS * PANEL];
    long num_tiles = (end - first + MOST_ROWS - 1) / MOST_ROWS;
    for (long tile = 0; tile < num_tiles; tile++) {
        long row = first + (end - first) * tile / num_tiles;
        long num_rows = first + (end - first) * (tile + 1) / num_tiles - row;
        for (long r = row; r < row + num_rows; r++)
            __builtin_prefetch(product.y + r * product.num_outputs + panel * PANEL, 1);
        long line = padded * tile / num_tiles;
        Coming coming{weights + (padded + line) * PANEL, padded * (tile + 1) / num_tiles - line};
        find_rows(num_rows, num_tiles)(x + row * x_stride, x_stride, weights, padded / 2, coming, sums);
        finish_tile(product, row, num_rows, panel, sums);
    }
}

// Some rows of some panels.
static void multiply_panels(const Product& product, const Input* x, long x_stride, long panel,
                            long end_panel, long first, long end) {
    for (; panel < end_panel; panel++) multiply_panel(product, x, x_stride, panel, first, end);
}
