"""What nodes have written of themselves in Valkey or Redis, fetched within a budget of time.

Asks for nodes by name: what else lies there is never read, however much it is. Must not know what a
heartbeat says. Read next: `contracts.membership`, `gateway.membership.desk`.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from contracts.errors import StoreUnavailable
from contracts.ids import NodeId
from contracts.membership import MAX_HEARTBEAT_BYTES, name_heartbeat
from gateway.store_client import raise_if_cancelled

if TYPE_CHECKING:
    from redis.asyncio import Redis

_MAX_AT_ONCE: Final = 256
_OTHER_KIND: Final = "WRONGTYPE"
"""With which an error begins that says something of one value, and nothing of the store."""


class HeartbeatStore:
    """The last heartbeat of each node."""

    def __init__(self, redis: "Redis", budget_s: float) -> None:
        """`budget_s` is what reading a few hundred nodes may take."""
        self._redis: Any = redis  # its own types are partly unknown
        self._budget_s = budget_s

    async def fetch(self, node_ids: Sequence[NodeId]) -> dict[NodeId, bytes]:
        """What lies there under the nodes' names, nothing of those that have not written.

        Raises: `StoreUnavailable`.
        """
        found: dict[NodeId, bytes] = {}
        try:
            for start in range(0, max(len(node_ids), 1), _MAX_AT_ONCE):
                some = node_ids[start : start + _MAX_AT_ONCE]
                async with asyncio.timeout(self._budget_s):
                    found |= await self._fetch_some(some)
        except Exception as error:  # what answers need not speak the protocol: of any kind
            raise StoreUnavailable(f"Membership cannot be read: {type(error).__name__}.") from error
        finally:
            raise_if_cancelled()
        return found

    async def close(self) -> None:
        """Lets go of connections."""
        await self._redis.aclose()

    async def _fetch_some(self, node_ids: Sequence[NodeId]) -> dict[NodeId, bytes]:
        """One round trip; a value of another kind than ours counts as none.

        Raises: the error of a store that refuses to read: so nobody's silence is known.
        """
        if not node_ids:
            await self._redis.time()  # nobody is enrolled: is it there?
            return {}
        async with self._redis.pipeline(transaction=False) as pipeline:
            for node_id in node_ids:
                pipeline.getrange(name_heartbeat(node_id), 0, MAX_HEARTBEAT_BYTES)
            answers = await pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception) and not str(answer).startswith(_OTHER_KIND):
                raise answer
        return {
            node_id: answer
            for node_id, answer in zip(node_ids, answers, strict=True)
            if isinstance(answer, bytes) and answer
        }
