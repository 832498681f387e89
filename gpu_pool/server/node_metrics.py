"""This node's metrics for Prometheus, and the port that answers with them.

Names have units and no label names a tenant. Owns names; must not know where the numbers come from
beyond the report and the counts. Read next: `stream_meter`, `contracts.fleet`.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from contracts.fleet import ModelLoad, NodeReport
from contracts.histogram import Times
from contracts.ids import ModelName
from contracts.placement import Tier
from contracts.sections import MetricsSettings
from gpu_pool.engine.messages import KvTiers
from gpu_pool.server.http_log import create_http_logger
from gpu_pool.server.machine_metrics import MachineMetrics
from gpu_pool.server.stream_meter import ModelCounts, NodeMeter
from gpu_pool.server.tier_metrics import collect_tiers

_TOKEN_KINDS: Final = ("prompt", "cached", "completion")
_TIMES: Final[tuple[tuple[str, str, Callable[[ModelCounts], Times]], ...]] = (
    (
        "hearth_node_queue_seconds",
        "From a request's last byte until it is computed.",
        lambda counts: counts.queue,
    ),
    (
        "hearth_node_first_token_seconds",
        "From a request's last byte to its first token.",
        lambda counts: counts.first_token,
    ),
    (
        "hearth_node_token_gap_seconds",
        "Between the tokens of a request.",
        lambda counts: counts.gaps,
    ),
)
_LOADS: Final[tuple[tuple[str, str, Callable[[ModelLoad], float]], ...]] = (
    ("hearth_node_model_ready", "1 while it can serve.", lambda load: load.is_ready),
    ("hearth_node_requests_running", "Requests being computed.", lambda load: load.num_running),
    ("hearth_node_requests_waiting", "Requests in line.", lambda load: load.num_waiting),
    (
        "hearth_node_queued_tokens",
        "Prompt tokens still to be computed.",
        lambda load: load.num_queued_tokens,
    ),
    ("hearth_node_kv_blocks", "KV memory, in blocks.", lambda load: load.num_blocks),
    (
        "hearth_node_kv_free_blocks",
        "Those that can be handed out now.",
        lambda load: load.num_free_blocks,
    ),
    (
        "hearth_node_prefill_tokens_per_second",
        "Speed of prompts, as measured under load; 0 until then.",
        lambda load: load.prefill_tokens_per_s,
    ),
    (
        "hearth_node_decode_tokens_per_second",
        "Speed of answers, of all sequences together.",
        lambda load: load.decode_tokens_per_s,
    ),
)
_TROUBLES: Final[tuple[tuple[str, str, Callable[[ModelLoad], int]], ...]] = (
    (
        "hearth_node_hung_cores",
        "Engine cores that were killed because they got no further.",
        lambda load: load.num_hung,
    ),
    (
        "hearth_node_preemptions",
        "Times that a request gave up its place for want of KV memory.",
        lambda load: load.num_preempted,
    ),
)


class NodeMetrics(Collector):
    """The families, made anew for each scrape."""

    def __init__(
        self,
        create_report: Callable[[], NodeReport],
        meter: NodeMeter,
        list_kv_tiers: Callable[[], Mapping[ModelName, KvTiers]],
        machine: MachineMetrics,
    ) -> None:
        """Reads all four when somebody asks."""
        self._create_report = create_report
        self._meter = meter
        self._list_kv_tiers = list_kv_tiers
        self._machine = machine

    async def look(self) -> None:
        """Reads what may take its time; `collect` tells it."""
        await self._machine.look()

    def collect(self) -> Iterator[Metric]:
        """Every metric family with its current values."""
        report = self._create_report()
        yield GaugeMetricFamily(
            "hearth_node_draining", "1 while it takes no new requests.", float(report.is_draining)
        )
        yield GaugeMetricFamily("hearth_node_tasks", "Asyncio tasks.", count_tasks())
        yield from _collect_by_model(report, GaugeMetricFamily, _LOADS)
        yield from _collect_by_model(report, CounterMetricFamily, _TROUBLES)
        sink = self._meter.tracer.sink
        spans = CounterMetricFamily(
            "hearth_node_spans",
            "Spans of traces, by whether a collector took them.",
            labels=("outcome",),
        )
        spans.add_metric(("sent",), sink.num_sent)
        spans.add_metric(("lost",), sink.num_lost)
        yield spans
        yield from _collect_counts(self._meter)
        yield from _collect_placements(report)
        yield from collect_tiers(self._list_kv_tiers())
        yield from self._machine.collect()


class MetricsPort:
    """Answers `GET /metrics` where that is configured, and does nothing elsewhere."""

    def __init__(self, settings: MetricsSettings | None, metrics: NodeMetrics) -> None:
        """Nothing listens yet."""
        self._settings = settings
        self._metrics = metrics
        self.number = 0
        """The port, once it listens."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(metrics)
        application = web.Application(client_max_size=1024)
        application.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(
            application, access_log=None, logger=create_http_logger(), handle_signals=False
        )

    async def start(self, create_tls: Callable[..., ssl.SSLContext]) -> None:
        """Listens. Raises: `OSError`, `SettingsError`."""
        settings = self._settings
        if settings is None:
            return
        await self._runner.setup()
        tls = None if settings.tls is None else create_tls(settings.tls)
        await web.TCPSite(self._runner, settings.host, settings.port, ssl_context=tls).start()
        self.number = self._runner.addresses[0][1]
        structlog.get_logger().info("metrics can be read", host=settings.host, port=self.number)

    async def stop(self) -> None:
        """Listens no more."""
        if self._settings is not None:
            await self._runner.cleanup()

    async def _answer(self, _: web.Request) -> web.Response:
        """Every metric in Prometheus' text form."""
        await self._metrics.look()
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=generate_latest(self._registry), headers=headers)


