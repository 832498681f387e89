"""Metrics of the tiers that keep KV beside the device.

Owns names; no label names a tenant. Must not know tiers beyond what cores report.
Read next: `node_metrics` (the caller), `gpu_pool.kv.tiers.measured_tier` (what counts).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from contracts.ids import ModelName
from gpu_pool.engine.messages import KvTiers
from gpu_pool.kv.tiers.measured_tier import TierFigures

_LABELS: Final = ("model", "tier")
_GAUGES: Final[tuple[tuple[str, str, Callable[[TierFigures], float]], ...]] = (
    ("hearth_node_kv_tier_bytes", "KV that a tier holds.", lambda tier: tier.num_bytes),
    (
        "hearth_node_kv_tier_bytes_per_second",
        "Speed of its fetches; 0 until measured.",
        lambda tier: tier.bytes_per_s,
    ),
    (
        "hearth_node_kv_tier_off",
        "1 while nothing is kept: a drive has refused a write, or a store is away.",
        lambda tier: tier.is_off,
    ),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[TierFigures], float]], ...]] = (
    ("hearth_node_kv_tier_kept", "Blocks put into a tier.", lambda tier: tier.num_kept),
    (
        "hearth_node_kv_tier_dropped",
        "Blocks not kept because the tier was behind.",
        lambda tier: tier.num_dropped,
    ),
    ("hearth_node_kv_tier_hits", "Blocks fetched from a tier.", lambda tier: tier.num_fetched),
    (
        "hearth_node_kv_tier_fetched_bytes",
        "KV fetched from a tier.",
        lambda tier: tier.num_fetched_bytes,
    ),
    (
        "hearth_node_kv_tier_damaged",
        "Blocks that were not what was put there; each was a miss.",
        lambda tier: tier.num_damaged,
    ),
    (
        "hearth_node_kv_tier_unread",
        "Reads that failed although the block may be as it was; each was a miss.",
        lambda tier: tier.num_unread,
    ),
)


def collect_tiers(reports: Mapping[ModelName, KvTiers]) -> Iterator[Metric]:
    """The families with the latest figures of each model that has tiers."""
    figures = [(model, tier) for model, report in reports.items() for tier in report.tiers]
    for families, create in ((_GAUGES, GaugeMetricFamily), (_COUNTERS, CounterMetricFamily)):
        for name, text, read in families:
            family = create(name, text, labels=_LABELS)
            for model, tier in figures:
                family.add_metric((model, tier.label), float(read(tier)))
            yield family
    refused = CounterMetricFamily(
        "hearth_node_kv_tier_refused",
        "Blocks that were there and would have taken longer than computing.",
        labels=("model",),
    )
    for model, report in reports.items():
        refused.add_metric((model,), report.num_refused)
    yield refused
