"""Where nodes are listed and drained: the routes of the operators' port.

Read next: `gateway.api.node_pages`.
"""

from contracts.fleet_view import DRAINS_PATH, KEYS_PATH, NODES_PATH, NodeState
from gateway.api.node_pages import DRAIN_SET, KEY_ROTATION, EndedDrain, NodePages, RotatedKey
from gateway.api.query_fields import QueryField
from gateway.api.route_table import Route
from gateway.auth.access import OPERATOR
from gateway.dialects.replies import SuccessEnvelope


def list_node_routes(pages: NodePages) -> tuple[Route, ...]:
    """All of them demand an operator."""
    return (
        Route(
            "nodes",
            "GET",
            NODES_PATH,
            OPERATOR,
            pages.list,
            reply=SuccessEnvelope[tuple[NodeState, ...]],
        ),
        Route("node_drain", "PUT", DRAINS_PATH, OPERATOR, pages.drain, form=DRAIN_SET),
        Route(
            "node_undrain",
            "DELETE",
            DRAINS_PATH,
            OPERATOR,
            pages.undrain,
            query=(QueryField("node_id", str, is_required=True),),
            reply=SuccessEnvelope[EndedDrain],
        ),
        Route(
            "node_key",
            "POST",
            KEYS_PATH,
            OPERATOR,
            pages.rotate_key,
            form=KEY_ROTATION,
            reply=SuccessEnvelope[RotatedKey],
        ),
    )
