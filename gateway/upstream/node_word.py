"""What a node says of itself on its connection: reports, and whether it keeps a new key.

Owns what becomes of those messages, and how much of them is read, for they are read on the loop
that serves everybody. The bounds are sizes: the work is as large as what has to be decoded. Must
not know streams. Read next: `gateway.upstream.connection`, `gateway.routing.snapshots` (what is
believed).
"""

import asyncio
from typing import Final, Protocol

import structlog

from contracts.fleet import MAX_REPORT_BYTES, NodeReport
from contracts.ids import NodeId
from contracts.short_text import shorten
from contracts.wire import FromNode, NewKeyKept, Report

log = structlog.get_logger(__name__)
BYTES_PER_S: Final = 2 << 20
"""Four of the largest in a second, and a third more."""
MOST_AT_ONCE: Final = 4 << 20
"""Reports pile up at a node while this process stands still."""
LEAST: Final = 4096
"""What a message counts for however short it is: to take it over is work as well."""


class ReportExcess(Exception):
    """A node says more than is read."""

    def __init__(self, event: str, **bounds: int) -> None:
        """`event` and `bounds` are what the log says of it."""
        super().__init__(event)
        self.event = event
        self.bounds = bounds


class ReportAllowance:
    """What is left to one connection."""

    def __init__(self, now_s: float) -> None:
        """All of it. `now_s` is of the monotonic clock."""
        self._left = float(MOST_AT_ONCE)
        self._counted_s = now_s

    def require_size(self, num_bytes: int) -> None:
        """Raises: `ReportExcess` for a message that is longer than any report."""
        if num_bytes > MAX_REPORT_BYTES:
            raise ReportExcess("report_too_large", num_bytes=num_bytes, max_bytes=MAX_REPORT_BYTES)

    def take(self, num_bytes: int, now_s: float) -> None:
        """Counts what was said. Raises: `ReportExcess` beyond what is left."""
        gained = (now_s - self._counted_s) * BYTES_PER_S
        self._left = min(self._left + gained, MOST_AT_ONCE)
        self._counted_s = now_s
        self._left -= max(num_bytes, LEAST)
        if self._left < 0:
            raise ReportExcess("reports_too_many", max_bytes_per_s=BYTES_PER_S)


class WordListener(Protocol):
    """Who wants to know how a node is."""

    def on_report(self, report: NodeReport) -> None:
        """The node has said how it is."""
        ...


class NodeWord:
    """One connection's."""

    def __init__(self, node_id: NodeId, listener: WordListener, now_s: float) -> None:
        """Nothing has been said yet. `now_s` is of the monotonic clock."""
        self._node_id = node_id
        self._listener = listener
        self._allowance = ReportAllowance(now_s)
        self._num_uncounted = 0
        self._key_kept: asyncio.Future[str] | None = None
        """What the node says of a new key, while that is awaited."""

    def begin(self, num_bytes: int) -> bool:
        """A frame of so many bytes is to be read, some of which may be the node's word; False where
        a report that is too large may be in it, so that it has to be looked at first.
        """
        self._num_uncounted = num_bytes
        return num_bytes <= MAX_REPORT_BYTES

    def begin_one(self, num_bytes: int) -> None:
        """The same of one message, not decoded yet. Raises: `ReportExcess`."""
        self._allowance.require_size(num_bytes)
        self._num_uncounted = num_bytes

    def hear(self, message: FromNode | None, now_s: float) -> None:
        """Acts on a message; None is one that cannot be read. The first of a frame counts for all
        of it. Raises: `ReportExcess`.
        """
        self._allowance.take(self._num_uncounted, now_s)
        self._num_uncounted = 0
        if isinstance(message, Report):
            if message.report.node_id == self._node_id:
                self._listener.on_report(message.report)
            else:
                log.error("report_of_another_node", node_id=self._node_id)
        elif isinstance(message, NewKeyKept) and self._key_kept is not None:
            if not self._key_kept.done():
                self._key_kept.set_result(shorten(message.refusal))
        else:
            log.error("connection_message_malformed", node_id=self._node_id)

    async def wait_for_key(self, patience_s: float) -> str:
        """Why the node cannot keep the key that it was sent; empty once it does.

        Raises: `TimeoutError`.
        """
        self._key_kept = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(patience_s):
                return await self._key_kept
        finally:
            self._key_kept = None
