"""Blocks in a real Mooncake Store: shared by nodes, and no harm where it is away.

Every node's client is a process of its own; so is the master.
"""

import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog

from gpu_pool.kv.tiers import mooncake_life
from gpu_pool.kv.tiers.mooncake_client import StoreClient
from gpu_pool.kv.tiers.mooncake_life import AGENT_COMMAND, Answer
from gpu_pool.kv.tiers.mooncake_tier import MooncakeTier
from gpu_pool.kv.tiers.mooncake_words import StoreOp
from gpu_pool.kv.tiers.namespace import measure_sealed
from gpu_pool.kv.tiers.settings import StoreTierSettings
from tests.fixtures.many_handles import hold_handles
from tests.fixtures.mooncake_master import MooncakeMaster, freeze, run_master
from tests.gpu_pool.kv.tiers.blocks import A, B, blank, create_space, fill, name_blocks
from tests.gpu_pool.kv.tiers.store_nodes import (
    PATIENCE_S,
    create_store_settings,
    open_node,
    open_nodes,
    wait_until,
    write_block_name,
)

SIZE = 5000
STORED = measure_sealed(SIZE)
TOLD_S = 0.1
FORGETFUL_AGENT = """
import os, sys
from gpu_pool.kv.tiers import mooncake_agent
mooncake_agent._LOST_S = 0.0
os._exit(mooncake_agent.main(sys.argv[1:]))
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MooncakeMaster]:
    with run_master(tmp_path) as master:
        yield master


def test_what_one_node_has_put_another_finds_for_the_same_account_alone(
    master: MooncakeMaster,
) -> None:
    settings = create_store_settings(master)
    space, names = create_space(), name_blocks(create_space(), 20)
    with open_nodes(settings, 2) as (first, second):
        for number, name in enumerate(names):
            assert first.tier.keep(space, name, fill(number))
        assert first.tier.books.num_bytes == 20 * STORED
        block = blank()
        for number, name in enumerate(names):
            assert second.tier.may_have(space, name)
            assert second.tier.fetch(space, name, block)
            assert block == fill(number)
        assert second.tier.has(space, names[0])
        assert not second.tier.keep(space, names[0], fill(0)), "it is there"
        assert second.tier.books.num_bytes == 0, "others count what they have put"
        rotated = create_space(A, bytes(32))
        for name in name_blocks(rotated, 20):
            assert not second.tier.fetch(rotated, name, block)


def test_what_one_node_has_removed_no_node_finds(master: MooncakeMaster) -> None:
    """Whoever has put it, and although it has just been read; others' blocks stay."""
    space, names = create_space(), name_blocks(create_space(), 3)
    strange = create_space(B)
    with open_nodes(create_store_settings(master), 2) as (first, second):
        for number, name in enumerate(names):
            assert first.tier.keep(space, name, fill(number))
        assert first.tier.keep(strange, names[0], fill(9))
        assert second.tier.fetch(space, names[0], blank())
        second.tier.remove(space, names[:2])
        kept = [write_block_name(space, names[2]), write_block_name(strange, names[0])]
        assert sorted(master.list_names()) == sorted(kept)
        assert not any(first.tier.fetch(space, name, blank()) for name in names[:2])
        assert first.tier.fetch(space, names[2], blank())
        assert first.tier.keep(space, names[0], fill(0)), "it may be put anew"


def test_a_process_with_a_thousand_handles_shares_all_the_same(master: MooncakeMaster) -> None:
    space, (name,) = create_space(), name_blocks(create_space(), 1)
    with hold_handles(), open_node(create_store_settings(master)) as node:
        assert node.tier.keep(space, name, fill(1))
        assert node.tier.fetch(space, name, blank())


def test_an_account_has_its_share_and_pushes_nobody_out(master: MooncakeMaster) -> None:
    """More than its quota leaves the store itself, oldest first; others keep what they have."""
    settings = create_store_settings(master, max_bytes=15 * STORED, account_bytes=10 * STORED)
    greedy, modest = create_space(A), create_space(B, bytes(32))
    with open_node(settings) as node:
        for number, name in enumerate(name_blocks(modest, 5)):
            assert node.tier.keep(modest, name, fill(number))
        for number, name in enumerate(name_blocks(greedy, 40)):
            assert node.tier.keep(greedy, name, fill(number))
        there = {write_block_name(modest, name) for name in name_blocks(modest, 5)}
        there |= {write_block_name(greedy, name) for name in name_blocks(greedy, 40, first=30)}
        assert sorted(master.list_names()) == sorted(there)
        assert node.tier.books.num_bytes == 15 * STORED
        assert all(node.tier.fetch(modest, name, blank()) for name in name_blocks(modest, 5))


