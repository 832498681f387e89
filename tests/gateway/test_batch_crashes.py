"""Items of batches whose engine crashes: a gateway before a real node over the double."""

import os
import signal
from pathlib import Path
from typing import Any

from contracts.pricing import TokenRates
from tests.fixtures.crowded_node import CrowdedAddress
from tests.fixtures.double_node import run_double_node
from tests.fixtures.node_process import MODEL
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.batch_client import hand_in, wait_for_answers
from tests.gateway.running_gateway import run_gateway, wait_until, wait_until_async
from tests.gateway.test_money import list_records

OPTIONS: dict[str, Any] = {"routing": {"max_attempts": 1}, "batches": {"poll_s": 3.0}}
"""A run is lost with its first attempt; the core is back before the next."""
ITEM = {"prompt": "Hello", "max_tokens": 40, "ignore_eos": True}


async def test_an_item_whose_engine_crashed_is_run_again_at_the_same_node(
    tmp_path: Path, database_template: Path
) -> None:
    """Over the same connection and under the same request id, long before its first deadline."""
    checkpoint = write_random_checkpoint(tmp_path / "model")
    async with (
        run_double_node(tmp_path, checkpoint, "--step-s", "0.05") as node,
        run_gateway(tmp_path, database_template, [CrowdedAddress(node)], **OPTIONS) as gateway,
    ):
        await gateway.tenancy.set_price("*", TokenRates(0, 0, 0, 0))

        async def is_priced() -> bool:
            return (await gateway.run({"prompt": "Hello", "max_tokens": 1}, MODEL)).status == 200

        await wait_until_async(is_priced)
        num_before = len(await list_records(gateway))
        status = node.server.parts.status
        handed = await hand_in(gateway, ITEM, model=MODEL)
        await wait_until(lambda: any(load.num_running for load in status.create_report().loads))
        killed = node.core_pid
        os.kill(killed, signal.SIGKILL)
        done = await wait_for_answers(gateway, handed.json["result"]["request_id"], model=MODEL)
        (answer,) = done["responses"]
        assert answer["success"], answer
        assert node.core_pid != killed
        assert len(await list_records(gateway)) == num_before + 1
