"""What accounts allow by now, for requests that came before: regions may have been narrowed since.

Owns when the store is asked again: once per API token after something has changed there, not at all
while nothing has, and for each place while nobody could tell: where the store has not been heard of
for `auth.max_staleness_s`, what was known before is worth nothing. Must not know where requests go.
Read next: `gateway.place_search` (the caller), `gateway.auth.principal_cache`.
"""

import asyncio
from typing import Final

from contracts.errors import AccountSuspended, StoreUnavailable, Unauthenticated
from contracts.ids import AccountId, ApiTokenId
from gateway.auth.principal_cache import MAX_CONCURRENT_LOOKUPS, PrincipalCache
from gateway.sources import Sources
from tenancy.interfaces import AccountStatus, Principal, PrincipalDirectory

MAX_KNOWN: Final = 4096
_Key = tuple[AccountId, ApiTokenId]
_Answer = tuple[Principal | None, float]
"""What the store has said, and when it was asked."""


class Standing:
    """Principals as they are now."""

    def __init__(
        self, cache: PrincipalCache, directory: PrincipalDirectory, sources: Sources
    ) -> None:
        """`cache` follows the store's epoch; `directory` is asked when that has moved, or may have
        moved unseen.
        """
        self._cache = cache
        self._directory = directory
        self._sources = sources
        self._places = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)
        self._generation = 0
        self._lookups: dict[_Key, asyncio.Task[_Answer]] = {}
        """Of this generation, under way or done."""

    @property
    def generation(self) -> int:
        """The state of the store that what was found just now is of."""
        return self._cache.generation

    def is_current(self, generation: int) -> bool:
        """True while nothing has changed since `generation`, and a change would have been seen:
        what was known then still holds.
        """
        return self._cache.holds(generation)

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
            current, asked_s = await asyncio.shield(self._look_up(key))
            if asked_in != cache.generation:
                continue  # it may be the answer from before a change
            if cache.is_confirmed or cache.is_recent(asked_s):
                break  # else this process was frozen in between
        if current is None:
            raise Unauthenticated("The API token of this request has been deleted.")
        if current.account_status is not AccountStatus.ACTIVE:
            raise AccountSuspended("This account is suspended.")
        return current

    def _look_up(self, key: _Key) -> asyncio.Task[_Answer]:
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

    def _is_worthless(self, lookup: asyncio.Task[_Answer]) -> bool:
        """True for one that is over and says nothing of now."""
        cache = self._cache
        is_known = not lookup.cancelled() and lookup.exception() is None
        return not (is_known and cache.holds(cache.generation))

    async def _load(self, key: _Key) -> _Answer:
        """Raises: `StoreUnavailable`, also where the answer would come too late to be worth any."""
        try:
            async with asyncio.timeout(self._cache.max_age_s), self._places:
                asked_s = self._sources.monotonic_s()
                return await self._directory.find_principal_by_id(*key), asked_s
        except TimeoutError:
            raise StoreUnavailable("The store does not answer.", retry_after_s=1) from None
