"""The KV memory of the executor double: what each slot holds, and who may read or write it.

Owns the rules on blocks: no reader but a sequence's own, no write where another one reads, no tag
out of turn. Must not know plans. Read next: `executor_double` (its only caller).
"""

from collections.abc import Iterable

from contracts.errors import InvariantBroken
from gpu_pool.engine.double_tokens import Digest
from gpu_pool.plan import BlockId, BlockMove, BlockRange, ExecutorInfo, HostBlockId, SequenceId

Slot = tuple[int, BlockId, int]
"""Group, block and offset of a token."""


class DoubleMemory:
    """All groups' blocks, on the device and on the host."""

    def __init__(self, info: ExecutorInfo) -> None:
        """Nothing was ever written."""
        self._info = info
        self._slots: dict[Slot, Digest] = {}
        """What is missing was never written."""
        self._readers: dict[tuple[int, BlockId], set[SequenceId]] = {}
        self._tags: dict[tuple[int, BlockId], int] = {}
        self._host: dict[tuple[int, HostBlockId], dict[int, Digest]] = {}
        """What host blocks hold, by offset."""

    def read(self, slot: Slot) -> Digest | None:
        """What a slot holds."""
        return self._slots.get(slot)

    def write(self, slot: Slot, content: Digest, sequence_id: SequenceId) -> None:
        """Fills a slot of a block that nobody else reads."""
        readers = self._readers[slot[0], slot[1]]
        require(readers == {sequence_id}, f"writes to block {slot[1]}, which is shared")
        self._slots[slot] = content

    def zero(self, group: int, block_id: BlockId) -> None:
        """Empties a block that nobody reads."""
        require(not self._readers.get((group, block_id)), f"zeroes {block_id}, in use")
        self._poison(group, block_id)

    def give_up(self, blocks: BlockRange) -> None:
        """Empties a slab of which nobody reads a block."""
        for block_id in map(BlockId, range(blocks.first, blocks.end)):
            require(not self._readers.get((blocks.group, block_id)), f"gives up {block_id}, in use")
            self._poison(blocks.group, block_id)

    def clear(self) -> None:
        """Empties all blocks."""
        self._slots.clear()
        self._host.clear()

    def move_out(self, moves: Iterable[BlockMove]) -> None:
        """Copies blocks to the host; only what is written is copied."""
        for move in moves:
            num_host_blocks = self._info.kv_groups[move.group].num_host_blocks
            require(0 <= move.host_id < num_host_blocks, f"no host block {move.host_id}")
            slots = range(self._info.block_size)
            content = {
                offset: self._slots[move.group, move.block_id, offset]
                for offset in slots
                if (move.group, move.block_id, offset) in self._slots
            }
            self._host[move.group, move.host_id] = content

    def move_in(self, moves: Iterable[BlockMove]) -> None:
        """Copies blocks back, which are gone from the host then."""
        for move in moves:
            content = self._host.pop((move.group, move.host_id), None)
            require(content is not None, f"host block {move.host_id} holds nothing")
            for offset, digest in (content or {}).items():
                self._slots[move.group, move.block_id, offset] = digest

    def read_host(self, group: int, host_id: HostBlockId) -> dict[int, Digest]:
        """What a host block holds, by offset."""
        return dict(self._host.get((group, host_id), {}))

    def write_host(self, group: int, host_id: HostBlockId, content: dict[int, Digest]) -> None:
        """Fills a host block, as something beside the executor does."""
        self._host[group, host_id] = dict(content)

    def give(
        self,
        sequence_id: SequenceId,
        group: int,
        block_id: BlockId,
        *,
        is_fresh: bool,
        tag: int | None,
    ) -> None:
        """Notes a new reader. A fresh block has no other one and a tag of its own."""
        num_blocks = self._info.kv_groups[group].num_blocks or self._info.num_blocks
        require(0 <= block_id < num_blocks, f"block {block_id} does not exist")
        readers = self._readers.setdefault((group, block_id), set())
        known = self._tags.get((group, block_id), 0)
        if is_fresh:
            require(not readers, f"block {block_id} is in use")
            self._poison(group, block_id)
        if tag is not None:
            is_right = tag > known if is_fresh else tag == known
            require(is_right, f"block {block_id} comes under tag {tag} after {known}")
            self._tags[group, block_id] = tag
        readers.add(sequence_id)

    def take(self, sequence_id: SequenceId, group: int, block_id: BlockId) -> None:
        """Forgets a reader; the block keeps its content."""
        self._readers[group, block_id].discard(sequence_id)

    def _poison(self, group: int, block_id: BlockId) -> None:
        """Empties a block, so that what its former owner left cannot be read."""
        for offset in range(self._info.block_size):
            self._slots.pop((group, block_id, offset), None)


def require(condition: bool, violation: str) -> None:
    """Raises: `InvariantBroken` unless `condition`."""
    if not condition:
        raise InvariantBroken(f"Plan: {violation}.")
