"""Principals by the full digest of their API token, for as long as the store's epoch stands.

Owns what is remembered and when it is forgotten; must not know headers or HTTP. Only a look-up
that began and ended in the same generation is remembered, so that a slow one cannot bring back
what a revocation has just removed. Read next: `gateway.auth.authenticator`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Final

import structlog

from contracts.errors import ServiceError, StoreUnavailable
from gateway.settings import AuthSettings
from gateway.sources import Sources
from tenancy.interfaces import Principal, PrincipalDirectory

log = structlog.get_logger(__name__)
MAX_CONCURRENT_LOOKUPS: Final = 32
_DIGEST_BYTES: Final = 32


class PrincipalCache:
    """Answers from memory; asks the store once per digest and generation."""

    def __init__(
        self, directory: PrincipalDirectory, settings: AuthSettings, sources: Sources
    ) -> None:
        """Nothing is known at first; run `follow_epoch` beside it."""
        self._key = sources.random_bits(8 * _DIGEST_BYTES).to_bytes(_DIGEST_BYTES, "big")
        self._directory = directory
        self._settings = settings
        self._sources = sources
        self._principals: dict[bytes, Principal] = {}
        self._rejections: dict[bytes, float] = {}
        self._were_good: set[bytes] = set()
        """Of earlier generations; says nothing of what they are worth now."""
        self._lookups: dict[bytes, asyncio.Task[Principal | None]] = {}
        self._places = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)
        self._epoch: int | None = None
        self._generation = 0
        self._confirmed_s = sources.monotonic_s()
        self._followers: list[Callable[[], Awaitable[None]]] = []
        self._is_trusted = True

    @property
    def generation(self) -> int:
        """Which of the store's states is known here; another one after each change seen there."""
        return self._generation

    @property
    def is_trusted(self) -> bool:
        """False once nothing follows the store any more: its states are not told apart then."""
        return self._is_trusted

    @property
    def is_confirmed(self) -> bool:
        """True while the store said lately enough that nothing has changed since this generation
        began. A gateway that is cut off from it, or was frozen, has heard of no change.
        """
        return self._sources.monotonic_s() - self._confirmed_s <= self._settings.max_staleness_s

    def holds(self, generation: int) -> bool:
        """True while nothing has changed in the store since then, and a change would have been seen
        here within the time that is allowed.
        """
        return generation == self._generation and self.is_trusted and self.is_confirmed

    @property
    def max_age_s(self) -> float:
        """How old what the store has said may be where nobody can tell of changes since then."""
        return self._settings.max_staleness_s

    def is_recent(self, asked_s: float) -> bool:
        """True when what the store was asked then is no older than that."""
        return self._sources.monotonic_s() - asked_s <= self._settings.max_staleness_s

    def add_follower(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Has `refresh` awaited with each new epoch, which counts as seen once it returns."""
        self._followers.append(refresh)

    def distrust(self) -> None:
        """Remembers nothing from now on: every credential is looked up in the store."""
        self._is_trusted = False
        self._forget()

    def digest(self, value: str) -> bytes:
        """What a credential is remembered under: not the store's own digest, whose pepper and
        checksum cost several times as much, but one under a key that this process alone has.
        """
        return blake2b(value.encode(), digest_size=_DIGEST_BYTES, key=self._key).digest()

    def peek(self, digest: bytes) -> Principal | None:
        """The principal if it is known here and still to be trusted."""
        return self._principals.get(digest) if self.is_confirmed else None

    def was_good(self, digest: bytes) -> bool:
        """True when the credential had a principal once, before something changed in the store."""
        return digest in self._were_good

    async def find(self, value: str, digest: bytes) -> Principal | None:
        """The principal of a credential that `peek` does not know, None when there is none.

        Raises: `StoreUnavailable` when the store cannot be asked, or has been silent too long.
        """
        if self._directory.digest_api_token(value) is None:
            return None  # it cannot be a credential, whatever the store holds
        if self._is_trusted and not self.is_confirmed:
            raise StoreUnavailable("Credentials cannot be checked right now.", retry_after_s=1)
        if self._rejections.get(digest, 0.0) > self._sources.monotonic_s():
            return None
        return await self._look_up(value, digest)

    async def follow_epoch(self) -> None:
        """Polls the store's epoch for ever and forgets everything when it has moved."""
        while True:
            await self.poll_epoch()
            await asyncio.sleep(self._settings.epoch_poll_s)

    async def poll_epoch(self) -> None:
        """Reads the epoch once; a failure leaves everything as it was and is logged."""
        asked_s = self._sources.monotonic_s()
        try:
            # A store that hangs must not stop the polling for longer than the trust lasts.
            async with asyncio.timeout(self._settings.max_staleness_s):
                epoch = await self._directory.read_epoch()
                if epoch != self._epoch:
                    for refresh in self._followers:
                        await refresh()
        except (ServiceError, TimeoutError) as error:
            log.warning("epoch_unreadable", error=type(error).__name__)
            return
        if epoch != self._epoch:
            self._epoch = epoch
            self._forget()
        self._confirmed_s = asked_s

    def _forget(self) -> None:
        """Starts a new generation; look-ups under way are left alone and not remembered."""
        self._generation += 1
        if len(self._were_good) > self._settings.max_cached_principals:
            self._were_good.clear()
        self._were_good.update(self._principals)
        self._principals.clear()
        self._rejections.clear()
        self._lookups.clear()

    async def _look_up(self, value: str, digest: bytes) -> Principal | None:
        """Asks the store, once for all who wait for the same digest."""
        task = self._lookups.get(digest)
        if task is None:
            task = asyncio.create_task(self._load(value, digest, self._generation))
            self._lookups[digest] = task
        # Shielded: one client that leaves must not fail the others.
        return await asyncio.shield(task)

    async def _load(self, value: str, digest: bytes, generation: int) -> Principal | None:
        """The store's answer, remembered if the generation still stands."""
        try:
            async with self._places:
                principal = await self._directory.find_principal(value)
        finally:
            if self._generation == generation:
                self._lookups.pop(digest, None)
        if self._generation == generation and self._is_trusted:
            self._remember(digest, principal)
        return principal

    def _remember(self, digest: bytes, principal: Principal | None) -> None:
        """Stores an answer and drops the oldest one beyond the bound."""
        if principal is not None:
            self._principals[digest] = principal
            if len(self._principals) > self._settings.max_cached_principals:
                del self._principals[next(iter(self._principals))]
            return
        self._rejections[digest] = self._sources.monotonic_s() + self._settings.rejection_ttl_s
        if len(self._rejections) > self._settings.max_cached_rejections:
            del self._rejections[next(iter(self._rejections))]
