"""In whose name an item runs: its token's, as it is now.

A revoked token or a changed right holds for what was handed in before. Read next:
`gateway.batches.item_run`, `gateway.auth.authenticator` (the same for clients).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from contracts.batches import BatchItem
from contracts.errors import (
    AccountSuspended,
    ConcurrencyLimited,
    Forbidden,
    Unauthenticated,
    UnsupportedFeature,
)
from gateway.auth.access import require_model
from tenancy.interfaces import AccountStatus, ApiTokenStatus, Principal, PrincipalDirectory
from tenancy.permissions import Permission

PRIORITY: Final = -1000
"""Of items, to which the account's own is added: below whatever an interactive request can have."""


class ItemPrincipals:
    """Looks up and checks principals of items."""

    def __init__(self, directory: PrincipalDirectory, unix_s: Callable[[], float]) -> None:
        """`unix_s` gives seconds since 1970."""
        self._directory = directory
        self._unix_s = unix_s

    async def find(self, item: BatchItem, rank: int) -> Principal:
        """Who may run the item, the `rank`-th of its account that is under way.

        Raises: `Unauthenticated`, `Forbidden`, `AccountSuspended`, `UnsupportedFeature`,
        `ConcurrencyLimited`, `ModelNotAllowed`, `StoreUnavailable`.
        """
        principal = await self._directory.find_principal_by_id(item.account_id, item.api_token_id)
        if principal is None or principal.status is not ApiTokenStatus.ACTIVE:
            raise Unauthenticated("The API token of the batch is not valid any more.")
        expires_s = principal.expires_unix_s
        if expires_s is not None and self._unix_s() >= expires_s:
            raise Unauthenticated("The API token of the batch has expired.")
        if principal.account_status is not AccountStatus.ACTIVE:
            raise AccountSuspended("This account is suspended.")
        if Permission.WORKERS_AI_READ not in principal.permissions:
            raise Forbidden(f"The batch's API token needs `{Permission.WORKERS_AI_READ}`.")
        if not principal.may_be_kept:
            raise UnsupportedFeature("Of this account nothing may be kept any more.")
        require_model(principal, item.model)
        _leave_streams(principal, rank)
        return replace(principal, priority=PRIORITY + principal.priority)


def _leave_streams(principal: Principal, rank: int) -> None:
    """Raises `ConcurrencyLimited` beyond half of the account's streams: the rest is for clients."""
    limits = [quota.limits.concurrent_streams for quota in principal.quotas]
    limit = min((limit for limit in limits if limit is not None), default=None)
    if limit is not None and rank > max(1, limit // 2):
        raise ConcurrencyLimited("Items take half of an account's streams.")
