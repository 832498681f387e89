// The layers of a dense decoder in one call: what is between Python's first and last word of a step.
//
//     x = o(attend(turn(qkv(x)))),  residual += x,  x = norm(residual)
//     x = down(silu_mul(gate_up(x))),  residual += x,  x = norm(residual)
//
// The same kernels as by themselves, with the same bits; a team goes through all of them together.

#include "kernels.h"

#include <algorithm>

struct Matrix {
    const void* packed;
    const Bf16* bias; // or null
    int64_t num_inputs, num_outputs, group_size;
};

// What Python fills in; the order is that of `gpu_pool.kernels.cpu.calls`.
struct Layer {
    Matrix qkv, o, gate_up, down;
    const void *head_norm, *post_norm, *next_norm; // that of the heads or null
    const float* sinks; // or null
    int64_t is_head_norm_fp32, is_post_norm_fp32, is_next_norm_fp32;
    int64_t num_heads, num_kv_heads, head_dim;
    int64_t group, index; // which KV group, and which layer of it
    int64_t rotation; // or -1
    float scale, soft_cap, head_eps;
};

struct Rotation {
    const Bf16 *cos, *sin;
    int64_t stride;
};

struct Step {
    const Attention* groups; // what holds for all layers of a KV group; slots of the first layer
    const Rotation* rotations;
    Bf16 *states, *residual; // [T][D], normed and not: what comes in and what goes out
    void* memory; // of `hearth_measure_layers`
    int64_t num_tokens;
    float eps;
};

constexpr long CHUNK_ROWS = 256; // that go from product to product together, and stay near meanwhile

// Where a step keeps what one kernel leaves to the next.
struct Desk {
    Bf16 *wide, *mixed; // [T] products of the states, what attention makes of them
    long chunk;
    Bf16 *gated, *out; // [chunk]
    void* scratch;
    long num_bytes;

