"""Cores that SIGKILL does not end: what they hold stays taken, and nobody waits for their end."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.errors import ModelCold
from contracts.inference import Finished
from contracts.placement import Tier
from gpu_pool.model_settings import EngineSettings
from gpu_pool.server import core_process
from tests.fixtures.crowded_node import A, B, find, run_crowded
from tests.fixtures.double_node import create_core_command
from tests.fixtures.gateway_client import GatewayClient, ask, failure_code
from tests.fixtures.held_process import Holds, holding_processes
from tests.fixtures.node_process import is_alive, wait_until
from tests.fixtures.supervised_core import SILENCE_S, supervise
from tests.gpu_pool.server.test_core_watch import ask as ask_core
from tests.gpu_pool.server.test_core_watch import start
from tests.gpu_pool.server.test_sleeping_models import find_pid, generate

PATIENCE_S = 30.0


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Holds]:
    """Held processes, and little patience with them."""
    monkeypatch.setattr(core_process, "SHUTDOWN_S", 0.2)
    monkeypatch.setattr(core_process, "KILLED_S", 0.2)
    with holding_processes(monkeypatch) as holds:
        yield holds


async def release(holds: Holds, process_id: int) -> None:
    """Returns when the event loop knows, too, that a process has gone."""
    holds.release(process_id)
    await wait_until(lambda: not Path(f"/proc/{process_id}").exists())
    await asyncio.sleep(0.05)  # what a thread has seen the loop is told


async def test_what_a_core_holds_that_does_not_go_is_taken_until_it_has_gone(
    tmp_path: Path, holds: Holds
) -> None:
    async with supervise(tmp_path, create_core_command()) as supervisor:
        pid = await start(supervisor)
        holds.hold(pid)
        await asyncio.wait_for(supervisor.move_to(Tier.DISK), PATIENCE_S)
        assert supervisor.is_stuck
        assert (supervisor.place, supervisor.weights_at) == (Tier.GPU, Tier.GPU)
        assert (supervisor.process_id, supervisor.client) == (pid, None)
        with pytest.raises(ModelCold, match="not gone"):
            await asyncio.wait_for(supervisor.move_to(Tier.GPU), PATIENCE_S)
        assert supervisor.process_id == pid, "no other one was started beside it"
        await asyncio.wait_for(supervisor.move_to(Tier.DISK), PATIENCE_S)
        assert is_alive(pid), "the control"
        holds.release(pid)
        await wait_until(lambda: not supervisor.is_stuck)
        assert (supervisor.place, supervisor.process_id) == (Tier.DISK, None)
        await asyncio.wait_for(supervisor.move_to(Tier.GPU), PATIENCE_S)
        assert supervisor.process_id not in (None, pid)


@pytest.mark.parametrize("was_asleep", [False, True])
async def test_a_core_that_hangs_in_a_move_holds_both_ends_of_it(
    tmp_path: Path, holds: Holds, was_asleep: bool
) -> None:
    engine = EngineSettings(max_silence_s=SILENCE_S)
    async with supervise(tmp_path, create_core_command(), engine=engine) as supervisor:
        pid = await start(supervisor)
        if was_asleep:
            await supervisor.move_to(Tier.HOST)
        holds.hold(pid)
        if was_asleep:
            with pytest.raises(ModelCold, match="not gone"):
                await asyncio.wait_for(supervisor.move_to(Tier.GPU), PATIENCE_S)
        else:
            await asyncio.wait_for(supervisor.move_to(Tier.HOST), PATIENCE_S)
        assert supervisor.is_stuck
        assert (supervisor.place, supervisor.weights_at) == (Tier.GPU, Tier.HOST)
        holds.release(pid)
        await wait_until(lambda: not supervisor.is_stuck)


async def test_a_core_that_is_killed_while_it_loads_holds_the_device_until_it_has_gone(
    tmp_path: Path, holds: Holds
) -> None:
    async with supervise(tmp_path, create_core_command("--load-s", "60")) as supervisor:
        await wait_until(lambda: supervisor.process_id is not None)
        pid = supervisor.process_id
        assert pid is not None
        holds.hold(pid)
        await asyncio.wait_for(supervisor.move_to(Tier.DISK), PATIENCE_S)
        assert (supervisor.is_stuck, supervisor.place) == (True, Tier.GPU)
        holds.release(pid)
        await wait_until(lambda: supervisor.place is Tier.DISK)


async def test_a_silent_core_that_does_not_go_is_not_replaced_beside_itself(
    tmp_path: Path, holds: Holds
) -> None:
    engine = EngineSettings(max_silence_s=SILENCE_S)
    async with supervise(tmp_path, create_core_command(), engine=engine) as supervisor:
        pid = await start(supervisor)
        holds.hold(pid)
        listener = ask_core(supervisor)
        await wait_until(lambda: supervisor.is_stuck, PATIENCE_S)
        assert listener.error is not None
        assert listener.error.code == "stream_broken"
        with pytest.raises(ModelCold, match="not gone"):
            await asyncio.wait_for(supervisor.wait_started(), PATIENCE_S)
        assert supervisor.process_id == pid
        holds.release(pid)
        await wait_until(lambda: supervisor.client is not None, PATIENCE_S)
        assert supervisor.process_id != pid


@pytest.mark.parametrize("is_told", [False, True])
async def test_a_supervisor_ends_without_a_core_that_does_not_go(
    tmp_path: Path, holds: Holds, is_told: bool
) -> None:
    """Whether that has shown before or shows only now."""
    async with asyncio.timeout(PATIENCE_S):
        async with supervise(tmp_path, create_core_command()) as supervisor:
            pid = await start(supervisor)
            holds.hold(pid)
            if is_told:
                await supervisor.move_to(Tier.DISK)
        assert is_alive(pid), "the control"
    await release(holds, pid)


async def test_a_node_refuses_what_a_stuck_core_leaves_no_room_for_and_ends_in_time(
    tmp_path: Path, checkpoint: Path, holds: Holds
) -> None:
    async with asyncio.timeout(2 * PATIENCE_S):
        async with (
            run_crowded(tmp_path, checkpoint, num_asleep=0) as node,
            GatewayClient(node.address) as client,
        ):
            first = find_pid(node, A)
            holds.hold(first)
            assert failure_code(await generate(client, B)) == ModelCold.code
            assert find(node, A).tier is Tier.GPU
            memory = node.server.parts.status.create_report().memory
            assert memory.device_used_bytes == memory.device_budget_bytes
            assert failure_code(await generate(client, A)) == ModelCold.code
            assert find_pid(node, B) == 0, "nobody was started beside it"
            holds.release(first)
            await wait_until(lambda: find(node, A).tier is Tier.DISK)
            for name in (B, A):
                assert isinstance((await generate(client, name))[-1], Finished)
            last = find_pid(node, A)
            holds.hold(last)
            asking = await client.open(ask(B), model=B)
            await wait_until(lambda: find(node, A).is_moving)
            del asking  # the node ends in the middle of it
        assert is_alive(last), "the control"
    await release(holds, last)
