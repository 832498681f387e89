"""The dashboard: what an operator looks at, row by row.

Queries are PromQL over the names that `gateway.telemetry` and `gpu_pool.server.node_metrics`
export; a test holds the two together. Read next: `tools.observability.alerts`,
`tools.observability.generate`.
"""

from dataclasses import dataclass

from tools.observability.costs import GPU_POWER, cost_per_million


@dataclass(frozen=True)
class Query:
    """One or several lines of a panel."""

    legend: str
    """With `{{label}}` for a label's value."""
    expression: str


@dataclass(frozen=True)
class Panel:
    """One diagram."""

    title: str
    unit: str
    """By Grafana's name: `s`, `bytes`, `percentunit`, `reqps`, `short`."""
    queries: tuple[Query, ...]
    is_optional: bool = False
    """True where a fleet in order may have no data: it does not use what is measured."""


@dataclass(frozen=True)
class Row:
    """Panels that belong together."""

    title: str
    panels: tuple[Panel, ...]


def quantiles(name: str, label: str) -> tuple[Query, ...]:
    """The middle and the slow end of a histogram, by one label."""
    rates = f"sum by (le, {label}) (rate({name}_bucket[2m]))"
    return tuple(
        Query(f"p{percent} {{{{{label}}}}}", f"histogram_quantile({percent / 100}, {rates})")
        for percent in (50, 95)
    )


def panel(title: str, unit: str, *queries: tuple[str, str], is_optional: bool = False) -> Panel:
    """A panel of (legend, expression) pairs."""
    return Panel(title, unit, tuple(Query(*query) for query in queries), is_optional)


def tier_rate(what: str) -> str:
    """How often something happens to KV tiers."""
    return f"rate(hearth_node_kv_tier_{what}_total[2m])"


