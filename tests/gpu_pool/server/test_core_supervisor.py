"""Supervision of real processes: back-off, nonsense, and the core that outlives nobody."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import ModelFailed
from contracts.placement import Tier
from gpu_pool.model_settings import EngineSettings
from gpu_pool.server import core_supervisor
from tests.fixtures.double_node import create_core_command
from tests.fixtures.node_process import ROOT, is_alive, wait_until
from tests.fixtures.supervised_core import POLICY, SILENCE_S, supervise


async def test_a_core_is_started_again_and_again(tmp_path: Path) -> None:
    changes: list[None] = []
    async with supervise(
        tmp_path, create_core_command(), lambda: changes.append(None)
    ) as supervisor:
        seen: set[int] = set()
        for _ in range(3):
            await asyncio.wait_for(supervisor.wait_started(), 20)
            assert supervisor.process_id is not None
            seen.add(supervisor.process_id)
            os.kill(supervisor.process_id, signal.SIGKILL)
            await wait_until(lambda: supervisor.client is None)
        await asyncio.wait_for(supervisor.wait_started(), 20)
    assert len(seen) == 3
    assert len(changes) == 9  # wanted; ready and gone, four times
    assert os.listdir(tmp_path) == []


async def test_a_core_that_speaks_nonsense_is_replaced(tmp_path: Path) -> None:
    nonsense = (
        "import json, sys, time, zmq\n"
        "settings = json.load(open(sys.argv[1]))\n"
        "socket = zmq.Context().socket(zmq.PUSH)\n"
        "socket.connect(settings['from_core_endpoint'])\n"
        "socket.send(b'nonsense')\n"
        "time.sleep(60)\n"
    )
    async with supervise(tmp_path, (sys.executable, "-c", nonsense)) as supervisor:
        await wait_until(lambda: supervisor.process_id is not None)
        first = supervisor.process_id
        assert first is not None
        await wait_until(lambda: supervisor.process_id not in (None, first))
        assert not is_alive(first)


async def test_a_core_that_ends_at_once_is_not_started_in_a_hurry(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    command = (sys.executable, "-c", f"open({str(marks)!r}, 'a').write('x')")
    async with supervise(tmp_path, command):
        await wait_until(lambda: marks.exists() and len(marks.read_text()) >= 3, 20)
        before = len(marks.read_text())
        await asyncio.sleep(0.5)
        assert len(marks.read_text()) - before <= 3  # 0.2 s apart by now


async def test_a_core_that_never_comes_up_is_given_up_in_the_end(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit(7)")
    async with supervise(tmp_path, command) as supervisor:
        await wait_until(lambda: supervisor.failure is not None, 20)
        assert "exit code 7" in str(supervisor.failure)
        with pytest.raises(ModelFailed):
            await asyncio.wait_for(supervisor.wait_started(), 10)


async def test_starts_that_fail_leave_nothing_behind(tmp_path: Path) -> None:
    async with supervise(tmp_path, (str(tmp_path / "nothing"),)) as supervisor:
        await wait_until(lambda: supervisor.failure is not None, 20)
        assert "could not be started" in str(supervisor.failure)
        assert os.listdir(tmp_path) == []
    gc.collect()  # pipes that are still open would be an error


async def test_starts_that_are_given_up_half_way_leave_nothing_behind(tmp_path: Path) -> None:
    for num_turns in range(12):
        async with supervise(tmp_path, create_core_command()):
            for _ in range(num_turns):
                await asyncio.sleep(0)
        assert os.listdir(tmp_path) == []
    gc.collect()  # as above


async def test_who_ends_it_as_its_core_ends_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_ending = asyncio.Event()
    cancel = core_supervisor._cancel

    async def cancel_slowly(*tasks: asyncio.Task[Any]) -> None:
        is_ending.set()
        await asyncio.sleep(0.1)
        await cancel(*tasks)

    monkeypatch.setattr(core_supervisor, "_cancel", cancel_slowly)
    async with supervise(tmp_path, create_core_command()) as supervisor:
        await asyncio.wait_for(supervisor.wait_started(), 20)
        assert supervisor.process_id is not None
        os.kill(supervisor.process_id, signal.SIGKILL)
        await asyncio.wait_for(is_ending.wait(), 20)
    assert os.listdir(tmp_path) == []
    gc.collect()  # as above


async def test_a_fault_in_the_files_is_not_tried_again(tmp_path: Path) -> None:
    async with supervise(tmp_path, create_core_command("--fails")) as supervisor:
        await wait_until(lambda: supervisor.failure is not None, 20)
        assert supervisor.failure == "the checkpoint is broken"
        await wait_until(lambda: supervisor.process_id is None)
        await asyncio.sleep(0.3)  # longer than the pause before a next start
        assert supervisor.process_id is None


def test_a_core_whose_parent_is_gone_already_does_not_stay(tmp_path: Path) -> None:
    code = (
        "from gpu_pool.parent_death import end_with_parent\n"
        "import time\n"
        "end_with_parent(1 << 22)\n"
        "time.sleep(60)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=20, check=False)
    assert result.returncode == 1


async def test_a_core_sleeps_wakes_and_goes_in_one_life_each(tmp_path: Path) -> None:
    async with supervise(tmp_path, create_core_command()) as supervisor:
        await asyncio.wait_for(supervisor.move_to(Tier.GPU), 20)
        pid = supervisor.process_id
        await supervisor.move_to(Tier.HOST)
        assert (supervisor.tier, supervisor.client) == (Tier.HOST, None)
        await supervisor.move_to(Tier.GPU)
        assert supervisor.client is not None
        assert supervisor.process_id == pid  # the same process all along
        await supervisor.move_to(Tier.DISK)
        assert supervisor.process_id is None
        assert pid is not None
        assert not is_alive(pid)
        await asyncio.sleep(0.2)  # longer than the pause before a next start
        assert supervisor.process_id is None
        await asyncio.wait_for(supervisor.move_to(Tier.GPU), 20)
        assert supervisor.process_id not in (None, pid)


async def test_a_core_that_dies_asleep_is_on_disk_and_stays_there(tmp_path: Path) -> None:
    async with supervise(tmp_path, create_core_command()) as supervisor:
        await asyncio.wait_for(supervisor.move_to(Tier.GPU), 20)
        await supervisor.move_to(Tier.HOST)
        assert supervisor.process_id is not None
        os.kill(supervisor.process_id, signal.SIGKILL)
        await wait_until(lambda: supervisor.tier is Tier.DISK)
        await asyncio.sleep(0.2)
        assert supervisor.process_id is None
        assert supervisor.place is Tier.DISK


@pytest.mark.parametrize("towards", [Tier.HOST, Tier.GPU])
async def test_a_core_that_never_answers_a_move_is_killed(tmp_path: Path, towards: Tier) -> None:
    engine = EngineSettings(max_silence_s=SILENCE_S)
    async with supervise(tmp_path, create_core_command(), engine=engine) as supervisor:
        await asyncio.wait_for(supervisor.move_to(Tier.GPU), 20)
        if towards is Tier.GPU:
            await supervisor.move_to(Tier.HOST)
        pid = supervisor.process_id
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await asyncio.wait_for(supervisor.move_to(towards), 60)
        assert not is_alive(pid)
        assert supervisor.tier is (Tier.DISK if towards is Tier.HOST else Tier.GPU)


async def test_a_core_killed_while_it_loads_is_not_held_against_the_model(tmp_path: Path) -> None:
    async with supervise(tmp_path, create_core_command("--load-s", "30")) as supervisor:
        for _ in range(POLICY.max_failed_loads + 1):
            await wait_until(lambda: supervisor.process_id is not None)
            await supervisor.move_to(Tier.DISK)
            again = asyncio.create_task(supervisor.move_to(Tier.GPU))
            await asyncio.sleep(0)
        assert supervisor.failure is None
        again.cancel()


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
async def test_a_core_that_is_sent_away_while_it_starts_again_takes_no_memory_later(
    tmp_path: Path, tier: Tier
) -> None:
    async with supervise(tmp_path, create_core_command("--load-s", "1")) as supervisor:
        await asyncio.wait_for(supervisor.move_to(Tier.GPU), 20)
        first = supervisor.process_id
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await wait_until(lambda: supervisor.process_id not in (None, first), 20)
        await asyncio.wait_for(supervisor.move_to(tier), 20)
        assert supervisor.place is Tier.DISK  # its room is another's from now on
        assert supervisor.process_id is None
        again = asyncio.create_task(supervisor.move_to(Tier.GPU))  # the control
        await wait_until(lambda: supervisor.client is not None, 20)
        await again


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
async def test_a_core_that_is_sent_away_before_it_is_started_again_is_not_told_to_be_loading(
    tmp_path: Path, tier: Tier
) -> None:
    policy = replace(POLICY, first_s=0.5)
    async with supervise(tmp_path, create_core_command(), policy=policy) as supervisor:
        await asyncio.wait_for(supervisor.move_to(Tier.GPU), 20)
        assert supervisor.process_id is not None
        os.kill(supervisor.process_id, signal.SIGKILL)
        await wait_until(lambda: supervisor.is_restarting)
        await supervisor.move_to(tier)
        assert not supervisor.is_restarting
        await asyncio.sleep(0.6)  # longer than the pause before the next start
        assert (supervisor.is_restarting, supervisor.process_id) == (False, None)


@pytest.mark.parametrize("is_mended", [True, False])
async def test_a_process_that_cannot_be_started_is_tried_again_and_given_up_in_the_end(
    tmp_path: Path, is_mended: bool
) -> None:
    directory, away = tmp_path / "private", tmp_path / "away"
    directory.mkdir()
    async with supervise(directory, create_core_command()) as supervisor:
        await asyncio.wait_for(supervisor.wait_started(), 20)
        assert supervisor.process_id is not None
        directory.rename(away)  # as whoever tidies up temporary files does
        os.kill(supervisor.process_id, signal.SIGKILL)
        await wait_until(lambda: supervisor.process_id is None)
        if is_mended:
            away.rename(directory)
            await asyncio.wait_for(supervisor.wait_started(), 20)
            return
        await wait_until(lambda: supervisor.failure is not None, 20)
        with pytest.raises(ModelFailed):
            await asyncio.wait_for(supervisor.wait_started(), 10)
