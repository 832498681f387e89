"""Nobody grants what they do not hold: the check before an API token issues or changes another.

Owns the comparison with the acting token as it is stored now, not as some cache remembers it. Must
not know how tokens are written. Read next: `tenancy.policies`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.errors import Forbidden, Unauthenticated
from tenancy.actors import Actor, ActorKind
from tenancy.interfaces import ApiTokenStatus
from tenancy.policies import AddressCondition, Policies, find_excess
from tenancy.tables import api_tokens
from tenancy.tokens.lifetime import compute_status
from tenancy.tokens.rights_columns import to_condition, to_policies


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token could do, where from and until when."""

    policies: Policies
    condition: AddressCondition | None
    expires_unix_s: int | None


def to_grant(columns: Mapping[Any, Any]) -> Grant:
    """What a token of these columns could do."""
    return Grant(
        to_policies(columns["policies"], columns["permissions"]),
        to_condition(columns["condition"]),
        columns["expires_unix_s"],
    )


async def require_grantable(
    connection: AsyncConnection, actor: Actor, wanted: Grant, now_unix_us: int
) -> None:
    """Raises `Forbidden` when `wanted` goes beyond what `actor` holds.

    Only API tokens are bound; whoever runs the platform may grant everything.
    Raises: `Unauthenticated` when the acting token has been voided meanwhile.
    """
    if actor.kind is not ActorKind.API_TOKEN:
        return
    held = await _read_grant(connection, actor, now_unix_us)
    excess = find_excess(held.policies, wanted.policies)
    if excess is not None:
        raise Forbidden(
            f"An API token cannot grant `{excess}` beyond what it holds itself.", param="policies"
        )
    if held.condition is not None and not held.condition.covers(wanted.condition):
        raise Forbidden(
            "An API token cannot grant access from addresses that it may not use itself.",
            param="condition",
        )
    if held.expires_unix_s is not None and (
        wanted.expires_unix_s is None or wanted.expires_unix_s > held.expires_unix_s
    ):
        raise Forbidden(
            "An API token cannot grant access for longer than it is valid itself.",
            param="expires_on",
        )


async def _read_grant(connection: AsyncConnection, actor: Actor, now_unix_us: int) -> Grant:
    """The acting token's own grant."""
    query = select(api_tokens).where(
        api_tokens.c.account_id == actor.account_id, api_tokens.c.api_token_id == actor.actor_id
    )
    row = (await connection.execute(query)).mappings().one_or_none()
    if row is not None:
        stored = ApiTokenStatus(row["status"])
        status = compute_status(stored, row["expires_unix_s"], now_unix_us)
        if status is ApiTokenStatus.ACTIVE:
            return to_grant(row)
    raise Unauthenticated("Authentication error: the API token is not valid any more.")
