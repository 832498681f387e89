"""What requests that are still being served have consumed so far, in a file that outlives a kill.

Owns one file of fixed places, mapped into memory: a count is one store into it, without a call to
the system. A request has a place from the moment its node accepts it until its record is in the
journal; whatever is found in a place at the next start belongs to a request that died with the
process. A power cut can lose or spoil places, which are then left out. Must not know streams.
Read next: `gateway.metering.journal`, `gateway.settlement`.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import structlog

from contracts.errors import StoreUnavailable
from contracts.ids import RequestId
from contracts.inference import Usage
from contracts.pricing import FREE, Price, TokenRates, compute_charge
from contracts.settings import SettingsError
from contracts.usage import NodePlace, UsageRecord, to_token_counts
from gateway.metering.journal import Journal, read_boot, read_journal
from gateway.request_context import Tally

log = structlog.get_logger(__name__)
SUFFIX: Final = ".open"
PLACE_BYTES: Final = 1024
_CELL_BYTES: Final = 8
_CELLS_PER_PLACE: Final = PLACE_BYTES // _CELL_BYTES
_NUM_COUNTS: Final = 4
_NO_COUNTS: Final = bytes(_NUM_COUNTS * _CELL_BYTES)
_ENTRY_AT: Final = (1 + _NUM_COUNTS) * _CELL_BYTES
_MAX_ENTRY_BYTES: Final = PLACE_BYTES - _ENTRY_AT
_LENGTH_BITS: Final = 32
_FIRST_CELL: Final = struct.Struct("=Q")
_OPTIONS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class OpenEntry(msgspec.Struct, frozen=True, array_like=True):
    """What a place says of its request, besides the counts."""

    record: UsageRecord
    """As it will be if the process dies now, but for tokens and charge."""
    rates: tuple[TokenRates, TokenRates] | None
    """Money and neurons; None: nothing will be charged."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(OpenEntry)


