"""Where weights are and should be, over the operators' port.

Owns the mapping from routes to the placement desk and to tenancy's rules; must not know planning.
Read next: `gateway.routing.placement_desk`.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest
from contracts.ids import ModelName
from gateway.api.forms import refuse_unknown_query
from gateway.api.pages import reply
from gateway.api.placement_forms import PLAN_PUT, RULE_SET, to_plan, to_rule
from gateway.auth.caller import Caller
from gateway.routing.placement_desk import PlacementDesk
from gateway.sources import Sources
from tenancy.administration import Administration, Administrations


class AcceptedPlan(msgspec.Struct, frozen=True):
    """A plan that is on its way to its node."""

    node_id: str
    number: int


class EndedRule(msgspec.Struct, frozen=True):
    """A model about which demand alone decides again."""

    model: str


class PlacementPages:
    """Reads the fleet; passes plans on and keeps rules."""

    def __init__(
        self, desk: PlacementDesk, administrations: Administrations, sources: Sources
    ) -> None:
        """Each operator acts with an administration of their own."""
        self._desk = desk
        self._administrations = administrations
        self._sources = sources

    async def get(self, request: Request, caller: Caller) -> Response:
        """Every node's models and memory, the demand, and the rules."""
        rules = await self._act(caller).list_placement_rules()
        if caller.is_standby:
            self._desk.note_standby()
        return reply(self._desk.describe(tuple(rules)))

    async def put_plan(self, request: Request, caller: Caller) -> Response:
        """The plan goes to its node."""
        plan = to_plan(await PLAN_PUT.read(request))
        self._desk.put(plan)
        return reply(AcceptedPlan(plan.node_id, plan.number))

    async def set_rule(self, request: Request, caller: Caller) -> Response:
        """The rule is kept, and nodes are told at once."""
        form = await RULE_SET.read(request)
        rule = to_rule(form, self._sources.unix_s())
        kept = await self._act(caller).set_placement_rule(rule)
        self._desk.carry_out(kept)
        return reply(kept)

    async def end_rule(self, request: Request, caller: Caller) -> Response:
        """The model in the query has no rule any more."""
        refuse_unknown_query(request, {"model"})
        model = request.query_params.get("model")
        if not model:
            raise InvalidRequest("`model` is missing.", param="model")
        await self._act(caller).end_placement_rule(ModelName(model))
        self._desk.forget(ModelName(model))
        return reply(EndedRule(model))

    def _act(self, caller: Caller) -> Administration:
        return self._administrations.act_as(caller.to_actor())
