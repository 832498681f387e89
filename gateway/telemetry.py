"""Counts and times for `/metrics`.

Plain dictionaries on the hot path, turned into Prometheus families only when somebody asks; no
label names a tenant. Owns metric names and buckets; must not know prompts or credentials, so that
neither can reach a metric or a line of the log. Read next: `gateway.api.operator_pages`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from contracts.histogram import GAP_BOUNDS_S, WAIT_BOUNDS_S, Times
from contracts.ids import ModelName
from contracts.inference import Usage

_FINE_BOUNDS_S: Final = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0)
"""For what should take no time at all."""
_TOKEN_KINDS: Final = ("prompt", "cached", "completion")


class Step(StrEnum):
    """The steps of a request that are timed."""

    ADMISSION = "admission"
    """Reserving in every limit and budget, stores included."""
    ROUTING = "routing"
    """Choosing a node, once for each attempt."""
    HAND_OVER = "hand_over"
    """KV blocks of a prompt, from the node that computed it to the one that answers."""


class HandOverOutcome(StrEnum):
    """What becomes of a prompt that one node is to compute for another."""

    LANDED = "landed"
    GIVEN_UP = "given_up"
    """The node that answers has computed it."""
    NOBODY = "nobody"
    """The same, for no node for prompts could take it."""


class PayloadOutcome(StrEnum):
    """What becomes of payloads that their account wants kept."""

    KEPT = "kept"
    UNWANTED = "unwanted"
    """No more, by the time the store had them."""
    DROPPED = "dropped"
    """There was no room for them, or their account's key is lost."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What inference requests have come to since the start."""

    num_requests: int
    num_refused: int
    """Answered with a 4xx, those that left before their answer aside."""
    num_failed: int
    """Answered with a 5xx."""
    num_prompt_tokens: int
    num_completion_tokens: int
    first_text_counts: tuple[int, ...]
    """Streams by how long their first text took, in the order of `WAIT_BOUNDS_S`; the last is
    longer than all of them."""


