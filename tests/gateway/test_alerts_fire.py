"""A real Prometheus watches a gateway by the rules of `deploy/`: a lost node makes one fire.

What each rule waits for is shortened; everything else is the file that a fleet has.
"""

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from tests.fixtures.prometheus_server import RunningPrometheus, needs_prometheus, run_prometheus
from tests.gateway.running_gateway import run_gateway, wait_until_async
from tests.gateway.scripted_node import ScriptedNode
from tools.observability.generate import RULES

pytestmark = pytest.mark.slow
LOST = "HearthNodeLost"


def write_rules(folder: Path) -> Path:
    """The rules as they are, but quick."""
    content = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for rule in content["groups"][0]["rules"]:
        rule["for"] = "2s"
    file = folder / "alerts.yml"
    file.write_text(json.dumps(content))
    return file


@needs_prometheus
async def test_a_lost_node_makes_its_alert_pend_and_fire_and_its_return_ends_it(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    sections = {"metrics": {"port": 0}}
    async with run_gateway(tmp_path, database_template, [node], **sections) as gateway:
        assert gateway.gateway.metrics_port is not None
        target = f"127.0.0.1:{gateway.gateway.metrics_port}"
        settings = {
            "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
            "rule_files": [str(write_rules(tmp_path))],
            "scrape_configs": [
                {"job_name": "hearth-gateway", "static_configs": [{"targets": [target]}]}
            ],
        }
        with run_prometheus(tmp_path, settings) as prometheus:
            await wait_for_link(prometheus, "1")
            assert set((await read_states(prometheus)).values()) == {"inactive"}  # the control
            await node.stop()
            seen: set[str] = set()

            async def is_firing() -> bool:
                seen.add((await read_states(prometheus))[LOST])
                return "firing" in seen

            await wait_until_async(is_firing, 60)
            assert seen >= {"pending", "firing"}
            alerts = (await asyncio.to_thread(prometheus.fetch, "alerts"))["alerts"]
            (lost,) = [alert for alert in alerts if alert["labels"]["alertname"] == LOST]
            assert lost["labels"]["node"] == node.node_id
            assert node.node_id in lost["annotations"]["summary"]
            await node.start()
            await wait_for_link(prometheus, "1")

            async def is_over() -> bool:
                return (await read_states(prometheus))[LOST] == "inactive"

            await wait_until_async(is_over, 60)


async def read_states(prometheus: RunningPrometheus) -> dict[str, str]:
    """Every rule's state; the gateway, of this event loop, is scraped meanwhile."""
    return await asyncio.to_thread(prometheus.list_states)


async def wait_for_link(prometheus: RunningPrometheus, value: str) -> None:
    """Returns once Prometheus has seen the link so."""

    async def is_so() -> bool:
        query = {"query": "hearth_gateway_link_up"}
        data = await asyncio.to_thread(prometheus.fetch, "query", **query)
        return [sample["value"][1] for sample in data["result"]] == [value]

    await wait_until_async(is_so, 60)