def test_a_store_that_is_full_refuses_and_what_is_there_stays_whole(
    master: MooncakeMaster,
) -> None:
    """64 MiB of memory for 100 blocks of 1 MiB: the master refuses or evicts, as it sees fit."""
    settings = create_store_settings(master, max_bytes=10**9)
    space, names = create_space(), name_blocks(create_space(), 100)
    with open_node(settings) as node:
        num_kept = sum(
            node.tier.keep(space, name, fill(n, 1 << 20)) for n, name in enumerate(names)
        )
        assert num_kept >= 30
        block, num_there = blank(1 << 20), 0
        for number, name in enumerate(names):
            if node.tier.fetch(space, name, block):
                assert block == fill(number, 1 << 20)
                num_there += 1
        assert 10 <= num_there < 100
        assert not node.client.is_away


def test_what_a_stranger_has_changed_is_a_miss_and_goes(master: MooncakeMaster) -> None:
    settings = create_store_settings(master)
    space, names = create_space(), name_blocks(create_space(), 2)
    target, other = (write_block_name(space, name) for name in names)
    block = blank()
    with open_nodes(settings, 2) as (node, stranger):
        for number, name in enumerate(names):
            assert node.tier.keep(space, name, fill(number))
        whole, swapped = stranger.read(target), stranger.read(other)
        flipped = bytes([*whole[:100], whole[100] ^ 1, *whole[101:]])
        for count, content in enumerate((flipped, whole[:1000], whole + b"more", swapped), 1):
            stranger.replace(target, content)
            assert not node.tier.fetch(space, names[0], block)
            assert node.tier.books.num_damaged == count
            wait_until(lambda: master.list_names() == [other])
            assert node.tier.keep(space, names[0], fill(0)), "whoever computes it again mends it"
            assert node.tier.fetch(space, names[0], block)
            assert block == fill(0)


