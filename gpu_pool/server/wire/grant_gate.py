"""Checks the grant of every `Open` on one connection.

Owns what a node refuses and why; must not know what is done with a good grant.
Read next: `contracts.grant`, `connection`.
"""

import heapq
from collections.abc import Callable
from typing import Final

from contracts.errors import DeadlineExceeded, Forbidden, ResidencyViolation
from contracts.grant import Grant, unseal_grant
from contracts.ids import NodeId, RegionId, RequestId
from gpu_pool.server.wire.ticket_gate import TicketGate

SALT_BYTES: Final = 32

_Use = tuple[RequestId, int]


class GrantGate:
    """One connection's memory of the grants it has seen."""

    def __init__(self, connection_key: bytes, region: RegionId, unix_ms: Callable[[], int]) -> None:
        """`region` is where this node stands."""
        self._connection_key = connection_key
        self._region = region
        self._unix_ms = unix_ms
        self._used: set[_Use] = set()
        self._by_deadline: list[tuple[int, _Use]] = []
        """A heap; what is past its deadline is refused anyway and need not be remembered."""

    @property
    def num_remembered(self) -> int:
        """Grants that could still be tried again."""
        return len(self._used)

    def create_ticket_gate(self, node_id: NodeId) -> TicketGate:
        """What checks the tickets that come with grants at this node."""
        return TicketGate(self._connection_key, node_id, self._unix_ms)

    def admit(self, sealed_grant: bytes, attempt: int) -> Grant:
        """The grant, which is used up with this.

        Raises: `Forbidden` (seal, attempt, reuse, malformed), `ResidencyViolation`,
        `DeadlineExceeded`.
        """
        grant = unseal_grant(sealed_grant, self._connection_key)
        if grant.attempt != attempt:
            raise Forbidden(f"The grant is for attempt {grant.attempt}, not for {attempt}.")
        if len(grant.cache_salt) != SALT_BYTES or grant.max_total_tokens < 1:
            raise Forbidden("The grant is malformed.")
        if grant.regions is not None and self._region not in grant.regions:
            raise ResidencyViolation(
                f"This node is in region {self._region}, where the request may not be computed."
            )
        now_ms = self._unix_ms()
        self._forget(now_ms)
        use = (grant.request_id, grant.attempt)
        if use in self._used:
            raise Forbidden("The grant has been used on this connection.")
        if grant.deadline_unix_ms <= now_ms:
            raise DeadlineExceeded("The request's deadline has passed.")
        self._used.add(use)
        heapq.heappush(self._by_deadline, (grant.deadline_unix_ms, use))
        return grant

    def _forget(self, now_ms: int) -> None:
        """Drops grants that are past their deadline."""
        while self._by_deadline and self._by_deadline[0][0] <= now_ms:
            self._used.discard(heapq.heappop(self._by_deadline)[1])
