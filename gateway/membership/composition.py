"""Puts membership together: from the settings alone, or from what nodes write in a store.

A part of the composition root. Read next: `gateway.membership.desk`.
"""

import asyncio
from typing import Protocol

from contracts.ids import NodeId
from contracts.membership import HeartbeatRefusal
from gateway.membership.desk import MemberPool, MembershipDesk
from gateway.membership.enrolments import EnrolmentFolder
from gateway.membership.heartbeat_store import HeartbeatStore
from gateway.routing.fleet import Fleet
from gateway.settings import MembershipSettings
from gateway.sources import Sources
from gateway.store_client import create_redis
from gateway.telemetry import Telemetry
from gateway.upstream.links import NodeLinks


class Membership(Protocol):
    """What the rest of the gateway wants of it."""

    @property
    def is_degraded(self) -> bool:
        """True while the last known members go on."""
        ...

    @property
    def num_members(self) -> int:
        """Nodes that have come by themselves."""
        ...

    @property
    def num_refused(self) -> dict[HeartbeatRefusal, int]:
        """Heartbeats that changed nothing."""
        ...

    def list_absent(self) -> list[NodeId]:
        """Nodes that may be members and are not."""
        ...

    def find_heartbeat_age_s(self, node_id: NodeId) -> float | None:
        """Since a member's last heartbeat; None for who is none."""
        ...

    def find_refusal(self, node_id: NodeId) -> str | None:
        """Why an enrolled node's last heartbeat changed nothing; None: it was believed."""
        ...

    async def run(self) -> None:
        """Follows the members, for ever."""
        ...

    async def close(self) -> None:
        """Lets go of the store."""
        ...


class NoMembership:
    """The nodes are those of the settings."""

    is_degraded = False
    num_members = 0

    @property
    def num_refused(self) -> dict[HeartbeatRefusal, int]:
        """None."""
        return dict.fromkeys(HeartbeatRefusal, 0)

    def list_absent(self) -> list[NodeId]:
        """Nobody."""
        return []

    def find_heartbeat_age_s(self, node_id: NodeId) -> float | None:
        """No node has any."""
        return None

    def find_refusal(self, node_id: NodeId) -> str | None:
        """No node has any."""
        return None

    async def run(self) -> None:
        """Waits for ever: there is nothing to follow."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """There is nothing to let go of."""


def create_membership(
    settings: MembershipSettings | None,
    fleet: Fleet,
    links: NodeLinks,
    telemetry: Telemetry,
    sources: Sources,
) -> Membership:
    """Membership for `fleet`, which has the configured nodes only; nothing is connected yet."""
    membership = _create(settings, MemberPool(fleet, links), sources)
    telemetry.watch_gauge(
        "hearth_gateway_members",
        "Nodes that are in the fleet by enrolment and heartbeat.",
        lambda: membership.num_members,
    )
    telemetry.watch_gauge(
        "hearth_gateway_membership_degraded",
        "1 while membership cannot be read and the last known members go on.",
        lambda: float(membership.is_degraded),
    )
    telemetry.watch_counter(
        "hearth_gateway_heartbeats_refused",
        "Heartbeats that were not believed.",
        "reason",
        lambda: membership.num_refused,
    )
    return membership


def _create(settings: MembershipSettings | None, pool: MemberPool, sources: Sources) -> Membership:
    if settings is None:
        return NoMembership()
    redis = create_redis(settings.url.reveal(), settings.budget_s)
    store = HeartbeatStore(redis, settings.budget_s)
    return MembershipDesk(settings, EnrolmentFolder(settings.folder), store, pool, sources)
