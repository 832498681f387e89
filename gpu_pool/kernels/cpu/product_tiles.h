// Products of rows with panels by tiles, on CPUs that have AMX.
//
// Up to 32 rows go past a panel from its beginning to its end. More rows take their inputs part by
// part, so that a part's weights stay in the first cache while all rows go past them; what is summed
// up so far waits in memory. What is wanted next comes nearer meanwhile, some lines with each step.
#pragma once

#include "matrix_tiles.h"
#include "product.h"

constexpr long BLOCK_ROWS = 2 * TILE_ROWS, MOST_BLOCKS = PART_ROWS / BLOCK_ROWS;
constexpr long BLOCK_SUMS = BLOCK_ROWS * PANEL;
constexpr long NEAR_STEPS = 8; // 16 KiB of a panel, and as much of a block of rows
constexpr long NEAR_BYTES = 1 << 19; // of inputs that stay in the second cache as they are
constexpr long MOST_PANELS = 4; // that share parts of more
constexpr long AHEAD_STEPS = 2;

// Some inputs of a block of rows, and of a panel.
struct Part {
    const Bf16 *x, *weights;
    long num_steps;
    bool is_first;
    Coming coming;
};

template <bool HAS_LOWER>
static void multiply_part(const Part& part, long x_stride, float* sums) {
    constexpr long panel_bytes = PANEL * 2 * sizeof(Bf16), sum_bytes = PANEL * sizeof(float);
    constexpr long lower = TILE_ROWS * PANEL;
    long x_bytes = x_stride * sizeof(Bf16), line = 0;
    long step_lines = (part.coming.num_lines + part.num_steps - 1) / part.num_steps;
    if (part.is_first) {
        _tile_zero(0);
        _tile_zero(1);
        if (HAS_LOWER) {
            _tile_zero(2);
            _tile_zero(3);
        }
    } else {
        _tile_loadd(0, sums, sum_bytes);
        _tile_loadd(1, sums + 16, sum_bytes);
        if (HAS_LOWER) {
            _tile_loadd(2, sums + lower, sum_bytes);
            _tile_loadd(3, sums + lower + 16, sum_bytes);
        }
    }
    for (long step = 0; step < part.num_steps; step++) {
        const Bf16* x = part.x + step * STEP_INPUTS;
        const Bf16* weights = part.weights + step * STEP_INPUTS * PANEL;
        for (long i = 0; i < step_lines && line < part.coming.num_lines; i++, line++)
            __builtin_prefetch(part.coming.from + line * LINE, 0, 2);
        _tile_loadd(4, x, x_bytes);
        _tile_loadd(6, weights, panel_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, weights + PANEL, panel_bytes);
        _tile_dpbf16ps(1, 4, 7);
        if (HAS_LOWER) {
            _tile_loadd(5, x + TILE_ROWS * x_stride, x_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, sum_bytes);
    _tile_stored(1, sums + 16, sum_bytes);
    if (HAS_LOWER) {
        _tile_stored(2, sums + lower, sum_bytes);
        _tile_stored(3, sums + lower + 16, sum_bytes);
    }
}

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
