"""The routes of a tenant's audit log, in both versions of Cloudflare's API.

Read next: `gateway.api.audit_pages`, `gateway.api.audit_v1`.
"""

from typing import Final

from gateway.api.audit_pages import AUDIT_QUERY, HISTORY_QUERY, AuditPages
from gateway.api.audit_v1 import V1_QUERY, AuditV1Pages
from gateway.api.inference_routes import ACCOUNT
from gateway.api.route_table import Route
from gateway.auth.access import Needs, NeedsForOwn
from tenancy.administration import Administrations
from tenancy.permissions import Permission

_AUDIT: Final = ACCOUNT + "/logs/audit"


def list_audit_routes(administrations: Administrations) -> tuple[Route, ...]:
    """What was changed in the account, and by which of its own tokens."""
    audit, first = AuditPages(administrations), AuditV1Pages(administrations)
    reading = Needs(Permission.ACCOUNT_SETTINGS_READ)
    own = NeedsForOwn(Permission.ACCOUNT_SETTINGS_READ)
    return (
        Route("audit", "GET", _AUDIT, reading, audit.list_own, query=AUDIT_QUERY),
        Route(
            "audit_categories",
            "GET",
            _AUDIT + "/product_categories",
            reading,
            audit.list_categories,
        ),
        Route(
            "audit_history",
            "GET",
            _AUDIT + "/{entry_id}/history",
            reading,
            audit.list_history,
            query=HISTORY_QUERY,
        ),
        Route("audit_v1", "GET", ACCOUNT + "/audit_logs", reading, first.list_own, query=V1_QUERY),
        Route(
            "user_audit_v1",
            "GET",
            "/client/v4/user/audit_logs",
            own,
            first.list_own,
            query=V1_QUERY,
        ),
    )
