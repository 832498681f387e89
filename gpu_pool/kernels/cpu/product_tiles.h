// Products of rows with panels by tiles, on CPUs that have AMX.
//
// Up to 32 rows go past a panel from its beginning to its end. More rows take their inputs part by
// part, so that a part's weights stay in the first cache while all rows go past them; what is summed
// up so far waits in memory.
#pragma once

#include "tile_parts.h"

constexpr long NEAR_BYTES = 1 << 19; // of inputs that stay in the second cache as they are
constexpr long AHEAD_STEPS = 2;

// How many panels a thread takes at once: several share inputs that leave the cache.
static long choose_panels(const Product& product) {
    long num_rows = std::min(product.num_rows, PART_ROWS);
    bool is_near = num_rows * product.num_inputs * (long)sizeof(Bf16) <= NEAR_BYTES;
    return num_rows <= BLOCK_ROWS || is_near ? 1 : MOST_PANELS;
}

// Before a thread's first panel: all blocks of a product are of one height.
static void begin_panels(const Product& product) {
    long num_rows = std::min(product.num_rows, BLOCK_ROWS);
    shape_tiles(std::min(num_rows, TILE_ROWS), std::max(num_rows - TILE_ROWS, 1L));
}

static void end_panels() { _tile_release(); }

// Some rows of some panels. Where rows are no multiple of a block, the last overlaps the one before.
// Few rows wait for memory alone, and fetch what they are about to read.
static void multiply_panels(const Product& product, const Bf16* x, long x_stride, long first_panel,
                            long end_panel, long first, long end) {
    alignas(64) static thread_local float sums[MOST_PANELS * MOST_BLOCKS * BLOCK_SUMS];
    long num_rows = end - first, num_panels = end_panel - first_panel;
    long block_rows = std::min(num_rows, BLOCK_ROWS);
    long num_blocks = (num_rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    long padded = pad(product.num_inputs, K_MULTIPLE), num_steps = padded / STEP_INPUTS;
    long part_steps = num_blocks == 1 ? num_steps : NEAR_STEPS;
    long num_parts = (num_steps + part_steps - 1) / part_steps * num_panels;
    auto multiply = num_rows > TILE_ROWS ? multiply_part<true> : multiply_part<false>;
    auto find_weights = [&](long panel, long step) {
        return (const Bf16*)product.packed + (panel * padded + step * STEP_INPUTS) * PANEL;
    };
    for (long number = 0; number < num_parts; number++) {
        long panel = first_panel + number % num_panels, step = number / num_panels * part_steps;
        long steps = std::min(part_steps, num_steps - step), num_lines = steps * STEP_LINES;
        const Bf16 *weights = find_weights(panel, step), *next = find_weights(end_panel, 0);
        if (num_rows <= TILE_ROWS)
            next = find_weights(panel, AHEAD_STEPS);
        else if (number + 1 < num_parts)
            next = find_weights(first_panel + (number + 1) % num_panels,
                                (number + 1) / num_panels * part_steps);
        for (long block = 0; block < num_blocks; block++) {
            long row = first + std::min(block * BLOCK_ROWS, num_rows - block_rows);
            long line = num_lines * block / num_blocks;
            Coming coming{next + line * LINE, num_lines * (block + 1) / num_blocks - line};
            float* block_sums = sums + (number % num_panels * num_blocks + block) * BLOCK_SUMS;
            bool is_last = step + steps == num_steps;
            for (long r = row; is_last && r < row + block_rows; r++)
                __builtin_prefetch(product.y + r * product.num_outputs + panel * PANEL, 1);
            multiply({x + row * x_stride + step * STEP_INPUTS, weights, steps, step == 0, coming},
                     x_stride, block_sums);
            if (is_last) finish_tile(product, row, block_rows, panel, block_sums);
        }
    }
}
