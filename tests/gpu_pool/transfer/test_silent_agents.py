"""Real agents that are frozen, or stuck in a call: ended and replaced, and nothing waits for them.

Controls do without the watch. Read next: `gpu_pool.transfer.agent_watch`.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from contracts.kv_transfer import KvLanded
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.transfer import agent_watch
from gpu_pool.transfer.agent_client import AGENT_COMMAND
from gpu_pool.transfer.agent_watch import AgentWatch
from gpu_pool.transfer_settings import TransferSettings
from tests.fixtures.mooncake_master import freeze
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.transfer.core_pair import Split
from tests.gpu_pool.transfer.peer import Peer, need_engine, open_peer, open_peers, wait_until
from tests.gpu_pool.transfer.split_rig import open_pair, run_pair, wait_ready

pytestmark = pytest.mark.slow

BLOCK_BYTES: Final = 64 * 1024
NUM_BLOCKS: Final = 512
SILENCE_S: Final = 2.0
NEVER_S: Final = 3600.0
"""What a batch may take here: longer than any test."""


@pytest.fixture(autouse=True)
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is the same with a bound of two seconds."""
    monkeypatch.setattr(agent_watch, "MAX_SILENCE_S", SILENCE_S)
    monkeypatch.setattr(agent_watch, "_START_S", 10.0)


def stop_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(AgentWatch, "is_silent", lambda *_, **__: False)


def find_process(peer: Peer) -> int:
    """The agent's process."""
    process_id = peer.client.process_id
    assert process_id is not None
    return process_id


def replace(peer: Peer, command: tuple[str, ...]) -> int:
    """Has another program in the agent's place; its process."""
    before = find_process(peer)
    peer.client._command = command
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: peer.client.process_id not in (None, before), "another agent")
    peer.wait_ready()
    return find_process(peer)


def is_there(process_id: int) -> bool:
    """True while anything is left of a process."""
    return Path(f"/proc/{process_id}").exists()


def run_program(change: str) -> tuple[str, ...]:
    """The command of an agent that does something differently."""
    program = (
        f"import sys, threading, time\nfrom gpu_pool.transfer import agent\n{change}\n"
        "sys.exit(agent.main(sys.argv[1:]))\n"
    )
    return (sys.executable, "-c", program)


STUCK_IN_A_CALL: Final = run_program(
    "def hang(*_): threading.Event().wait()\nagent.MemoryEngine.read = hang"
)
STUCK_IN_ITS_START: Final = run_program(
    "def hang(*_): threading.Event().wait()\nagent.ENGINES['memory'] = hang"
)
SLOW: Final = run_program(
    "read = agent.MemoryEngine.read\n"
    "def linger(*words):\n    time.sleep(0.4)\n    return read(*words)\n"
    "agent.MemoryEngine.read = linger"
)


