// Products of rows with panels of four bits by vectors: numbers are widened in registers.
//
// With AMX one row and two go this way, which costs them less than tiles do. A tile's sum is that of
// the even inputs and that of the odd ones of a step, each from zero by fused multiplications in
// fp32, added to what was there; so are sums here, and have its bits.
// Source: Intel, "Software Developer's Manual", TDPBF16PS.
#pragma once

#include "int4_groups.h"

constexpr long AHEAD_BYTES = 4096;

#if defined(__AMX_BF16__)
constexpr int MOST_INT4_ROWS = 2, NUM_CHAINS = 2; // of sums, for even inputs and odd ones
#else
constexpr int MOST_INT4_ROWS = MOST_ROWS, NUM_CHAINS = 1;
#endif

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)

template <int ROWS, int VECTORS>
static void multiply_unit(const Input* x, long x_stride, const Words* words,
                          Floats (*totals)[VECTORS]) {
#pragma GCC unroll 4
    for (int pair = 0; pair < UNIT_PAIRS; pair++) {
        __m512bh widened[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            widened[v] = (__m512bh)widen_pair(words[v], pair);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            int32_t inputs;
            memcpy(&inputs, x + r * x_stride + pair * 2, sizeof inputs);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                totals[r][v] = (Floats)_mm512_dpbf16_ps((__m512)totals[r][v],
                                                        (__m512bh)_mm512_set1_epi32(inputs),
                                                        widened[v]);
        }
    }
}

#else

// The numbers of some columns' input as floats less BASE.
template <int INPUT> static Floats widen_numbers(Words words) {
    constexpr int first_bit = INPUT / 2 * 4 + INPUT % 2 * 16;
#if defined(__AVX512F__)
    const __m512 whole = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return (Floats)_mm512_permutexvar_ps((__m512i)(words >> first_bit), whole); // by four bits
#else
    constexpr int left = 19 - first_bit; // to the highest four of a float's 23 bits
    Words placed = left > 0 ? words << (left > 0 ? left : 0) : words >> (left > 0 ? 0 : -left);
    return (Floats)((placed & 0x780000) | 0x41800000); // 16 + n
#endif
}

// An input in all lanes; of bf16 by a pair, which takes an instruction for it.
template <int INPUT> static Floats spread_input(const Input* x) {
    if constexpr (sizeof(Input) == sizeof(float)) return fill(widen(x[INPUT]));
    uint32_t pair;
    memcpy(&pair, x + INPUT / 2 * 2, sizeof pair);
    Words pairs = Words{} + pair;
    return (Floats)(INPUT % 2 ? pairs & 0xffff0000 : pairs << 16);
}

template <int ROWS, int VECTORS, int INPUT>
static void multiply_input(const Input* x, long x_stride, const Words* words,
                           Floats (*totals)[VECTORS]) {
    Floats widened[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) widened[v] = widen_numbers<INPUT>(words[v]);
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) {
        Floats input = spread_input<INPUT>(x + r * x_stride);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            totals[INPUT % NUM_CHAINS * ROWS + r][v] += widened[v] * input;
    }
    if constexpr (INPUT + 1 < 2 * UNIT_PAIRS)
        multiply_input<ROWS, VECTORS, INPUT + 1>(x, x_stride, words, totals);
}

template <int ROWS, int VECTORS>
static void multiply_unit(const Input* x, long x_stride, const Words* words,
                          Floats (*totals)[VECTORS]) {
    multiply_input<ROWS, VECTORS, 0>(x, x_stride, words, totals);
}

#endif

