"""Placement rules in the database: `PlacementAdministration` on SQLAlchemy.

Owns the statements on `placement_rules`, one row per model. Must not know who carries rules out.
Read next: `contracts.fleet_view`.
"""

from typing import Any, Final

from sqlalchemy import Row, delete, insert, select

from contracts.errors import InvalidRequest, NotFound
from contracts.fleet_view import PlacementRule
from contracts.ids import ModelName, is_model_name
from contracts.placement import ServiceClass, Tier
from tenancy.changes import Action
from tenancy.store import ActingStore
from tenancy.tables import placement_rules

MAX_RULES: Final = 4096


class PlacementRuleStore(ActingStore):
    """Sets, lists and ends placement rules."""

    async def set_placement_rule(self, rule: PlacementRule) -> PlacementRule:
        """What operators want of the model from now on, instead of what they wanted before.

        Raises: `InvalidRequest`.
        """
        self._require_platform()
        if not is_model_name(rule.model):
            raise InvalidRequest("A rule is for one model.", param="model")
        if rule.tier is Tier.REMOTE:
            raise InvalidRequest("Weights are sent to `disk` at most.", param="tier")
        known = await self.list_placement_rules()
        if len(known) >= MAX_RULES and all(each.model != rule.model for each in known):
            raise InvalidRequest(f"There are {MAX_RULES} rules already; end some.", param="model")
        row: dict[str, Any] = {
            "model": rule.model,
            "service_class": rule.service_class,
            "tier": rule.tier,
            "until_unix_s": rule.until_unix_s,
        }
        async with self._change(Action.PLACEMENT_RULE_SET, moves_epoch=False) as change:
            await change.connection.execute(
                delete(placement_rules).where(placement_rules.c.model == rule.model)
            )
            await change.connection.execute(insert(placement_rules).values(row))
            change.note(_shorten(rule.model), **row)
        return rule

    async def end_placement_rule(self, model: ModelName) -> None:
        """Demand alone decides about the model from now on. Raises: `NotFound`."""
        self._require_platform()
        async with self._change(Action.PLACEMENT_RULE_END, moves_epoch=False) as change:
            result = await change.connection.execute(
                delete(placement_rules).where(placement_rules.c.model == model)
            )
            if not result.rowcount:
                raise NotFound("No placement rule for this model.")
            change.note(_shorten(model), model=model)

    async def list_placement_rules(self) -> list[PlacementRule]:
        """Every rule, in order of model, those that are over included."""
        self._require_platform()
        query = select(placement_rules).order_by(placement_rules.c.model)
        async with self._database.read() as connection:
            return [_to_rule(row) for row in await connection.execute(query)]


def _shorten(model: str) -> str:
    """The model as the audit log's resource; its details have the whole name."""
    return model[:64]


def _to_rule(row: Row[Any]) -> PlacementRule:
    """The rule a row describes."""
    return PlacementRule(
        model=ModelName(row.model),
        service_class=ServiceClass(row.service_class),
        tier=None if row.tier is None else Tier(row.tier),
        until_unix_s=row.until_unix_s,
    )
