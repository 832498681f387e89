"""The control plane's routes on the operators' port.

Owns their names and paths; all of them demand an operator. Read next:
`gateway.api.operator_account_pages`, `gateway.api.platform_pages`.
"""

from typing import Final

from gateway.api.account_forms import ACCOUNT_CREATE, ACCOUNT_UPDATE, MEMBER_CREATE
from gateway.api.account_pages import MemberPages
from gateway.api.audit_pages import PLATFORM_AUDIT_QUERY, AuditPages
from gateway.api.money_forms import PRICE_SET, QUOTA_SET
from gateway.api.operator_account_pages import (
    ACCOUNT_QUERY,
    NO_FORM,
    QUOTA_QUERY,
    OperatorAccountPages,
)
from gateway.api.platform_pages import OPERATOR_CREATE, PRICE_QUERY, PlatformPages
from gateway.api.route_table import Route
from gateway.api.services import PageServices
from gateway.api.token_pages import TokenPages
from gateway.api.token_routes import list_token_routes
from gateway.api.usage_pages import EXPORT_MEDIA, EXPORT_QUERY, USAGE_QUERY, UsagePages
from gateway.auth.access import OPERATOR

_BASE: Final = "/operator/v1"
_ACCOUNTS: Final = _BASE + "/accounts"
_ACCOUNT: Final = _ACCOUNTS + "/{account_id}"


def list_control_routes(services: PageServices) -> tuple[Route, ...]:
    """Everything that operators change and read about tenants and the platform."""
    administrations, usage = services.administrations, UsagePages(services.ledger)
    platform = PlatformPages(administrations)
    audit = AuditPages(administrations)
    operators, prices = _BASE + "/operators", _BASE + "/prices"
    tokens = TokenPages(administrations)
    return (
        *_list_account_routes(OperatorAccountPages(administrations)),
        *list_token_routes("control_tokens", _ACCOUNT + "/tokens", tokens, OPERATOR, OPERATOR),
        *_list_member_routes(MemberPages(administrations)),
        Route(
            "control_usage",
            "GET",
            _ACCOUNT + "/usage",
            OPERATOR,
            usage.list_totals,
            query=USAGE_QUERY,
        ),
        Route(
            "control_usage_export",
            "GET",
            _ACCOUNT + "/usage/export",
            OPERATOR,
            usage.export,
            query=EXPORT_QUERY,
            media=EXPORT_MEDIA,
        ),
        Route("control_operators", "GET", operators, OPERATOR, platform.list_operators),
        Route(
            "control_operator_create",
            "POST",
            operators,
            OPERATOR,
            platform.create_operator,
            form=OPERATOR_CREATE,
        ),
        Route(
            "control_operator_delete",
            "DELETE",
            operators + "/{operator_id}",
            OPERATOR,
            platform.delete_operator,
        ),
        Route("control_prices", "GET", prices, OPERATOR, platform.list_prices),
        Route("control_price_set", "PUT", prices, OPERATOR, platform.set_price, form=PRICE_SET),
        Route(
            "control_price_end",
            "DELETE",
            prices,
            OPERATOR,
            platform.end_price,
            query=PRICE_QUERY,
        ),
        Route(
            "control_audit",
            "GET",
            _BASE + "/audit",
            OPERATOR,
            audit.list_all,
            query=PLATFORM_AUDIT_QUERY,
        ),
        Route("control_audit_check", "GET", _BASE + "/audit/check", OPERATOR, audit.check),
    )


def _list_account_routes(pages: OperatorAccountPages) -> tuple[Route, ...]:
    """Accounts and their limits."""
    salt, quotas = _ACCOUNT + "/cache_salt/rotate", _ACCOUNT + "/quotas"
    return (
        Route(
            "control_accounts",
            "GET",
            _ACCOUNTS,
            OPERATOR,
            pages.list_all,
            query=ACCOUNT_QUERY,
        ),
        Route(
            "control_account_create",
            "POST",
            _ACCOUNTS,
            OPERATOR,
            pages.create,
            form=ACCOUNT_CREATE,
        ),
        Route("control_account", "GET", _ACCOUNT, OPERATOR, pages.get),
        Route(
            "control_account_update",
            "PATCH",
            _ACCOUNT,
            OPERATOR,
            pages.update,
            form=ACCOUNT_UPDATE,
        ),
        Route("control_account_purge", "DELETE", _ACCOUNT, OPERATOR, pages.purge),
        Route("control_cache_salt", "POST", salt, OPERATOR, pages.rotate_cache_salt, form=NO_FORM),
        Route("control_quotas", "GET", quotas, OPERATOR, pages.list_quotas),
        Route("control_quota_set", "PUT", quotas, OPERATOR, pages.set_quota, form=QUOTA_SET),
        Route(
            "control_quota_delete",
            "DELETE",
            quotas,
            OPERATOR,
            pages.delete_quota,
            query=QUOTA_QUERY,
        ),
    )


def _list_member_routes(pages: MemberPages) -> tuple[Route, ...]:
    """Members of accounts."""
    members = _ACCOUNT + "/members"
    member = members + "/{member_id}"
    return (
        Route("control_members", "GET", members, OPERATOR, pages.list_all),
        Route("control_member_add", "POST", members, OPERATOR, pages.add, form=MEMBER_CREATE),
        Route("control_member", "GET", member, OPERATOR, pages.get),
        Route("control_member_remove", "DELETE", member, OPERATOR, pages.remove),
    )
