"""The routes of the tenants' port: the whole surface that API tokens can reach.

Read next: `gateway.api.route_table`, `gateway.request_path`.
"""

from collections.abc import Callable
from typing import Any, Final

from gateway.api.account_routes import list_account_routes
from gateway.api.health_pages import Health, HealthPages
from gateway.api.inference_routes import ACCOUNT, create_inference_routes
from gateway.api.model_pages import ModelPages
from gateway.api.model_routes import list_model_routes
from gateway.api.openapi import ApiDocument
from gateway.api.route_table import PortKind, Route, check_routes
from gateway.api.services import PageServices
from gateway.api.token_pages import TokenPages
from gateway.api.token_routes import list_token_routes
from gateway.auth.access import ANY_API_TOKEN, PUBLIC, Needs, NeedsForOwn
from tenancy.permissions import Permission

_TOKENS: Final = ACCOUNT + "/tokens"
_USER_TOKENS: Final = "/client/v4/user/tokens"


def create_tenant_routes(services: PageServices, is_ready: Callable[[], bool]) -> tuple[Route, ...]:
    """The checked table."""
    health = HealthPages(is_ready)
    tokens = TokenPages(services.administrations)
    routes = (
        *create_inference_routes(),
        *list_model_routes(ModelPages(services.fleet)),
        Route("verify", "GET", _USER_TOKENS + "/verify", ANY_API_TOKEN, tokens.verify),
        *list_token_routes(
            "user_tokens",
            _USER_TOKENS,
            tokens,
            NeedsForOwn(Permission.API_TOKENS_READ),
            NeedsForOwn(Permission.API_TOKENS_WRITE),
        ),
        Route("verify_account", "GET", _TOKENS + "/verify", ANY_API_TOKEN, tokens.verify),
        *list_token_routes(
            "tokens",
            _TOKENS,
            tokens,
            Needs(Permission.API_TOKENS_READ),
            Needs(Permission.API_TOKENS_WRITE),
        ),
        *list_account_routes(services),
        Route("live", "GET", "/health/live", PUBLIC, health.live, reply=Health),
        Route("ready", "GET", "/health/ready", PUBLIC, health.ready, reply=Health),
    )
    document = Route(
        "openapi",
        "GET",
        "/openapi.json",
        PUBLIC,
        ApiDocument(routes, "Hearth", "v4").page,
        reply=dict[str, Any],
    )
    return check_routes(PortKind.TENANTS, (*routes, document))
