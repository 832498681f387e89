"""What a million tokens cost, computed by Prometheus itself from samples of two nodes."""

import subprocess
from pathlib import Path
from typing import Any

from tests.fixtures.prometheus_server import needs_promtool, try_rules
from tools.observability.costs import cost_per_million

PRICES = {
    'hearth_node_price_per_hour{instance="a"}': "3.6+0x60",
    'hearth_node_price_per_kilowatt_hour{instance="a"}': "0.36+0x60",
    'hearth_node_price_per_hour{instance="b"}': "1.8+0x60",
    'hearth_node_price_per_kilowatt_hour{instance="b"}': "0.36+0x60",
}
"""0.0015 a second for both."""
POWER = {
    'hearth_node_gpu_power_watts{instance="a",gpu="0",uuid="GPU-1"}': "1000+0x60",
    'hearth_node_gpu_power_watts{instance="b",gpu="0",uuid="GPU-1"}': "1000+0x60",
}
"""One GPU that both nodes see: 0.0001 a second."""
TOKENS = {
    'hearth_node_tokens_total{instance="a",kind="completion"}': "0+6000x60",
    'hearth_node_tokens_total{instance="b",kind="completion"}': "0+6000x60",
    'hearth_node_tokens_total{instance="b",kind="prompt"}': "0+12000x60",
    'hearth_node_tokens_total{instance="b",kind="cached"}': "0+9000x60",
    'hearth_node_tokens_total{instance="c",kind="completion"}': "0+6000x60",
}
"""A minute's; `c` has no price."""
CASES: list[tuple[dict[str, str], str, float | None]] = [
    (PRICES | POWER | TOKENS, "completion", 8.0),
    (PRICES | POWER | TOKENS, "prompt|completion", 4.0),
    (PRICES | TOKENS, "completion", 7.5),
    (POWER | TOKENS, "completion", None),
    (PRICES | POWER, "completion", None),
]


@needs_promtool
def test_prometheus_computes_what_a_million_tokens_cost(tmp_path: Path) -> None:
    done = check(tmp_path, CASES)
    assert done.returncode == 0, done.stdout + done.stderr
    series, kinds, cost = CASES[0]
    assert cost is not None
    wrong = check(tmp_path, [(series, kinds, cost + 0.1)])
    assert wrong.returncode != 0  # the control


def check(
    folder: Path, cases: list[tuple[dict[str, str], str, float | None]]
) -> subprocess.CompletedProcess[str]:
    """What promtool says of the cases."""
    return try_rules(folder, {"tests": [create_case(*case) for case in cases]})


def create_case(series: dict[str, str], kinds: str, cost: float | None) -> dict[str, Any]:
    """One evaluation after forty minutes, one sample a minute."""
    expected = [] if cost is None else [{"labels": "{}", "value": cost}]
    query = {"expr": cost_per_million(kinds), "eval_time": "40m", "exp_samples": expected}
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [query],
    }
