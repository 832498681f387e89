// Products of 16 rows with 16 columns by the CPU's own instructions for tiles (AMX).
//
// A step takes 32 inputs of each row; a panel's step is two tiles of 16 pairs by 16 columns. Sums stay
// in tiles meanwhile, and what is stored and loaded again is the same to the last bit.
// Source: Intel, "Architecture Instruction Set Extensions", chapter on AMX.
#pragma once

#include "tile.h"

constexpr long TILE_ROWS = 16, TILE_PAIRS = 16, STEP_INPUTS = 2 * TILE_PAIRS;
constexpr long STEP_LINES = STEP_INPUTS * PANEL / LINE; // of a panel

struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 the halves of a panel. Tiles 0, 1 and 4 have so many
// rows, and 2, 3 and 5 so many.
static inline void shape_tiles(long upper, long lower) {
    TileShapes shapes;
    const long rows[8] = {upper, upper, lower, lower, upper, lower, TILE_PAIRS, TILE_PAIRS};
    for (int tile = 0; tile < 8; tile++) {
        shapes.rows[tile] = rows[tile];
        shapes.row_bytes[tile] = 64;
    }
    asm volatile("" ::: "memory"); // GCC 12 says of the next line that it reads eight bytes
    _tile_loadconfig(&shapes);
}
