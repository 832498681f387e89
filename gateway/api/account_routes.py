"""The routes of what a tenant sees of its own account.

Read next: `gateway.api.account_pages`, `gateway.api.audit_routes`.
"""

from gateway.api.account_pages import AccountPages, MemberPages
from gateway.api.audit_routes import list_audit_routes
from gateway.api.finetune_routes import list_finetune_routes
from gateway.api.inference_routes import ACCOUNT
from gateway.api.payload_pages import PayloadPages
from gateway.api.payload_routes import list_payload_routes
from gateway.api.route_table import Route
from gateway.api.services import PageServices
from gateway.api.usage_pages import EXPORT_MEDIA, EXPORT_QUERY, USAGE_QUERY, UsagePages
from gateway.auth.access import Needs, NeedsForOwn
from tenancy.permissions import Permission


def list_account_routes(services: PageServices) -> tuple[Route, ...]:
    """What a tenant sees of its own account."""
    accounts = AccountPages(services.administrations)
    members = MemberPages(services.administrations)
    usage, billing = UsagePages(services.ledger), Needs(Permission.BILLING_READ)
    reading = Needs(Permission.ACCOUNT_SETTINGS_READ)
    own = NeedsForOwn(Permission.ACCOUNT_SETTINGS_READ)
    return (
        Route("accounts", "GET", "/client/v4/accounts", own, accounts.list_own),
        Route("account", "GET", ACCOUNT, reading, accounts.get),
        Route("members", "GET", ACCOUNT + "/members", reading, members.list_all),
        Route("member", "GET", ACCOUNT + "/members/{member_id}", reading, members.get),
        Route("usage", "GET", ACCOUNT + "/usage", billing, usage.list_totals, query=USAGE_QUERY),
        Route(
            "usage_export",
            "GET",
            ACCOUNT + "/usage/export",
            billing,
            usage.export,
            query=EXPORT_QUERY,
            media=EXPORT_MEDIA,
        ),
        *list_audit_routes(services.administrations),
        *list_payload_routes(PayloadPages(services.administrations)),
        *list_finetune_routes(services),
    )
