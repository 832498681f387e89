"""No engine asks who reads, so its ports are in a network that strangers are not in.

Two nodes at sites of their own, with the real engines; the stranger knows all that can be known.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from benchmarks.fleet.sites import Sites, make_sites
from gpu_pool.transfer_settings import TransferSettings
from tests.fixtures.listening import can_connect, list_ports
from tests.gpu_pool.transfer.peer import (
    Peer,
    find_namespace,
    need_engine,
    need_namespaces,
    open_peer,
    wait_until,
)

pytestmark = pytest.mark.slow

NUM_BLOCKS: Final = 16
BLOCK_BYTES: Final = 16 * 1024
ENGINES: Final = ("nixl", "mooncake")


@pytest.fixture
def sites() -> Iterator[Sites]:
    need_namespaces()
    with make_sites(("prompts", "answers", "insider")) as made:
        yield made


def open_at(stack: ExitStack, engine: str, sites: Sites, site: str | None) -> Peer:
    """A peer whose engine is at a site, or in the machine's own network."""
    settings = TransferSettings(
        engine=engine,  # type: ignore[arg-type]
        batch_s=1.5,
        host="127.0.0.1" if site is None else sites.find_address(site),
        network_namespace=None if site is None else find_namespace(sites, site),
    )
    return stack.enter_context(open_peer(settings, NUM_BLOCKS, BLOCK_BYTES))


def find_network(peer: Peer) -> int:
    """The network in which a peer's engine has its ports."""
    return os.stat(f"/proc/{peer.client.process_id}/ns/net").st_ino


def spy(stranger: Peer, prefill: Peer) -> bool:
    """True when a stranger, who lacks the account's key, has a node's blocks all the same."""
    ids = range(NUM_BLOCKS)
    stranger.land(1, ids, root_key=secrets.token_bytes(32))
    stranger.offer(1, prefill.export(ids))
    assert not stranger.wait_end().has_landed, "the tags are another key's"
    return stranger.has_content_of(prefill, NUM_BLOCKS)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stranger_reaches_no_port_and_reads_nothing(
    engine: str, sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is a stranger within that network, whom nothing stops."""
    need_engine(engine, monkeypatch)
    with ExitStack() as stack:
        prefill = open_at(stack, engine, sites, "prompts")
        decode = open_at(stack, engine, sites, "answers")
        insider = open_at(stack, engine, sites, "insider")
        outsider = open_at(stack, engine, sites, None)
        for peer in (prefill, decode, insider, outsider):
            peer.wait_ready()
        prefill.buffer[:] = secrets.token_bytes(len(prefill.buffer))

        assert decode.fetch(1, prefill, NUM_BLOCKS).has_landed
        assert decode.has_content_of(prefill, NUM_BLOCKS)
        assert spy(insider, prefill), "the attack"
        assert not spy(outsider, prefill)
        assert not any(outsider.buffer)

        network = ("ip", "netns", "exec", find_namespace(sites, "prompts").name)
        inside = ("ip", "netns", "exec", find_namespace(sites, "insider").name)
        address = sites.find_address("prompts")
        ports = list_ports(network)
        assert any(can_connect(inside, address, port) for port in ports), "the control"
        assert find_network(prefill) == os.stat(find_namespace(sites, "prompts")).st_ino
        assert find_network(prefill) != find_network(outsider)
        taken = set(list_ports(()))
        assert not any(can_connect((), "127.0.0.1", port) for port in set(ports) - taken)


def test_a_network_that_cannot_be_entered_leaves_the_node_without_an_engine(
    tmp_path: Path,
) -> None:
    """It does not listen in another one instead."""
    settings = TransferSettings(engine="nixl", network_namespace=tmp_path / "none")
    with open_peer(settings, NUM_BLOCKS, BLOCK_BYTES) as peer:
        wait_until(lambda: not peer.client.is_alive, "the refusal")
        assert peer.client.ready is None
