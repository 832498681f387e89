"""Closing the tiers ends, whatever store, agent or kernel do, and leaves nothing that is in use.

With a real master and real agents that are frozen, and one that SIGKILL does not end: a kernel that
waits for a device keeps such a process for as long as it likes.
"""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import structlog

from gpu_pool.kv.tiers import mooncake_client, tier_store
from gpu_pool.kv.tiers.leaving import LeavingBlock
from gpu_pool.kv.tiers.measured_tier import MeasuredTier
from gpu_pool.kv.tiers.mooncake_life import KILLED_S, PARTING_S
from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace
from gpu_pool.kv.tiers.tier import TierBooks
from gpu_pool.kv.tiers.tier_store import CLOSE_S, TierStore, WantedBlock
from gpu_pool.server.core_process import SHUTDOWN_S
from tests.fixtures.mooncake_master import MooncakeMaster, freeze, run_master
from tests.gpu_pool.kv.tiers.blocks import blank, create_space, fill, name_blocks
from tests.gpu_pool.kv.tiers.store_nodes import create_store_settings, open_nodes, wait_until

PATIENCE_S = 40.0
"""Far beyond every bound of closing, and far below what a call may take here."""
CALL_S = 3600.0


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MooncakeMaster]:
    with run_master(tmp_path) as master:
        yield master


def ends(act: Callable[[], object]) -> bool:
    """True when something comes to its end."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return not thread.is_alive()


def test_all_of_closing_is_less_than_what_a_node_grants_a_core() -> None:
    assert CLOSE_S + PARTING_S + KILLED_S < SHUTDOWN_S - 1


@pytest.mark.parametrize("whom", ["master", "agent"])
def test_a_close_does_not_wait_for_calls_that_do_not_end(master: MooncakeMaster, whom: str) -> None:
    """Neither for a request's nor for that of the thread which looks after the store."""
    settings = msgspec.structs.replace(create_store_settings(master), call_s=CALL_S)
    space, (name,) = create_space(), name_blocks(create_space(), 1)
    with open_nodes(settings, 1) as (node,):
        assert node.tier.keep(space, name, fill(0))
        agent_id = node.client.process_id
        assert agent_id is not None
        master.freeze() if whom == "master" else freeze(agent_id)
        num_before, outcomes = node.client.num_calls, list[bool]()
        fetch = threading.Thread(
            target=lambda: outcomes.append(node.tier.fetch(space, name, blank())), daemon=True
        )
        fetch.start()
        wait_until(lambda: node.client.num_calls >= num_before + 2)
        assert ends(node.tier.close)
        fetch.join(PATIENCE_S)
        assert outcomes == [False]
        assert not Path(f"/proc/{agent_id}").exists()


class Held(subprocess.Popen[bytes]):
    """A process that a signal does not end, until `release`."""

    lives: list["Held"]
    is_held = True
    num_before = 0
    """Processes of earlier lives that were there when this one began."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[call-overload]
        self.num_before = sum(life.poll() is None for life in self.lives)
        self.lives.append(self)

    def kill(self) -> None:
        if not self.is_held:
            super().kill()

    def release(self) -> None:
        """The kernel lets it go."""
        self.is_held = False
        self.kill()
        self.wait()


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Held]]:
    """Agents that SIGKILL does not end, in the order of their starts."""
    lives: list[Held] = []
    monkeypatch.setattr(Held, "lives", lives, raising=False)
    monkeypatch.setattr("gpu_pool.kv.tiers.mooncake_life.subprocess.Popen", Held)
    yield lives
    for life in lives:
        life.release()


def test_a_close_gives_up_an_agent_that_a_signal_does_not_end(
    master: MooncakeMaster, lives: list[Held]
) -> None:
    with open_nodes(create_store_settings(master), 1) as (node,):
        (agent,) = lives
        freeze(agent.pid)
        with structlog.testing.capture_logs() as lines:
            assert ends(node.tier.close)
        assert agent.poll() is None, "the control: it is there yet"
        assert [(line["log_level"], line["pid"]) for line in lines] == [("error", agent.pid)]


@pytest.mark.slow
def test_no_agent_lends_memory_beside_one_that_does_not_go(
    master: MooncakeMaster, lives: list[Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mooncake_client, "_HUNG_S", 1.0)
    settings = msgspec.structs.replace(create_store_settings(master), call_s=0.2)
    with open_nodes(settings, 1) as (node,), structlog.testing.capture_logs() as lines:
        freeze(lives[0].pid)
        wait_until(lambda: any(line["log_level"] == "error" for line in lines))
        time.sleep(2)  # the next one would have begun by now
        assert node.client.is_away
        lives[0].release()
        node.wait_back()
        assert [life.num_before for life in lives] == [0, 0]
        for life in lives:
            life.is_held = False


class StuckTier:
    """Neither keeps nor brings anything until it is closed."""

    def __init__(self) -> None:
        self.is_closed = threading.Event()
        self.num_begun = 0

    @property
    def books(self) -> TierBooks:
        return TierBooks(0, 0, is_off=False)

    def has(self, space: TierNamespace, name: BlockName) -> bool:
        return False

    def may_have(self, space: TierNamespace, name: BlockName) -> bool:
        return True

    def keep(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        return self.fetch(space, name, block)

    def fetch(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        self.num_begun += 1
        self.is_closed.wait()
        return False

    def remove(self, space: TierNamespace, names: Sequence[BlockName]) -> None:
        pass

    def close(self) -> None:
        self.is_closed.set()


def test_what_a_tier_has_not_kept_in_time_is_let_go_and_fetches_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 50 blocks the first is under way for ever; so are four reads."""
    monkeypatch.setattr(tier_store, "CLOSE_S", 0.2)
    stuck, over, gone = StuckTier(), threading.Event(), list[int]()
    tier = MeasuredTier("store", stuck, 50, time.monotonic)
    store, space, names = TierStore([tier]), create_space(), name_blocks(create_space(), 50)
    for number, name in enumerate(names):
        store.offer(space, name, fill(number), lambda number=number: gone.append(number))
    rows = [[WantedBlock(name, 5000)] for name in names[:4]]
    fetch = store.fetch(space, rows, [[blank()]] * 4, lambda _: False, over.set)
    wait_until(lambda: stuck.num_begun == 5)
    assert not gone
    assert ends(store.close)
    assert sorted(gone) == list(range(50))
    assert stuck.num_begun == 5, "nothing was begun any more"
    assert over.is_set()
    assert fetch.num_landed == 0


def test_what_can_be_kept_in_time_is_kept_before_the_end(master: MooncakeMaster) -> None:
    """The control: a store that answers gets all."""
    settings = create_store_settings(master)
    space, names, gone = create_space(), name_blocks(create_space(), 20), list[int]()
    with open_nodes(settings, 2) as (node, other):
        tier = MeasuredTier("store", node.tier, 50, time.monotonic)
        for number, name in enumerate(names):
            tier.offer(LeavingBlock(space, name, fill(number), lambda n=number: gone.append(n), 1))
        tier.close(PATIENCE_S)
        assert gone == list(range(20))
        assert tier.describe().num_kept == 20
        assert not other.client.is_away
