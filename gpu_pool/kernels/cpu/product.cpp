// Products of bf16 rows with packed bf16 weights: y[T, M] = x[T, K] · W[M, K]ᵀ + b, summed in fp32.
//
// Packed: panels of 32 columns (outputs) as `tile.h` has them. K is padded to a multiple of 32 and M
// to one of the panel, with zeros.
// Invariant: a row's sums are made by the same instructions in the same order however many rows
// there are, so that a token's result does not depend on its neighbours.

#if defined(__AMX_BF16__)
#include "product_tiles.h"
#include <sys/syscall.h>
#include <unistd.h>
#else
#include "product_rows.h"
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
    if (product.num_rows == 0) return; // tiles of no rows are an error of the CPU's
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
    long together = choose_panels(product);
    begin_panels(product);
    team.share((num_panels + together - 1) / together * num_parts, [&](long item) {
        long panel = item / num_parts * together, part = item % num_parts;
        long first = product.num_rows * part / num_parts;
        long end = product.num_rows * (part + 1) / num_parts;
        long end_panel = std::min(panel + together, num_panels);
        if (product.group_size)
            multiply_int4_panels(product, inputs, stride, input_sums, panel, end_panel, first, end);
        else
            multiply_panels(product, inputs, stride, panel, end_panel, first, end);
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

// Rows of a packed weight as they were before: rows[T, K] = W[ids[T]]. 0 when every id is one of
// its rows; else nothing is written.
int hearth_read_rows(const Bf16* packed, const int64_t* ids, Bf16* rows, long num_ids,
                     long num_inputs, long num_outputs, long num_threads) {
    for (long i = 0; i < num_ids; i++)
        if (ids[i] < 0 || ids[i] >= num_outputs) return 1;
    long padded = pad(num_inputs, K_MULTIPLE);
    constexpr long FEW = 8; // rows that are read before other threads are there
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_ids > FEW)
    for (long i = 0; i < num_ids; i++) {
        const Bf16* from = packed + ids[i] / PANEL * PANEL * padded + ids[i] % PANEL * 2;
        Bf16* to = rows + i * num_inputs;
        for (long pair = 0; pair < num_inputs / 2; pair++)
            memcpy(to + pair * 2, from + pair * 2 * PANEL, 2 * sizeof(Bf16));
        if (num_inputs % 2) to[num_inputs - 1] = from[num_inputs / 2 * 2 * PANEL];
    }
    return 0;
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
