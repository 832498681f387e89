"""What gateways and owners ask of tenancy about payload logs, as protocols.

Implemented in `tenancy.payloads.store` and `tenancy.payloads.administration`, on SQLite and
PostgreSQL under the same tests. Read next: `contracts.payloads`.
"""

from collections.abc import Sequence
from typing import Protocol

from contracts.ids import AccountId, RequestId
from contracts.payloads import NewPayload, Payload, PayloadHead


class PayloadKeeper(Protocol):
    """Payload logs of all accounts, for writing. Every method raises `StoreUnavailable`."""

    async def keep_payloads(self, payloads: Sequence[NewPayload]) -> int:
        """How many of `payloads` are kept now: those whose accounts want it at this moment."""
        ...

    async def drop_payloads(self, max_bytes: int) -> int:
        """How many were deleted: those whose time is over, and the oldest of each account that
        has more than `max_bytes`.
        """
        ...


class PayloadAdministration(Protocol):
    """What was asked and answered, for the account's own tokens; operators can only end it."""

    async def set_payload_days(self, account_id: AccountId, days: int | None) -> None:
        """Keeps payloads from now on for so many days; None: no more, and what is kept is deleted.

        Raises: `NotFound`, `InvalidRequest` (days), `Conflict` (the account's retention),
        `Forbidden` for anybody but the account itself.
        """
        ...

    async def list_payloads(
        self, account_id: AccountId, *, limit: int = 100, after: RequestId | None = None
    ) -> list[PayloadHead]:
        """At most `limit`, the newest first, those before `after`.

        Raises: `NotFound` (account), `InvalidRequest` (limit), `Forbidden` for operators.
        """
        ...

    async def read_payload(self, account_id: AccountId, request_id: RequestId) -> Payload:
        """Raises: `NotFound`, also for another account's; `Forbidden` for operators."""
        ...

    async def delete_payload(self, account_id: AccountId, request_id: RequestId) -> None:
        """Raises: `NotFound`."""
        ...

    async def delete_payloads(self, account_id: AccountId) -> int:
        """How many there were. Raises: `NotFound` (account)."""
        ...
