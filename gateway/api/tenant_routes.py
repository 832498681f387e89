"""The routes of the tenants' port: the whole surface that API tokens can reach.

Read next: `gateway.api.route_table`, `gateway.request_path`.
"""

from collections.abc import Callable
from typing import Final

from gateway.api.health_pages import HealthPages
from gateway.api.model_pages import ModelPages
from gateway.api.route_table import PortKind, Route, check_routes
from gateway.api.token_pages import verify_token
from gateway.auth.access import ANY_API_TOKEN, PUBLIC, Needs
from gateway.dialects.openai_chat import OPENAI_CHAT
from gateway.dialects.workers_ai import WORKERS_AI
from gateway.routing.fleet import Fleet
from tenancy.interfaces import Permission

_ACCOUNT: Final = "/client/v4/accounts/{account_id}"
_INFERENCE: Final = Needs(Permission.WORKERS_AI_READ)


def create_tenant_routes(fleet: Fleet, is_ready: Callable[[], bool]) -> tuple[Route, ...]:
    """The checked table."""
    health = HealthPages(is_ready)
    models = ModelPages(fleet)
    return check_routes(
        PortKind.TENANTS,
        (
            Route("run", "POST", _ACCOUNT + "/ai/run/{model:path}", _INFERENCE, None, WORKERS_AI),
            Route("run_named", "POST", _ACCOUNT + "/ai/run", _INFERENCE, None, WORKERS_AI),
            Route(
                "chat_completions",
                "POST",
                _ACCOUNT + "/ai/v1/chat/completions",
                _INFERENCE,
                None,
                OPENAI_CHAT,
            ),
            Route("models", "GET", _ACCOUNT + "/ai/v1/models", _INFERENCE, models.list_openai),
            Route(
                "models_search", "GET", _ACCOUNT + "/ai/models/search", _INFERENCE, models.search
            ),
            Route("verify", "GET", "/client/v4/user/tokens/verify", ANY_API_TOKEN, verify_token),
            Route(
                "verify_account", "GET", _ACCOUNT + "/tokens/verify", ANY_API_TOKEN, verify_token
            ),
            Route("live", "GET", "/health/live", PUBLIC, health.live),
            Route("ready", "GET", "/health/ready", PUBLIC, health.ready),
        ),
    )