    Desk(const Layer* layers, long num_layers, long num_tokens, void* memory)
        : chunk(std::min(num_tokens, CHUNK_ROWS)) {
        long wide_size = 0, mixed_size = 0, gated_size = 0, scratch_bytes = 0;
        for (long i = 0; i < num_layers; i++) {
            const Layer& layer = layers[i];
            wide_size = std::max({wide_size, num_tokens * layer.qkv.num_outputs,
                                  chunk * layer.gate_up.num_outputs});
            mixed_size = std::max(mixed_size, num_tokens * layer.o.num_inputs);
            gated_size = std::max(gated_size, chunk * layer.down.num_inputs);
            for (const Matrix* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
                scratch_bytes = std::max(scratch_bytes, measure_scratch(chunk, matrix->num_inputs));
        }
        char* next = (char*)memory;
        auto take = [&](long size) {
            char* taken = next;
            next += (size + 63) / 64 * 64;
            return (Bf16*)taken;
        };
        wide = take(wide_size * sizeof(Bf16));
        mixed = take(mixed_size * sizeof(Bf16));
        gated = take(gated_size * sizeof(Bf16));
        out = take(chunk * layers[0].o.num_outputs * sizeof(Bf16));
        scratch = take(scratch_bytes);
        num_bytes = next - (char*)memory;
    }
};

static void multiply(Team& team, const Desk& desk, const Matrix& matrix, const Bf16* x, Bf16* y,
                     long num_rows) {
    multiply(team, {x, matrix.num_inputs, matrix.packed, matrix.bias, y, num_rows,
                    matrix.num_inputs, matrix.num_outputs, matrix.group_size, desk.scratch});
}

// What some of a step's rows go through together.
struct Chunk {
    long first, num_rows;
};

template <typename Act> static void each_chunk(const Step& step, const Desk& desk, Act&& act) {
    for (long first = 0; first < step.num_tokens; first += desk.chunk)
        act(Chunk{first, std::min(desk.chunk, step.num_tokens - first)});
}

// wide = turn(qkv(states)).
static void project(Team& team, const Step& step, const Desk& desk, const Layer& layer,
                    Chunk chunk) {
    long stride = layer.qkv.num_outputs, num_turned = layer.num_heads + layer.num_kv_heads;
    Bf16* heads = desk.wide + chunk.first * stride;
    multiply(team, desk, layer.qkv, step.states + chunk.first * layer.qkv.num_inputs, heads,
             chunk.num_rows);
    bool turns = layer.rotation >= 0;
    if (!turns && !layer.head_norm) return;
    Rotation rotation = turns ? step.rotations[layer.rotation] : Rotation{};
    long skipped = chunk.first * rotation.stride;
    turn(team, {heads, layer.head_norm, turns ? rotation.cos + skipped : nullptr,
                turns ? rotation.sin + skipped : nullptr, stride, rotation.stride, chunk.num_rows,
                num_turned, layer.head_dim, layer.is_head_norm_fp32, layer.head_eps});
}

// mixed = attend(wide), all of the step's rows, which may be each other's keys.
static void attend(Team& team, const Step& step, const Desk& desk, const Layer& layer) {
    Attention call = step.groups[layer.group];
    call.q = desk.wide;
    call.kv = desk.wide + layer.num_heads * layer.head_dim;
    call.q_stride = call.kv_stride = layer.qkv.num_outputs;
    call.slot_ids += layer.index * step.num_tokens;
    call.out = desk.mixed;
    call.sinks = layer.sinks;
    call.num_heads = layer.num_heads;
    call.value_dim = layer.head_dim;
    call.layer = layer.index;
    call.scale = layer.scale;
    call.soft_cap = layer.soft_cap;
    attend(team, call);
}

// residual += out, states = norm(residual).
static void add_norm(Team& team, const Step& step, const Desk& desk, Chunk chunk, long size,
                     const void* weight, bool is_weight_fp32) {
    Bf16 *residual = step.residual + chunk.first * size, *states = step.states + chunk.first * size;
    add_norm(team, {desk.out, size, residual, size, weight, is_weight_fp32, residual, states,
                    chunk.num_rows, size, step.eps});
}

// What lies behind attention: o, and the gated network.
static void finish(Team& team, const Step& step, const Desk& desk, const Layer& layer,
                   Chunk chunk) {
    long size = layer.o.num_outputs, width = layer.gate_up.num_outputs;
    multiply(team, desk, layer.o, desk.mixed + chunk.first * layer.o.num_inputs, desk.out,
             chunk.num_rows);
    add_norm(team, step, desk, chunk, size, layer.post_norm, layer.is_post_norm_fp32);
    multiply(team, desk, layer.gate_up, step.states + chunk.first * size, desk.wide,
             chunk.num_rows);
    silu_mul(team, {desk.wide, width, desk.gated, chunk.num_rows, width / 2});
    multiply(team, desk, layer.down, desk.gated, desk.out, chunk.num_rows);
    add_norm(team, step, desk, chunk, size, layer.next_norm, layer.is_next_norm_fp32);
}

static long count_stages(long num_tokens) {
    long num_chunks = (num_tokens + CHUNK_ROWS - 1) / CHUNK_ROWS;
    return ATTENTION_STAGES + num_chunks * (4 * PRODUCT_STAGES + 4);
}

extern "C" {

// What the layers need beside states for a step of so many tokens, in bytes.
long hearth_measure_layers(const Layer* layers, long num_layers, long num_tokens) {
    return Desk(layers, num_layers, num_tokens, nullptr).num_bytes;
}

void hearth_run_layers(const Layer* layers, long num_layers, const Step* given, long num_threads) {
    const Step& step = *given;
    Desk desk(layers, num_layers, step.num_tokens, step.memory);
    long num_stages = num_layers * count_stages(step.num_tokens);
    run_team(num_threads, num_stages, [&](Team& team) {
        for (long i = 0; i < num_layers; i++) {
            const Layer& layer = layers[i];
            each_chunk(step, desk, [&](Chunk rows) { project(team, step, desk, layer, rows); });
            attend(team, step, desk, layer);
            each_chunk(step, desk, [&](Chunk rows) { finish(team, step, desk, layer, rows); });
        }
    });
}
}
