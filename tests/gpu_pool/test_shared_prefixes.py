"""A node, as operators start it, with a Mooncake Store: its core's agent lives and ends with it."""

from pathlib import Path

import pytest

from tests.fixtures.free_port import find_port
from tests.fixtures.gateway_client import GatewayClient, ask
from tests.fixtures.mooncake_master import run_master
from tests.fixtures.node_process import (
    MODEL,
    fetch_status,
    kill_hard,
    list_children,
    run_node_process,
    wait_until,
)
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gpu_pool.test_kept_prefixes import read_metric, read_text

pytestmark = pytest.mark.slow

OFF = "hearth_node_kv_tier_off"


def is_running(process_id: int) -> bool:
    """False when it is gone, whether or not anybody has taken note of that."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_core_that_is_killed_takes_its_agent_along_and_the_next_has_another(
    tmp_path: Path,
) -> None:
    """Metrics tell at once, also while nobody asks anything, whether the store is there."""
    checkpoint, port = write_random_checkpoint(tmp_path / "model"), find_port()
    request = ask(MODEL, "The lark sings at dawn. " * 40, max_tokens=8, temperature=0.0)
    with run_master(tmp_path) as master:
        settings = f"""
[engine.tiers.store]
master = "{master.address}"
max_bytes = 1000000000
segment_bytes = 67108864
[metrics]
port = {port}
"""
        with run_node_process(tmp_path, checkpoint, more_settings=settings) as (node, address):
            await wait_until(lambda: read_metric(port, OFF) == 0, 60)
            async with GatewayClient(address) as client:
                expected = read_text(await client.generate(request))
                await wait_until(lambda: len(master.list_names()) > 5, 60)
            (core_pid,) = list_children(node.pid)
            (agent_pid,) = list_children(core_pid)
            kill_hard(core_pid)
            await wait_until(lambda: not is_running(agent_pid), 60)
            for status in (503, 200):
                await wait_until(
                    lambda status=status: fetch_status(address.url + "/health/ready") == status, 60
                )
            await wait_until(lambda: read_metric(port, OFF) == 0, 60)
            async with GatewayClient(address) as client:
                assert read_text(await client.generate(request)) == expected
            master.kill()
            await wait_until(lambda: read_metric(port, OFF) == 1, 60)
            async with GatewayClient(address) as client:
                assert read_text(await client.generate(request)) == expected
