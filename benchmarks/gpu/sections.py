"""The list of sections, in the order in which they run: what must be right before what is timed."""

from typing import Final

from benchmarks.gpu import kernels, models, standby
from benchmarks.gpu.section import Section

SECTIONS: Final = (
    Section("kernels", "every kernel against its reference", kernels.check_kernels),
    Section("tokens", "the bundled model's greedy tokens equal the CPU's", models.check_tokens),
    Section("elementwise", "norms, gate, KV write: GB/s", kernels.measure_elementwise),
    Section("decode-attention", "KV bytes per second", kernels.measure_decode_attention),
    Section("prefill-attention", "TFLOP/s beside torch", kernels.measure_prefill_attention),
    Section("decode-step", "ms per step of one sequence", models.measure_decode_step),
    Section("standby", "sleep, wake, load: s and GB/s, bits as before", standby.measure_standby),
    Section("workload", "256 requests on 0.6B shapes, tok/s", models.measure_workload),
    Section(
        "large-workload", "256 requests on 8B shapes, tok/s", models.measure_large_workload, False
    ),
)
