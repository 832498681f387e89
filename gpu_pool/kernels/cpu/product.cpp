// Products of bf16 rows with packed bf16 weights: y[T, M] = x[T, K] · W[M, K]ᵀ + b, summed in fp32.
//
// Packed: panels of 32 columns (outputs) as `tile.h` has them. K is padded to a multiple of 32 and M
// to one of the panel, with zeros.
// Invariant: a row's sums are made by the same instructions in the same order however many rows
// there are, so that a token's result does not depend on its neighbours.

#include "product.h"

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

constexpr long PART_ROWS = 256; // that a thread takes at once

#if defined(__AMX_BF16__)

constexpr long TILE_ROWS = 16, BLOCK_ROWS = 32, TILE_PAIRS = 16;

struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Tiles 0 to 3 are sums, 4 and 5 rows of x, 6 and 7 the halves of a panel.
static void shape_tiles(long num_rows) {
    TileShapes shapes;
    uint8_t upper = std::min(num_rows, TILE_ROWS), lower = std::max(num_rows - TILE_ROWS, 1L);
    uint8_t rows[8] = {upper, upper, lower, lower, upper, lower, TILE_PAIRS, TILE_PAIRS};
    for (int tile = 0; tile < 8; tile++) {
        shapes.rows[tile] = rows[tile];
        shapes.row_bytes[tile] = 64;
    }
    asm volatile("" ::: "memory"); // GCC 12 says of the next line that it reads eight bytes
    _tile_loadconfig(&shapes);
}

