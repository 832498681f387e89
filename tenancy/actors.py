"""Who makes a change, as every store is told and the audit log writes down.

Must not know what is changed. Read next: `tenancy.audit.entries`.
"""

from dataclasses import dataclass
from enum import StrEnum

from contracts.ids import AccountId


class ActorKind(StrEnum):
    """How somebody reached tenancy."""

    API_TOKEN = "api_token"
    OPERATOR = "operator"
    COMMAND_LINE = "command_line"
    """A command on a machine that holds database and key ring; the id is the system's user."""
    SYSTEM = "system"
    """Hearth itself, such as at the first start."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change, as the audit log names them."""

    kind: ActorKind
    actor_id: str
    account_id: AccountId | None = None
    """Set for API tokens, which reach nothing outside it."""
    address: str | None = None
    """The client's, as far as it is known."""
    request_id: str | None = None