REQUESTS = "hearth_gateway_requests_total"
TOKENS = "hearth_gateway_tokens_total"
FAILED_RATE = f'(sum(rate({REQUESTS}{{status=~"5.."}}[2m])) or vector(0))'
CACHED_RATE = f'sum by (model) (rate({TOKENS}{{kind="cached"}}[5m]))'
PROMPT_RATE = f'sum by (model) (rate({TOKENS}{{kind="prompt"}}[5m]))'
QUEUE_WAITS = quantiles("hearth_gateway_queue_seconds", "model")
ROWS = (
    Row(
        "Traffic",
        (
            panel(
                "Requests by status",
                "reqps",
                ("{{status}}", f"sum by (status) (rate({REQUESTS}[2m]))"),
            ),
            panel(
                "Share of requests that we failed",
                "percentunit",
                (
                    "5xx",
                    f"{FAILED_RATE} / sum(rate({REQUESTS}[2m]))",
                ),
            ),
            panel(
                "Open requests and streams",
                "short",
                ("requests", "sum(hearth_gateway_requests_open)"),
                ("streams at nodes", "sum(hearth_gateway_streams_open)"),
            ),
            panel(
                "Requests that wait in gateways for a node with room",
                "short",
                ("{{model}}", "sum by (model) (hearth_gateway_queue_requests)"),
            ),
            panel(
                "What those would take",
                "short",
                ("tokens", "sum(hearth_gateway_queue_tokens)"),
                ("bytes", "sum(hearth_gateway_queue_bytes)"),
            ),
            panel(
                "What becomes of requests that find every node full",
                "reqps",
                ("{{end}}", "sum by (end) (rate(hearth_gateway_queue_ends_total[2m]))"),
            ),
            panel(
                "How long those have waited that got a node",
                "s",
                *((query.legend, query.expression) for query in QUEUE_WAITS),
                is_optional=True,
            ),
            panel(
                "Retries and clients that left",
                "reqps",
                ("retries", "sum(rate(hearth_gateway_retries_total[2m]))"),
                ("left early", "sum(rate(hearth_gateway_disconnects_total[2m]))"),
            ),
            panel(
                "Spans that the collector took, and those it did not",
                "reqps",
                (
                    "{{outcome}} by gateways",
                    "sum by (outcome) (rate(hearth_gateway_spans_total[2m]))",
                ),
                ("{{outcome}} by nodes", "sum by (outcome) (rate(hearth_node_spans_total[2m]))"),
            ),
            panel(
                "Asyncio tasks, which should follow the load",
                "short",
                ("gateway {{instance}}", "hearth_gateway_tasks"),
                ("node {{instance}}", "hearth_node_tasks"),
            ),
            panel(
                "Requests of accounts that want them kept word for word",
                "reqps",
                (
                    "{{outcome}}",
                    "sum by (outcome) (rate(hearth_gateway_payload_logs_total[2m]))",
                ),
            ),
            panel(
                "Prompts that one node computes for another",
                "reqps",
                (
                    "{{outcome}}",
                    "sum by (outcome) (rate(hearth_gateway_hand_overs_total[2m]))",
                ),
            ),
        ),
    ),
    Row(
        "What clients feel",
        (
            Panel("First text", "s", quantiles("hearth_gateway_first_text_seconds", "model")),
            Panel(
                "Between tokens, a stream's mean",
                "s",
                quantiles("hearth_gateway_token_gap_seconds", "model"),
            ),
            Panel("Whole requests", "s", quantiles("hearth_gateway_request_seconds", "route")),
            Panel(
                "Admission (limits, budgets) and routing",
                "s",
                quantiles("hearth_gateway_step_seconds", "step"),
            ),
        ),
    ),
    Row(
        "Tokens and money",
        (
            panel(
                "Tokens per second",
                "short",
                ("{{model}} {{kind}}", f"sum by (model, kind) (rate({TOKENS}[2m]))"),
            ),
            panel(
                "Prompt tokens found in the prefix cache",
                "percentunit",
                (
                    "{{model}}",
                    f"{CACHED_RATE} / {PROMPT_RATE}",
                ),
            ),
            panel(
                "Usage on its way to the ledger",
                "bytes",
                ("{{instance}}", "hearth_gateway_journal_bytes"),
            ),
            panel(
                "How long it has waited", "s", ("{{instance}}", "hearth_gateway_ledger_lag_seconds")
            ),
            panel(
                "Items of batches",
                "short",
                ("waiting", "max(hearth_gateway_batch_items_waiting)"),
                ("running at {{instance}}", "hearth_gateway_batch_items_running"),
            ),
        ),
    ),
    Row(
        "Nodes",
        (
            panel(
                "Connected, and without trouble",
                "short",
                ("link {{node}}", "min by (node) (hearth_gateway_link_up)"),
                ("trouble {{node}}", "max by (node) (hearth_gateway_node_troubled)"),
                ("another role better {{node}}", "max by (node) (hearth_gateway_role_suggested)"),
                ("members", "max(hearth_gateway_members)"),
                ("membership degraded", "max(hearth_gateway_membership_degraded)"),
                ("shared limits degraded", "max(hearth_gateway_limits_degraded)"),
                ("clock behind {{instance}}", "max by (instance) (hearth_gateway_clock_doubted)"),
            ),
            panel(
                "Age of the latest report",
                "s",
                ("{{node}}", "max by (node) (hearth_gateway_report_age_seconds)"),
            ),
            panel(
                "Running and waiting",
                "short",
                ("running {{instance}} {{model}}", "hearth_node_requests_running"),
                ("waiting {{instance}} {{model}}", "hearth_node_requests_waiting"),
            ),
            panel(
                "KV memory in use",
                "percentunit",
                (
                    "{{instance}} {{model}}",
                    "1 - hearth_node_kv_free_blocks / (hearth_node_kv_blocks > 0)",
                ),
            ),
            panel(
                "KV kept beside the device",
                "bytes",
                ("{{instance}} {{model}} {{tier}}", "hearth_node_kv_tier_bytes"),
                is_optional=True,
            ),
            panel(
                "KV tiers, blocks per second",
                "short",
                ("fetched {{model}} {{tier}}", tier_rate("hits")),
                ("kept {{model}} {{tier}}", tier_rate("kept")),
                ("not kept: behind {{model}} {{tier}}", tier_rate("dropped")),
                ("sooner computed {{model}}", tier_rate("refused")),
                ("damaged {{model}} {{tier}}", tier_rate("damaged")),
                ("not read {{model}} {{tier}}", tier_rate("unread")),
                ("off {{instance}} {{model}} {{tier}}", "hearth_node_kv_tier_off"),
                is_optional=True,
            ),
            panel(
                "KV tiers, speed of fetches",
                "Bps",
                ("while fetching {{model}} {{tier}}", "hearth_node_kv_tier_bytes_per_second"),
                ("in all {{model}} {{tier}}", tier_rate("fetched_bytes")),
                is_optional=True,
            ),
            panel(
                "Speed under load, tokens per second",
                "short",
                ("prefill {{instance}} {{model}}", "hearth_node_prefill_tokens_per_second"),
                ("decode {{instance}} {{model}}", "hearth_node_decode_tokens_per_second"),
            ),
            panel(
                "Prompt tokens in line",
                "short",
                ("{{instance}} {{model}}", "hearth_node_queued_tokens"),
            ),
            Panel(
                "From the last byte until it is computed",
                "s",
                quantiles("hearth_node_queue_seconds", "model"),
            ),
            Panel(
                "From the last byte to the first token",
                "s",
                quantiles("hearth_node_first_token_seconds", "model"),
            ),
            Panel(
                "Between tokens",
                "s",
                quantiles("hearth_node_token_gap_seconds", "model"),
            ),
            panel(
                "How requests end",
                "reqps",
                ("{{end}}", "sum by (end) (rate(hearth_node_requests_total[2m]))"),
            ),
            panel(
                "Tokens per second",
                "short",
                (
                    "{{instance}} {{kind}}",
                    "sum by (instance, kind) (rate(hearth_node_tokens_total[2m]))",
                ),
            ),
            panel(
                "Models that can serve",
                "short",
                ("{{instance}}", "sum by (instance) (hearth_node_model_ready)"),
                ("draining {{instance}}", "hearth_node_draining"),
            ),
            panel(
                "Requests that gave up their place for want of KV memory",
                "short",
                (
                    "{{instance}} {{model}}",
                    "sum by (instance, model) (increase(hearth_node_preemptions_total[10m]))",
                ),
            ),
            panel(
                "Engine cores killed because they got no further",
                "short",
                (
                    "{{instance}} {{model}}",
                    "sum by (instance, model) (increase(hearth_node_hung_cores_total[10m]))",
                ),
            ),
        ),
    ),
    Row(
        "Machines and what they cost",
        (
            panel(
                "GPUs, share of the time in use",
                "percentunit",
                ("{{instance}} {{gpu}}", "hearth_node_gpu_busy_ratio"),
                is_optional=True,
            ),
            panel(
                "Memory of GPUs in use",
                "bytes",
                ("used {{instance}} {{gpu}}", "hearth_node_gpu_memory_used_bytes"),
                ("there {{instance}} {{gpu}}", "hearth_node_gpu_memory_total_bytes"),
                is_optional=True,
            ),
            panel(
                "Power of GPUs",
                "watt",
                ("{{instance}} {{gpu}}", GPU_POWER),
                is_optional=True,
            ),
            panel(
                "Cost of a million tokens, by `[running_costs]`",
                "short",
                ("of answers", cost_per_million("completion")),
                ("of prompts and answers", cost_per_million("prompt|completion")),
                is_optional=True,
            ),
        ),
    ),
    Row(
        "Where weights are",
        (
            panel(
                "Models by tier",
                "short",
                ("{{tier}}", "sum by (tier) (hearth_node_model_tier)"),
                is_optional=True,
            ),
            panel(
                "Models that are read, how far that is",
                "percentunit",
                ("{{instance}} {{model}}", "hearth_node_model_loaded_ratio > 0"),
                is_optional=True,
            ),
            panel(
                "Wakes",
                "short",
                ("{{model}}", "sum by (model) (increase(hearth_node_wakes_total[10m]))"),
                is_optional=True,
            ),
            panel(
                "What the last wake took",
                "s",
                ("{{instance}} {{model}}", "hearth_node_last_wake_seconds"),
                is_optional=True,
            ),
            panel(
                "Memory of models", "bytes", ("{{instance}} {{kind}}", "hearth_node_memory_bytes")
            ),
        ),
    ),
)