template <bool HAS_LOWER>
static void multiply_tiles(const Bf16* x, long x_stride, const Bf16* panel, long num_pairs,
                           float* sums) {
    long x_bytes = x_stride * sizeof(Bf16);
    constexpr long panel_bytes = PANEL * 2 * sizeof(Bf16), sum_bytes = PANEL * sizeof(float);
    _tile_zero(0);
    _tile_zero(1);
    if (HAS_LOWER) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (long pair = 0; pair < num_pairs; pair += TILE_PAIRS) {
        const Bf16* weights = panel + pair * PANEL * 2;
        if (!HAS_LOWER)
            for (long line = 0; line < 2 * TILE_PAIRS; line++)
                __builtin_prefetch(weights + (PREFETCHED_PAIRS + line / 2) * PANEL * 2 +
                                   line % 2 * PANEL);
        _tile_loadd(4, x + pair * 2, x_bytes);
        _tile_loadd(6, weights, panel_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, weights + PANEL, panel_bytes);
        _tile_dpbf16ps(1, 4, 7);
        if (HAS_LOWER) {
            _tile_loadd(5, x + TILE_ROWS * x_stride + pair * 2, x_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, sum_bytes);
    _tile_stored(1, sums + 16, sum_bytes);
    if (HAS_LOWER) {
        _tile_stored(2, sums + TILE_ROWS * PANEL, sum_bytes);
        _tile_stored(3, sums + TILE_ROWS * PANEL + 16, sum_bytes);
    }
}

// Some rows of a panel, block by block.
static void multiply_panel(const Product& product, const Bf16* x, long x_stride, long panel,
                           long first, long end) {
    long padded = pad(product.num_inputs, K_MULTIPLE);
    const Bf16* weights = (const Bf16*)product.packed + panel * PANEL * padded;
    alignas(64) float sums[BLOCK_ROWS * PANEL];
    long shaped = 0;
    for (long row = first; row < end; row += BLOCK_ROWS) {
        long num_rows = std::min(BLOCK_ROWS, end - row);
        if (num_rows != shaped) shape_tiles(shaped = num_rows);
        auto multiply = num_rows > TILE_ROWS ? multiply_tiles<true> : multiply_tiles<false>;
        multiply(x + row * x_stride, x_stride, weights, padded / 2, sums);
        finish_tile(product, row, num_rows, panel, sums);
    }
}

static void end_panels() { _tile_release(); }

#else

// Whether tiles fetch their own weights ahead rather than the next panel, which comes from memory
// while this one is multiplied. What is quicker depends on the CPU (ADR 0077): with instructions for
// bf16, on how long a tile computes; with AVX2, on how many tiles go past a panel.
static Fetched choose_fetched(long num_rows, long num_tiles) {
#if defined(__AVX512BF16__)
    return num_rows <= 4 ? Fetched::AHEAD : Fetched::COMING;
#else
    return LANES == 8 && num_tiles <= 8 ? Fetched::COMING : Fetched::AHEAD;
#endif
}

// A tile of as many columns as have sums in registers goes down some pairs before the next one, so
// that a panel comes from memory once, from its beginning to its end.
template <int ROWS, Fetched FETCHED>
static void multiply_rows(const Input* x, long x_stride, const Bf16* weights, long num_pairs,
                          Coming coming, float* sums) {
    constexpr int VECTORS = ROWS <= 2 && LANES == 8 ? 4 : 2;
    constexpr long COLUMNS = VECTORS * LANES;
    std::fill_n(sums, ROWS * PANEL, 0.0f);
    long step = COLUMNS == PANEL ? num_pairs : BLOCK_PAIRS;
    long num_steps = (num_pairs + step - 1) / step * (PANEL / COLUMNS), number = 0, line = 0;
    for (long pair = 0; pair < num_pairs; pair += step)
        for (long column = 0; column < PANEL; column += COLUMNS) {
            long end = coming.num_lines * ++number / num_steps;
            Coming part{coming.from + line * LINE, end - line};
            line = end;
            multiply_tile<ROWS, VECTORS, FETCHED>(
                x + pair * 2, x_stride, weights + (pair * PANEL + column) * 2,
                std::min(step, num_pairs - pair), part, sums + column);
        }
}

typedef void (*MultiplyRows)(const Input*, long, const Bf16*, long, Coming, float*);

template <Fetched FETCHED, int ROWS = MOST_ROWS> static MultiplyRows find_rows(long num_rows) {
    if constexpr (ROWS > 1)
        return num_rows == ROWS ? multiply_rows<ROWS, FETCHED>
                                : find_rows<FETCHED, ROWS - 1>(num_rows);
    else
        return multiply_rows<1, FETCHED>;
}

static MultiplyRows find_rows(long num_rows, long num_tiles) {
    return choose_fetched(num_rows, num_tiles) == Fetched::AHEAD
               ? find_rows<Fetched::AHEAD>(num_rows)
               : find_rows<Fetched::COMING>(num_rows);
}

// Some rows of a panel in tiles of even height. Where a tile is written to comes nearer meanwhile:
// stores that miss wait for one another.
static void multiply_panel(const Product& product, const Input* x, long x_stride, long panel,
                           long first, long end) {
    long padded = pad(product.num_inputs, K_MULTIPLE);
    const Bf16* weights = (const Bf16*)product.packed + panel * PANEL * padded;
    alignas(64) float sums[MOST_ROWS * PANEL];
    long num_tiles = (end - first + MOST_ROWS - 1) / MOST_ROWS;
    for (long tile = 0; tile < num_tiles; tile++) {
        long row = first + (end - first) * tile / num_tiles;
        long num_rows = first + (end - first) * (tile + 1) / num_tiles - row;
        for (long r = row; r < row + num_rows; r++)
            __builtin_prefetch(product.y + r * product.num_outputs + panel * PANEL, 1);
        long line = padded * tile / num_tiles;
        Coming coming{weights + (padded + line) * PANEL, padded * (tile + 1) / num_tiles - line};
        find_rows(num_rows, num_tiles)(x + row * x_stride, x_stride, weights, padded / 2, coming, sums);
        finish_tile(product, row, num_rows, panel, sums);
    }
}

static void end_panels() {}

#endif

// Rows are read in place where they are in the form that is multiplied.
static bool is_ready(long num_inputs) {
    return sizeof(Input) == sizeof(Bf16) && num_inputs % K_MULTIPLE == 0;
}

long measure_scratch(long num_rows, long num_inputs) {
    return is_ready(num_inputs) ? 0 : num_rows * pad(num_inputs, K_MULTIPLE) * sizeof(Input);
}

static void copy_row(const Product& product, long row) {
    long padded = pad(product.num_inputs, K_MULTIPLE);
    Input* to = (Input*)product.scratch + row * padded;
    for (long k = 0; k < padded; k++) {
        Bf16 value = k < product.num_inputs ? product.x[row * product.x_stride + k] : 0;
        if constexpr (sizeof(Input) == sizeof(Bf16))
            to[k] = value;
        else
            to[k] = widen(value);
    }
}

void multiply(Team& team, const Product& product) {
    const Input* inputs = (const Input*)product.x;
    long stride = product.x_stride;
    if (!is_ready(product.num_inputs)) {
        inputs = (const Input*)product.scratch;
        stride = pad(product.num_inputs, K_MULTIPLE);
        team.share(product.num_rows, [&](long row) { copy_row(product, row); });
    }
    const float* input_sums = product.group_size ? sum_groups(product, inputs, stride) : nullptr;
    long num_panels = pad(product.num_outputs, PANEL) / PANEL;
    long num_parts = (product.num_rows + PART_ROWS - 1) / PART_ROWS;
    team.share(num_panels * num_parts, [&](long item) {
        long panel = item / num_parts, part = item % num_parts;
        long first = product.num_rows * part / num_parts;
        long end = product.num_rows * (part + 1) / num_parts;
        if (product.group_size)
            multiply_int4_panel(product, inputs, stride, input_sums, panel, first, end);
        else
            multiply_panel(product, inputs, stride, panel, first, end);
    });
    end_panels();
}

extern "C" {

// What the packed form of a weight takes, in elements.
long hearth_packed_size(long num_inputs, long num_outputs) {
    return pad(num_outputs, PANEL) * pad(num_inputs, K_MULTIPLE);
}

void hearth_pack(const Bf16* weight, long stride, Bf16* packed, long num_inputs, long num_outputs,
                 long num_threads) {
    long padded = pad(num_inputs, K_MULTIPLE);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (long panel = 0; panel < pad(num_outputs, PANEL) / PANEL; panel++) {
        Bf16* to = packed + panel * PANEL * padded;
        for (long pair = 0; pair < padded / 2; pair++)
            for (long column = 0; column < PANEL; column++)
                for (long half = 0; half < 2; half++) {
                    long output = panel * PANEL + column, input = pair * 2 + half;
                    bool is_inside = output < num_outputs && input < num_inputs;
                    *to++ = is_inside ? weight[output * stride + input] : 0;
                }
    }
}

void hearth_multiply(const Bf16* x, long x_stride, const void* packed, const Bf16* bias, Bf16* y,
                     long num_rows, long num_inputs, long num_outputs, long group_size,
                     long num_threads) {
    std::unique_ptr<char[]> scratch(new char[measure_scratch(num_rows, num_inputs)]);
    Product product{x,        x_stride,   packed,      bias,       y,
                    num_rows, num_inputs, num_outputs, group_size, scratch.get()};
    run_team(num_threads, PRODUCT_STAGES, [&](Team& team) { multiply(team, product); });
}

// 0 when this process may use what the level needs beyond its instructions.
int hearth_prepare() {
#if defined(__AMX_BF16__)
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) ? 1 : 0;
#else
    return 0;
#endif
}
}
