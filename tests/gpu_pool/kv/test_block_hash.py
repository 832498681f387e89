"""Keys of block contents: fixed vectors, and no two inputs with one key."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_pool.kv.block_hash import BlockHasher


def frame(field: bytes) -> bytes:
    return struct.pack("<Q", len(field)) + field


def test_keys_follow_the_documented_encoding() -> None:
    """Built here from the docstring's formula, so that both would have to be wrong alike."""
    hasher = BlockHasher("rev", "bf16", block_size=4)
    fields = frame(b"hearth kv 1") + frame(b"salt") + frame(b"rev") + frame(b"bf16") + frame(b"")
    root = hashlib.sha256(fields + struct.pack("<Q", 4)).digest()
    assert hasher.create_root(b"salt") == root
    tokens = frame(struct.pack("<4I", 1, 2, 3, 151_935))
    key = hashlib.sha256(root + frame(b"") + tokens).digest()
    assert hasher.extend(root, [1, 2, 3, 151_935]) == key


def test_fixed_vectors_hold() -> None:
    """A change here makes every cached and stored block unreachable: raise the domain's number."""
    hasher = BlockHasher("sha256:0123", "bfloat16", block_size=4)
    root = hasher.create_root(bytes(range(32)))
    first = hasher.extend(root, (0, 1, 2, 3))
    second = hasher.extend(first, (4, 5, 6, 7))
    assert [key.hex() for key in (root, first, second)] == [
        "08f0dc2a6e59b06024ccc4126442905391c3a4b8a581decf6929736495eca967",
        "fe52ab0c0dace5d0e18e3b68cb36f8e6f3f048d2262474d72be4c74ae682a1d1",
        "19a7d96f9a5f064a9e83dd406349b642befe87a4b2e3081b674f722b7d6827db",
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((b"a", "bc", "d"), (b"ab", "c", "d")),
        ((b"a", "b", "cd"), (b"a", "bc", "d")),
        ((b"salt", "r", "bf16"), (b"salt", "r", "fp8")),
        ((b"salt", "r1", "bf16"), (b"salt", "r2", "bf16")),
        ((b"salt", "r", "bf16"), (b"salt\0", "r", "bf16")),
    ],
)
def test_neighbouring_fields_cannot_lend_each_other_bytes(
    one: tuple[bytes, str, str], other: tuple[bytes, str, str]
) -> None:
    roots = [BlockHasher(rev, dtype, 16).create_root(salt) for salt, rev, dtype in (one, other)]
    assert roots[0] != roots[1]


def test_an_adapter_has_roots_of_its_own() -> None:
    hasher = BlockHasher("rev", "bf16", block_size=4)
    fields = frame(b"hearth kv 1") + frame(b"salt") + frame(b"rev") + frame(b"bf16") + frame(b"ad")
    root = hasher.create_root(b"salt", b"ad")
    assert root == hashlib.sha256(fields + struct.pack("<Q", 4)).digest()
    others = {hasher.create_root(b"salt", digest) for digest in (b"", b"a", b"ad\0")}
    assert len(others | {root}) == 4


def test_block_sizes_have_keys_of_their_own() -> None:
    assert BlockHasher("r", "d", 8).create_root(b"s") != BlockHasher("r", "d", 16).create_root(b"s")


blocks = st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2)


@given(one=st.lists(blocks, max_size=4), other=st.lists(blocks, max_size=4))
def test_chains_agree_exactly_as_far_as_the_tokens_do(
    one: list[list[int]], other: list[list[int]]
) -> None:
    hasher = BlockHasher("r", "d", block_size=2)

    def chain(token_blocks: list[list[int]]) -> list[bytes]:
        keys = [hasher.create_root(b"salt")]
        for token_ids in token_blocks:
            keys.append(hasher.extend(keys[-1], token_ids))
        return keys

    for index, (key, other_key) in enumerate(zip(chain(one), chain(other), strict=False)):
        assert (key == other_key) == (one[:index] == other[:index])


@given(token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=14))
def test_keys_that_are_made_at_once_are_those_made_one_after_the_other(
    token_ids: list[int],
) -> None:
    hasher = BlockHasher("r", "d", block_size=4)
    parent = root = hasher.create_root(b"salt")
    keys: list[bytes] = []
    for end in range(4, len(token_ids) + 1, 4):
        parent = hasher.extend(parent, token_ids[end - 4 : end])
        keys.append(parent)
    assert hasher.extend_all(root, token_ids) == keys
