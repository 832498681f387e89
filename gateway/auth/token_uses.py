"""Which API tokens were let in, brought to the store once a minute.

Owns what was not written down yet. A request adds to a set and nothing else; the minute tells when.
Must not know headers. Read next: `tenancy.tokens.uses`.
"""

import asyncio
from typing import Final

import structlog

from contracts.errors import ServiceError
from contracts.ids import ApiTokenId
from gateway.sources import Sources
from tenancy.interfaces import TokenUseLog

log = structlog.get_logger(__name__)
WRITE_S: Final = 60.0


class TokenUses:
    """Remembers tokens until the store has them."""

    def __init__(self, store: TokenUseLog, sources: Sources) -> None:
        """No token was let in yet; run `run` beside it."""
        self._store = store
        self._sources = sources
        self._fresh: set[ApiTokenId] = set()
        self._unwritten: dict[ApiTokenId, int] = {}
        self.note = self._fresh.add
        """Takes the id of a token that was let in. The set's own method: requests pay no call."""

    async def run(self) -> None:
        """Writes for ever."""
        while True:
            await asyncio.sleep(WRITE_S)
            await self.write()

    async def write(self) -> None:
        """Brings all uses to the store. What it does not take is kept, with the time it had."""
        now_s = int(self._sources.unix_s())
        self._unwritten.update(dict.fromkeys(self._fresh, now_s))
        self._fresh.clear()
        uses = dict(self._unwritten)
        if not uses:
            return
        try:
            await self._store.note_api_token_uses(uses)
        except ServiceError as error:
            log.warning("token_uses_not_written", error=type(error).__name__)
            return
        self._unwritten.clear()
