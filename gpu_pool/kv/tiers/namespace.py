"""How one account's blocks are named and sealed outside the device.

    names, seal = HKDF-SHA-256(root key, info = "hearth kv tier 1" layout digest), 32 bytes each
    name(group, key) = HMAC-SHA-256(names, U(group) key)
    sealed = AES-256-GCM(seal, nonce, block, AAD = header U(group) key)

The root key is the SHA-256 of the request's cache salt and the model's revision (`block_hash`): a
node has it only while a request of that account is there, so without one neither the names nor the
bytes on a drive say anything. A key of the chain stands for everything before the block: position
and model are in the AAD with it. U(n) is n in 8 bytes, little-endian.
Must not know files. Read next: `shelves`, `file_tier`.
"""

import hashlib
import os
import struct
from collections.abc import Collection
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from contracts.ids import AccountId, RegionId

HEADER_BYTES: Final = 32
TAG_BYTES: Final = 16
_DOMAIN: Final = b"hearth kv tier 1"
_MAGIC: Final = b"HEARTHKV"
_HEADER: Final = struct.Struct("<8s12sIQ")
"""Magic, nonce, group, bytes of the block."""
_PLACE: Final = struct.Struct("<Q")
_NONCE_BYTES: Final = 12


class BlockName(NamedTuple):
    """One block of one KV group, as its account's tiers know it."""

    group: int
    key: bytes
    """Of the chain; never written anywhere."""
    text: str
    """What stands in a directory: 64 hexadecimal digits."""


class TierNamespace:
    """Names and seals for what one salt of one account has computed with one model."""

    __slots__ = ("_aead", "_inner", "_outer", "_regions", "owner")

    def __init__(
        self,
        account_id: AccountId,
        root_key: bytes,
        layout: bytes,
        regions: tuple[RegionId, ...] | None = None,
    ) -> None:
        """`layout` is the digest of everything about a block's bytes that its key leaves open;
        `regions` are where the request that asks lets blocks be, None means anywhere.
        """
        self._regions = regions
        self.owner = find_owner(account_id)
        """The account, for quotas."""
        material = HKDF(SHA256(), 64, None, _DOMAIN + layout).derive(root_key)
        name_key = material[:32].ljust(hashlib.sha256().block_size, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in name_key))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in name_key))
        self._aead = AESGCM(material[32:])

    def name_block(self, group: int, key: bytes) -> BlockName:
        """The name of what `key` stands for in one group.

        Source: RFC 2104, with both states of the key at hand: a long prompt has thousands of names,
        and `hmac.digest` takes three times as long.
        """
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(_PLACE.pack(group) + key)
        outer.update(inner.digest())
        return BlockName(group, key, outer.hexdigest())

    def may_be_in(self, regions: Collection[RegionId]) -> bool:
        """True when blocks may be in all of `regions`; none at all stand for not knowing where."""
        if self._regions is None:
            return True
        return bool(regions) and all(region in self._regions for region in regions)

    def seal(self, name: BlockName, block: memoryview, sealed: memoryview) -> int:
        """Fills `sealed` with header, ciphertext and tag; returns their bytes."""
        nonce = os.urandom(_NONCE_BYTES)
        header = _HEADER.pack(_MAGIC, nonce, name.group, len(block))
        end = measure_sealed(len(block))
        sealed[:HEADER_BYTES] = header
        self._aead.encrypt_into(nonce, block, _bind(header, name), sealed[HEADER_BYTES:end])
        return end

    def open(self, name: BlockName, sealed: memoryview, block: memoryview) -> bool:
        """Fills `block` with what was sealed under this very name; False: it was not, or not all.

        `block` may hold anything then.
        """
        end = measure_sealed(len(block))
        if len(sealed) < end:
            return False
        header = bytes(sealed[:HEADER_BYTES])
        magic, nonce, group, num_bytes = _HEADER.unpack(header)
        if magic != _MAGIC or group != name.group or num_bytes != len(block):
            return False
        try:
            content = sealed[HEADER_BYTES:end]
            self._aead.decrypt_into(nonce, content, _bind(header, name), block)
        except InvalidTag:
            return False
        return True


def find_owner(account_id: AccountId) -> str:
    """What stands for an account in the tiers: 32 hexadecimal digits that are not its id."""
    return hashlib.sha256(_DOMAIN + account_id.encode()).hexdigest()[:32]


def measure_sealed(num_bytes: int) -> int:
    """Bytes that a block of `num_bytes` takes when it is sealed."""
    return HEADER_BYTES + num_bytes + TAG_BYTES


def _bind(header: bytes, name: BlockName) -> bytes:
    """What the tag covers beside the block."""
    return header + _PLACE.pack(name.group) + name.key
