"""A signed export of an account's ledger, which can be verified without the platform.

Owns the form: JSON lines, a header first, one record a line, a seal last. The seal has the number
of records and an Ed25519 signature over the SHA-256 of every byte before it, so that a changed,
added, moved or missing line shows. Must not know files or databases.
Read next: `tenancy.usage.ledger`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from contracts.errors import InvalidRequest
from contracts.ids import AccountId
from contracts.usage import UsageRecord, list_places
from tenancy.encryption.key_ring import Keys
from tenancy.encryption.signing_key import derive_signing_key

FORMAT: Final = "hearth-usage-1"
_PURPOSE: Final = b"hearth usage exports\0"


class ExportHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the export is of: requests that began on days in [`since`, `before`), UTC."""

    format: str = FORMAT
    account_id: AccountId
    since: str
    before: str
    created_unix_s: int


class ExportSeal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last line; key and signature in hexadecimal digits."""

    num_records: int
    key_version: int
    public_key: str
    signature: str


class UsageSealer:
    """Writes one export, line by line."""

    def __init__(self, header: ExportHeader) -> None:
        """`open` comes first, `close` last."""
        self._header = header
        self._digest = hashlib.sha256()
        self._num_records = 0

    def open(self) -> bytes:
        """The first line."""
        return self._add(msgspec.json.encode(self._header))

    def add(self, records: Sequence[UsageRecord]) -> bytes:
        """A line for each of `records`."""
        self._num_records += len(records)
        return b"".join(self._add(msgspec.json.encode(to_fields(one))) for one in records)

    def close(self, keys: Keys) -> bytes:
        """The last line, signed under the current master key."""
        key = derive_signing_key(keys.master_keys.current, _PURPOSE)
        seal = ExportSeal(
            num_records=self._num_records,
            key_version=keys.master_keys.current_version,
            public_key=key.public_key().public_bytes_raw().hex(),
            signature=key.sign(_PURPOSE + self._digest.digest()).hex(),
        )
        return msgspec.json.encode(seal) + b"\n"

    def _add(self, line: bytes) -> bytes:
        line += b"\n"
        self._digest.update(line)
        return line


def to_fields(record: UsageRecord) -> dict[str, object]:
    """A record as exports show it: the ledger's own values under their names."""
    fields = {name: getattr(record, name) for name in record.__struct_fields__ if name != "tokens"}
    if record.earlier_places:
        fields["earlier_places"] = list_places(record.earlier_places)
    return fields | msgspec.structs.asdict(record.tokens)


def find_public_key(keys: Keys) -> str:
    """The key that verifies exports of now, in hexadecimal digits."""
    key = derive_signing_key(keys.master_keys.current, _PURPOSE)
    return key.public_key().public_bytes_raw().hex()


def verify_export(lines: Iterable[bytes], public_key: str) -> tuple[ExportHeader, int]:
    """The header and the number of records of an export that is as it was signed.

    Raises: `InvalidRequest`, which says what is wrong with it.
    """
    digest, num_lines, first, last = hashlib.sha256(), 0, b"", b""
    for line, is_last in _mark_last(lines):
        num_lines += 1
        first = first or line
        if is_last:
            last = line
        else:
            digest.update(line)
    try:
        header = msgspec.json.decode(first, type=ExportHeader)
        seal = msgspec.json.decode(last, type=ExportSeal)
    except msgspec.MsgspecError:
        raise InvalidRequest("The file is no export of usage, or its end is missing.") from None
    if header.format != FORMAT or num_lines != seal.num_records + 2:
        raise InvalidRequest("The export has lines too many or too few.")
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(seal.signature), _PURPOSE + digest.digest())
    except (ValueError, InvalidSignature):
        raise InvalidRequest("The export is not as the owner of this key has signed it.") from None
    return header, seal.num_records


def _mark_last(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each line, and whether it is the last one."""
    waiting: bytes | None = None
    for line in lines:
        if waiting is not None:
            yield waiting, False
        waiting = line
    if waiting is not None:
        yield waiting, True