def test_nobody_waits_for_the_removal_of_what_a_stranger_has_changed(
    master: MooncakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master is frozen as soon as it has brought the block: a call that was waited for would
    be late, and a late call finds the store away.
    """
    space, (name,) = create_space(), name_blocks(create_space(), 1)
    with open_node(create_store_settings(master)) as node:
        assert node.tier.keep(space, name, fill(1))
        node.replace(write_block_name(space, name), b"not sealed")
        ask = node.client.call

        def ask_and_freeze(op: StoreOp, *names: str, content: bytes = b"") -> Answer | None:
            answer = ask(op, *names, content=content)
            master.freeze()
            return answer

        monkeypatch.setattr(node.client, "call", ask_and_freeze)
        try:
            assert not node.tier.fetch(space, name, blank())
            assert not node.client.is_away
            ask(StoreOp.LOOK_UP, write_block_name(space, name))
            assert node.client.is_away, "the control: such a call is late"
        finally:
            master.thaw()
        node.wait_back()
        wait_until(lambda: master.list_names() == [])


# -- what goes wrong ------------------------------------------------------------------------------


def test_blocks_of_a_node_that_was_killed_are_missing_at_once(master: MooncakeMaster) -> None:
    """The master believes in them for seconds more; a reader is told, not kept waiting."""
    settings = create_store_settings(master)
    space, names = create_space(), name_blocks(create_space(), 8)
    with open_nodes(settings, 2) as (owner, reader):
        for name in names[:4]:
            assert owner.tier.keep(space, name, fill(1))
        for name in names[4:]:
            assert reader.tier.keep(space, name, fill(2))
        assert reader.tier.fetch(space, names[0], blank())
        assert owner.client.process_id is not None
        os.kill(owner.client.process_id, signal.SIGKILL)
        num_there = reader.look_up([write_block_name(space, name) for name in names])
        assert num_there == 8, "the control: they look as if they were there"
        assert not any(reader.tier.fetch(space, name, blank()) for name in names[:4])
        assert not reader.client.is_away, "no call has been late"
        assert all(reader.tier.fetch(space, name, blank()) for name in names[4:])
        wait_until(lambda: owner.client.is_away)
        owner.wait_back()  # another agent, with memory that is empty


@pytest.mark.parametrize("remembers", [True, False])
def test_blocks_of_a_node_that_was_killed_are_missing_within_a_tenth_of_a_second(
    master: MooncakeMaster, remembers: bool
) -> None:
    """More than half of the reads, by far: a fraction of a millisecond, where the control, an agent
    that forgets who has not brought a block, tries for a second for each.
    """
    settings = msgspec.structs.replace(create_store_settings(master), call_s=PATIENCE_S)
    space, names = create_space(), name_blocks(create_space(), 20 if remembers else 3)
    command = AGENT_COMMAND if remembers else (sys.executable, "-c", FORGETFUL_AGENT)
    took_s: list[float] = []
    with open_nodes(settings, 1) as (owner,), open_node(settings, command=command) as reader:
        for name in names:
            assert owner.tier.keep(space, name, fill(1))
        assert reader.tier.fetch(space, names[0], blank())
        assert owner.client.process_id is not None
        os.kill(owner.client.process_id, signal.SIGKILL)
        for name in names:
            began_s = time.monotonic()
            assert not reader.tier.fetch(space, name, blank())
            took_s.append(time.monotonic() - began_s)
        num_there = reader.look_up([write_block_name(space, name) for name in names])
        assert num_there == len(names), "the control: they look as if they were there"
    assert (statistics.median(took_s) < TOLD_S) is remembers, took_s


@pytest.mark.parametrize("whom", ["master", "agent"])
def test_nobody_waits_for_a_store_that_is_frozen_and_it_is_used_again_when_it_thaws(
    master: MooncakeMaster, whom: str
) -> None:
    settings = create_store_settings(master)
    space, names = create_space(), name_blocks(create_space(), 30)
    with open_node(settings) as node:
        assert node.tier.keep(space, names[0], fill(0))
        agent_id = node.client.process_id
        assert agent_id is not None
        master.freeze() if whom == "master" else freeze(agent_id)
        try:
            assert not node.tier.fetch(space, names[0], blank())  # waits for a second
            assert node.client.is_away
            assert node.tier.books.is_off
            num_asked = node.client.num_calls
            for name in names:
                assert not node.tier.may_have(space, name)
                assert not node.tier.fetch(space, name, blank())
                assert not node.tier.keep(space, name, fill(1))
            assert node.client.num_calls <= num_asked + 2, "but for the look whether it is back"
        finally:
            master.thaw() if whom == "master" else os.kill(agent_id, signal.SIGCONT)
        node.wait_back()
        assert node.client.process_id == agent_id, "what the node has lent was not given up"
        block = blank()
        assert node.tier.fetch(space, names[0], block)
        assert block == fill(0)


def test_a_master_that_was_killed_comes_back_empty_and_is_filled_again(
    master: MooncakeMaster,
) -> None:
    settings = create_store_settings(master)
    space, (name,) = create_space(), name_blocks(create_space(), 1)
    with open_nodes(settings, 2) as (first, second):
        assert first.tier.keep(space, name, fill(1))
        assert second.tier.fetch(space, name, blank())
        master.kill()
        assert not first.tier.fetch(space, name, blank())
        assert not second.tier.fetch(space, name, blank())
        assert first.client.is_away
        master.start()
        first.wait_back()
        second.wait_back()
        wait_until(lambda: not first.tier.has(space, name) and not second.tier.has(space, name))
        wait_until(lambda: first.tier.keep(space, name, fill(1)))  # its memory is lent anew
        block = blank()
        assert second.tier.fetch(space, name, block)
        assert block == fill(1)


@pytest.mark.slow
def test_an_agent_that_was_killed_is_started_again(master: MooncakeMaster) -> None:
    space, (name,) = create_space(), name_blocks(create_space(), 1)
    with open_node(create_store_settings(master)) as node:
        killed = node.client.process_id
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: node.client.is_away)
        node.wait_back()
        assert node.client.process_id != killed
        wait_until(lambda: node.tier.keep(space, name, fill(1)))


@pytest.mark.slow
@pytest.mark.parametrize("is_watched", [True, False])
def test_nobody_waits_for_an_agent_that_is_frozen_for_good_and_another_takes_its_place(
    master: MooncakeMaster, is_watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a call may take, an hour here; in the control, which hears no silence, all of it."""
    monkeypatch.setattr(mooncake_life, "MAX_SILENCE_S", 3.0 if is_watched else 3600.0)
    settings = msgspec.structs.replace(create_store_settings(master), call_s=3600.0)
    space, (name,), outcomes = create_space(), name_blocks(create_space(), 1), list[bool]()
    with open_node(settings) as node:
        assert node.tier.keep(space, name, fill(1))
        frozen = node.client.process_id
        assert frozen is not None
        freeze(frozen)
        fetch = threading.Thread(
            target=lambda: outcomes.append(node.tier.fetch(space, name, blank())), daemon=True
        )
        fetch.start()
        if not is_watched:
            fetch.join(9.0)
            assert (outcomes, node.client.process_id) == ([], frozen)
            os.kill(frozen, signal.SIGCONT)
        fetch.join(PATIENCE_S)
        assert outcomes == [not is_watched]
        if is_watched:
            node.wait_back()
            assert node.client.process_id != frozen
            assert not Path(f"/proc/{frozen}").exists()
            wait_until(lambda: node.tier.keep(space, name, fill(1)))


@pytest.mark.slow
def test_an_idle_agent_that_is_frozen_is_replaced(
    master: MooncakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks it anything: others read what it has lent. The control is the time before, in
    which it answers pings and stays for longer than a silent one would.
    """
    monkeypatch.setattr(mooncake_life, "MAX_SILENCE_S", 3.0)
    with open_node(create_store_settings(master)) as node:
        frozen = node.client.process_id
        assert frozen is not None
        time.sleep(6.0)
        assert node.client.process_id == frozen
        freeze(frozen)
        wait_until(lambda: node.client.process_id not in (None, frozen))
        node.wait_back()
        assert not Path(f"/proc/{frozen}").exists()


@pytest.mark.slow
def test_a_master_that_comes_later_than_the_node_is_found(master: MooncakeMaster) -> None:
    master.kill()
    space, (name,) = create_space(), name_blocks(create_space(), 1)
    with (
        structlog.testing.capture_logs() as lines,
        open_node(create_store_settings(master), is_waiting=False) as node,
    ):
        assert not node.tier.keep(space, name, fill(1))
        assert not node.tier.fetch(space, name, blank())
        wait_until(lambda: len(lines) > 0)
        assert lines[0]["reason"] == f"the master at {master.address} does not answer (code -1)"
        master.start()
        node.wait_back()
        wait_until(lambda: node.tier.keep(space, name, fill(1)))


def test_without_the_library_the_log_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").write_text("raise ImportError('not here')")
    settings = StoreTierSettings(master="127.0.0.1:1", max_bytes=10**8)
    hidden = ("env", f"PYTHONPATH={tmp_path}{os.pathsep}{os.pathsep.join(sys.path)}")
    client = StoreClient(settings, lambda: None, (*hidden, *AGENT_COMMAND))
    with structlog.testing.capture_logs() as lines:
        tier = MooncakeTier(settings, client)
        wait_until(lambda: len(lines) > 0)
        assert tier.books.is_off
        tier.close()
    assert [line["event"] for line in lines] == ["KV is not kept in the store"]
    assert lines[0]["reason"] == (
        "pip install 'hearth[mooncake]', and Debian's libibverbs1 (not here)"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"master": "10.77.0.5"}, "`master` is an address and a port, such as 10.77.0.5:50051"),
        ({"master": "10.77.0.5:0"}, "`master` is an address and a port, such as 10.77.0.5:50051"),
        ({"master": ":50051"}, "`master` is an address and a port, such as 10.77.0.5:50051"),
        ({"local_host": "a:1"}, "`local_host` is an IPv4 address or a name, without a port"),
        ({"segment_bytes": 1 << 20}, "`segment_bytes` are a multiple of 16 MiB (16777216), or 0"),
        ({"protocol": "rdma"}, "Invalid enum value 'rdma'"),
        ({"max_bytes": 0}, "Expected `int` >= 1"),
        ({"call_s": 0}, "Expected `float` > 0.0"),
    ],
)
def test_settings_that_the_store_would_not_take_are_refused(
    changes: dict[str, object], message: str
) -> None:
    table = {"master": "10.77.0.5:50051", "max_bytes": 10**9} | changes
    with pytest.raises(msgspec.ValidationError) as refusal:
        msgspec.convert(table, StoreTierSettings)
    assert message in str(refusal.value)
