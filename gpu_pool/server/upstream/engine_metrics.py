"""What an engine's metrics say of its load.

Pure: Prometheus text in, figures out. Owns which labels count; must not know HTTP.
Read next: `traits` (the names), `engine_load` (what becomes of the figures).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpu_pool.server.upstream.traits import LoadMetrics

_MODEL_LABELS: Final = ("model_name", "model")
_MAX_COUNT: Final = 2**31
_MAX_CHARS: Final = 256 * 1024
"""Of the metrics that are asked for: a few lines for each rank."""
_MAX_LINE_CHARS: Final = 4096
"""The parser's time grows with the square of a line's length, and all streams wait for it."""


@dataclass(frozen=True, slots=True)
class ScrapedLoad:
    """One look at an engine. What it does not say is 0, or None where that would be a claim."""

    num_running: int
    num_waiting: int
    cache_usage: float = 0.0
    """The share of KV memory in use."""
    num_cache_tokens: int = 0
    """What the KV memory holds; 0: unknown."""
    has_prefix_cache: bool | None = None
    num_preempted: int = 0


def read_metrics(text: str, names: LoadMetrics, served_name: str) -> ScrapedLoad | None:
    """The load in `text`, of all ranks that compute `served_name` together; None where the gauges
    are missing.

    Raises: `ValueError` for what is no Prometheus text, or more than an engine in order tells.
    """
    samples: dict[str, list[Sample]] = {}
    for sample in _read_samples(text, names):
        label = next((sample.labels[key] for key in _MODEL_LABELS if key in sample.labels), None)
        is_first_rank = (
            sample.labels.get("tp_rank", "0") == sample.labels.get("pp_rank", "0") == "0"
        )
        if label in (None, served_name) and is_first_rank:
            samples.setdefault(sample.name, []).append(sample)
    if names.num_running not in samples:
        return None
    running = _count(samples[names.num_running])
    waiting = _count(samples.get(names.num_waiting, []))
    usages: list[Sample] = []
    for name in names.cache_usage:
        usages = usages or samples.get(name, [])
    share = sum(_bound(one.value, 1.0) for one in usages) / len(usages) if usages else 0.0
    configs = samples.get(names.cache_config, [])
    num_tokens = _count(samples.get(names.cache_tokens, []))
    num_tokens += sum(_multiply(one, "num_gpu_blocks", "block_size") for one in configs)
    told = {one.labels.get("enable_prefix_caching", "").lower() for one in configs} - {""}
    return ScrapedLoad(
        running,
        waiting,
        share,
        min(num_tokens, _MAX_COUNT),
        "true" in told if told else None,
        _count(samples.get(names.preempted, [])),
    )


def _read_samples(text: str, names: LoadMetrics) -> Iterator[Sample]:
    """Samples of the metrics that are asked for: the others are not even parsed.

    Raises: `ValueError`.
    """
    wanted = [names.num_running, names.num_waiting, *names.cache_usage]
    more = (names.cache_tokens, names.cache_config, names.preempted)
    wanted += [name for name in more if name]
    lines = [line for line in text.splitlines() if line.startswith(tuple(wanted))]
    lengths = [len(line) for line in lines]
    if sum(lengths) > _MAX_CHARS or max(lengths, default=0) > _MAX_LINE_CHARS:
        raise ValueError("more than an engine in order tells")
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        yield from family.samples


def _count(samples: list[Sample]) -> int:
    """The sum of samples that count something."""
    return int(_bound(sum(_bound(sample.value, _MAX_COUNT) for sample in samples), _MAX_COUNT))


def _bound(value: float, most: float) -> float:
    """`value` between 0 and `most`; what is no number is 0."""
    return min(max(value, 0.0), most) if value == value else 0.0


def _multiply(sample: Sample, *labels: str) -> int:
    """The product of labels that are numbers; 0 where one is not."""
    product = 1
    for label in labels:
        text = sample.labels.get(label, "")
        product *= int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return product
