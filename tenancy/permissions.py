"""The rights that a credential can hold, and the permission groups under which clients see them.

Owns names, ids and scopes; must not know who holds what (`tenancy.policies`).
Source: Cloudflare's API reference (API tokens); clients find groups by name, ids are ours.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Permission(StrEnum):
    """Rights a credential can hold; the values are the permission groups' public names."""

    WORKERS_AI_READ = "Workers AI Read"
    """Inference and the model list."""
    WORKERS_AI_WRITE = "Workers AI Write"
    ACCOUNT_SETTINGS_READ = "Account Settings Read"
    """The account, its members and its audit log."""
    API_TOKENS_READ = "API Tokens Read"
    API_TOKENS_WRITE = "API Tokens Write"
    BILLING_READ = "Billing Read"
    """What the account has used and what it costs."""
    PAYLOAD_LOGS_READ = "Payload Logs Read"
    """What was asked and answered, word for word, where the account keeps it."""
    PAYLOAD_LOGS_WRITE = "Payload Logs Write"
    """Whether it is kept, and its deletion."""


MODEL_PERMISSIONS: Final = frozenset({Permission.WORKERS_AI_READ, Permission.WORKERS_AI_WRITE})
"""Those that a policy can narrow to single models."""

_ACCOUNT_SCOPE: Final = "com.cloudflare.api.account"
_USER_SCOPE: Final = "com.cloudflare.api.user"
_ID_LENGTH: Final = 32


@dataclass(frozen=True, slots=True)
class PermissionGroup:
    """A permission as clients choose it when they create an API token."""

    group_id: str
    permission: Permission
    scopes: tuple[str, ...]
    category: str


def _create_group(permission: Permission, category: str, *scopes: str) -> PermissionGroup:
    """The group of `permission`; its id follows from the name, so that it never changes."""
    digest = hashlib.sha256(b"hearth permission group\0" + permission.encode()).hexdigest()
    return PermissionGroup(digest[:_ID_LENGTH], permission, scopes, category)


PERMISSION_GROUPS: Final = (
    _create_group(Permission.WORKERS_AI_READ, "ai_and_machine_learning", _ACCOUNT_SCOPE),
    _create_group(Permission.WORKERS_AI_WRITE, "ai_and_machine_learning", _ACCOUNT_SCOPE),
    _create_group(Permission.ACCOUNT_SETTINGS_READ, "account_and_billing", _ACCOUNT_SCOPE),
    _create_group(Permission.API_TOKENS_READ, "account_and_billing", _ACCOUNT_SCOPE, _USER_SCOPE),
    _create_group(Permission.API_TOKENS_WRITE, "account_and_billing", _ACCOUNT_SCOPE, _USER_SCOPE),
    _create_group(Permission.BILLING_READ, "account_and_billing", _ACCOUNT_SCOPE),
    _create_group(Permission.PAYLOAD_LOGS_READ, "ai_and_machine_learning", _ACCOUNT_SCOPE),
    _create_group(Permission.PAYLOAD_LOGS_WRITE, "ai_and_machine_learning", _ACCOUNT_SCOPE),
)
"""Every permission's group, in the order in which they are listed."""
