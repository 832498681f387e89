"""Real cores that are stopped by a signal, and slow ones that are not: which are replaced."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contracts.errors import ServiceError
from contracts.placement import Tier
from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.engine.messages import CoreLoading, SequenceFinished, TextsEncoded
from gpu_pool.model_settings import EngineSettings, ServedModelSettings
from gpu_pool.model_store import BUNDLED_PATH
from gpu_pool.node import CORE_COMMAND
from gpu_pool.plan import TokenScore
from gpu_pool.server.core_process import CoreProcess
from gpu_pool.server.core_supervisor import CoreSupervisor
from tests.fixtures.double_node import create_core_command
from tests.fixtures.node_process import MODEL, is_alive, wait_until
from tests.fixtures.supervised_core import POLICY, SILENCE_S, supervise
from tests.gpu_pool.engine.engine_rig import create_request

ENGINE = EngineSettings(max_silence_s=SILENCE_S)
UNWATCHED = EngineSettings(max_silence_s=600)


@dataclass
class Listener:
    """What became of a sequence."""

    num_tokens: int = 0
    finished: SequenceFinished | None = None
    error: ServiceError | None = None

    def on_started(self, num_cached_tokens: int) -> None: ...

    def on_prompt_scores(self, scores: Sequence[TokenScore]) -> None: ...

    def on_tokens(self, token_ids: Sequence[int], scores: Sequence[TokenScore]) -> None:
        self.num_tokens += len(token_ids)

    def on_encoded(self, encoded: TextsEncoded) -> None: ...

    def on_finished(self, finished: SequenceFinished) -> None:
        self.finished = finished

    def on_broken(self, error: ServiceError) -> None:
        self.error = error


def ask(supervisor: CoreSupervisor, max_tokens: int = 1000) -> Listener:
    """A sequence at the core."""
    listener = Listener()
    assert supervisor.client is not None
    supervisor.client.add(
        lambda sequence_id: create_request(sequence_id, [1, 2, 3], max_tokens=max_tokens), listener
    )
    return listener


async def start(supervisor: CoreSupervisor) -> int:
    """The process of a core that serves."""
    await asyncio.wait_for(supervisor.wait_started(), 30)
    assert supervisor.process_id is not None
    return supervisor.process_id


async def check_replaced(supervisor: CoreSupervisor, pid: int) -> None:
    """Another core answers; the first one is gone for good."""
    await wait_until(lambda: not is_alive(pid), 30)
    assert await start(supervisor) != pid
    assert supervisor.num_hung > 0
    again = ask(supervisor, max_tokens=2)
    await wait_until(lambda: again.finished is not None, 30)


async def test_a_core_that_freezes_while_it_answers_is_replaced(tmp_path: Path) -> None:
    command = create_core_command("--step-s", "0.02")
    async with supervise(tmp_path, command, engine=ENGINE) as supervisor:
        pid = await start(supervisor)
        listener = ask(supervisor)
        await wait_until(lambda: listener.num_tokens > 3)
        os.kill(pid, signal.SIGSTOP)
        await wait_until(lambda: listener.error is not None, 30)
        assert listener.error is not None
        assert listener.error.code == "stream_broken"
        await check_replaced(supervisor, pid)


async def test_nobody_waits_for_a_hung_process_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill, goes = CoreProcess.kill, asyncio.Event()

    async def kill_later(core: CoreProcess) -> bool:
        """As where the kernel holds a process: a signal cannot make it do so here."""
        await goes.wait()
        return await kill(core)

    monkeypatch.setattr(CoreProcess, "kill", kill_later)
    async with supervise(tmp_path, create_core_command(), engine=ENGINE) as supervisor:
        pid = await start(supervisor)
        os.kill(pid, signal.SIGSTOP)
        listener = ask(supervisor)
        await wait_until(lambda: listener.error is not None, 30)
        assert (supervisor.process_id, supervisor.client) == (pid, None)
        assert supervisor.is_restarting
        goes.set()
        await check_replaced(supervisor, pid)


async def test_without_the_bound_the_request_would_wait(tmp_path: Path) -> None:
    async with supervise(tmp_path, create_core_command(), engine=UNWATCHED) as supervisor:
        pid = await start(supervisor)
        os.kill(pid, signal.SIGSTOP)
        listener = ask(supervisor)
        await asyncio.sleep(2 * SILENCE_S)
        assert (supervisor.process_id, listener.error) == (pid, None)
        os.kill(pid, signal.SIGCONT)
        await wait_until(lambda: listener.num_tokens > 0)


@pytest.mark.parametrize("stays", [True, False])
async def test_an_idle_core_that_is_frozen_is_noticed_when_somebody_asks(
    tmp_path: Path, stays: bool
) -> None:
    async with supervise(tmp_path, create_core_command(), engine=ENGINE) as supervisor:
        pid = await start(supervisor)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(1.5 * SILENCE_S)
        assert supervisor.process_id == pid  # nothing is asked of it: nobody would know
        listener = Listener()
        assert supervisor.client is not None
        sequence_id = supervisor.client.add(
            lambda number: create_request(number, [1, 2, 3]), listener
        )
        if not stays:  # a client that has no patience is no reason to keep the core
            supervisor.client.drop(sequence_id)
        await check_replaced(supervisor, pid)
        assert (listener.error is not None) is stays


@pytest.mark.parametrize("is_claimed", [True, False])
async def test_an_idle_core_that_is_frozen_is_noticed_when_memory_is_claimed(
    tmp_path: Path, is_claimed: bool
) -> None:
    """Others wait for what it has."""
    async with supervise(tmp_path, create_core_command(), engine=ENGINE) as supervisor:
        pid = await start(supervisor)
        os.kill(pid, signal.SIGSTOP)
        assert supervisor.client is not None
        if is_claimed:
            supervisor.client.claim_room(1)
            await check_replaced(supervisor, pid)
        else:
            await asyncio.sleep(1.5 * SILENCE_S)
            assert supervisor.process_id == pid


@pytest.mark.parametrize(("step_s", "is_left_alone"), [(2.6, True), (12.0, False)])
async def test_a_slow_core_is_left_alone_below_the_bound(
    tmp_path: Path, step_s: float, is_left_alone: bool
) -> None:
    command = create_core_command("--step-s", str(step_s))  # from a fourth of it on it is pinged
    async with supervise(tmp_path, command, engine=ENGINE) as supervisor:
        pid = await start(supervisor)
        listener = ask(supervisor, max_tokens=3)
        await wait_until(lambda: listener.finished is not None or listener.error is not None, 60)
        assert (listener.num_tokens == 3) is is_left_alone
        assert not is_left_alone or supervisor.process_id == pid


@pytest.mark.parametrize(("engine", "is_replaced"), [(ENGINE, True), (UNWATCHED, False)])
async def test_a_core_that_freezes_while_it_loads_is_replaced(
    tmp_path: Path, engine: EngineSettings, is_replaced: bool
) -> None:
    command = create_core_command("--load-s", "1.5", "--tells-load")
    async with supervise(tmp_path, command, engine=engine) as supervisor:
        await wait_until(lambda: supervisor.loaded_ratio > 0, 30)
        pid = supervisor.process_id
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        if is_replaced:
            await check_replaced(supervisor, pid)
            return
        await asyncio.sleep(2 * SILENCE_S)
        assert supervisor.process_id == pid
        assert supervisor.client is None


@pytest.mark.parametrize("tells", [True, False])
async def test_a_load_may_last_as_long_as_it_gets_further(tmp_path: Path, tells: bool) -> None:
    options = ("--load-s", str(2 * SILENCE_S), *(("--tells-load",) if tells else ()))
    async with supervise(tmp_path, create_core_command(*options), engine=ENGINE) as supervisor:
        await wait_until(lambda: supervisor.client is not None or supervisor.num_hung > 0, 60)
        assert (supervisor.client is not None) is tells
        assert supervisor.loaded_ratio == 0


async def test_a_real_engine_says_how_far_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[CoreLoading] = []
    monkeypatch.setattr(CoreSupervisor, "on_loading", lambda _, loading: told.append(loading))
    model = ServedModelSettings(name=MODEL, path=BUNDLED_PATH, dtype=DtypeChoice.FLOAT32)
    engine = EngineSettings(kv_bytes=16 << 20, num_threads=1)
    async with supervise(tmp_path, CORE_COMMAND, engine=engine, model=model) as supervisor:
        await asyncio.wait_for(supervisor.wait_started(), 120)
    file_bytes = sum(path.stat().st_size for path in BUNDLED_PATH.glob("*.safetensors"))
    assert told  # at once, and about once a second from then on
    assert all(0 < loading.num_bytes <= loading.num_expected_bytes for loading in told)
    assert file_bytes < 1.2 * told[-1].num_expected_bytes < 1.5 * file_bytes  # a head is tied


async def test_a_model_that_hangs_in_every_load_fails_for_good(tmp_path: Path) -> None:
    command = create_core_command("--load-s", "600")
    policy = replace(POLICY, max_failed_loads=2)
    engine = EngineSettings(max_silence_s=2)
    async with supervise(tmp_path, command, policy=policy, engine=engine) as supervisor:
        await wait_until(lambda: supervisor.failure is not None, 60)
        assert supervisor.failure == "its engine got no further for 2 s while it was loaded"
        await wait_until(lambda: supervisor.process_id is None, 10)  # it says so before
        assert supervisor.num_hung == 2


async def test_what_a_hung_core_has_started_goes_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'a').write(f'{{child.pid}}\\n')\n"
        "time.sleep(600)\n"
    )

    def list_children() -> list[int]:
        return [int(pid) for pid in pids.read_text().split()] if pids.exists() else []

    engine = EngineSettings(max_silence_s=2)
    async with supervise(tmp_path, (sys.executable, "-c", code), engine=engine) as supervisor:
        await wait_until(lambda: len(list_children()) == 2, 30)
        hung, orphan = list_children()
        assert not is_alive(hung)
        assert supervisor.process_id is not None
        os.kill(supervisor.process_id, signal.SIGKILL)  # the control: by others it is left behind
        await wait_until(lambda: len(list_children()) == 3, 30)
        assert is_alive(orphan)
        os.kill(orphan, signal.SIGKILL)


async def test_a_core_that_freezes_asleep_is_replaced_when_it_is_to_wake(tmp_path: Path) -> None:
    async with supervise(tmp_path, create_core_command(), engine=ENGINE) as supervisor:
        pid = await start(supervisor)
        await supervisor.move_to(Tier.HOST)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.wait_for(supervisor.move_to(Tier.GPU), 60)
        await check_replaced(supervisor, pid)


@pytest.mark.parametrize("is_suspended", [True, False])
async def test_time_in_which_the_server_stood_still_does_not_count(
    tmp_path: Path, is_suspended: bool
) -> None:
    command = create_core_command("--step-s", "0.02")
    async with supervise(tmp_path, command, engine=ENGINE) as supervisor:
        pid = await start(supervisor)
        listener = ask(supervisor, max_tokens=100)
        await wait_until(lambda: listener.num_tokens > 3)
        os.kill(pid, signal.SIGSTOP)
        if is_suspended:  # as with the machine as a whole
            time.sleep(2 * SILENCE_S)  # noqa: ASYNC251
        else:
            await asyncio.sleep(2 * SILENCE_S)
        if is_alive(pid):
            os.kill(pid, signal.SIGCONT)
        await wait_until(lambda: listener.finished is not None or listener.error is not None, 30)
        assert (listener.num_tokens == 100) is is_suspended
        assert (supervisor.process_id == pid) is is_suspended


async def test_a_core_that_speaks_or_has_nothing_to_do_is_not_pinged(tmp_path: Path) -> None:
    command = create_core_command("--step-s", "0.02")
    async with supervise(tmp_path, command, engine=ENGINE) as supervisor:
        await start(supervisor)
        assert supervisor.client is not None
        pings: list[None] = []
        ping = supervisor.client.ping
        supervisor.client.ping = lambda: pings.append(None) or ping()  # type: ignore[method-assign]
        await asyncio.sleep(SILENCE_S)  # idle
        listener = ask(supervisor, max_tokens=100)
        await wait_until(lambda: listener.finished is not None, 30)
        assert pings == []
