"""The alerts: what somebody should be woken for, and what to do then.

Expressions are PromQL over the same names as the dashboard's. Each is tried by Prometheus upon
samples that make it fire and others that do not. Read next: `tools.observability.panels`.
"""

from dataclasses import dataclass

from tools.observability.panels import REQUESTS


@dataclass(frozen=True)
class Alert:
    """What should be looked at, and what to do then."""

    name: str
    expression: str
    lasts: str
    severity: str
    """`page` wakes somebody, `ticket` waits until morning."""
    summary: str
    action: str


ALERTS = (
    Alert(
        "HearthGatewayDown",
        'up{job="hearth-gateway"} == 0',
        "1m",
        "page",
        "{{ $labels.instance }} does not answer.",
        "Look at the process and its log; clients of this gateway are refused.",
    ),
    Alert(
        "HearthNothingReady",
        "sum(hearth_node_model_ready) == 0",
        "1m",
        "page",
        "No node can serve any model.",
        "Read /health/ready and the log of each node.",
    ),
    Alert(
        "HearthNodeLost",
        "min by (node) (hearth_gateway_link_up) == 0",
        "2m",
        "page",
        "The gateway has no connection to {{ $labels.node }}.",
        "Look at the node, the network between and both clocks; accounts that are bound to its "
        "region are refused if it was the last there.",
    ),
    Alert(
        "HearthNodeTroubled",
        "max by (node) (hearth_gateway_node_troubled) == 1",
        "5m",
        "ticket",
        "{{ $labels.node }} keeps failing requests.",
        "Read its log for engine cores that ended, and how requests end in its metrics.",
    ),
    Alert(
        "HearthGatewayClockBehind",
        "max by (instance) (max_over_time(hearth_gateway_clock_doubted[5m])) == 1",
        "1m",
        "page",
        "Most nodes take what {{ $labels.instance }} grants for passed: its clock is behind.",
        "Set the machine's clock (NTP); until then it is not ready and its requests fail.",
    ),
    Alert(
        "HearthCoreHung",
        "sum by (instance, model) (increase(hearth_node_hung_cores_total[30m])) > 1.5",
        "1m",
        "ticket",
        "{{ $labels.instance }} has replaced the engine of {{ $labels.model }} more than once: it "
        "got no further.",
        "The node's log says what it was at. A GPU or a drive that hangs, or steps that are "
        "slower than engine.max_silence_s.",
    ),
    Alert(
        "HearthReportsStale",
        "max by (node) (hearth_gateway_report_age_seconds) > 5",
        "1m",
        "ticket",
        "{{ $labels.node }} is connected and says nothing.",
        "It counts as saturated: its event loop is blocked or the machine has no CPU left.",
    ),
    Alert(
        "HearthMembershipDegraded",
        "max(hearth_gateway_membership_degraded) == 1",
        "5m",
        "ticket",
        "A gateway cannot read which nodes there are.",
        "Known nodes go on; no new one is found. Look at the store of `membership.url`.",
    ),
    Alert(
        "HearthLimitsDegraded",
        "max by (instance) (hearth_gateway_limits_degraded) == 1",
        "1m",
        "ticket",
        "{{ $labels.instance }} does not reach the store in which limits are counted.",
        "Limits hold as `shared_limits.…_without_store` says. Look at Valkey and the way to it; "
        "`hearth doctor` asks it.",
    ),
    Alert(
        "HearthStandbySilent",
        "min(hearth_gateway_standby_silent_seconds > 0) > 60",
        "1m",
        "ticket",
        "Hot standby has read no gateway for a minute.",
        "Nodes wake on demand in the order of its last plan; nobody plans ahead. Look at its "
        "process and its log.",
    ),
    Alert(
        "HearthHeartbeatsRefused",
        "sum by (reason) (rate(hearth_gateway_heartbeats_refused_total[5m])) > 0",
        "10m",
        "ticket",
        "What lies in the store of members is not believed ({{ $labels.reason }}).",
        "`hearth doctor` names the node: its key, its clock or its region is wrong, or somebody "
        "else writes there.",
    ),
    Alert(
        "HearthFailing",
        f'sum(rate({REQUESTS}{{status=~"5.."}}[5m])) / sum(rate({REQUESTS}[5m])) > 0.02',
        "5m",
        "page",
        "More than two in a hundred requests fail on our side.",
        "Read the gateway's log by request id; compare with what nodes say of how requests end.",
    ),
    Alert(
        "HearthFirstTextSlow",
        "histogram_quantile(0.95, sum by (le, model) "
        "(rate(hearth_gateway_first_text_seconds_bucket[5m]))) > 5",
        "10m",
        "ticket",
        "One stream in twenty of {{ $labels.model }} waits more than 5 s for its first text.",
        "Look at the queue and the KV memory of its nodes; add a node or lower a limit.",
    ),
    Alert(
        "HearthAdmissionSlow",
        "histogram_quantile(0.95, sum by (le) "
        '(rate(hearth_gateway_step_seconds_bucket{step="admission"}[5m]))) > 0.05',
        "10m",
        "ticket",
        "Limits and budgets take more than 50 ms.",
        "Look at Valkey and the database: both are asked before a request may start.",
    ),
    Alert(
        "HearthLedgerBehind",
        "hearth_gateway_ledger_lag_seconds > 60",
        "1m",
        "page",
        "{{ $labels.instance }} has had usage for a minute that the ledger does not take.",
        "Look at the database. Nothing is lost while journal.folder has room.",
    ),
    Alert(
        "HearthKvMemoryFull",
        "1 - hearth_node_kv_free_blocks / (hearth_node_kv_blocks > 0) > 0.95",
        "10m",
        "ticket",
        "{{ $labels.instance }} has hardly any KV memory left for {{ $labels.model }}.",
        "Sequences are preempted from here on: raise engine.kv_bytes or add a node.",
    ),
    Alert(
        "HearthKvTierOff",
        "hearth_node_kv_tier_off > 0",
        "1m",
        "ticket",
        "{{ $labels.instance }} keeps no more KV of {{ $labels.model }} in files.",
        "The drive refused a write, which the node's log names: make room, restart the model.",
    ),
    Alert(
        "HearthQueueLong",
        "hearth_node_requests_waiting > 64",
        "5m",
        "ticket",
        "{{ $labels.instance }} has a long line for {{ $labels.model }}.",
        "Add a node, or lower the limits of whoever sends it: see usage by account.",
    ),
)
