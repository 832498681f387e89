"""Nodes of a shared store: each a tier with an agent, a real client, in a process of its own."""

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from gpu_pool.kv.tiers.mooncake_client import StoreClient
from gpu_pool.kv.tiers.mooncake_life import AGENT_COMMAND
from gpu_pool.kv.tiers.mooncake_tier import MooncakeTier, write_name
from gpu_pool.kv.tiers.mooncake_words import StoreOp
from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace
from gpu_pool.kv.tiers.settings import StoreTierSettings
from gpu_pool.kv.tiers.shelves import Entry
from tests.fixtures.mooncake_master import MooncakeMaster

PATIENCE_S = 60.0
SEGMENT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoreNode:
    """One node's part in the store."""

    tier: MooncakeTier
    client: StoreClient

    def wait_back(self) -> None:
        """Returns when the store is there."""
        wait_until(lambda: not self.client.is_away)

    def read(self, name: str) -> bytes:
        """What stands under a name, as anybody gets it who reaches the store."""
        answer = self.client.call(StoreOp.GET, name)
        return answer.content if answer is not None else b""

    def look_up(self, names: list[str]) -> int:
        """How many of these names are there."""
        answer = self.client.call(StoreOp.LOOK_UP, *names)
        assert answer is not None, "the store is away"
        return answer.content.count(1)

    def rename(self, name: str, other: str) -> None:
        """Puts what stands under one name under another one."""
        put = self.client.call(StoreOp.PUT, other, content=self.read(name))
        assert put is not None
        assert put.code == 0

    def replace(self, name: str, content: bytes) -> None:
        """Puts something else under a name, as anybody can who reaches the store."""
        removed = self.client.call(StoreOp.REMOVE, name)
        put = self.client.call(StoreOp.PUT, name, content=content)
        assert removed is not None
        assert put is not None
        assert (removed.code, put.code) == (0, 0)


def write_block_name(space: TierNamespace, name: BlockName) -> str:
    """What stands in the store for a block."""
    return write_name(Entry(space.owner, name.text))


def wait_until(is_so: Callable[[], bool]) -> None:
    """Returns when something has come to be so."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it does not come to be so"
        time.sleep(0.02)


def create_store_settings(
    master: MooncakeMaster, *, max_bytes: int = 10**8, account_bytes: int | None = None
) -> StoreTierSettings:
    """A node that lends memory."""
    return StoreTierSettings(
        master=master.address,
        max_bytes=max_bytes,
        account_bytes=account_bytes,
        segment_bytes=SEGMENT_BYTES,
    )


@contextmanager
def open_nodes(
    settings: StoreTierSettings,
    count: int,
    *,
    is_waiting: bool = True,
    command: tuple[str, ...] = AGENT_COMMAND,
) -> Generator[list[StoreNode]]:
    """Nodes until the end of the block; they are connected, and leave side by side."""
    nodes: list[StoreNode] = []
    try:
        for _ in range(count):
            client = StoreClient(settings, lambda: None, command)
            nodes.append(StoreNode(MooncakeTier(settings, client), client))
        if is_waiting:
            for node in nodes:
                node.wait_back()
        yield nodes
    finally:
        with ThreadPoolExecutor() as threads:
            for node in nodes:
                threads.submit(node.tier.close)


@contextmanager
def open_node(
    settings: StoreTierSettings,
    *,
    is_waiting: bool = True,
    command: tuple[str, ...] = AGENT_COMMAND,
) -> Generator[StoreNode]:
    """One node."""
    with open_nodes(settings, 1, is_waiting=is_waiting, command=command) as (node,):
        yield node
