// Products of a few rows with a panel of 32 columns, whose sums stay in registers.
//
// A panel is [K / 2][32][2]: two neighbouring inputs of a column lie together, which is what
// dot-product instructions take, and what a shift and a mask widen.
// Invariant: neither how many rows there are nor where the inputs are cut touches any sum.
#pragma once

#include "vector.h"

#include <algorithm>
#include <type_traits>

constexpr long PANEL = 32;
constexpr long PREFETCHED_PAIRS = 32;
constexpr long BLOCK_PAIRS = 32;
constexpr long LINE = 64 / sizeof(Bf16);

// Tiles of more rows have sums that leave the registers: with 12 rows AVX-512 came to 0.7 of this.
constexpr int MOST_ROWS = LANES == 16 ? 8 : 4;
#if defined(__AVX512BF16__)
typedef Bf16 Input;
#else
typedef float Input;
#endif

static inline Words load_pairs(const Bf16* from) {
    Words pairs;
    memcpy(&pairs, from, sizeof pairs);
    return pairs;
}

// Lines that are wanted soon.
struct Coming {
    const Bf16* from;
    long num_lines;
};

// What a tile fetches while it multiplies: its own weights, some pairs ahead, or what is coming, a
// line with each pair.
enum class Fetched { AHEAD, COMING };

// Adds the products of some pairs of inputs to the sums of `VECTORS` vectors of columns of `ROWS`
// rows; sums of rows are `stride` apart.
template <int ROWS, int VECTORS, Fetched FETCHED>
static void multiply_tile(const Input* x, long x_stride, const Bf16* weights, long num_pairs,
                          Coming coming, float* sums, long stride = PANEL) {
    Floats totals[ROWS][VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) totals[r][v] = load(sums + r * stride + v * LANES);
    for (long pair = 0; pair < num_pairs; pair++) {
        const Bf16* columns = weights + pair * PANEL * 2;
        if (FETCHED == Fetched::AHEAD) {
            for (int line = 0; line < VECTORS * LANES * 4; line += 64)
                __builtin_prefetch((const char*)(columns + PREFETCHED_PAIRS * PANEL * 2) + line);
        } else if (pair < coming.num_lines) {
            __builtin_prefetch(coming.from + pair * LINE, 0, 2);
        }
#if defined(__AVX512BF16__)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            Words both = load_pairs(columns + v * LANES * 2);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++) {
                int32_t inputs;
                memcpy(&inputs, x + r * x_stride + pair * 2, sizeof inputs);
                totals[r][v] = (Floats)_mm512_dpbf16_ps((__m512)totals[r][v], (__m512bh)both,
                                                        (__m512bh)_mm512_set1_epi32(inputs));
            }
        }
#else
        // All vectors of one input at a time: few are in registers beside the sums.
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            Floats widened[VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                Words both = load_pairs(columns + v * LANES * 2);
                widened[v] = (Floats)(half ? both & 0xffff0000 : both << 16);
            }
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++) {
                float input = x[r * x_stride + pair * 2 + half];
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) totals[r][v] += widened[v] * input;
            }
        }
#endif
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) store(sums + r * stride + v * LANES, totals[r][v]);
}

// Calls `act` with a compile-time number of rows and the first of them, until all have had their turn.
template <int ROWS = MOST_ROWS, typename Act> static void in_tiles(long row, long end, Act&& act) {
    for (; row + ROWS <= end; row += ROWS) act(std::integral_constant<int, ROWS>{}, row);
    if constexpr (ROWS > 1)
        if (row < end) in_tiles<ROWS - 1>(row, end, act);
}
