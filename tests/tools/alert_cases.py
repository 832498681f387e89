"""Of every alert, samples upon which it fires and the nearest upon which it does not.

Series are in promtool's notation: `first+step x count`, one sample a minute.
Read next: `test_alerts`, `tools.observability.alerts`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

MINUTES = 60


@dataclass(frozen=True)
class AlertCase:
    """Two lots of samples for one rule."""

    fires: Mapping[str, str]
    quiet: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the alert that fires, besides its severity."""


def stays(value: float) -> str:
    """A gauge that does not move."""
    return f"{value}+0x{MINUTES}"


def grows(step: float) -> str:
    """A counter that grows by so much a minute."""
    return f"0+{step}x{MINUTES}"


def histogram(name: str, labels: str, counts: Mapping[str, float]) -> dict[str, str]:
    """What so many observations a minute add to each bucket."""
    return {f'{name}_bucket{{{labels},le="{le}"}}': grows(count) for le, count in counts.items()}


LINK = "hearth_gateway_link_up"
READY = "hearth_node_model_ready"
REQUESTS = "hearth_gateway_requests_total"
REFUSED = "hearth_gateway_heartbeats_refused_total"
OF_A_MODEL = {"instance": "node-weur:8791", "model": "m"}
AT = 'instance="node-weur:8791",model="m"'
TEXTS = ("hearth_gateway_first_text_seconds", 'model="m"')
STEPS = ("hearth_gateway_step_seconds", 'step="admission"')

