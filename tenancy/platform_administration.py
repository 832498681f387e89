"""What can be changed of the platform itself: operators, prices, usage, placement, nodes.

API tokens may read prices and nothing else of it. Must not know HTTP.
Read next: `tenancy.administration`.
"""

from typing import Protocol

from contracts.fleet_view import NodeDrain, PlacementRule
from contracts.ids import GatewayId, ModelName, NodeId, OperatorId, RegionId
from contracts.pricing import Price, TokenRates
from tenancy.interfaces import IssuedOperator, Operator


class OperatorAdministration(Protocol):
    """Operators; an API token's actor is refused."""

    async def create_operator(self, name: str) -> IssuedOperator:
        """Raises: `InvalidRequest`."""
        ...

    async def list_operators(self) -> list[Operator]:
        """All operators, oldest first."""
        ...

    async def delete_operator(self, operator_id: OperatorId) -> None:
        """Its credential is void at once. Raises: `NotFound`, `Conflict` for the last one."""
        ...


class PriceAdministration(Protocol):
    """The price list; an API token's actor may read it."""

    async def set_price(
        self, model: str, money: TokenRates, neurons: TokenRates | None = None
    ) -> Price:
        """The price of a model or pattern from now on; neurons follow from money if left out.

        Raises: `InvalidRequest`.
        """
        ...

    async def end_price(self, model: str) -> None:
        """The model or pattern has no price of its own any more. Raises: `NotFound`."""
        ...

    async def list_prices(self) -> list[Price]:
        """The prices that hold now, in order of model."""
        ...


class UsageAdministration(Protocol):
    """How long the ledger keeps single requests; an API token's actor is refused."""

    async def drop_usage_before(self, day: int) -> int:
        """The first day that is kept: whole months before `day` leave the ledger, not the sums.

        `day` counts from 1970 (UTC). Raises: `InvalidRequest` for one that has not come yet.
        """
        ...


class PlacementAdministration(Protocol):
    """What operators want of where weights are; an API token's actor is refused."""

    async def set_placement_rule(self, rule: PlacementRule) -> PlacementRule:
        """What holds for the model from now on. Raises: `InvalidRequest`."""
        ...

    async def end_placement_rule(self, model: ModelName) -> None:
        """Demand alone decides about the model from now on. Raises: `NotFound`."""
        ...

    async def list_placement_rules(self) -> list[PlacementRule]:
        """Every rule, in order of model, those that are over included."""
        ...


class NodeAdministration(Protocol):
    """Which nodes are to get nothing new; an API token's actor is refused."""

    async def drain_node(self, node_id: NodeId, move_after_s: int | None = None) -> NodeDrain:
        """The drain that begins now, instead of one before. Raises: `InvalidRequest`."""
        ...

    async def undrain_node(self, node_id: NodeId) -> None:
        """The node gets requests again. Raises: `NotFound`."""
        ...

    async def list_node_drains(self) -> list[NodeDrain]:
        """Every drain, in order of node."""
        ...

    async def note_node_key(self, node_id: NodeId, key_name: str) -> None:
        """A gateway and the node share another key: the log has its name, the store has no key."""
        ...

    async def note_enrolment(
        self, node_id: NodeId, gateway_id: GatewayId, region: RegionId, key_name: str
    ) -> None:
        """A gateway is about to take the node up, with a key of this name, as one of `region`."""
        ...

    async def note_removal(self, node_id: NodeId, gateway_id: GatewayId) -> None:
        """A gateway is about to end the node's enrolment."""
        ...
