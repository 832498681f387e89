// Products of up to 32 rows with a part of a panel by tiles, on CPUs that have AMX: what is summed up
// so far waits in memory, and what is wanted next comes nearer meanwhile, some lines with each step.
#pragma once

#include "matrix_tiles.h"
#include "product.h"

constexpr long BLOCK_ROWS = 2 * TILE_ROWS, MOST_BLOCKS = PART_ROWS / BLOCK_ROWS;
constexpr long BLOCK_SUMS = BLOCK_ROWS * PANEL;
constexpr long NEAR_STEPS = 8; // 16 KiB of a panel, and as much of a block of rows
constexpr long MOST_PANELS = 4; // that share a part of the inputs

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
