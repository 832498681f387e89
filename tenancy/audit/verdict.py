"""What can be wrong with the audit log, and what a check of it has found.

Owns the words; pure. Read next: `tenancy.audit.verification`.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """What can be wrong."""

    CHANGED = "the entry was changed"
    REHASHED = "the entry's hash was rewritten"
    MISSING = "the entry is missing"
    CUT_OFF = "the entry is missing at the end of the log, though its head was signed"
    CHAIN_END = "the log's end is not where its chain says"
    BAD_HEAD = "the line in the file of heads carries no valid signature"
    CONTRADICTORY_HEADS = "two signed heads disagree about the entry"
    UNSIGNED = "no head was ever signed, so that a cut end of the log would not show"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault; `number` is an entry's sequence, or a line of the file of heads."""

    fault: Fault
    number: int


@dataclass(slots=True)
class Verdict:
    """What was found."""

    num_entries: int = 0
    last_signed: int = 0
    """The newest entry with a signed head."""
    findings: list[Finding] = field(default_factory=list[Finding])
