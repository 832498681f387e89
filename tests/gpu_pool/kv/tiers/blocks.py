"""Accounts, names and contents of blocks that the tests of tiers put away."""

from random import Random
from typing import Final

from contracts.ids import AccountId, RegionId
from gpu_pool.kv.block_hash import BlockHasher
from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace

A, B, C = (AccountId(letter * 32) for letter in "abc")
LAYOUT: Final = bytes(range(16))
SALT: Final = bytes(range(32))


def create_root(salt: bytes = SALT) -> bytes:
    """The root of an account's chain for one model."""
    return BlockHasher("revision", "float32", 16).create_root(salt)


def create_space(
    account_id: AccountId = A, salt: bytes = SALT, regions: tuple[RegionId, ...] | None = None
) -> TierNamespace:
    """What a request of an account brings, whose blocks may be in `regions` alone, if any."""
    return TierNamespace(account_id, create_root(salt), LAYOUT, regions)


def name_blocks(space: TierNamespace, count: int, first: int = 0) -> list[BlockName]:
    """Names of blocks in group 0."""
    return [space.name_block(0, index.to_bytes(32, "little")) for index in range(first, count)]


def fill(number: int, num_bytes: int = 5000) -> memoryview:
    """A block that no other number has."""
    return memoryview(bytearray(Random(number).randbytes(num_bytes)))


def blank(num_bytes: int = 5000) -> memoryview:
    """Memory for a block."""
    return memoryview(bytearray(num_bytes))


def draw_space(random: Random) -> TierNamespace:
    """A prober's, as near the victim's as a request can bring it, or nearer."""
    kind = random.randrange(5)
    if kind == 0:
        return create_space(B, random.randbytes(32))
    if kind == 1:  # one bit of the salt, under the victim's own account
        changed = int.from_bytes(SALT, "little") ^ 1 << random.randrange(256)
        return create_space(A, changed.to_bytes(32, "little"))
    if kind == 2:  # the victim's salt and another revision or dtype
        revision, dtype = random.choice([("revision2", "float32"), ("revision", "bfloat16")])
        return TierNamespace(A, BlockHasher(revision, dtype, 16).create_root(SALT), LAYOUT)
    if kind == 3:  # all of the victim's but the account: quotas are not shared either
        return create_space(random.choice([B, AccountId("d" * 32)]))
    return TierNamespace(A, random.choice([b"", SALT, bytes(32)]), LAYOUT)
