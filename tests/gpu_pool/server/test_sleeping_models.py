"""Requests meet models that sleep: real core processes over a memory that holds one of three."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from contracts.errors import ModelCold, PoolSaturated
from contracts.ids import ModelName
from contracts.inference import Accepted, Failed, Finished, GenerationEvent
from contracts.placement import PlacementPlan, PlacementTarget, ServiceClass, Tier
from contracts.wire import Place, encode_frame
from gpu_pool.server.node_status import Readiness
from tests.fixtures.crowded_node import NAMES, A, B, C, find, run_crowded
from tests.fixtures.double_node import DoubleNode
from tests.fixtures.gateway_client import GatewayClient, ask, failure_code
from tests.fixtures.node_process import is_alive, wait_until

LONG = {"max_tokens": 3000, "ignore_eos": True}


async def generate(
    client: GatewayClient, name: ModelName, **sampling: object
) -> list[GenerationEvent]:
    return await client.generate(ask(name, **sampling), model=name)


async def test_more_models_are_served_than_fit(tmp_path: Path, checkpoint: Path) -> None:
    async with run_crowded(tmp_path, checkpoint) as node, GatewayClient(node.address) as client:
        assert [find(node, name).tier for name in NAMES] == [Tier.GPU, Tier.DISK, Tier.DISK]
        for name in (A, B, C, A, C, B):
            assert isinstance((await generate(client, name))[-1], Finished)
            assert find(node, name).tier is Tier.GPU
            memory = node.server.parts.status.create_report().memory
            assert memory.device_used_bytes <= memory.device_budget_bytes
            assert memory.host_used_bytes <= memory.host_budget_bytes
        assert node.is_ready  # whoever watches the node does not see it come and go
        states = {state.name: state.state for state in node.server.parts.status.list_states()}
        assert states == {A: Readiness.STANDBY, B: Readiness.READY, C: Readiness.STANDBY}


async def test_a_sleeper_keeps_its_process_and_what_was_on_disk_gets_a_new_one(
    tmp_path: Path, checkpoint: Path
) -> None:
    async with (
        run_crowded(tmp_path, checkpoint, num_asleep=1) as node,
        GatewayClient(node.address) as client,
    ):
        pids = [node.core_pid]
        for name in (B, A):
            await generate(client, name)
        assert node.core_pid == pids[0]  # it slept
        await generate(client, C)
        assert find(node, B).tier is Tier.DISK  # one sleeps where one has room
        await generate(client, B)
        assert find(node, A).tier is Tier.DISK
        assert not is_alive(pids[0])


async def test_how_far_a_load_is_can_be_read(tmp_path: Path, checkpoint: Path) -> None:
    options = ("--load-s", "1.5", "--tells-load")
    async with (
        run_crowded(tmp_path, checkpoint, *options) as node,
        GatewayClient(node.address) as client,
    ):
        stream = await client.open(ask(B), model=B)
        await wait_until(lambda: 0 < find(node, B).loaded_ratio < 1, 20)
        assert find(node, B).is_moving
        assert isinstance((await stream.read_all())[-1], Finished)
        assert find(node, B).loaded_ratio == 0


async def test_many_who_wait_are_served_by_one_wake(tmp_path: Path, checkpoint: Path) -> None:
    async with run_crowded(tmp_path, checkpoint) as node, GatewayClient(node.address) as client:
        streams = [await client.open(ask(B, f"Hello {n}"), model=B) for n in range(12)]
        for stream in streams:
            assert isinstance((await stream.read_all())[-1], Finished)
        assert find(node, B).num_wakes == 1


async def test_a_stream_under_way_is_finished_before_its_model_goes(
    tmp_path: Path, checkpoint: Path
) -> None:
    async with (
        run_crowded(tmp_path, checkpoint, "--step-s", "0.001", turn_s=0.1) as node,
        GatewayClient(node.address) as client,
    ):
        long = await client.open(ask(A, max_tokens=600, ignore_eos=True), model=A)
        assert isinstance(await long.next(), Accepted)
        other = await client.open(ask(B), model=B)
        await wait_until(lambda: find(node, B).num_waiting == 1)
        last = (await long.read_all())[-1]
        assert isinstance(last, Finished)
        assert last.usage.num_completion_tokens == 600  # nothing of it was lost
        assert isinstance((await other.read_all())[-1], Finished)


async def test_who_does_not_want_to_wait_is_told_at_once_for_how_long_it_would_be(
    tmp_path: Path, checkpoint: Path
) -> None:
    async with run_crowded(tmp_path, checkpoint) as node, GatewayClient(node.address) as client:
        impatient = msgspec.structs.replace(ask(B), reject_if_busy=True)
        (event,) = await client.generate(impatient, model=B)
        assert isinstance(event, Failed)
        assert event.error.code == ModelCold.code
        assert event.error.retry_after_s == pytest.approx(find(node, B).wake_s, abs=0.01)
        assert event.error.retry_after_s
        assert find(node, B).num_wakes == 0  # and nobody was woken for it


async def test_while_a_model_is_loaded_the_time_that_is_told_is_not_over(
    tmp_path: Path, checkpoint: Path
) -> None:
    async with (
        run_crowded(tmp_path, checkpoint, "--load-s", "0.5") as node,
        GatewayClient(node.address) as client,
    ):
        waiting = await client.open(ask(B), model=B)
        await wait_until(lambda: find(node, B).is_moving and find(node, B).tier is Tier.GPU)
        assert find(node, B).wake_s > 1
        impatient = msgspec.structs.replace(ask(B), reject_if_busy=True)
        (event,) = await client.generate(impatient, model=B)
        assert isinstance(event, Failed)
        assert event.error.retry_after_s == pytest.approx(find(node, B).wake_s, abs=0.01)
        assert isinstance((await waiting.read_all())[-1], Finished)
        assert find(node, B).wake_s == 0


async def test_a_model_that_wakes_counts_in_the_hosts_memory_until_it_is_awake(
    tmp_path: Path, checkpoint: Path
) -> None:
    async with (
        run_crowded(tmp_path, checkpoint, "--move-s", "0.3") as node,
        GatewayClient(node.address) as client,
    ):
        await generate(client, B)
        waiting = await client.open(ask(A), model=A)
        await wait_until(lambda: find(node, B).tier is Tier.HOST and find(node, A).is_moving)
        assert find(node, A).tier is Tier.GPU  # there is room for it, and it comes
        both = find(node, A).weights_bytes + find(node, B).weights_bytes
        assert node.server.parts.status.create_report().memory.host_used_bytes == both
        assert isinstance((await waiting.read_all())[-1], Finished)
        assert node.server.parts.status.create_report().memory.host_used_bytes == both / 2


async def test_those_who_wait_are_bounded(tmp_path: Path, checkpoint: Path) -> None:
    async with (
        run_crowded(
            tmp_path, checkpoint, "--step-s", "0.01", turn_s=60, max_cold_waiting=2
        ) as node,
        GatewayClient(node.address) as client,
    ):
        await client.open(ask(A, **LONG), model=A)
        waiting = [await client.open(ask(B), model=B) for _ in range(2)]
        await wait_until(lambda: find(node, B).num_waiting == 2)
        assert failure_code(await generate(client, B)) == PoolSaturated.code
        for stream in waiting:  # the control: these still wait
            with pytest.raises(TimeoutError):
                await stream.next(0.05)


async def test_a_wait_ends_with_the_nodes_patience(tmp_path: Path, checkpoint: Path) -> None:
    async with (
        run_crowded(
            tmp_path, checkpoint, "--step-s", "0.01", turn_s=60, max_cold_wait_s=0.2
        ) as node,
        GatewayClient(node.address) as client,
    ):
        busy = await client.open(ask(A, **LONG), model=A)
        assert failure_code(await generate(client, B)) == ModelCold.code
        assert isinstance(await busy.next(), Accepted)
        await wait_until(lambda: find(node, B).num_waiting == 0)


@pytest.mark.parametrize("during", ["load", "sleep", "wake"])
async def test_a_core_killed_while_it_moves_loses_no_request(
    tmp_path: Path, checkpoint: Path, during: str
) -> None:
    options = ("--move-s", "0.5") if during != "load" else ("--load-s", "0.5")
    async with (
        run_crowded(tmp_path, checkpoint, *options) as node,
        GatewayClient(node.address) as client,
    ):
        moving = A
        if during == "wake":
            await generate(client, B)
            waiting = await client.open(ask(A), model=A)
            await wait_until(lambda: find(node, A).is_moving and find(node, B).tier is Tier.HOST)
        else:
            waiting = await client.open(ask(B), model=B)
            moving = B if during == "load" else A
            await wait_until(lambda: find(node, moving).is_moving and find_pid(node, moving))
        os.kill(find_pid(node, moving), signal.SIGKILL)
        assert isinstance((await waiting.read_all())[-1], Finished)
        for name in NAMES:  # and the others are as they were
            assert isinstance((await generate(client, name))[-1], Finished)


def find_pid(node: DoubleNode, name: ModelName) -> int:
    """The process of a model's core, 0 while there is none."""
    model = next(m for m in node.server.parts.models if m.core.name == name)
    return model.core.supervisor.process_id or 0


