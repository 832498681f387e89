"""What the audit log holds, and what can be asked of it.

Must not know statements. Read next: `tenancy.audit.chain`,
`tenancy.audit.conditions`.
"""

from dataclasses import dataclass
from enum import StrEnum

from contracts.ids import AccountId
from tenancy.actors import Actor


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change, as it was recorded."""

    sequence: int
    """Counts from 1 without a gap."""
    occurred_unix_us: int
    account_id: AccountId | None
    """The account that was changed; None for what belongs to the platform."""
    actor: Actor
    action: str
    resource_id: str
    details: str
    """A JSON object of what changed; never a secret."""


class AuditPart(StrEnum):
    """A part of an entry. Those of tokens are as if absent where somebody else has acted, whom the
    account is not told: no condition can find out what no answer says.
    """

    SEQUENCE = "sequence"
    ACTION = "action"
    ACTOR_KIND = "actor_kind"
    RESOURCE_ID = "resource_id"
    TOKEN_ID = "token_id"
    TOKEN_ADDRESS = "token_address"
    TOKEN_REQUEST_ID = "token_request_id"


@dataclass(frozen=True, slots=True)
class AuditTerm:
    """Entries whose part is one of `values`, or is none of them; no entry's part is one of none."""

    part: AuditPart
    values: tuple[str | int, ...]
    is_excluded: bool = False


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries to list. Times in microseconds since 1970, `before` exclusive."""

    account_id: AccountId | None = None
    since_unix_us: int | None = None
    before_unix_us: int | None = None
    action: str | None = None
    actor_id: str | None = None
    resource_id: str | None = None
    terms: tuple[AuditTerm, ...] = ()
    """Further conditions, all of which must hold."""
