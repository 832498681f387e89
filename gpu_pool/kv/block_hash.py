"""Names of block contents: a SHA-256 chain over everything that the KV in a block depends on.

    root  = SHA-256(F("hearth kv 1") F(salt) F(revision) F(dtype) F(adapter digest) U(block size))
    key_i = SHA-256(key_{i-1} F(media digest) F(token ids of block i, 4 bytes each))

F(x) is U(length of x) followed by x, U(n) is n in 8 bytes, all little-endian: no two inputs share
an encoding. The adapter's digest is empty without one, media digests until there are media.
Must not know blocks. Read next: `prefix_index`.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

KEY_BYTES: Final = 32
_DOMAIN: Final = b"hearth kv 1"
_NO_MEDIA: Final = (0).to_bytes(8, "little")


class BlockHasher:
    """Keys for the blocks of one model."""

    def __init__(self, model_revision: str, kv_dtype: str, block_size: int) -> None:
        """Units: `block_size` in tokens."""
        self._model = _frame(model_revision.encode()) + _frame(kv_dtype.encode())
        self._block_size = block_size
        self._tokens = struct.Struct(f"<{block_size}I")
        self._prefix = _NO_MEDIA + self._tokens.size.to_bytes(8, "little")

    @property
    def block_size(self) -> int:
        """Tokens per key."""
        return self._block_size

    def create_root(self, cache_salt: bytes, adapter_digest: bytes = b"") -> bytes:
        """The parent of the first block's key, for the account behind `cache_salt` and what its
        prompt is computed with.
        """
        size = self._block_size.to_bytes(8, "little")
        fields = _frame(_DOMAIN) + _frame(cache_salt) + self._model + _frame(adapter_digest) + size
        return hashlib.sha256(fields).digest()

    def extend(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """The key of a full block of `token_ids` that follows the block named `parent`."""
        return hashlib.sha256(parent + self._prefix + self._tokens.pack(*token_ids)).digest()

    def extend_all(self, parent: bytes, token_ids: Sequence[int]) -> list[bytes]:
        """The keys of all full blocks of `token_ids`, as `extend` gives them one after the other:
        for long prompts, in half the time.
        """
        prefix, size, sha256 = self._prefix, self._tokens.size, hashlib.sha256
        tokens = struct.pack(f"<{len(token_ids)}I", *token_ids)
        keys: list[bytes] = []
        for end in range(size, len(tokens) + 1, size):
            parent = sha256(parent + prefix + tokens[end - size : end]).digest()
            keys.append(parent)
        return keys


def _frame(field: bytes) -> bytes:
    """`field` led by its length."""
    return len(field).to_bytes(8, "little") + field