async def test_what_is_always_hot_stays_and_another_is_told_so(
    tmp_path: Path, checkpoint: Path
) -> None:
    classes = (ServiceClass.BEST_EFFORT, ServiceClass.ALWAYS_HOT, ServiceClass.BEST_EFFORT)
    async with (
        run_crowded(tmp_path, checkpoint, classes=classes) as node,
        GatewayClient(node.address) as client,
    ):
        assert find(node, B).tier is Tier.GPU
        assert failure_code(await generate(client, A)) == ModelCold.code
        assert isinstance((await generate(client, B))[-1], Finished)


async def test_two_busy_models_take_turns(tmp_path: Path, checkpoint: Path) -> None:
    async with (
        run_crowded(tmp_path, checkpoint, "--step-s", "0.002", turn_s=0.1) as node,
        GatewayClient(node.address) as client,
    ):

        async def ask_on_and_on(name: ModelName) -> None:
            for _ in range(5):
                events = await generate(client, name, max_tokens=20, ignore_eos=True)
                assert isinstance(events[-1], Finished)

        await asyncio.gather(*(ask_on_and_on(name) for name in (A, B) for _ in range(3)))
        assert 1 <= find(node, B).num_wakes <= 7  # not a wake for each of 15 requests


def create_plan(node: DoubleNode, number: int, **changes: object) -> Place:
    """A plan that wants `B` on the device and `A` asleep."""
    plan = PlacementPlan(
        node_id=node.settings.node_id,
        boot_id=node.server.parts.status.boot_id,
        number=number,
        targets=(
            PlacementTarget(name=A, tier=Tier.HOST),
            PlacementTarget(name=B, tier=Tier.GPU, is_pinned=True),
        ),
    )
    return Place(msgspec.structs.replace(plan, **changes))


async def test_a_plan_moves_models_and_one_for_an_earlier_life_does_not(
    tmp_path: Path, checkpoint: Path
) -> None:
    async with run_crowded(tmp_path, checkpoint) as node, GatewayClient(node.address) as client:
        stale = create_plan(node, 1, boot_id="0" * 32)
        await client.send_frame(encode_frame([(0, 0, stale)]))
        assert isinstance((await generate(client, A))[-1], Finished)
        assert find(node, B).tier is Tier.DISK
        await client.send_frame(encode_frame([(0, 0, create_plan(node, 2))]))
        await wait_until(lambda: find(node, B).tier is Tier.GPU)
        assert (find(node, A).tier, find(node, B).is_pinned) == (Tier.HOST, True)
        assert failure_code(await generate(client, A)) == ModelCold.code
