"""Transfers that break, peers that come back, batches of any size: with the real engines."""

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from benchmarks.fleet.sites import make_sites
from tests.gpu_pool.transfer.peer import (
    NoAgent,
    Peer,
    find_namespace,
    need_engine,
    need_namespaces,
    open_peers,
    wait_until,
)

pytestmark = pytest.mark.slow

NUM_BLOCKS: Final = 512
BLOCK_BYTES: Final = 64 * 1024
SMALL_BYTES: Final = 4096
COUNTS: Final = (1, 511, 512, 513, 2048, 2049, 3000, 16_384)
"""Source: Mooncake refuses batches of more than 2048 and may not speak to that peer again."""
ENGINES: Final = ("nixl", "mooncake")


def begin(prefill: Peer, decode: Peer, number: int) -> None:
    """Returns when some blocks of a landing have come."""
    decode.land(number, range(NUM_BLOCKS))
    decode.offer(number, prefill.export(range(NUM_BLOCKS)))
    firsts = range(0, len(decode.buffer), 16 * BLOCK_BYTES)
    wait_until(lambda: any(decode.buffer[first + 8] for first in firsts), "a block", pause_s=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_peer_that_dies_in_the_middle_is_read_from_again_when_it_is_back(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the name of its core, whose incarnation stays."""
    need_engine(engine, monkeypatch)
    with open_peers(engine, NUM_BLOCKS, BLOCK_BYTES) as (prefill, decode):
        begin(prefill, decode, 1)
        process_id = prefill.client.process_id
        assert process_id is not None
        os.kill(process_id, signal.SIGKILL)
        assert not decode.wait_end().has_landed
        wait_until(lambda: prefill.client.process_id not in (None, process_id), "another agent")
        prefill.wait_ready()
        decode.wait_ready()
        assert decode.fetch(2, prefill, 16).has_landed
        assert decode.has_content_of(prefill, 16)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_peer_that_died_while_nobody_read_costs_no_landing_when_it_is_back(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each life of its agent is found out by what it says of itself, not by a read that fails."""
    need_engine(engine, monkeypatch)
    with open_peers(engine, NUM_BLOCKS, BLOCK_BYTES) as (prefill, decode):
        for number in range(1, 4):
            prefill.fill(Random(number))
            assert decode.fetch(number, prefill, 16).has_landed
            assert decode.has_content_of(prefill, 16)
            process_id = prefill.client.process_id
            assert process_id is not None
            os.kill(process_id, signal.SIGKILL)
            wait_until(
                lambda gone=process_id: prefill.client.process_id not in (None, gone), "another"
            )
            prefill.wait_ready()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_landing_from_a_peer_that_is_back_takes_less_than_a_second(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three lives the middle one counts, tens of milliseconds: a machine may stumble once. What
    the life before has said of itself brings nothing any more.
    """
    need_engine(engine, monkeypatch)
    took_s: list[float] = []
    with open_peers(engine, NUM_BLOCKS, BLOCK_BYTES) as (prefill, decode):
        for number in range(10, 40, 10):
            assert decode.fetch(number, prefill, 16).has_landed
            before, process_id = prefill.export(range(16)), prefill.client.process_id
            assert process_id is not None
            os.kill(process_id, signal.SIGKILL)
            wait_until(
                lambda gone=process_id: prefill.client.process_id not in (None, gone), "another"
            )
            prefill.wait_ready()
            prefill.fill(Random(number))
            began_s = time.monotonic()
            assert decode.fetch(number + 1, prefill, 16).has_landed
            took_s.append(time.monotonic() - began_s)
            assert decode.has_content_of(prefill, 16)
            decode.buffer[:] = bytes(len(decode.buffer))
            decode.land(number + 2, range(16))
            decode.offer(number + 2, before)
            assert not decode.wait_end().has_landed, "it is another life's"
            assert not decode.has_content_of(prefill, 1)
            decode.wait_ready()
    assert statistics.median(took_s) < 1, took_s


@pytest.fixture
def namespace() -> Iterator[Path]:
    """A network of the test's own, with a loopback interface."""
    need_namespaces()
    with make_sites(("own",)) as sites:
        yield find_namespace(sites, "own")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_connection_that_is_dropped_after_some_blocks_makes_no_landing(
    engine: str, namespace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both processes live on; the kernel ends their connections."""
    need_engine(engine, monkeypatch)
    inside = ("ip", "netns", "exec", namespace.name)
    with open_peers(engine, NUM_BLOCKS, BLOCK_BYTES, namespace=namespace) as (prefill, decode):
        begin(prefill, decode, 1)
        dropped = subprocess.run([*inside, "ss", "-K", "-H", "-t"], capture_output=True, check=True)
        assert dropped.stdout, "there was no connection"
        end = decode.wait_end()
        assert (end.has_landed, end.reason) == (False, "failed")
        # The engine may take the loss for its own end; the next agent serves.
        wait_until(lambda: is_served(prefill, decode), "a transfer", pause_s=0.1)


def is_served(prefill: Peer, decode: Peer) -> bool:
    """True when a few blocks come."""
    if decode.client.ready is None:
        return False
    try:
        return decode.fetch(time.monotonic_ns(), prefill, 16).has_landed
    except NoAgent:
        return False


@pytest.mark.parametrize("engine", [*ENGINES, "memory"])
def test_any_number_of_blocks_comes_and_a_small_one_after_it(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_engine(engine, monkeypatch)
    with open_peers(engine, max(COUNTS), SMALL_BYTES, batch_s=30.0) as (prefill, decode):
        for number, count in enumerate(COUNTS):
            decode.buffer[:] = bytes(len(decode.buffer))
            assert decode.fetch(2 * number, prefill, count).has_landed
            assert decode.has_content_of(prefill, count)
            assert decode.fetch(2 * number + 1, prefill, 1).has_landed
