"""Where weights are read, planned and ruled on: the routes of the operators' port.

Read next: `gateway.api.placement_pages`.
"""

from contracts.fleet_view import PLACEMENT_PATH, PLANS_PATH, RULES_PATH, FleetView
from gateway.api.placement_forms import PLAN_PUT, RULE_SET
from gateway.api.placement_pages import EndedRule, PlacementPages
from gateway.api.query_fields import QueryField
from gateway.api.route_table import Route
from gateway.auth.access import OPERATOR, PLANNER
from gateway.dialects.replies import SuccessEnvelope


def list_placement_routes(pages: PlacementPages) -> tuple[Route, ...]:
    """All of them are operators'; hot standby has two of them to itself."""
    return (
        Route(
            "placement",
            "GET",
            PLACEMENT_PATH,
            PLANNER,
            pages.get,
            reply=SuccessEnvelope[FleetView],
        ),
        Route("placement_plan", "PUT", PLANS_PATH, PLANNER, pages.put_plan, form=PLAN_PUT),
        Route("placement_rule_set", "PUT", RULES_PATH, OPERATOR, pages.set_rule, form=RULE_SET),
        Route(
            "placement_rule_end",
            "DELETE",
            RULES_PATH,
            OPERATOR,
            pages.end_rule,
            query=(QueryField("model", str, is_required=True),),
            reply=SuccessEnvelope[EndedRule],
        ),
    )
