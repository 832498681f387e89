// Products with weights of four bits, each a whole number n that stands for (n - zero) · scale, with
// a scale and a zero per column and group of inputs.
//
// Packed: as `int4_groups.h` has it. Numbers are widened to n - BASE; a group's products are put right
// by the sum of its inputs, multiplied by the scales and added up, all in fp32.
// Invariant: as in `product.cpp`.

#if defined(__AMX_BF16__)
#include "int4_tiles.h"
#else
#include "int4_rows.h"
#endif

const float* sum_groups(const Product& product, const Input* x, long x_stride) {
    static thread_local std::vector<float> buffer;
    long group_size = product.group_size, num_groups = product.num_inputs / group_size;
    float* sums = reserve(buffer, product.num_rows * num_groups);
    for (long row = 0; row < product.num_rows; row++)
        for (long group = 0; group < num_groups; group++) {
            const Input* from = x + row * x_stride + group * group_size;
            Floats sum = fill(0);
            for (long i = 0; i < group_size; i += LANES) sum += load(from + i);
            sums[row * num_groups + group] = add_lanes(sum);
        }
    return sums;
}

void multiply_int4_panels(const Product& product, const Input* x, long x_stride,
                          const float* input_sums, long panel, long end_panel, long first,
                          long end) {
#if defined(__AMX_BF16__)
    TinyToZero tiny;
    auto multiply = end - first > MOST_INT4_ROWS ? multiply_int4_by_tiles : multiply_int4_by_rows;
#else
    auto multiply = multiply_int4_by_rows;
#endif
    multiply(product, x, x_stride, input_sums, panel, end_panel, first, end);
}

extern "C" {

// What the packed form of a weight of four bits takes, in bytes; 0 for groups that are not read.
long hearth_packed_int4_size(long num_inputs, long num_outputs, long group_size) {
    if (group_size % K_MULTIPLE || num_inputs % group_size) return 0;
    return pad(num_outputs, PANEL) / PANEL * (num_inputs / group_size) * measure_group(group_size);
}

// `numbers` is [M][K / 2], two a byte, the first in the low half; scales and zeros are [M][groups].
void hearth_pack_int4(const uint8_t* numbers, const float* scales, const uint8_t* zeros,
                      void* packed, long num_inputs, long num_outputs, long group_size,
                      long num_threads) {
    long num_groups = num_inputs / group_size, num_panels = pad(num_outputs, PANEL) / PANEL;
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (long panel = 0; panel < num_panels; panel++)
        for (long group = 0; group < num_groups; group++) {
            char* to = (char*)packed + (panel * num_groups + group) * measure_group(group_size);
            memset(to, 0, measure_group(group_size));
            GroupHead& head = *(GroupHead*)to;
            uint32_t* words = (uint32_t*)(&head + 1);
            for (long column = 0; column < PANEL; column++) {
                long output = panel * PANEL + column;
                if (output >= num_outputs) break;
                head.scales[column] = scales[output * num_groups + group];
                store_one(head.shifts + column, zeros[output * num_groups + group] - BASE);
                const uint8_t* pairs = numbers + (output * num_inputs + group * group_size) / 2;
                for (long pair = 0; pair < group_size / 2; pair++) {
                    uint32_t both = (pairs[pair] & 15) | (uint32_t)(pairs[pair] >> 4) << 16;
                    words[pair / UNIT_PAIRS * PANEL + column] |= both << (pair % UNIT_PAIRS * 4);
                }
            }
        }
}
}
