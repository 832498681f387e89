"""Names and seals: nothing of a block can be read, moved or changed without the request's salt."""

import hmac
from random import Random

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gpu_pool.kv.tiers.namespace import (
    HEADER_BYTES,
    BlockName,
    TierNamespace,
    find_owner,
    measure_sealed,
)
from tests.gpu_pool.kv.tiers.blocks import LAYOUT, A, B, blank, create_root, create_space, fill

KEY = bytes(range(32))


def seal(space: TierNamespace, name: BlockName, block: memoryview) -> bytearray:
    sealed = bytearray(measure_sealed(len(block)))
    assert space.seal(name, block, memoryview(sealed)) == len(sealed)
    return sealed


def can_open(space: TierNamespace, name: BlockName, sealed: bytearray, size: int = 5000) -> bool:
    return space.open(name, memoryview(sealed), blank(size))


def test_what_was_sealed_opens_under_its_own_name() -> None:
    space, block, target = create_space(), fill(1), blank()
    name = space.name_block(0, KEY)
    sealed = seal(space, name, block)
    again = create_space()
    assert again.open(again.name_block(0, KEY), memoryview(sealed), target)
    assert target == block


def test_nothing_of_a_block_is_in_what_is_written() -> None:
    block = memoryview(bytearray(b"the canary is alive, " * 200))
    space = create_space()
    sealed = seal(space, space.name_block(0, KEY), block)
    assert b"canary" in bytes(block)
    assert b"canary" not in sealed
    assert KEY not in sealed


def test_the_same_block_never_looks_the_same() -> None:
    space = create_space()
    name = space.name_block(0, KEY)
    assert seal(space, name, fill(1)) != seal(space, name, fill(1))


def test_every_flipped_bit_is_noticed() -> None:
    space = create_space()
    name = space.name_block(0, KEY)
    sealed = seal(space, name, fill(1, 100))
    for bit in range(8 * len(sealed)):
        sealed[bit // 8] ^= 1 << bit % 8
        assert not can_open(space, name, sealed, 100), f"bit {bit}"
        sealed[bit // 8] ^= 1 << bit % 8
    assert can_open(space, name, sealed, 100)


def test_every_truncation_is_noticed() -> None:
    space = create_space()
    name = space.name_block(0, KEY)
    sealed = seal(space, name, fill(1, 100))
    for size in range(len(sealed)):
        assert not can_open(space, name, sealed[:size], 100)


@pytest.mark.parametrize("place", ["group", "key", "size", "salt", "layout"])
def test_a_block_opens_nowhere_but_at_its_place(place: str) -> None:
    space = create_space()
    name = space.name_block(0, KEY)
    sealed = seal(space, name, fill(1))
    other, size = space, 5000
    if place == "salt":
        other = create_space(salt=bytes(32))
    if place == "layout":
        other = TierNamespace(A, create_root(), bytes(16))
    if place == "group":
        name = other.name_block(1, KEY)
    if place == "key":
        name = other.name_block(0, bytes(32))
    if place == "size":
        size = 4999
    assert not can_open(other, name, sealed, size)


def test_a_header_of_another_size_does_not_open() -> None:
    """Sizes are bound by the tag, and compared before anything is decrypted."""
    space = create_space()
    name = space.name_block(0, KEY)
    sealed = seal(space, name, fill(1))
    assert not can_open(space, name, sealed[:HEADER_BYTES] + sealed, 5000 + HEADER_BYTES)


@pytest.mark.parametrize("group", [0, 1, 2**40])
def test_names_follow_the_documented_formula(group: int) -> None:
    """By the library's own HKDF and HMAC: what was kept under other names would be lost."""
    info = b"hearth kv tier 1" + LAYOUT
    material = HKDF(SHA256(), 64, None, info).derive(create_root())
    place = group.to_bytes(8, "little")
    expected = hmac.digest(material[:32], place + KEY, "sha256").hex()
    assert create_space().name_block(group, KEY) == BlockName(group, KEY, expected)


def test_names_tell_no_key_and_are_nobody_elses() -> None:
    random = Random(5)
    spaces = [create_space(), create_space(salt=bytes(32)), create_space(B, random.randbytes(32))]
    names = {space.name_block(group, KEY).text for space in spaces for group in range(3)}
    assert len(names) == 9
    assert not any(KEY.hex() in name for name in names)


def test_an_owner_is_known_by_account_whatever_the_salt() -> None:
    assert create_space().owner == create_space(salt=bytes(32)).owner == find_owner(A)
    assert find_owner(A) != find_owner(B)
    assert A not in find_owner(A)
