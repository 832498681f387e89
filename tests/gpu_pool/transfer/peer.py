"""The transfer side of one core without the core: host memory, a real agent, a real puller.

Read next: `gpu_pool.transfer.puller`, `core_pair` (whole cores).
"""

import importlib
import mmap
import os
import queue
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from benchmarks.fleet.sites import Sites, can_be_apart
from contracts.ids import AccountId
from contracts.kv_transfer import KvExported, KvRun
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.plan import HostBlockId, HostMemory, SequenceId
from gpu_pool.transfer.agent_client import AgentClient
from gpu_pool.transfer.content_tag import Tagger
from gpu_pool.transfer.host_view import HostView
from gpu_pool.transfer.puller import PullEnd, Puller
from gpu_pool.transfer_settings import TransferSettings
from tests.fixtures.services import WITHOUT_MOONCAKE, give_up, give_up_unless

PATIENCE_S: Final = 60.0
ROOT_KEY: Final = b"root key of the account, 32 byte"
_MODULES: Final = {"nixl": "nixl_cu12._bindings", "mooncake": "mooncake.engine"}


def need_engine(engine: str, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Leaves the test out where an engine cannot be loaded; NIXL speaks TCP from here on, since a
    frozen process answers through shared memory all the same.
    """
    if engine in _MODULES:
        try:
            importlib.import_module(_MODULES[engine])
        except ImportError as error:
            if engine == "mooncake":  # needs a package of the system's
                give_up_unless(WITHOUT_MOONCAKE, f"{error}; install Debian's libibverbs1")
            give_up(f"{engine} cannot be loaded: {error}")
    if monkeypatch is not None:
        monkeypatch.setenv("UCX_TLS", "tcp")


def need_namespaces() -> None:
    """Leaves the test out where this process may not make networks."""
    if not can_be_apart():
        give_up_unless("HEARTH_WITHOUT_NAMESPACES", "network namespaces need root and `ip`")


def find_namespace(sites: Sites, site: str) -> Path:
    """The file by which a site's network is entered."""
    return Path("/run/netns") / f"{sites.prefix}{site}"


class NoAgent(Exception):
    """A peer has no agent at this moment."""


class Peer:
    """One node's end, with a KV group of `num_blocks` blocks."""

    def __init__(self, settings: TransferSettings, num_blocks: int, block_bytes: int) -> None:
        """Nothing runs yet."""
        size = num_blocks * block_bytes
        self._handle = os.memfd_create("peer")
        os.ftruncate(self._handle, size)
        self._map = mmap.mmap(self._handle, size)
        self.buffer = memoryview(self._map)
        self.num_blocks, self.block_bytes = num_blocks, block_bytes
        memory = [HostMemory(self.buffer, block_bytes, self._handle)]
        self.view = HostView(memory)
        self.incarnation = secrets.token_hex(8)
        self.client = AgentClient(settings, self.incarnation, memory)
        self.news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.puller = Puller(self.client, self.view, settings.batch_s, lambda: self.news.put(None))

    def wait_ready(self) -> None:
        """Until the agent has said what peers have to know."""
        wait_until(lambda: self.client.ready is not None, "an agent")

    def fill(self, random: Random) -> None:
        """Gives every block a content of its own."""
        self.buffer[:] = random.randbytes(len(self.buffer))

    def export(self, ids: Sequence[int], root_key: bytes = ROOT_KEY) -> KvExported:
        """What an exporter would say of these blocks, as the first ones of a prompt.

        Raises:
            NoAgent: It is gone, and the next one has not begun.
        """
        ready = self.client.ready
        if ready is None:
            raise NoAgent
        tagger = Tagger(root_key)
        tags = tuple(
            tagger.create(0, index, name(index), self.view.get_bytes(0, HostBlockId(block)))
            for index, block in enumerate(ids)
        )
        addresses = tuple(ready.addresses[0] + block * self.block_bytes for block in ids)
        run = KvRun(0, 0, addresses, tags)
        return KvExported(self.incarnation, ready.agent, (run,), is_last=True)

    def land(self, number: int, ids: Sequence[int], root_key: bytes = ROOT_KEY) -> None:
        """Waits for a prompt's first blocks in these places."""
        keys = tuple(map(name, range(len(ids))))
        run = HostRun(0, 0, tuple(map(HostBlockId, ids)), keys)
        prefix = Prefix(AccountId("a" * 32), root_key, keys)
        self.puller.land(SequenceId(number), prefix, (run,))

    def offer(self, number: int, exported: KvExported) -> None:
        """Another peer has blocks for a landing."""
        self.puller.offer(SequenceId(number), exported)

    def wait_end(self) -> PullEnd:
        """The next end."""
        return self.puller.ends.get(timeout=PATIENCE_S)

    def fetch(self, number: int, peer: "Peer", num_blocks: int) -> PullEnd:
        """Has the first blocks of `peer`, if all goes well; `NoAgent` if that one has none."""
        ids = range(num_blocks)
        exported = peer.export(ids)
        self.land(number, ids)
        self.offer(number, exported)
        return self.wait_end()

    def has_content_of(self, peer: "Peer", num_blocks: int) -> bool:
        """True when the first blocks are those of `peer`."""
        size = num_blocks * self.block_bytes
        return self.buffer[:size] == peer.buffer[:size]

    def close(self) -> None:
        """Ends the agent; the memory goes with the last who looks at it."""
        self.puller.close()
        os.close(self._handle)


@contextmanager
def open_peers(
    engine: str,
    num_blocks: int,
    block_bytes: int,
    batch_s: float = 5.0,
    namespace: Path | None = None,
) -> Iterator[tuple[Peer, Peer]]:
    """One that has blocks, filled, and one that wants them."""
    settings = TransferSettings(
        engine=engine,  # type: ignore[arg-type]
        batch_s=batch_s,
        network_namespace=namespace,
    )
    with (
        open_peer(settings, num_blocks, block_bytes) as prefill,
        open_peer(settings, num_blocks, block_bytes) as decode,
    ):
        for peer in (prefill, decode):
            peer.wait_ready()
        prefill.fill(Random(num_blocks))
        yield prefill, decode


@contextmanager
def open_peer(settings: TransferSettings, num_blocks: int, block_bytes: int) -> Iterator[Peer]:
    """One whose agent is starting."""
    peer = Peer(settings, num_blocks, block_bytes)
    peer.puller.start()
    try:
        yield peer
    finally:
        peer.close()


def name(index: int) -> bytes:
    """The key of a prompt's block."""
    return index.to_bytes(32, "little")


def wait_until(is_so: Callable[[], bool], what: str, pause_s: float = 0.001) -> None:
    """Looks again and again. `pause_s` 0: without a pause."""
    until_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until_s, f"waited in vain for {what}"
        if pause_s:
            time.sleep(pause_s)
