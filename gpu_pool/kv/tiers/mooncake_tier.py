"""Blocks in Mooncake Store, sealed: what one node has computed another one finds.

The store takes any name and shows every one, and whoever reaches it reads all that is in it. So a
name is a keyed hash that nobody can guess (`namespace`), and what stands under it is sealed. What
others have put is found by asking for it: whether it is there shows when it comes. The store has no
quota of an account; the node keeps books of what it has itself put there, and removes what is too
much. Read next: `namespace`, `shelves`, `mooncake_client`, ADR 0047.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from gpu_pool.kv.tiers.mooncake_client import StoreClient
from gpu_pool.kv.tiers.mooncake_words import StoreOp
from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace, measure_sealed
from gpu_pool.kv.tiers.settings import StoreTierSettings
from gpu_pool.kv.tiers.shelves import Entry, Shelves
from gpu_pool.kv.tiers.tier import TierBooks

_MAX_SEEN: Final = 200_000
"""Names of others' blocks that are remembered; about 40 MB."""
_NUM_NAMED: Final = 500
"""Names that are looked up or removed at a time."""


class MooncakeTier:
    """A `Tier` in a store that many nodes share."""

    def __init__(self, settings: StoreTierSettings, client: StoreClient) -> None:
        """Nothing known; starts `client`, which is this tier's alone."""
        self._shelves = Shelves(settings.max_bytes, settings.account_bytes)
        self._seen: OrderedDict[Entry, None] = OrderedDict()
        self._lock = threading.Lock()
        self._num_damaged = 0
        self._client = client
        client.start(self._look_again)

    @property
    def books(self) -> TierBooks:
        """What this node has put there; off while the store is away."""
        return TierBooks(self._shelves.num_bytes, self._num_damaged, self._client.is_away)

    def has(self, space: TierNamespace, name: BlockName) -> bool:
        """True when the block was there when it was last heard of."""
        return self._has(Entry(space.owner, name.text))

    def may_have(self, space: TierNamespace, name: BlockName) -> bool:
        """True while the store is there: some other node may have put the block."""
        return not self._client.is_away

    def keep(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        """Seals a block into the store, unless it is there, and removes others of this node's."""
        entry = Entry(space.owner, name.text)
        num_bytes = measure_sealed(len(block))
        if self._client.is_away or self._has(entry) or not self._shelves.fits(num_bytes):
            return False
        known = self._client.call(StoreOp.LOOK_UP, write_name(entry))
        if known is None:
            return False
        if known.content == b"\x01":
            self._note_seen(entry)
            return False
        sealed = bytearray(num_bytes)
        space.seal(name, block, memoryview(sealed))
        put = self._client.call(StoreOp.PUT, write_name(entry), content=bytes(sealed))
        if put is None or put.code != 0:
            return False
        with self._lock:
            gone = [] if self._shelves.has(entry) else self._shelves.put(entry, num_bytes)
        if gone:
            self._client.call(StoreOp.REMOVE, *map(write_name, gone))
        return True

    def fetch(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        """Fills `block`; False when there is none, not in time, or not what was put there."""
        entry = Entry(space.owner, name.text)
        answer = self._client.call(StoreOp.GET, write_name(entry))
        if answer is None:
            return False
        is_whole = len(answer.content) == measure_sealed(len(block))
        if is_whole and space.open(name, memoryview(answer.content), block):
            with self._lock:
                self._shelves.touch(entry)
            if not self._shelves.has(entry):
                self._note_seen(entry)
            return True
        self._forget(entry)
        if answer.code == 0:
            with self._lock:
                self._num_damaged += 1
            self._client.call_soon(StoreOp.REMOVE, write_name(entry))
        return False

    def remove(self, space: TierNamespace, names: Sequence[BlockName]) -> None:
        """Removes blocks from the store, whichever node has put them there."""
        entries = [Entry(space.owner, name.text) for name in names]
        for entry in entries:
            self._forget(entry)
        for some in _divide(entries):
            self._client.call(StoreOp.REMOVE, *map(write_name, some))

    def close(self) -> None:
        """Ends the node's part in the store; what it has lent goes, and calls under way end."""
        self._client.close()

    def _look_again(self) -> None:
        """Forgets what a store that has come back has lost."""
        with self._lock:
            entries = [*self._shelves.list_entries(), *self._seen]
        for asked in _divide(entries):
            answer = self._client.call(StoreOp.LOOK_UP, *map(write_name, asked))
            if answer is None:
                return
            for entry, is_there in zip(asked, answer.content, strict=True):
                if not is_there:
                    self._forget(entry)

    def _has(self, entry: Entry) -> bool:
        """True when the node has put the block or seen it."""
        return entry in self._seen or self._shelves.has(entry)

    def _note_seen(self, entry: Entry) -> None:
        """Remembers a block that another node has put."""
        with self._lock:
            self._seen[entry] = None
            self._seen.move_to_end(entry)
            if len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)

    def _forget(self, entry: Entry) -> None:
        """Takes a block for absent."""
        with self._lock:
            self._seen.pop(entry, None)
            self._shelves.remove(entry)


def _divide(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """As many at a time as one call names."""
    for start in range(0, len(entries), _NUM_NAMED):
        yield entries[start : start + _NUM_NAMED]


def write_name(entry: Entry) -> str:
    """What stands in the store, which others may use as well.

    One digest of account and name: who lists the store cannot even tell which blocks are one
    account's, and another account with the very same salt would find nothing.
    """
    digest = hashlib.sha256(bytes.fromhex(entry.owner) + bytes.fromhex(entry.name))
    return f"hearth.kv.{digest.hexdigest()}"
