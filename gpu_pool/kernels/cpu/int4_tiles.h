// Products of rows with panels of four bits by tiles, on CPUs that have AMX.
//
// A portion of a panel is widened in the first cache and all rows go past it; what tiles sum up of a
// group is put right and added to the rows' sums, which wait in memory. The next portion is widened
// before, so that tiles read nothing that was written just now, and the one behind that comes nearer
// meanwhile.
#pragma once

#include "int4_rows.h"
#include "tile_parts.h"

// Takes what is too small for a normal number as zero, as tiles do, so that vectors add as they do.
class TinyToZero {
  public:
    TinyToZero() : before(_mm_getcsr()) { _mm_setcsr(before | FLUSHED | TAKEN); }
    ~TinyToZero() { _mm_setcsr(before); }

  private:
    static constexpr unsigned FLUSHED = 0x8000, TAKEN = 0x40; // results, and what is read
    const unsigned before;
};

// Of the first cache two widened portions take 16 KiB, and a block's inputs and totals up to 24.
constexpr long PORTION_STEPS = 4;

// Some steps of a panel: whole groups, as many as are near together, or a piece of a larger one.
struct Portion {
    long panel, step, num_steps;
};

// What a thread takes: portions of some panels, in the order in which they are multiplied.
class Portions {
  public:
    Portions(const Product& product, long first_panel, long end_panel)
        : num_steps(product.num_inputs / STEP_INPUTS),
          group_steps(product.group_size / STEP_INPUTS),
          group_bytes(measure_group(product.group_size)), packed((const char*)product.packed),
          first_panel(first_panel), end_panel(end_panel) {}

    Portion first() const { return cut(first_panel, 0); }

    // All panels share some steps of the inputs before they go on; behind the last of all comes
    // what a thread probably takes next.
    Portion next(const Portion& portion) const {
        long panel = portion.panel + 1, step = portion.step;
        if (panel == end_panel) {
            step += portion.num_steps;
            panel = step < num_steps ? first_panel : end_panel;
        }
        return cut(panel, step % num_steps);
    }

    bool has(const Portion& portion) const { return portion.panel < end_panel; }
    bool is_last(const Portion& portion) const {
        return portion.step + portion.num_steps == num_steps;
    }
    bool is_whole() const { return group_steps <= PORTION_STEPS; }

    const char* find_group(long panel, long step) const {
        return packed + (panel * num_steps + step) / group_steps * group_bytes;
    }

    const uint32_t* find_words(long panel, long step) const {
        const GroupHead* head = (const GroupHead*)find_group(panel, step);
        return (const uint32_t*)(head + 1) + step % group_steps * STEP_WORDS;
    }

    // The lines in which a portion lies.
    Coming find_lines(const Portion& portion) const {
        const char* from = portion.step % group_steps
                               ? (const char*)find_words(portion.panel, portion.step)
                               : find_group(portion.panel, portion.step);
        long end = portion.step + portion.num_steps - 1;
        const char* to = (const char*)(find_words(portion.panel, end) + STEP_WORDS);
        return {(const Bf16*)from, (to - from) / 64};
    }

    const long num_steps, group_steps, group_bytes;

  private:
    Portion cut(long panel, long step) const {
        if (is_whole()) {
            long most = PORTION_STEPS / group_steps * group_steps;
            return {panel, step, std::min(most, num_steps - step)};
        }
        return {panel, step, std::min(PORTION_STEPS, group_steps - step % group_steps)};
    }

    const char* packed;
    const long first_panel, end_panel;
};

// A portion in bf16, in the panel's form.
static void widen_portion(const Portions& portions, const Portion& portion, Bf16* to) {
    long end = portion.step + portion.num_steps;
    for (long step = portion.step; step < end; step++) {
        const uint32_t* words = portions.find_words(portion.panel, step);
#pragma GCC unroll 4
        for (long unit = 0; unit < TILE_PAIRS / UNIT_PAIRS; unit++, words += PANEL) {
#pragma GCC unroll 2
            for (long column = 0; column < PANEL; column += LANES) {
                Words columns;
                memcpy(&columns, words + column, sizeof columns);
#pragma GCC unroll 4
                for (int pair = 0; pair < UNIT_PAIRS; pair++)
                    _mm512_store_si512(to + (pair * PANEL + column) * 2,
                                       widen_pair(columns, pair));
            }
            to += UNIT_PAIRS * PANEL * 2;
        }
    }
}

// What the tiles of a block of rows have summed up of some groups, one behind the other.
struct GroupTotals {
    const char* groups;
    long num_groups, group_bytes;
    const float* totals;
    const float* input_sums; // of these groups, rows `num_sums` apart
    long num_sums;
    bool is_first;
};

