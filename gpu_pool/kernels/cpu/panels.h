// A block of keys and values of one head, laid out in the panels of `tile.h`: keys become columns.
#pragma once

#include "tile.h"

#include <utility>

// `LANES` rows of as many pairs become as many pairs of `LANES` rows, `PANEL` pairs apart.
static inline void turn_square(const Bf16* const* rows, long first, Bf16* to) {
#if defined(__AVX512F__)
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
    // a[4 r + c] has of rows 4 r to 4 r + 3 the pairs c, c + 4, c + 8 and c + 12, a quarter each.
    for (int c = 0; c < 4; c++)
        for (int odd = 0; odd < 2; odd++) {
            auto pick = [&](int row) {
                __m512i upper = a[row + c], lower = a[row + 4 + c];
                return odd ? _mm512_shuffle_i32x4(upper, lower, 0xdd)
                           : _mm512_shuffle_i32x4(upper, lower, 0x88);
            };
            __m512i first_rows = pick(0), last_rows = pick(8);
            Bf16* at = to + (c + 4 * odd) * 2 * PANEL;
            _mm512_storeu_si512(at, _mm512_shuffle_i32x4(first_rows, last_rows, 0x88));
            _mm512_storeu_si512(at + 16 * PANEL, _mm512_shuffle_i32x4(first_rows, last_rows, 0xdd));
        }
#elif defined(__AVX2__)
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_si256((const __m256i*)(rows[i] + first));
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int half = 0; half < 2; half++) {
            a[i + 2 * half] = _mm256_unpacklo_epi64(b[i + half], b[i + 2 + half]);
            a[i + 2 * half + 1] = _mm256_unpackhi_epi64(b[i + half], b[i + 2 + half]);
        }
    // a[4 r + c] has of rows 4 r to 4 r + 3 the pairs c and c + 4, a half each.
    for (int c = 0; c < 4; c++) {
        __m256i* at = (__m256i*)(to + c * 2 * PANEL);
        _mm256_storeu_si256(at, _mm256_permute2x128_si256(a[c], a[4 + c], 0x20));
        at = (__m256i*)(to + (c + 4) * 2 * PANEL);
        _mm256_storeu_si256(at, _mm256_permute2x128_si256(a[c], a[4 + c], 0x31));
    }
#else
    for (int pair = 0; pair < LANES; pair++)
        for (int row = 0; row < LANES; row++)
            memcpy(to + (pair * PANEL + row) * 2, rows[row] + first + pair * 2, 2 * sizeof(Bf16));
#endif
}

// The panel [size / 2][keys][2] of `PANEL` keys; `size` is a multiple of a panel's columns. Calls
// `between` after each square.
template <typename Between>
static void lay_out_keys(const Bf16* const* keys, long size, Bf16* panel, Between&& between) {
    for (long dim = 0; dim < size; dim += 2 * LANES)
        for (long key = 0; key < PANEL; key += LANES) {
            turn_square(keys + key, dim, panel + dim * PANEL + key * 2);
            between();
        }
}

// Two rows of a panel's columns side by side, as pairs.
static inline void pair_up(const Bf16* even, const Bf16* odd, Bf16* to) {
#if defined(__AVX512BW__)
    alignas(64) static constexpr struct Order {
        uint16_t low[32], high[32];
        constexpr Order() : low(), high() {
            for (int i = 0; i < 32; i++) low[i] = i / 2 + i % 2 * 32, high[i] = low[i] + 16;
        }
    } order;
    __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(odd);
    __m512i low = _mm512_load_si512(order.low), high = _mm512_load_si512(order.high);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, low, b));
    _mm512_storeu_si512(to + PANEL, _mm512_permutex2var_epi16(a, high, b));
#elif defined(__AVX2__)
    for (int half = 0; half < 2; half++) {
        __m256i a = _mm256_loadu_si256((const __m256i*)(even + half * 16));
        __m256i b = _mm256_loadu_si256((const __m256i*)(odd + half * 16));
        __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
        __m256i* at = (__m256i*)(to + half * PANEL);
        _mm256_storeu_si256(at, _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256(at + 1, _mm256_permute2x128_si256(low, high, 0x31));
    }
#else
    for (int i = 0; i < PANEL; i++) {
        to[2 * i] = even[i];
        to[2 * i + 1] = odd[i];
    }
#endif
}

// The panels [size / 32][keys / 2][32][2] of `PANEL` values. Calls `between` after each
// pair of them, panel by panel.
template <typename Between>
static void lay_out_values(const Bf16* const* values, long size, Bf16* panels, Between&& between) {
    for (long key = 0; key < PANEL; key += 2)
        for (long dim = 0; dim < size; dim += PANEL) {
            pair_up(values[key] + dim, values[key + 1] + dim, panels + (dim + key) * PANEL);
            between();
        }
}