def count_tasks() -> int:
    """Tasks of the running event loop; none without one."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


def _collect_by_model(
    report: NodeReport,
    create: Callable[..., GaugeMetricFamily | CounterMetricFamily],
    rows: Iterable[tuple[str, str, Callable[[ModelLoad], float]]],
) -> Iterator[Metric]:
    """What models' loads say: a family for each row."""
    for name, text, read in rows:
        family = create(name, text, labels=("model",))
        for load in report.loads:
            family.add_metric((load.name,), float(read(load)))
        yield family


def _collect_counts(meter: NodeMeter) -> Iterator[Metric]:
    """What requests came to."""
    requests = CounterMetricFamily(
        "hearth_node_requests", "Requests that are over.", labels=("model", "end")
    )
    tokens = CounterMetricFamily(
        "hearth_node_tokens", "Tokens, cached ones within prompt.", labels=("model", "kind")
    )
    for model, counts in meter.counts.items():
        for end, count in counts.ends.items():
            requests.add_metric((model, end), count)
        for kind, count in zip(_TOKEN_KINDS, counts.tokens, strict=True):
            tokens.add_metric((model, kind), count)
    yield from (requests, tokens)
    for name, text, read in _TIMES:
        family = HistogramMetricFamily(name, text, labels=("model",))
        for model, counts in meter.counts.items():
            times = read(counts)
            family.add_metric((model,), buckets=times.to_buckets(), sum_value=times.total_s)
        yield family


def _collect_placements(report: NodeReport) -> Iterator[Metric]:
    """Where weights are, on nodes that move them."""
    tiers = GaugeMetricFamily(
        "hearth_node_model_tier", "1 for the tier of its weights.", labels=("model", "tier")
    )
    loaded = GaugeMetricFamily(
        "hearth_node_model_loaded_ratio",
        "Share of its files that was read while its engine starts; else 0.",
        labels=("model",),
    )
    wakes = CounterMetricFamily("hearth_node_wakes", "Times it was woken.", labels=("model",))
    last = GaugeMetricFamily(
        "hearth_node_last_wake_seconds", "What its last wake took.", labels=("model",)
    )
    for placement in report.placements:
        for tier in Tier:
            tiers.add_metric((placement.name, tier), float(placement.tier is tier))
        loaded.add_metric((placement.name,), placement.loaded_ratio)
        wakes.add_metric((placement.name,), placement.num_wakes)
        last.add_metric((placement.name,), placement.last_wake_s)
    yield from (tiers, loaded, wakes, last)
    memory = GaugeMetricFamily(
        "hearth_node_memory_bytes", "What models take; 0 of what is unbounded.", labels=("kind",)
    )
    use = report.memory
    memory.add_metric(("device_used",), use.device_used_bytes)
    memory.add_metric(("device_budget",), use.device_budget_bytes)
    memory.add_metric(("host_used",), use.host_used_bytes)
    memory.add_metric(("host_budget",), use.host_budget_bytes)
    yield memory