// Puts totals right and adds them to a block's sums, group by group.
static void add_groups(const GroupTotals& added, long num_rows, float* sums) {
    in_tiles(0, num_rows, [&](auto count, long row) {
        Floats rows[count][2] = {};
#pragma GCC unroll 8
        for (int r = 0; r < count; r++)
#pragma GCC unroll 2
            for (int v = 0; v < 2 && !added.is_first; v++)
                rows[r][v] = load(sums + (row + r) * PANEL + v * LANES);
        for (long group = 0; group < added.num_groups; group++) {
            const GroupHead& head = *(const GroupHead*)(added.groups + group * added.group_bytes);
            const float* totals = added.totals + group * BLOCK_SUMS + row * PANEL;
            const float* inputs = added.input_sums + row * added.num_sums + group;
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                Floats scales = load(head.scales + v * LANES);
                Floats shifts = load(head.shifts + v * LANES);
#pragma GCC unroll 8
                for (int r = 0; r < count; r++) {
                    Floats total = load(totals + r * PANEL + v * LANES);
                    add_right(rows[r][v], total, inputs[r * added.num_sums], scales, shifts);
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < count; r++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++)
                store(sums + (row + r) * PANEL + v * LANES, rows[r][v]);
    });
}

// Multiplies a block of rows with a widened portion.
template <bool HAS_LOWER>
static void multiply_portion(const Portions& portions, const Portion& portion, const Bf16* x,
                             long x_stride, const Bf16* weights, Coming coming, float* totals) {
    long group_steps = std::min(portions.group_steps, portion.num_steps);
    long num_groups = portion.num_steps / group_steps;
    long line = 0, group_lines = (coming.num_lines + num_groups - 1) / num_groups;
    bool is_first = portion.step % portions.group_steps == 0;
    for (long step = 0; step < portion.num_steps; step += group_steps, totals += BLOCK_SUMS) {
        Coming some{coming.from + line * LINE, std::min(group_lines, coming.num_lines - line)};
        line += some.num_lines;
        multiply_part<HAS_LOWER>({x + step * STEP_INPUTS, weights + step * STEP_INPUTS * PANEL,
                                  group_steps, is_first, some},
                                 x_stride, totals);
    }
}

// Some rows of some panels.
static void multiply_int4_by_tiles(const Product& product, const Bf16* x, long x_stride,
                                   const float* input_sums, long first_panel, long end_panel,
                                   long first, long end) {
    alignas(64) static thread_local float sums[MOST_PANELS * MOST_BLOCKS * BLOCK_SUMS];
    alignas(64) static thread_local float totals[sizeof sums / sizeof *sums];
    alignas(64) static thread_local Bf16 widened[2][PORTION_STEPS * STEP_INPUTS * PANEL];
    Portions portions(product, first_panel, end_panel);
    long num_rows = end - first, block_rows = std::min(num_rows, BLOCK_ROWS);
    long num_blocks = (num_rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    long num_groups = portions.num_steps / portions.group_steps;
    auto multiply = num_rows > TILE_ROWS ? multiply_portion<true> : multiply_portion<false>;
    long number = 0;
    Portion next = portions.first();
    widen_portion(portions, next, widened[0]);
    while (portions.has(next)) {
        Portion portion = next;
        next = portions.next(portion);
        const Bf16* weights = widened[number++ % 2];
        if (portions.has(next)) widen_portion(portions, next, widened[number % 2]);
        Coming lines = portions.find_lines(portions.next(next));
        bool is_last = portions.is_last(portion), is_whole = portions.is_whole();
        long done = (portion.step + portion.num_steps) / portions.group_steps;
        long group = portion.step / portions.group_steps;
        for (long block = 0; block < num_blocks; block++) {
            long row = first + std::min(block * BLOCK_ROWS, num_rows - block_rows);
            long line = lines.num_lines * block / num_blocks;
            Coming coming{lines.from + line * LINE,
                          lines.num_lines * (block + 1) / num_blocks - line};
            for (long r = row; is_last && r < row + block_rows; r++)
                __builtin_prefetch(product.y + r * product.num_outputs + portion.panel * PANEL, 1);
            long place = ((portion.panel - first_panel) * num_blocks + block) * BLOCK_SUMS;
            float *block_sums = sums + place, *block_totals = totals + (is_whole ? 0 : place);
            multiply(portions, portion, x + row * x_stride + portion.step * STEP_INPUTS, x_stride,
                     weights, coming, block_totals);
            add_groups({portions.find_group(portion.panel, portion.step), done - group,
                        portions.group_bytes, block_totals, input_sums + row * num_groups + group,
                        num_groups, group == 0},
                       block_rows, block_sums);
            if (is_last) finish_tile(product, row, block_rows, portion.panel, block_sums);
        }
    }
}
