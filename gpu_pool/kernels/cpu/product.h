// What products have in common, whatever their weights are packed as: rows go in tiles past panels
// of 32 columns (outputs), and what comes out is rounded once.
#pragma once

#include "kernels.h"
#include "tile.h"

constexpr long K_MULTIPLE = 32;
constexpr long PART_ROWS = 256; // that a thread takes at once

static inline long pad(long size, long multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

// Adds the bias, rounds and writes the columns of a tile that exist.
static inline void finish_tile(const Product& product, long row, long num_rows, long panel,
                               const float* sums) {
    long column = panel * PANEL, width = std::min(PANEL, product.num_outputs - column);
    alignas(64) float bias[PANEL] = {};
    if (product.bias)
        for (long i = 0; i < width; i++) bias[i] = widen(product.bias[column + i]);
    for (long r = 0; r < num_rows; r++) {
        Bf16* to = product.y + (row + r) * product.num_outputs + column;
        const float* from = sums + r * PANEL;
        alignas(64) Bf16 rounded[PANEL];
        Bf16* into = width == PANEL ? to : rounded;
        for (long i = 0; i < PANEL; i += 2 * LANES)
            store_two(into + i, load(from + i) + load(bias + i),
                      load(from + i + LANES) + load(bias + i + LANES));
        if (width < PANEL) memcpy(to, rounded, width * sizeof(Bf16));
    }
}

// Each row's sums of the inputs of every group, for `multiply_int4_panels`; the calling thread's own,
// until it calls again.
HIDDEN const float* sum_groups(const Product& product, const Input* x, long x_stride);

// Some rows of some panels whose weights are four bits each.
HIDDEN void multiply_int4_panels(const Product& product, const Input* x, long x_stride,
                                 const float* input_sums, long panel, long end_panel, long first,
                                 long end);
