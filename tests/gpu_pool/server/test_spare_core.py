"""A process that is ready before it is needed: taken once, replaced, and outliving nobody."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpu_pool.server import spare_core
from gpu_pool.server.spare_core import SpareCore
from tests.fixtures.mooncake_master import freeze
from tests.fixtures.node_process import ROOT, is_alive, wait_until

COMMAND = (sys.executable, "-c", "import sys; print('served', sys.stdin.readline())")
HOLD = """
import subprocess, sys, time
core = [sys.executable, "-m", "tests.fixtures.double_core", "-"]
print(subprocess.Popen(core, stdin=subprocess.PIPE).pid, flush=True)
time.sleep(600)
"""
PATH = Path("/tmp/settings of a core.json")


@asynccontextmanager
async def keep_spare(command: tuple[str, ...] = COMMAND) -> AsyncIterator[SpareCore]:
    spare = SpareCore(command, delay_s=0.0)
    try:
        yield spare
    finally:
        await spare.close()


async def test_a_spare_is_taken_once_and_told_what_to_serve() -> None:
    told = (sys.executable, "-c", f"import sys; sys.exit(sys.stdin.readline() != '{PATH}\\n')")
    async with keep_spare(told) as spare:
        assert await spare.take(os.environ, PATH) is None  # none yet
        spare.replace_soon(os.environ)
        await wait_until(lambda: spare.process_id is not None)
        pid = spare.process_id
        process = await spare.take(os.environ, PATH)
        assert process is not None
        assert process.pid == pid
        assert await process.wait() == 0
        assert spare.process_id is None


async def test_a_spare_of_another_environment_or_a_dead_one_is_not_taken() -> None:
    async with keep_spare() as spare:
        spare.replace_soon(os.environ)
        await wait_until(lambda: spare.process_id is not None)
        other = spare.process_id
        assert await spare.take({**os.environ, "MKL_CBWR": "AUTO"}, PATH) is None
        assert other is not None
        assert not is_alive(other)
        spare.replace_soon(os.environ)
        await wait_until(lambda: spare.process_id is not None)
        killed = spare.process_id
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        await wait_until(lambda: not is_alive(killed))
        await asyncio.sleep(0.05)
        assert await spare.take(os.environ, PATH) is None


async def test_a_process_that_cannot_be_begun_is_no_spare_and_no_end_of_the_node() -> None:
    absent = ("/nowhere/python", "-m", "core")
    with pytest.raises(FileNotFoundError):  # the control: the system does say no
        await asyncio.create_subprocess_exec(*absent)
    async with keep_spare(absent) as spare:
        await spare.begin(os.environ)
        assert spare.process_id is None
        assert await spare.take(os.environ, PATH) is None


async def test_no_spare_outlives_its_keeper() -> None:
    async with keep_spare() as spare:
        spare.replace_soon(os.environ)
        await wait_until(lambda: spare.process_id is not None)
        pid = spare.process_id
    assert pid is not None
    assert not is_alive(pid)


async def test_a_real_spare_core_ends_when_the_node_is_killed() -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert holder.stdout is not None
    pid = int(await holder.stdout.readline())
    assert is_alive(pid)
    holder.kill()
    await holder.wait()
    await wait_until(lambda: not is_alive(pid), 60)


async def test_a_spare_that_a_signal_does_not_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spare_core, "_KILLED_S", 0.1)
    kill = asyncio.subprocess.Process.kill
    monkeypatch.setattr(asyncio.subprocess.Process, "kill", lambda _: None)
    spare = SpareCore(COMMAND)
    await spare.begin(os.environ)
    process_id = spare.process_id
    assert process_id is not None
    freeze(process_id)  # or it would end by itself
    await asyncio.wait_for(spare.close(), 10)
    assert is_alive(process_id), "the control"
    os.kill(process_id, signal.SIGKILL)
    monkeypatch.setattr(asyncio.subprocess.Process, "kill", kill)
    await wait_until(lambda: not Path(f"/proc/{process_id}").exists())
    await asyncio.sleep(0.05)  # what a thread has seen the loop is told
