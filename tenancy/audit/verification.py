"""Whether the audit log is as it was written, and if not, which entries are not.

Owns the comparison of stored entries, stored hashes and signed heads; changes nothing. A signed
head outweighs the database: with one per entry a rewritten log shows the very entry at which it
was changed. Read next: `tenancy.audit.verdict`, `tenancy.audit.heads`.
"""

from collections.abc import Iterable
from typing import Final

from tenancy.audit.chain import FIRST_HASH, hash_entry
from tenancy.audit.heads import HeadLine
from tenancy.audit.log import read_chain_end, read_links
from tenancy.audit.verdict import Fault, Finding, Verdict
from tenancy.db import Database

_PAGE_SIZE: Final = 1000


async def verify_log(database: Database, lines: Iterable[HeadLine]) -> Verdict:
    """The verdict over the whole log. Raises: `StoreUnavailable`."""
    verdict = Verdict()
    heads = _collect_heads(lines, verdict)
    verdict.last_signed = max(heads, default=0)
    async with database.read() as connection:
        sequence, previous = 0, FIRST_HASH
        while page := await read_links(connection, sequence, _PAGE_SIZE):
            for entry, stored in page:
                for lost in range(sequence + 1, entry.sequence):
                    verdict.findings.append(Finding(Fault.MISSING, lost))
                has_gap = entry.sequence > sequence + 1
                before = heads.get(entry.sequence - 1, b"") if has_gap else previous
                trusted = heads.get(entry.sequence, stored)
                # After a gap without a head there is nothing to compare an entry with.
                is_same = not before or hash_entry(before, entry) == trusted
                if not is_same:
                    verdict.findings.append(Finding(Fault.CHANGED, entry.sequence))
                elif stored != trusted:
                    verdict.findings.append(Finding(Fault.REHASHED, entry.sequence))
                sequence, previous = entry.sequence, trusted
                verdict.num_entries += 1
        end_sequence, end_hash = await read_chain_end(connection)
    for lost in range(sequence + 1, max(verdict.last_signed, end_sequence) + 1):
        fault = Fault.CUT_OFF if lost <= verdict.last_signed else Fault.MISSING
        verdict.findings.append(Finding(fault, lost))
    if end_sequence != sequence or end_hash != previous:
        verdict.findings.append(Finding(Fault.CHAIN_END, end_sequence))
    if verdict.num_entries and not heads:
        verdict.findings.append(Finding(Fault.UNSIGNED, verdict.num_entries))
    return verdict


def _collect_heads(lines: Iterable[HeadLine], verdict: Verdict) -> dict[int, bytes]:
    """The signed hashes by sequence; lines that are wrong become findings."""
    heads: dict[int, bytes] = {}
    for line in lines:
        if line.head is None:
            verdict.findings.append(Finding(Fault.BAD_HEAD, line.number))
            continue
        digest = bytes.fromhex(line.head.hash)
        if heads.setdefault(line.head.sequence, digest) != digest:
            verdict.findings.append(Finding(Fault.CONTRADICTORY_HEADS, line.head.sequence))
    return heads