class Telemetry(Collector):
    """What this process has done so far; belongs to one event loop."""

    def __init__(self) -> None:
        """All zero."""
        self._requests: dict[tuple[str, int, str], int] = {}
        self._tokens: dict[str, list[int]] = {}
        self._first_text: dict[str, Times] = {}
        self._durations: dict[str, Times] = {}
        self._gaps: dict[str, Times] = {}
        self._steps: dict[str, Times] = {step: Times(_FINE_BOUNDS_S) for step in Step}
        self._hand_overs = dict.fromkeys(HandOverOutcome, 0)
        self._payloads = dict.fromkeys(PayloadOutcome, 0)
        self._num_retries = 0
        self._num_disconnects = 0
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._counters: dict[str, tuple[str, str, Callable[[], Mapping[str, float]]]] = {}
        self._labelled_gauges: dict[str, tuple[str, str, Callable[[], Mapping[str, float]]]] = {}
        self._histograms: dict[str, tuple[str, str, Mapping[str, Times]]] = {}

    def count_request(self, route: str, status: int, model: ModelName, duration_s: float) -> None:
        """A request is over; an unknown model is the empty name."""
        key = (route, status, model)
        self._requests[key] = self._requests.get(key, 0) + 1
        times = self._durations.get(route)
        if times is None:
            times = self._durations[route] = Times()
        times.observe(duration_s)

    def count_first_text(self, model: ModelName, waited_s: float) -> None:
        """A stream's first text has been sent."""
        times = self._first_text.get(model)
        if times is None:
            times = self._first_text[model] = Times()
        times.observe(waited_s)

    def count_token_gap(self, model: ModelName, gap_s: float) -> None:
        """A stream is over whose tokens came so far apart on average."""
        times = self._gaps.get(model)
        if times is None:
            times = self._gaps[model] = Times(GAP_BOUNDS_S)
        times.observe(gap_s)

    def count_step(self, step: Step, seconds: float) -> None:
        """A step of a request took so long."""
        self._steps[step].observe(seconds)

    def count_usage(self, model: ModelName, usage: Usage) -> None:
        """A node has told what a request consumed."""
        counts = self._tokens.get(model)
        if counts is None:
            counts = self._tokens[model] = [0, 0, 0]
        counts[0] += usage.num_prompt_tokens
        counts[1] += usage.num_cached_tokens
        counts[2] += usage.num_completion_tokens

    def count_hand_over(self, outcome: HandOverOutcome) -> None:
        """A prompt that another node was to compute has landed, or why it has not."""
        self._hand_overs[outcome] += 1

    def count_payloads(self, outcome: PayloadOutcome, count: int) -> None:
        """So many payload logs have ended thus."""
        self._payloads[outcome] += count

    def count_retry(self) -> None:
        """A request goes to a node a second time."""
        self._num_retries += 1

    def count_disconnect(self) -> None:
        """A client left before its answer was complete."""
        self._num_disconnects += 1

    def sum_traffic(self, routes: Collection[str]) -> Traffic:
        """Everything so far on `routes`, for all models together."""
        num_requests = num_refused = num_failed = 0
        for (route, status, _), count in self._requests.items():
            if route in routes:
                num_requests += count
                num_refused += count if 400 <= status < 499 else 0
                num_failed += count if status >= 500 else 0
        first_text = [0] * (len(WAIT_BOUNDS_S) + 1)
        for times in self._first_text.values():
            first_text = [sum(pair) for pair in zip(first_text, times.counts, strict=True)]
        return Traffic(
            num_requests=num_requests,
            num_refused=num_refused,
            num_failed=num_failed,
            num_prompt_tokens=sum(counts[0] for counts in self._tokens.values()),
            num_completion_tokens=sum(counts[2] for counts in self._tokens.values()),
            first_text_counts=tuple(first_text),
        )

    def watch_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Adds a gauge that is read when somebody asks."""
        self._gauges[name] = (text, read)

    def watch_counter(
        self, name: str, text: str, label: str, read: Callable[[], Mapping[Any, float]]
    ) -> None:
        """Adds a counter with a value for each of a closed set of labels."""
        self._counters[name] = (text, label, read)

    def watch_each(
        self, name: str, text: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        """Adds a gauge with a value for each node, or whatever else `label` names."""
        self._labelled_gauges[name] = (text, label, read)

    def watch_times(self, name: str, text: str, label: str, times: Mapping[str, Times]) -> None:
        """Adds histograms, one for each value of a label."""
        self._histograms[name] = (text, label, times)

    def collect(self) -> Iterator[Metric]:
        """Every metric family with its current values."""
        requests = CounterMetricFamily(
            "hearth_gateway_requests",
            "Requests answered.",
            labels=("route", "status", "model"),
        )
        for (route, status, model), count in self._requests.items():
            requests.add_metric((route, str(status), model), count)
        tokens = CounterMetricFamily(
            "hearth_gateway_tokens", "Tokens, cached ones within prompt.", labels=("model", "kind")
        )
        for model, counts in self._tokens.items():
            for kind, count in zip(_TOKEN_KINDS, counts, strict=True):
                tokens.add_metric((model, kind), count)
        yield from (requests, tokens)
        yield _to_histogram(
            "hearth_gateway_request_seconds", "Whole requests.", "route", self._durations
        )
        yield _to_histogram(
            "hearth_gateway_first_text_seconds",
            "From a request to the first text of its stream.",
            "model",
            self._first_text,
        )
        yield _to_histogram(
            "hearth_gateway_token_gap_seconds",
            "Between the tokens of a stream, its mean.",
            "model",
            self._gaps,
        )
        yield _to_histogram(
            "hearth_gateway_step_seconds", "Steps of requests.", "step", self._steps
        )
        yield from self._collect_scalars()

    def _collect_scalars(self) -> Iterator[Metric]:
        """Metrics of one value, and those with one for each node."""
        yield CounterMetricFamily(
            "hearth_gateway_retries", "Requests sent to a node again.", value=self._num_retries
        )
        yield CounterMetricFamily(
            "hearth_gateway_disconnects", "Clients that left early.", value=self._num_disconnects
        )
        hand_overs = CounterMetricFamily(
            "hearth_gateway_hand_overs",
            "Prompts that one node was to compute for another, by what became of that.",
            labels=("outcome",),
        )
        for outcome, count in self._hand_overs.items():
            hand_overs.add_metric((outcome,), count)
        yield hand_overs
        payloads = CounterMetricFamily(
            "hearth_gateway_payload_logs",
            "Requests of accounts that want them kept word for word, by what became of that.",
            labels=("outcome",),
        )
        for kept_or_not, count in self._payloads.items():
            payloads.add_metric((kept_or_not,), count)
        yield payloads
        for name, (text, label, read_counts) in self._counters.items():
            counter = CounterMetricFamily(name, text, labels=(label,))
            for value, count in read_counts().items():
                counter.add_metric((value,), count)
            yield counter
        for name, (text, read) in self._gauges.items():
            yield GaugeMetricFamily(name, text, value=read())
        for name, (text, label, read_all) in self._labelled_gauges.items():
            family = GaugeMetricFamily(name, text, labels=(label,))
            for value, number in read_all().items():
                family.add_metric((value,), number)
            yield family
        for name, (text, label, times) in self._histograms.items():
            yield _to_histogram(name, text, label, times)


def _to_histogram(
    name: str, text: str, label: str, times: Mapping[str, Times]
) -> HistogramMetricFamily:
    """A family with one histogram per value of `label`."""
    family = HistogramMetricFamily(name, text, labels=(label,))
    for value, histogram in times.items():
        family.add_metric((value,), buckets=histogram.to_buckets(), sum_value=histogram.total_s)
    return family
