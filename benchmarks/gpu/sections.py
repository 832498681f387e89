"""The list of sections, in the order in which they run: what must be right before what is timed."""

from typing import Final

from benchmarks.gpu import (
    descriptor_linear,
    families,
    kernels,
    lanes,
    latency,
    memory,
    peers,
    served,
    small_linear,
    standby,
    start,
    throughput,
)
from benchmarks.gpu.section import Section

SECTIONS: Final = (
    Section("kernels", "every kernel against its reference", kernels.check_kernels),
    Section("tokens", "greedy tokens of many families equal the CPU's", families.check_tokens),
    Section("lanes", "recorded, ahead or not, by the host: equal answers", lanes.check_lanes),
    Section("decode-step", "ms of a step of one sequence", latency.measure_decode_step),
    Section("workload", "256 requests, 0.6B shapes, tok/s", throughput.measure_workload),
    Section("large-workload", "the same, 8B shapes", throughput.measure_large_workload),
    Section("prefill", "prompts of 128 to 32,768 tokens, tok/s", latency.measure_prefill),
    Section(
        "rates", "a copy, a product, attention and norms: GB/s, TFLOP/s", kernels.measure_rates
    ),
    Section("wake", "sleep, wake and the first token", standby.measure_wakes),
    Section("memory", "weights, peak and KV tokens", memory.measure_memory),
    Section("lane-steps", "what each way of a step costs", lanes.measure_lanes, 2),
    Section("http", "a real gateway and node, 8B shapes: TTFT, CPU", served.measure_http, 2),
    Section("gaps", "what running answers feel of a long prompt", latency.measure_gaps, 2),
    Section("conversations", "4,000 requests, 200 at a time", throughput.measure_conversations, 2),
    Section("prefix-cost", "the prefix cache without hits", throughput.measure_prefix_cost, 2),
    Section("start", "process to first token, part by part", start.measure_start, 2),
    Section("load", "from the drive, beside its own rate", standby.measure_load, 2),
    Section("peers", "transformers and vLLM on the same load", peers.measure_peers, 3),
    Section(
        "small-linear", "few rows beside cuBLAS, its table", small_linear.measure_small_linear, 3
    ),
    Section(
        "descriptor-linear",
        "many rows beside cuBLAS",
        descriptor_linear.measure_descriptor_linear,
        3,
    ),
    Section("decode-batches", "ms of a step of many", latency.measure_decode_batches, 3),
    Section("cycles", "100 sleeps and wakes lose nothing", standby.check_cycles, 3),
    Section("large-start", "the start of 8B shapes", start.measure_large_start, 3),
    Section(
        "large-conversations",
        "conversations, 8B shapes",
        throughput.measure_large_conversations,
        3,
    ),
)
