// How weights of four bits lie: panels of 32 columns, each a run of groups; of a group its scales,
// its zeros, then its numbers in words of 32 bits, lowest bits first: eight inputs of a column,
// first the even ones, then the odd ones, as pairs of bf16 would lie.
#pragma once

#include "product.h"

constexpr long UNIT_PAIRS = 4; // of inputs, whose numbers share words

// Numbers are widened to n - BASE, which costs least.
#if defined(__AVX512F__)
constexpr int BASE = 8;
#else
constexpr int BASE = -16;
#endif

struct alignas(64) GroupHead {
    float scales[PANEL];
    Bf16 shifts[PANEL]; // zero - BASE
};

static inline long measure_group(long group_size) {
    return sizeof(GroupHead) + group_size * PANEL / 2;
}

constexpr long STEP_WORDS = K_MULTIPLE * PANEL / (2 * UNIT_PAIRS); // of `K_MULTIPLE` inputs

// Puts what was summed up of a group right by the sum of its inputs, and adds it to a sum.
static inline void add_right(Floats& sum, Floats total, float inputs, Floats scales,
                             Floats shifts) {
    sum += (total - shifts * inputs) * scales;
}

#if defined(__AVX512BF16__)

// What four bits less BASE are in bf16, twice: instructions look it up by five.
alignas(64) static constexpr Bf16 WHOLE[32] = {
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000,
    0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040,
    0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};

// The numbers of a pair of inputs of some columns less BASE, from a word of each column.
static inline __m512i widen_pair(Words words, int pair) {
    __m512i whole = _mm512_load_si512(WHOLE);
    return _mm512_permutexvar_epi16(_mm512_srli_epi16((__m512i)words, 4 * pair), whole);
}

#endif
