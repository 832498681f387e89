"""The first account, API token, operator and price of a fresh installation, for `hearth dev`.

Owns which rights they get; must not know where the caller keeps the values. Call it at every
start with what the last start returned: what still works is kept, the rest is made anew.
"""

from dataclasses import dataclass
from typing import Final

from contracts.ids import AccountId
from contracts.pricing import EVERY_MODEL
from contracts.settings import Secret
from tenancy.actors import Actor, ActorKind
from tenancy.administration import Administration
from tenancy.directory import SqlTenancy
from tenancy.interfaces import AccountStatus, ApiTokenStatus
from tenancy.permissions import Permission
from tenancy.prices.bundled import BUNDLED_MONEY

_ACTOR: Final = Actor(ActorKind.SYSTEM, "bootstrap")


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """Credentials that work."""

    account_id: AccountId
    api_token: Secret
    """Holds every permission on the account."""
    operator: Secret


async def bootstrap(
    tenancy: SqlTenancy, known: Bootstrapped | None = None, *, name: str = "dev"
) -> Bootstrapped:
    """Working credentials: those of `known` that still authenticate, fresh ones for the others.

    `name` is given to whatever is created. Raises: `InvalidRequest` (name), `StoreUnavailable`.
    """
    administration = tenancy.act_as(_ACTOR)
    account_id = await _keep_or_create_account(tenancy, known, name)
    api_token = None if known is None else known.api_token
    if api_token is None or not await _is_usable(tenancy, account_id, api_token):
        issued = await administration.create_api_token(account_id, name, frozenset(Permission))
        api_token = issued.value
    operator = None if known is None else known.operator
    if operator is None or await tenancy.find_operator(operator.reveal()) is None:
        operator = (await administration.create_operator(name)).value
    await _ensure_price_for_every_model(administration)
    return Bootstrapped(account_id=account_id, api_token=api_token, operator=operator)


async def _keep_or_create_account(
    tenancy: SqlTenancy, known: Bootstrapped | None, name: str
) -> AccountId:
    """The account that the known token opens, unless it is gone or suspended; else a new one.

    The id alone proves nothing: a file from elsewhere must not adopt somebody's account.
    """
    if known is not None:
        principal = await tenancy.find_principal(known.api_token.reveal())
        if principal is not None and principal.account_status is AccountStatus.ACTIVE:
            return principal.account_id
    return (await tenancy.act_as(_ACTOR).create_account(name)).account_id


async def _ensure_price_for_every_model(administration: Administration) -> None:
    """Prices models that have no price of their own like the bundled ones, unless somebody chose.

    Without a price a request is refused, and on a laptop every model should answer at once.
    """
    if all(price.model != EVERY_MODEL for price in await administration.list_prices()):
        await administration.set_price(EVERY_MODEL, BUNDLED_MONEY)


async def _is_usable(tenancy: SqlTenancy, account_id: AccountId, api_token: Secret) -> bool:
    """True when the token is one of the account's, active, not expired and unrestricted."""
    principal = await tenancy.find_principal(api_token.reveal())
    if principal is None or principal.account_id != account_id:
        return False
    stored = await tenancy.act_as(_ACTOR).get_api_token(account_id, principal.api_token_id)
    has_all = stored.permissions >= frozenset(Permission)
    return has_all and stored.status is ApiTokenStatus.ACTIVE
