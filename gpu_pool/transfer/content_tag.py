"""The proof that a block holds what its key names, at the place where it belongs.

A keyed BLAKE2b over key, group, index and content. The secret is derived from the account's root
key, which both nodes know from the grant and nobody else: neither another account's block nor an
old one, cut or moved passes. Must not know where bytes come from. Read next: `importer`.
"""

import hashlib
import hmac
import struct
from typing import Final

from contracts.kv_transfer import TAG_BYTES

_PLACE: Final = struct.Struct("<II")


class Tagger:
    """Tags of one account's blocks under one model."""

    def __init__(self, root_key: bytes) -> None:
        """`root_key` as `Prefix` has it."""
        secret = hmac.digest(root_key, b"hearth kv tags", "sha256")
        self._start = hashlib.blake2b(key=secret, digest_size=TAG_BYTES)

    def create(self, group: int, index: int, key: bytes, content: memoryview) -> bytes:
        """The tag of a block; large ones are hashed without holding up other threads."""
        state = self._start.copy()
        state.update(_PLACE.pack(group, index) + key)
        state.update(content)
        return state.digest()

    def fits(self, tag: bytes, group: int, index: int, key: bytes, content: memoryview) -> bool:
        """True when `tag` is that of the block."""
        return hmac.compare_digest(tag, self.create(group, index, key, content))