CASES: Mapping[str, AlertCase] = {
    "HearthGatewayDown": AlertCase(
        fires={'up{job="hearth-gateway",instance="gateway:8789"}': stays(0)},
        quiet={
            'up{job="hearth-gateway",instance="gateway:8789"}': stays(1),
            'up{job="hearth-node",instance="node-weur:8791"}': stays(0),
        },
        labels={"job": "hearth-gateway", "instance": "gateway:8789"},
    ),
    "HearthNothingReady": AlertCase(
        fires={f'{READY}{{instance="a",model="m"}}': stays(0)},
        quiet={
            f'{READY}{{instance="a",model="m"}}': stays(0),
            f'{READY}{{instance="b",model="m"}}': stays(1),
        },
    ),
    "HearthNodeLost": AlertCase(
        fires={
            f'{LINK}{{instance="a",node="node-weur"}}': stays(1),
            f'{LINK}{{instance="b",node="node-weur"}}': stays(0),
            f'{LINK}{{instance="b",node="node-enam"}}': stays(1),
        },
        quiet={
            f'{LINK}{{instance="a",node="node-weur"}}': stays(1),
            f'{LINK}{{instance="b",node="node-weur"}}': stays(1),
        },
        labels={"node": "node-weur"},
    ),
    "HearthNodeTroubled": AlertCase(
        fires={'hearth_gateway_node_troubled{node="node-weur"}': stays(1)},
        quiet={'hearth_gateway_node_troubled{node="node-weur"}': stays(0)},
        labels={"node": "node-weur"},
    ),
    "HearthGatewayClockBehind": AlertCase(
        fires={
            'hearth_gateway_clock_doubted{instance="a"}': stays(0),
            'hearth_gateway_clock_doubted{instance="b"}': stays(1),
        },
        quiet={'hearth_gateway_clock_doubted{instance="b"}': stays(0)},
        labels={"instance": "b"},
    ),
    "HearthCoreHung": AlertCase(
        fires={f"hearth_node_hung_cores_total{{{AT}}}": grows(0.1)},
        quiet={f"hearth_node_hung_cores_total{{{AT}}}": grows(0.04)},
        labels=OF_A_MODEL,
    ),
    "HearthReportsStale": AlertCase(
        fires={'hearth_gateway_report_age_seconds{node="node-weur"}': stays(6)},
        quiet={'hearth_gateway_report_age_seconds{node="node-weur"}': stays(4)},
        labels={"node": "node-weur"},
    ),
    "HearthMembershipDegraded": AlertCase(
        fires={
            'hearth_gateway_membership_degraded{instance="a"}': stays(0),
            'hearth_gateway_membership_degraded{instance="b"}': stays(1),
        },
        quiet={'hearth_gateway_membership_degraded{instance="a"}': stays(0)},
    ),
    "HearthLimitsDegraded": AlertCase(
        fires={
            'hearth_gateway_limits_degraded{instance="a"}': stays(0),
            'hearth_gateway_limits_degraded{instance="b"}': stays(1),
        },
        quiet={'hearth_gateway_limits_degraded{instance="a"}': stays(0)},
        labels={"instance": "b"},
    ),
    "HearthStandbySilent": AlertCase(
        fires={
            'hearth_gateway_standby_silent_seconds{instance="a"}': stays(61),
            'hearth_gateway_standby_silent_seconds{instance="b"}': stays(61),
        },
        quiet={
            'hearth_gateway_standby_silent_seconds{instance="a"}': stays(600),
            'hearth_gateway_standby_silent_seconds{instance="b"}': stays(2),
            'hearth_gateway_standby_silent_seconds{instance="c"}': stays(0),
        },
    ),
    "HearthHeartbeatsRefused": AlertCase(
        fires={f'{REFUSED}{{reason="clock"}}': grows(1), f'{REFUSED}{{reason="key"}}': stays(7)},
        quiet={f'{REFUSED}{{reason="clock"}}': stays(7)},
        labels={"reason": "clock"},
    ),
    "HearthFailing": AlertCase(
        fires={f'{REQUESTS}{{status="200"}}': grows(97), f'{REQUESTS}{{status="503"}}': grows(3)},
        quiet={
            f'{REQUESTS}{{status="200"}}': grows(49),
            f'{REQUESTS}{{status="429"}}': grows(50),
            f'{REQUESTS}{{status="503"}}': grows(1),
        },
    ),
    "HearthFirstTextSlow": AlertCase(
        fires=histogram(*TEXTS, {"5": 90, "10": 100, "+Inf": 100}),
        quiet=histogram(*TEXTS, {"5": 96, "10": 100, "+Inf": 100}),
        labels={"model": "m"},
    ),
    "HearthAdmissionSlow": AlertCase(
        fires=histogram(*STEPS, {"0.05": 90, "0.1": 100, "+Inf": 100}),
        quiet={
            **histogram(*STEPS, {"0.05": 96, "0.1": 100, "+Inf": 100}),
            **histogram(STEPS[0], 'step="hand_over"', {"0.05": 0, "0.1": 100, "+Inf": 100}),
        },
    ),
    "HearthLedgerBehind": AlertCase(
        fires={'hearth_gateway_ledger_lag_seconds{instance="gateway:8789"}': stays(61)},
        quiet={'hearth_gateway_ledger_lag_seconds{instance="gateway:8789"}': stays(59)},
        labels={"instance": "gateway:8789"},
    ),
    "HearthKvMemoryFull": AlertCase(
        fires={
            f"hearth_node_kv_blocks{{{AT}}}": stays(100),
            f"hearth_node_kv_free_blocks{{{AT}}}": stays(4),
        },
        quiet={
            f"hearth_node_kv_blocks{{{AT}}}": stays(100),
            f"hearth_node_kv_free_blocks{{{AT}}}": stays(6),
            'hearth_node_kv_blocks{instance="node-weur:8791",model="encoder"}': stays(0),
            'hearth_node_kv_free_blocks{instance="node-weur:8791",model="encoder"}': stays(0),
        },
        labels=OF_A_MODEL,
    ),
    "HearthKvTierOff": AlertCase(
        fires={f'hearth_node_kv_tier_off{{{AT},tier="file"}}': stays(1)},
        quiet={f'hearth_node_kv_tier_off{{{AT},tier="file"}}': stays(0)},
        labels={**OF_A_MODEL, "tier": "file"},
    ),
    "HearthQueueLong": AlertCase(
        fires={f"hearth_node_requests_waiting{{{AT}}}": stays(65)},
        quiet={f"hearth_node_requests_waiting{{{AT}}}": stays(64)},
        labels=OF_A_MODEL,
    ),
}
"""By the alert's name."""
