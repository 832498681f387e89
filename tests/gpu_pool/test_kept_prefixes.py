"""A node that keeps prefixes in files: killed at any moment, its next core finds what is whole."""

import re
from pathlib import Path

import httpx
import pytest

from contracts.inference import Delta, Finished, GenerationEvent
from gpu_pool.kv.tiers.file_tier import name_model_folder
from tests.fixtures.free_port import find_port
from tests.fixtures.gateway_client import GatewayClient, ask
from tests.fixtures.node_process import (
    MODEL,
    kill_hard,
    list_children,
    run_node_process,
    wait_until,
)
from tests.fixtures.random_checkpoint import write_random_checkpoint

pytestmark = pytest.mark.slow

SECRET = "The canary sings at noon. "


def read_metric(port: int, name: str) -> float:
    """The sum over all labels; -1 where there is no such metric."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    values = re.findall(rf"^{name}\{{.*?\}} (\S+)$", text, re.MULTILINE)
    return sum(map(float, values)) if values else -1.0


def read_text(events: list[GenerationEvent]) -> str:
    """The answer."""
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, Delta))


async def test_a_core_that_was_killed_finds_its_files_again(tmp_path: Path) -> None:
    checkpoint = write_random_checkpoint(tmp_path / "model")
    files, port = tmp_path / "kv", find_port()
    gone = files / name_model_folder("a model that is gone")
    gone.mkdir(parents=True)
    (gone / "lock").touch()
    settings = f"""
[engine.tiers.host]
max_bytes = 1000000000
[engine.tiers.file]
path = "{files}"
max_bytes = 1000000000
[metrics]
port = {port}
"""
    request = ask(MODEL, SECRET * 40, max_tokens=8, ignore_eos=True, temperature=0.0)
    with run_node_process(tmp_path, checkpoint, more_settings=settings) as (process, address):
        assert not gone.exists()
        (core_pid,) = list_children(process.pid)
        async with GatewayClient(address) as client:
            expected = read_text(await client.generate(request))
            await wait_until(lambda: read_metric(port, "hearth_node_kv_tier_kept_total") > 20, 60)
            kill_hard(core_pid)
            await wait_until(lambda: set(list_children(process.pid)) - {core_pid} != set(), 60)
            assert read_text(await client.generate(request)) == expected
            kept = [path for path in files.rglob("*.kv") if path.is_file()]
            assert len(kept) > 10
            await wait_until(lambda: read_metric(port, "hearth_node_kv_tier_bytes") > 0, 60)
    assert list(files.rglob("*.part")) == []
    for path in kept:
        assert SECRET.encode() not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0
