// Products of rows with panels that are both near, as attention has them: sums += x · panel.
//
// With AMX tiles of 16 rows go past a panel one by one, elsewhere vectors of some rows do. Meanwhile
// the lines that `ahead` knows of come nearer.
#pragma once

#if defined(__AMX_BF16__)
#include "matrix_tiles.h"
#else
#include "tile.h"
#endif

#if defined(__AMX_BF16__)

// Tiles of the calling thread, shaped anew only where the rows that are left over are others.
class NearTiles {
  public:
    ~NearTiles() { _tile_release(); }

    void shape(long num_left) {
        if (num_left == shaped) return;
        shape_tiles(TILE_ROWS, std::max(num_left, 1L));
        shaped = num_left;
    }

  private:
    long shaped = -1;
};

// Instructions name their tiles, so there is one of these for whole tiles and one for what is left.
#define DEFINE_NEAR_TILE(NAME, LEFT, RIGHT, INPUTS)                                                \
    template <typename Ahead>                                                                      \
    static inline void NAME(const Bf16* x, long x_bytes, const Bf16* panel, long num_pairs,        \
                            float* sums, long sum_bytes, Ahead& ahead) {                           \
        constexpr long panel_bytes = PANEL * 2 * sizeof(Bf16);                                     \
        _tile_loadd(LEFT, sums, sum_bytes);                                                        \
        _tile_loadd(RIGHT, sums + 16, sum_bytes);                                                  \
        for (long pair = 0; pair < num_pairs; pair += TILE_PAIRS) {                                \
            _tile_loadd(INPUTS, x + pair * 2, x_bytes);                                            \
            _tile_loadd(6, panel + pair * PANEL * 2, panel_bytes);                                 \
            ahead.fetch(TILE_PAIRS / 2);                                                           \
            _tile_dpbf16ps(LEFT, INPUTS, 6);                                                       \
            _tile_loadd(7, panel + pair * PANEL * 2 + PANEL, panel_bytes);                         \
            ahead.fetch(TILE_PAIRS / 2);                                                           \
            _tile_dpbf16ps(RIGHT, INPUTS, 7);                                                      \
        }                                                                                          \
        _tile_stored(LEFT, sums, sum_bytes);                                                       \
        _tile_stored(RIGHT, sums + 16, sum_bytes);                                                 \
    }

DEFINE_NEAR_TILE(multiply_whole, 0, 1, 4)
DEFINE_NEAR_TILE(multiply_left, 2, 3, 5)
#undef DEFINE_NEAR_TILE

// Rows lie `x_stride` and `stride` apart.
template <typename Ahead>
static void multiply_near(NearTiles& tiles, const Bf16* x, long x_stride, const Bf16* panel,
                          long num_pairs, float* sums, long stride, long first, long end,
                          Ahead& ahead) {
    long x_bytes = x_stride * sizeof(Bf16), sum_bytes = stride * sizeof(float);
    tiles.shape((end - first) % TILE_ROWS);
    for (; first + TILE_ROWS <= end; first += TILE_ROWS)
        multiply_whole(x + first * x_stride, x_bytes, panel, num_pairs, sums + first * stride,
                       sum_bytes, ahead);
    if (first < end)
        multiply_left(x + first * x_stride, x_bytes, panel, num_pairs, sums + first * stride,
                      sum_bytes, ahead);
}

#else

class NearTiles {}; // of registers, which nobody has to shape

// sums += x · panel, of rows that lie `x_stride` and `stride` apart.
template <typename Ahead>
static void multiply_near(NearTiles&, const Input* x, long x_stride, const Bf16* panel,
                          long num_pairs, float* sums, long stride, long first, long end,
                          Ahead& ahead) {
    in_tiles(first, end, [&](auto count, long row) {
        constexpr int VECTORS = count <= 2 && LANES == 8 ? 4 : 2;
        for (long column = 0; column < PANEL; column += VECTORS * LANES)
            multiply_tile<count, VECTORS, Fetched::COMING>(
                x + row * x_stride, x_stride, panel + column * 2, num_pairs, ahead.take(num_pairs),
                sums + row * stride + column, stride);
    });
}

#endif