class OpenUsage:
    """The places of one life of the process.

    Each is a cell with the entry's length and checksum (zero: the place is free), four cells of
    counts, and the entry.
    """

    def __init__(self, folder: Path, boot: str, num_places: int) -> None:
        """Takes all of its room on the disk at once. Raises: `SettingsError`."""
        self._path = folder / f"{boot}{SUFFIX}"
        try:
            descriptor = os.open(self._path, _OPTIONS, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, num_places * PLACE_BYTES)
                self._map = mmap.mmap(descriptor, num_places * PLACE_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise SettingsError(
                f"{self._path} cannot be written: {error.strerror}; it needs "
                f"{num_places * PLACE_BYTES} bytes."
            ) from error
        self._bytes = memoryview(self._map)
        self._cells = self._bytes.cast("Q")
        self._free = list(range(num_places))

    @property
    def num_open(self) -> int:
        """Requests that have a place."""
        return len(self._cells) // _CELLS_PER_PLACE - len(self._free)

    def take(self) -> int:
        """A free place; `begin` and `end` must follow. Raises: `StoreUnavailable`."""
        if not self._free:
            raise StoreUnavailable("Usage cannot be recorded right now.", retry_after_s=1)
        return self._free.pop()

    def begin(self, place: int, record: UsageRecord, price: Price | None) -> Tally:
        """The counts of `place`, all zero, from now on those of `record`'s request.

        They count prompt, cached, generated and reasoning tokens. `price` None charges nothing.
        """
        first = place * _CELLS_PER_PLACE
        self._cells[first] = 0
        rates = None if price is None else (price.money, price.neurons)
        entry = _encoder.encode(OpenEntry(record, rates))
        if record.earlier_places:
            entry = _encode_within(OpenEntry(record, rates))
        start = place * PLACE_BYTES + _ENTRY_AT
        self._bytes[start - len(_NO_COUNTS) : start + len(entry)] = _NO_COUNTS + entry
        self._cells[first] = zlib.crc32(entry) << _LENGTH_BITS | len(entry)
        return self._cells[first + 1 : first + 1 + _NUM_COUNTS]

    def amend(
        self,
        place: int,
        request_id: RequestId,
        last: NodePlace,
        earlier: tuple[NodePlace, ...],
    ) -> None:
        """What the request has consumed stays as it is; it is computed at `last` now. Nothing
        changes where the place has no counts of it, or has become another's.
        """
        start = place * PLACE_BYTES
        length = _read_length(self._cells[place * _CELLS_PER_PLACE])
        if not length:
            return
        entry = _decoder.decode(self._bytes[start + _ENTRY_AT : start + _ENTRY_AT + length])
        if entry.record.request_id != request_id:
            return
        record = msgspec.structs.replace(
            entry.record, node_id=last.node_id, region=last.region, earlier_places=earlier
        )
        data = _encode_within(OpenEntry(record, entry.rates))
        first = _FIRST_CELL.pack(zlib.crc32(data) << _LENGTH_BITS | len(data))
        counts = bytes(self._bytes[start + _CELL_BYTES : start + _ENTRY_AT])
        # In one store: no kill comes between the entry and its checksum.
        self._bytes[start : start + _ENTRY_AT + len(data)] = first + counts + data

    def end(self, place: int) -> None:
        """The request has its record in the journal, or has none."""
        self._cells[place * _CELLS_PER_PLACE] = 0
        self._free.append(place)

    def close(self) -> None:
        """Removes the file, unless a request has no record yet; nothing may follow."""
        if not self.num_open:
            self._path.unlink(missing_ok=True)


def recover_open_usage(journal: Journal) -> int:
    """How many requests were cut short by a kill: what they had consumed is in the journal now.

    Raises: `OSError`; the next start finds the same again.
    """
    num_found = 0
    for path in sorted(journal.folder.glob(f"*{SUFFIX}")):
        boot = path.name.removesuffix(SUFFIX)
        if boot == journal.boot:
            continue
        known = {
            record.request_id
            for file in journal.list_sealed()
            if read_boot(file) == boot
            for record in read_journal(file)
        }
        # A request whose place was not free yet may have come to its record all the same.
        records = [one for one in read_open_usage(path) if one.request_id not in known]
        journal.add_earlier(boot, records)
        path.unlink()
        num_found += len(records)
    if num_found:
        log.warning("requests_were_cut_short", num_requests=num_found)
    return num_found


def read_open_usage(path: Path) -> Iterator[UsageRecord]:
    """The records of the requests that have places in a file."""
    data = path.read_bytes()
    for start in range(0, len(data) - PLACE_BYTES + 1, PLACE_BYTES):
        cells = memoryview(data)[start : start + _ENTRY_AT].cast("Q")
        if not cells[0]:
            continue
        length, checksum = _read_length(cells[0]), cells[0] >> _LENGTH_BITS
        entry = data[start + _ENTRY_AT : start + _ENTRY_AT + length]
        num_prompt, num_cached, num_generated, num_reasoning = cells[1:].tolist()
        is_whole = length <= _MAX_ENTRY_BYTES and zlib.crc32(entry) == checksum
        if not is_whole or num_cached > num_prompt or num_reasoning > num_generated:
            log.error("open_usage_spoiled", file=path.name, position=start)
            continue
        usage = Usage(num_prompt, num_cached, num_generated, num_reasoning)
        if num_prompt or num_generated:
            try:
                yield _to_record(_decoder.decode(entry), usage)
            except msgspec.MsgspecError:
                log.error("open_usage_unreadable", file=path.name, position=start)


def _read_length(cell: int) -> int:
    """How long the entry is behind a place's first cell; 0: there is none."""
    return cell & (1 << _LENGTH_BITS) - 1


def _encode_within(entry: OpenEntry) -> bytes:
    """The entry as far as a place has room for where the request was: of a region one node does,
    and long names of many regions may be too many.
    """
    data, places = _encoder.encode(entry), list(entry.record.earlier_places or ())
    while len(data) > _MAX_ENTRY_BYTES and places:
        regions = [place.region for place in places]
        others = (i for i in range(len(places)) if regions.index(regions[i]) < i)
        del places[max(others, default=len(places) - 1)]
        record = msgspec.structs.replace(entry.record, earlier_places=tuple(places))
        data = _encoder.encode(OpenEntry(record, entry.rates))
    return data


def _to_record(entry: OpenEntry, usage: Usage) -> UsageRecord:
    """The record of a request that had consumed `usage` when its process died."""
    tokens = to_token_counts(usage)
    charge = FREE
    if entry.rates is not None:
        money, neurons = entry.rates
        price = Price(version=0, model="", money=money, neurons=neurons, created_unix_s=0)
        charge = compute_charge(price, tokens)
    return msgspec.structs.replace(
        entry.record,
        tokens=tokens,
        cost_nano=charge.cost_nano,
        num_microneurons=charge.num_microneurons,
    )
