// What the kernels are told. Every thread of a team calls the same ones in the same order, and when
// one returns, its results are there.
#pragma once

#include "team.h"
#include "vector.h"

#define HIDDEN __attribute__((visibility("hidden"))) // from other libraries of this process

// y[T, M] = x[T, K] · W[M, K]ᵀ + b.
struct Product {
    const Bf16* x;
    long x_stride;
    const void* packed; // Bf16, or groups of four bits
    const Bf16* bias; // or null
    Bf16* y;
    long num_rows, num_inputs, num_outputs;
    long group_size; // inputs that share a factor; 0: weights in bf16
    void* scratch; // of `measure_scratch`, for rows in another form
};

constexpr long PRODUCT_STAGES = 2;
HIDDEN long measure_scratch(long num_rows, long num_inputs); // bytes
HIDDEN void multiply(Team& team, const Product& product);

// sum = residual + x, out = norm(sum) · weight; without a residual the norm of x alone.
struct Norm {
    const Bf16* x;
    long x_stride;
    const Bf16* residual; // or null
    long residual_stride;
    const void* weight;
    bool is_weight_fp32;
    Bf16 *sum, *out;
    long num_rows, size;
    float eps;
};

HIDDEN void add_norm(Team& team, const Norm& norm);

// out = silu(g) · u, of rows that hold g and then u.
struct Gate {
    const Bf16* gate_up;
    long stride;
    Bf16* out;
    long num_rows, size;
};

HIDDEN void silu_mul(Team& team, const Gate& gate);

// Heads to norm and turn in place. The order is that of `gpu_pool.kernels.cpu.calls`.
struct Turn {
    Bf16* heads; // [T][heads][head_dim], rows apart by token_stride elements
    const void* weight; // [turned heads][head_dim], or null
    const Bf16 *cos, *sin; // [T][head_dim], rows apart by table_stride, or null
    int64_t token_stride, table_stride;
    int64_t num_tokens, num_turned, head_dim, is_weight_fp32;
    float eps;
};

HIDDEN void turn(Team& team, const Turn& turn);

// Keys and values to write, then queries to attend. The order is that of `gpu_pool.kernels.cpu.calls`.
struct Attention {
    const void* q; // [T][heads][head_dim], rows apart by q_stride elements
    const void* kv; // what the step's tokens add, rows apart by kv_stride
    const int64_t* slot_ids; // where to, counted in slots
    void* slots;
    void* out; // [T][heads][value_dim]
    const int32_t* tables; // [sequences][table_stride]
    const int32_t* starts; // first row of each sequence, and the end
    const int32_t* lengths;
    const float* sinks; // or null
    int64_t q_stride, kv_stride, table_stride;
    int64_t num_sequences;
    int64_t num_heads, num_kv_heads, head_dim, value_dim, slot_elements;
    int64_t layer, num_layers, block_size;
    int64_t window, is_chunked;
    float scale, soft_cap;
};

constexpr long ATTENTION_STAGES = 2;
HIDDEN void attend(Team& team, const Attention& attention);