@pytest.mark.parametrize("is_watched", [True, False])
def test_an_idle_agent_that_is_frozen_is_replaced_and_blocks_are_read_from_its_node_again(
    is_watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of the agent of a node for prompts: others read from it. By TCP, since a
    frozen process's memory can be read.
    """
    need_engine("nixl", monkeypatch)
    if not is_watched:
        stop_watching(monkeypatch)
    with open_peers("nixl", NUM_BLOCKS, BLOCK_BYTES, batch_s=1.0) as (prefill, decode):
        frozen = find_process(prefill)
        freeze(frozen)
        if is_watched:
            wait_until(lambda: prefill.client.process_id not in (None, frozen), "another agent")
            assert not is_there(frozen)
            prefill.wait_ready()
            assert decode.fetch(1, prefill, 16).has_landed
            return
        time.sleep(2 * SILENCE_S)
        assert find_process(prefill) == frozen
        assert not decode.fetch(1, prefill, 16).has_landed
        os.kill(frozen, signal.SIGCONT)


@pytest.mark.parametrize("is_watched", [True, False])
@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_landing_does_not_wait_for_an_agent_that_is_frozen_or_stuck_in_a_call(
    is_watched: bool, is_frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends as it does when the agent dies; else by what a batch may take, an hour here."""
    if not is_watched:
        stop_watching(monkeypatch)
    with open_peers("memory", 16, BLOCK_BYTES, batch_s=NEVER_S) as (prefill, decode):
        stuck = find_process(decode) if is_frozen else replace(decode, STUCK_IN_A_CALL)
        if is_frozen:
            freeze(stuck)
        decode.client._command = AGENT_COMMAND
        decode.land(1, range(16))
        decode.offer(1, prefill.export(range(16)))
        if not is_watched:
            time.sleep(2 * SILENCE_S)
            assert decode.puller.ends.empty()
            assert find_process(decode) == stuck
            return
        end = decode.wait_end()
        assert (end.has_landed, end.reason) == (False, "failed")
        assert not is_there(stuck), "nobody may have its blocks before"
        wait_until(lambda: decode.client.ready is not None, "an agent")
        assert decode.fetch(2, prefill, 16).has_landed


@contextmanager
def keep_processes(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client that takes an agent for gone which is there: the control of the fence."""
    kept: list[tuple[subprocess.Popen[bytes], socket.socket]] = []

    def forget() -> None:
        client = peer.client
        if client._process is not None and client._channel is not None:
            kept.append((client._process, client._channel))
        client.ready = client._process = client._channel = None

    with monkeypatch.context() as patch:
        patch.setattr(peer.client, "close", forget)
        yield
    for process, channel in kept:
        process.kill()
        process.wait()
        channel.close()


@pytest.mark.parametrize("is_fenced", [True, False])
def test_what_a_silent_agent_was_writing_to_is_anothers_only_when_it_is_gone(
    is_fenced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen in the middle of a read, by TCP; it thaws, if it is there, when its blocks hold a
    canary. The control takes its silence for its end.
    """
    need_engine("nixl", monkeypatch)
    with open_peers("nixl", NUM_BLOCKS, BLOCK_BYTES, batch_s=NEVER_S) as (prefill, decode):
        decode.land(1, range(NUM_BLOCKS))
        decode.offer(1, prefill.export(range(NUM_BLOCKS)))
        firsts = range(0, len(decode.buffer), 16 * BLOCK_BYTES)
        wait_until(lambda: any(decode.buffer[first + 8] for first in firsts), "a block", pause_s=0)
        frozen = find_process(decode)
        if is_fenced:
            freeze(frozen)
            end = decode.wait_end()
            assert not is_there(frozen)
        else:
            with keep_processes(decode, monkeypatch):
                freeze(frozen)
                end = decode.wait_end()
                canary = Random(2).randbytes(len(decode.buffer))
                decode.buffer[:] = canary
                os.kill(frozen, signal.SIGCONT)
                wait_until(lambda: decode.buffer != canary, "the attack")
        assert (end.has_landed, end.reason) == (False, "failed")


@pytest.mark.parametrize("is_watched", [True, False])
def test_an_agent_that_is_stuck_in_its_start_is_started_again(
    is_watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_watch, "_START_S", SILENCE_S)
    if not is_watched:
        stop_watching(monkeypatch)
    settings = TransferSettings(engine="memory")
    with (
        open_peer(settings, 4, BLOCK_BYTES) as prefill,
        open_peer(settings, 4, BLOCK_BYTES) as decode,
    ):
        prefill.wait_ready()
        decode.wait_ready()
        before = find_process(decode)
        decode.client._command = STUCK_IN_ITS_START
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: decode.client.process_id not in (None, before), "the life that hangs")
        stuck = find_process(decode)
        decode.client._command = AGENT_COMMAND
        if is_watched:
            wait_until(lambda: decode.client.ready is not None, "an agent")
            assert decode.fetch(1, prefill, 1).has_landed
            return
        time.sleep(2 * SILENCE_S)
        assert (decode.client.ready, decode.client.process_id) == (None, stuck)


def test_an_agent_that_is_busy_for_long_and_gets_further_is_left_alone() -> None:
    """Twelve reads of 0.4 s, each in one call, in a row: pings wait behind them."""
    settings = TransferSettings(engine="memory", batch_s=NEVER_S)
    with (
        open_peer(settings, 16, BLOCK_BYTES) as prefill,
        open_peer(settings, 16, BLOCK_BYTES) as decode,
    ):
        prefill.wait_ready()
        decode.wait_ready()
        slow = replace(decode, SLOW)
        exported = prefill.export([0])
        for number in range(12):
            decode.land(number, [number])
            decode.offer(number, exported)
        assert all(decode.wait_end().has_landed for _ in range(12))
        assert find_process(decode) == slow


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_request_does_not_wait_until_its_deadline_for_an_agent_that_is_frozen(
    is_watched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real models: the node that answers computes the prompt, and has the next one handed over."""
    folder = write_checkpoint(tmp_path, "llama")
    with open_pair(folder, "memory", SchedulerSettings(max_batch_tokens=64), 400) as pair:
        decode = pair[0]
        for half in pair:
            monkeypatch.setattr(half.exchange._puller, "_batch_s", NEVER_S)
        if not is_watched:
            stop_watching(monkeypatch)

        def ask(seed: int) -> Split:
            request = create_request(0, create_prompt(100, seed), max_tokens=4)
            split = Split(pair[0], pair[1], request)  # type: ignore[arg-type]
            split.open()
            return split

        frozen = decode.exchange.client.process_id
        assert frozen is not None
        freeze(frozen)
        split = ask(1)
        if not is_watched:
            until_s = time.monotonic() + 3 * SILENCE_S
            run_pair(pair, [], lambda: None)
            while time.monotonic() < until_s:
                split.carry()
                for half in pair:
                    half.turn()
            assert not split.answer.is_over
            os.kill(frozen, signal.SIGCONT)
        run_pair(pair, [split], lambda: None)
        assert bool(split.answer.find(KvLanded)) is not is_watched
        assert len(split.answer.token_ids) == 4
        wait_ready(pair)
        again = ask(2)
        run_pair(pair, [again], lambda: None)
        assert again.answer.find(KvLanded)
