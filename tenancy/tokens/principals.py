"""From the digests of a credential to the principal behind it.

Owns the join of `api_tokens` and `accounts`; must not know the credential itself. What a token may
do is worked out here, once, so that a request only has to look. Read next: `tenancy.policies`.
"""

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.grant import RetentionClass
from contracts.ids import AccountId, ApiTokenId
from contracts.quotas import Quota
from tenancy.accounts.rows import to_models, to_region_rules
from tenancy.encryption.cache_salt import derive_cache_salt
from tenancy.encryption.key_ring import VersionedKeys
from tenancy.interfaces import AccountStatus, ApiTokenStatus, Principal
from tenancy.permissions import Permission
from tenancy.policies import evaluate_models, evaluate_permissions
from tenancy.quotas.store import find_quotas_of_token
from tenancy.tables import accounts, api_tokens
from tenancy.tokens.rights_columns import to_condition, to_policies

_QUERY: Final = select(
    api_tokens.c.api_token_id,
    api_tokens.c.status,
    api_tokens.c.permissions,
    api_tokens.c.policies,
    api_tokens.c.condition,
    api_tokens.c.not_before_unix_s,
    api_tokens.c.expires_unix_s,
    accounts.c.account_id,
    accounts.c.status.label("account_status"),
    accounts.c.retention,
    accounts.c.allowed_regions,
    accounts.c.allowed_jurisdictions,
    accounts.c.preferred_regions,
    accounts.c.preferred_jurisdictions,
    accounts.c.allowed_models,
    accounts.c.priority,
    accounts.c.master_key_version,
    accounts.c.cache_salt_generation,
    accounts.c.cache_secret,
    accounts.c.is_metered,
    accounts.c.payload_days,
).join_from(api_tokens, accounts)


async def find_principal_by_digests(
    connection: AsyncConnection, digests: Collection[bytes], master_keys: VersionedKeys
) -> Principal | None:
    """The principal whose token is stored under one of `digests`, None when there is none.

    Raises: `InvariantBroken` when the key ring has lost the account's master key.
    """
    return await _find(connection, api_tokens.c.digest.in_(digests), master_keys)


async def find_principal_by_token_id(
    connection: AsyncConnection,
    account_id: AccountId,
    api_token_id: ApiTokenId,
    master_keys: VersionedKeys,
) -> Principal | None:
    """The principal of a token of the account, None when there is none (any more).

    Raises: `InvariantBroken` when the key ring has lost the account's master key.
    """
    is_it = and_(api_tokens.c.api_token_id == api_token_id, api_tokens.c.account_id == account_id)
    return await _find(connection, is_it, master_keys)


async def _find(
    connection: AsyncConnection, condition: ColumnElement[bool], master_keys: VersionedKeys
) -> Principal | None:
    """The principal of the one token that `condition` admits."""
    row = (await connection.execute(_QUERY.where(condition))).one_or_none()
    if row is None:
        return None
    limits = await find_quotas_of_token(connection, row.account_id, row.api_token_id)
    return _to_principal(row, master_keys, limits)


def _to_principal(row: Any, master_keys: VersionedKeys, quotas: tuple[Quota, ...]) -> Principal:
    """The principal a joined row describes."""
    account_id = AccountId(row.account_id)
    master_key = master_keys.get(row.master_key_version)
    policies = to_policies(row.policies, row.permissions)
    bounds = to_models(row.allowed_models)
    return Principal(
        api_token_id=ApiTokenId(row.api_token_id),
        account_id=account_id,
        status=ApiTokenStatus(row.status),
        account_status=AccountStatus(row.account_status),
        permissions=evaluate_permissions(policies),
        not_before_unix_s=row.not_before_unix_s,
        expires_unix_s=row.expires_unix_s,
        retention=RetentionClass(row.retention),
        region_rules=to_region_rules(row),
        priority=row.priority,
        models=evaluate_models(policies, bounds),
        writable_models=evaluate_models(policies, bounds, Permission.WORKERS_AI_WRITE),
        condition=to_condition(row.condition),
        cache_salt=derive_cache_salt(
            master_key, account_id, row.cache_salt_generation, row.cache_secret
        ),
        quotas=quotas,
        is_metered=row.is_metered,
        payload_days=row.payload_days,
    )
