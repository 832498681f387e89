"""Who is in the fleet: enrolled nodes that have said so, until they leave or are silent for long.

Three rules. Nobody is a member without an enrolment, nor where it does not say. What the store has
can bring no stranger in, and puts nobody out who is talking to us: a node whose link stands stays.
And a store that is away changes nothing: the last known members go on, time does not count against
them, and the metrics say so. Read next: `gateway.membership.enrolments`, `contracts.membership`,
`gateway.routing.fleet`, `gateway.upstream.links`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from contracts.errors import StoreUnavailable
from contracts.ids import NodeId
from contracts.membership import (
    Heartbeat,
    HeartbeatRefusal,
    HeartbeatRefused,
    open_heartbeat,
    require_order,
)
from contracts.pair_key import PairKey
from gateway.membership.enrolments import EnrolledNode, EnrolmentFolder
from gateway.membership.heartbeat_store import HeartbeatStore
from gateway.membership.refusals import RefusedHeartbeats
from gateway.routing.fleet import Fleet
from gateway.settings import MembershipSettings
from gateway.sources import Sources
from gateway.upstream.links import NodeLinks

log = structlog.get_logger(__name__)
OpenHeartbeat = Callable[[bytes, NodeId, PairKey], Heartbeat]
"""Raises: `HeartbeatRefused`."""


@dataclass(frozen=True, slots=True)
class MemberPool:
    """What follows membership."""

    fleet: Fleet
    links: NodeLinks


@dataclass(slots=True)
class _Member:
    """A node that is in the fleet."""

    node: EnrolledNode
    url: str
    heard_s: float
    """When a heartbeat last came, by our monotonic clock."""
    is_leaving: bool = False


class MembershipDesk:
    """The members, and what was last read of each enrolled node."""

    def __init__(
        self,
        settings: MembershipSettings,
        folder: EnrolmentFolder,
        store: HeartbeatStore,
        pool: MemberPool,
        sources: Sources,
        open_one: OpenHeartbeat = open_heartbeat,
    ) -> None:
        """Nobody is a member until `look`."""
        self._settings = settings
        self._folder = folder
        self._store = store
        self._pool = pool
        self._sources = sources
        self._open = open_one
        self._configured = frozenset(node.node_id for node in pool.fleet.roster.snapshots)
        self._members: dict[NodeId, _Member] = {}
        self._last_unix_ms: dict[NodeId, int] = {}
        """Of the last heartbeat that was believed, also of nodes that have left."""
        self._seen: dict[NodeId, bytes] = {}
        """What lay there at the last look: the same again is no news."""
        self._num_refused = dict.fromkeys(HeartbeatRefusal, 0)
        self._refused = RefusedHeartbeats()
        self._is_degraded = False

    @property
    def is_degraded(self) -> bool:
        """True while the store cannot be read and the last known members go on."""
        return self._is_degraded

    @property
    def num_members(self) -> int:
        """Nodes that are in the fleet by their own word."""
        return len(self._members)

    @property
    def num_refused(self) -> dict[HeartbeatRefusal, int]:
        """Heartbeats that changed nothing, by reason."""
        return self._num_refused

    def list_absent(self) -> list[NodeId]:
        """Nodes that are enrolled and not in the fleet."""
        known = self._folder.read()
        return sorted(known.keys() - self._members.keys() - self._configured)

    def find_heartbeat_age_s(self, node_id: NodeId) -> float | None:
        """Since a member's last heartbeat; None for who is none."""
        member = self._members.get(node_id)
        return None if member is None else self._sources.monotonic_s() - member.heard_s

    def find_refusal(self, node_id: NodeId) -> str | None:
        """Why an enrolled node's last heartbeat changed nothing; None: it was believed."""
        return self._refused.find(node_id)

    async def run(self) -> None:
        """Looks about once a second, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(self._settings.poll_s)

    async def close(self) -> None:
        """Lets go of the store."""
        await self._store.close()

    async def look(self) -> None:
        """Takes over what operators and nodes have changed since the last look."""
        enrolled = {
            node_id: node
            for node_id, node in self._folder.read().items()
            if node_id not in self._configured
        }
        self._follow_operators(enrolled)
        self._expect(enrolled)
        try:
            found = await self._store.fetch(sorted(enrolled))
        except StoreUnavailable as error:
            if not self._is_degraded:
                log.warning("membership_degraded", reason=error.message)
            self._is_degraded = True
            return
        if self._is_degraded:
            self._recover()
        for node_id in self._seen.keys() - enrolled.keys():
            del self._seen[node_id]
        self._refused.keep_only(enrolled, found)
        for node_id, sealed in found.items():
            if self._seen.get(node_id) != sealed:
                self._seen[node_id] = sealed
                self._hear(enrolled[node_id], sealed)
        self._dismiss_absent()
        self._expect(enrolled)

    def _expect(self, enrolled: dict[NodeId, EnrolledNode]) -> None:
        """Those of `enrolled` that are no members are counted on all the same."""
        absent = enrolled.keys() - self._members.keys()
        self._pool.fleet.expect({node_id: enrolled[node_id].vouched for node_id in sorted(absent)})

    def _follow_operators(self, enrolled: dict[NodeId, EnrolledNode]) -> None:
        """Lets go of nodes whose enrolment has ended or changed; a new key alone changes none."""
        for node_id, member in tuple(self._members.items()):
            node = enrolled.get(node_id)
            if node is None or node.enrolment != member.node.enrolment:
                self._dismiss(node_id, "its enrolment has ended or changed")
            else:
                member.node = node

    def _recover(self) -> None:
        """The store answers again: everybody gets the time anew to say that they are there."""
        log.info("membership_recovered")
        self._is_degraded = False
        now_s = self._sources.monotonic_s()
        for member in self._members.values():
            member.heard_s = now_s

    def _hear(self, node: EnrolledNode, sealed: bytes) -> None:
        """Acts on what is new under a node's name, if the node has said it."""
        try:
            self._accept(node, self._open(sealed, node.node_id, node.key))
        except HeartbeatRefused as refused:
            if self._note_refused(node, refused):
                log.warning("heartbeat_refused", node_id=node.node_id, reason=refused.reason)
        except Exception as error:  # nothing that a node says may end this for the others
            if self._note_refused(node, HeartbeatRefused(HeartbeatRefusal.MALFORMED)):
                log.error("heartbeat_failed", node_id=node.node_id, error=type(error).__name__)
        else:
            self._refused.forget(node.node_id)

    def _note_refused(self, node: EnrolledNode, refused: HeartbeatRefused) -> bool:
        """One heartbeat more changed nothing; True when that is worth a line of the log."""
        self._num_refused[refused.reason] += 1
        return self._refused.note(node.node_id, refused, self._sources.monotonic_s())

    def _accept(self, node: EnrolledNode, heartbeat: Heartbeat) -> None:
        """The node is there, or says goodbye. Raises: `HeartbeatRefused`."""
        node_id, report = node.node_id, heartbeat.report
        now_ms = int(self._sources.unix_s() * 1000)
        max_skew_ms = int(self._settings.max_skew_s * 1000)
        require_order(heartbeat, self._last_unix_ms.get(node_id, -1), now_ms, max_skew_ms)
        if node.vouched.contradicts(report):
            words = node.vouched.describe_contradiction(report)
            raise HeartbeatRefused(HeartbeatRefusal.REGION, words)
        member = self._members.get(node_id)
        if member is None:
            if not heartbeat.is_leaving:
                self._admit(node, heartbeat)
        else:
            self._note(member, heartbeat)
        if node_id in self._members:
            self._pool.fleet.record_heartbeat(report)
        self._last_unix_ms[node_id] = heartbeat.unix_ms

    def _admit(self, node: EnrolledNode, heartbeat: Heartbeat) -> None:
        """One more member. Raises: `HeartbeatRefused`."""
        try:
            address = node.create_address(heartbeat.url)
        except ValueError:
            raise HeartbeatRefused(HeartbeatRefusal.ADDRESS) from None
        now_s = self._sources.monotonic_s()
        self._members[node.node_id] = _Member(node, address.url, now_s)
        self._pool.fleet.admit(node.node_id, node.vouched)
        self._pool.links.admit(address)
        log.info("member_admitted", node_id=node.node_id, region=node.enrolment.region)

    def _note(self, member: _Member, heartbeat: Heartbeat) -> None:
        """A member has spoken again. Raises: `HeartbeatRefused`."""
        try:
            address = member.node.create_address(heartbeat.url)
        except ValueError:
            raise HeartbeatRefused(HeartbeatRefusal.ADDRESS) from None
        if address.url != member.url:
            member.url = address.url
            self._pool.links.move(member.node.node_id, address.url)
        member.heard_s = self._sources.monotonic_s()
        member.is_leaving = heartbeat.is_leaving

    def _dismiss_absent(self) -> None:
        """Lets go of nodes that have left or were silent for long, unless they talk to us."""
        now_s = self._sources.monotonic_s()
        for node_id, member in tuple(self._members.items()):
            is_silent = now_s - member.heard_s > self._settings.gone_after_s
            if (member.is_leaving or is_silent) and not self._pool.links.is_up(node_id):
                self._dismiss(node_id, "it has left" if member.is_leaving else "it is silent")

    def _dismiss(self, node_id: NodeId, reason: str) -> None:
        """One member less."""
        del self._members[node_id]
        self._pool.links.dismiss(node_id)
        self._pool.fleet.dismiss(node_id)
        log.info("member_dismissed", node_id=node_id, reason=reason)