// Adds the products of a step of inputs to the sums of some columns.
template <int ROWS, int VECTORS>
static void multiply_step(const Input* x, long x_stride, const uint32_t* from,
                          Floats (*totals)[VECTORS]) {
    Floats chains[NUM_CHAINS * ROWS][VECTORS] = {};
    Floats(*sums)[VECTORS] = NUM_CHAINS > 1 ? chains : totals;
    for (long input = 0; input < K_MULTIPLE; input += 2 * UNIT_PAIRS, from += PANEL) {
        Words words[VECTORS];
        for (int line = 0; line < VECTORS * LANES * 4; line += 64)
            __builtin_prefetch((const char*)from + AHEAD_BYTES + line);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) memcpy(words + v, from + v * LANES, sizeof *words);
        multiply_unit<ROWS, VECTORS>(x + input, x_stride, words, sums);
    }
#pragma GCC unroll 12
    for (int r = 0; NUM_CHAINS > 1 && r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) totals[r][v] += chains[r][v] + chains[ROWS + r][v];
}

// The products of as many columns as have a group's sums in registers, group by group.
template <int ROWS, int VECTORS>
static void multiply_columns(const Product& product, const Input* x, long x_stride,
                             const float* input_sums, const char* groups, long column,
                             float* to) {
    long group_size = product.group_size, num_groups = product.num_inputs / group_size;
    Floats sums[ROWS][VECTORS] = {};
    for (long group = 0; group < num_groups; group++) {
        const GroupHead& head = *(const GroupHead*)(groups + group * measure_group(group_size));
        const uint32_t* from = (const uint32_t*)(&head + 1) + column;
        Floats totals[ROWS][VECTORS] = {};
        for (long input = 0; input < group_size; input += K_MULTIPLE, from += STEP_WORDS)
            multiply_step<ROWS, VECTORS>(x + group * group_size + input, x_stride, from, totals);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            Floats scales = load(head.scales + column + v * LANES);
            Floats shifts = load(head.shifts + column + v * LANES);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++)
                add_right(sums[r][v], totals[r][v], input_sums[r * num_groups + group], scales,
                          shifts);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            store(to + r * PANEL + column + v * LANES, sums[r][v]);
}

template <int ROWS>
static void multiply_int4_rows(const Product& product, const Input* x, long x_stride,
                               const float* input_sums, const char* groups, float* sums) {
    constexpr int VECTORS = ROWS <= 2 && LANES == 8 ? 4 : 2;
    for (long column = 0; column < PANEL; column += VECTORS * LANES)
        multiply_columns<ROWS, VECTORS>(product, x, x_stride, input_sums, groups, column, sums);
}

typedef void (*MultiplyInt4Rows)(const Product&, const Input*, long, const float*, const char*,
                                 float*);

template <int ROWS = MOST_INT4_ROWS>
static MultiplyInt4Rows find_int4_rows(long num_rows) {
    if constexpr (ROWS > 1)
        return num_rows == ROWS ? multiply_int4_rows<ROWS> : find_int4_rows<ROWS - 1>(num_rows);
    else
        return multiply_int4_rows<1>;
}

static void multiply_int4_panel(const Product& product, const Input* x, long x_stride,
                         const float* input_sums, long panel, long first, long end) {
    long num_groups = product.num_inputs / product.group_size;
    const char* groups =
        (const char*)product.packed + panel * num_groups * measure_group(product.group_size);
    alignas(64) float sums[MOST_INT4_ROWS * PANEL];
    long num_tiles = (end - first + MOST_INT4_ROWS - 1) / MOST_INT4_ROWS;
    for (long tile = 0; tile < num_tiles; tile++) {
        long row = first + (end - first) * tile / num_tiles;
        long num_rows = first + (end - first) * (tile + 1) / num_tiles - row;
        find_int4_rows(num_rows)(product, x + row * x_stride, x_stride,
                                 input_sums + row * num_groups, groups, sums);
        finish_tile(product, row, num_rows, panel, sums);
    }
}

// Some rows of some panels.
static void multiply_int4_by_rows(const Product& product, const Input* x, long x_stride,
                                  const float* input_sums, long panel, long end_panel, long first,
                                  long end) {
    for (; panel < end_panel; panel++)
        multiply_int4_panel(product, x, x_stride, input_sums, panel, first, end);
}
