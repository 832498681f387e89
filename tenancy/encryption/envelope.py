"""Envelope encryption: values under an account's data key, data keys under the key ring.

AES-256-GCM; what is authenticated beside the text names the very cell it belongs to, so that no
ciphertext can be moved to another row, column or account. Owns the written form; must not know
tables. Source: NIST SP 800-38D; RFC 5869. Read next: `tenancy.encryption.data_keys`.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from contracts.errors import InvariantBroken
from contracts.ids import AccountId
from tenancy.sources import Randomness

DATA_KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
_FORM: Final = b"\x01"
_WRAPPING: Final = b"hearth data keys\0"


@dataclass(frozen=True, slots=True)
class Cell:
    """Where a secret is stored."""

    table: str
    row: str
    column: str
    account_id: AccountId

    def to_bytes(self) -> bytes:
        """The cell as data that is authenticated with the text."""
        return msgspec.msgpack.encode((self.table, self.row, self.column, self.account_id))


def seal(key: bytes, text: bytes, cell: Cell, randomness: Randomness) -> bytes:
    """`text` encrypted for `cell`: one byte of form, the nonce, text and tag."""
    nonce = randomness(NONCE_BYTES)
    return _FORM + nonce + AESGCM(key).encrypt(nonce, text, cell.to_bytes())


def unseal(key: bytes, sealed: bytes, cell: Cell) -> bytes:
    """The text inside. Raises: `InvariantBroken` when key, cell or content do not fit."""
    form, nonce, encrypted = sealed[:1], sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
    try:
        if form != _FORM:
            raise InvalidTag
        return AESGCM(key).decrypt(nonce, encrypted, cell.to_bytes())
    except (InvalidTag, ValueError):
        raise InvariantBroken("A stored secret cannot be decrypted.") from None


def derive_wrapping_key(master_key: bytes) -> bytes:
    """The key under which data keys are kept."""
    derivation = HKDF(algorithm=SHA256(), length=DATA_KEY_BYTES, salt=None, info=_WRAPPING)
    return derivation.derive(master_key)
