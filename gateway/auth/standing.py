"""What accounts allow by now, for requests that came before: regions may have been narrowed since.

Owns when the store is asked again: once per API token after something has changed there, and not at
all while nothing has. Must not know where requests go. Read next: `gateway.place_search` (the
caller), `gateway.auth.principal_cache`.
"""

import asyncio
from typing import Final

from contracts.errors import AccountSuspended, Unauthenticated
from contracts.ids import AccountId, ApiTokenId
from gateway.auth.principal_cache import MAX_CONCURRENT_LOOKUPS, PrincipalCache
from tenancy.interfaces import AccountStatus, Principal, PrincipalDirectory

MAX_KNOWN: Final = 4096
_Key = tuple[AccountId, ApiTokenId]


class Standing:
    """Principals as they are now."""

    def __init__(self, cache: PrincipalCache, directory: PrincipalDirectory) -> None:
        """`cache` follows the store's epoch; `directory` is asked when that has moved."""
        self._cache = cache
        self._directory = directory
        self._places = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)
        self._generation = 0
        self._lookups: dict[_Key, asyncio.Task[Principal | None]] = {}
        """Of this generation, under way or done."""

    @property
    def generation(self) -> int:
        """The state of the store that what was found just now is of."""
        return self._cache.generation

    def is_current(self, generation: int) -> bool:
        """True while nothing has changed since `generation`: what was known then still holds."""
        return self._cache.is_trusted and generation == self._cache.generation

    async def find(self, principal: Principal, generation: int) -> Principal:
        """`principal`, which was found in `generation` of the cache or later, as it is now.

        Raises: `Unauthenticated` when its API token is gone, `AccountSuspended`,
        `StoreUnavailable`.
        """
        if self.is_current(generation):
            return principal
        cache, key = self._cache, (principal.account_id, principal.api_token_id)
        while True:
            asked_in = cache.generation
            # Shielded: one request that ends must not fail the others.
            current = await asyncio.shield(self._look_up(key))
            if asked_in == cache.generation:  # else it may be the answer from before a change
                break
        if current is None:
            raise Unauthenticated("The API token of this request has been deleted.")
        if current.account_status is not AccountStatus.ACTIVE:
            raise AccountSuspended("This account is suspended.")
        return current

    def _look_up(self, key: _Key) -> asyncio.Task[Principal | None]:
        """The store's answer, asked for once; one that failed is asked for again, and every time
        where nobody tells of changes.
        """
        if self._generation != self._cache.generation or len(self._lookups) > MAX_KNOWN:
            self._generation = self._cache.generation
            self._lookups.clear()
        known = self._lookups.get(key)
        if known is None or (known.done() and self._is_worthless(known)):
            known = self._lookups[key] = asyncio.create_task(self._load(key))
        return known

    def _is_worthless(self, lookup: asyncio.Task[Principal | None]) -> bool:
        """True for one that is over and says nothing of now."""
        return not self._cache.is_trusted or lookup.cancelled() or lookup.exception() is not None

    async def _load(self, key: _Key) -> Principal | None:
        async with self._places:
            return await self._directory.find_principal_by_id(*key)
