"""The first credentials of an installation, on every back end."""

from dataclasses import replace

from contracts.ids import AccountId, ApiTokenId
from contracts.pricing import EVERY_MODEL, TokenRates, find_price
from contracts.settings import Secret
from tenancy.bootstrap import Bootstrapped, bootstrap
from tenancy.interfaces import AccountStatus, ApiTokenStatus, Permission
from tests.fixtures.acting_tenancy import ActingTenancy


async def find_token_id(tenancy: ActingTenancy, known: Bootstrapped) -> ApiTokenId:
    """The id of the known token."""
    principal = await tenancy.find_principal(known.api_token.reveal())
    assert principal is not None
    return principal.api_token_id


async def test_a_fresh_installation_gets_credentials_that_work(tenancy: ActingTenancy) -> None:
    made = await bootstrap(tenancy.directory, name="dev")
    principal = await tenancy.find_principal(made.api_token.reveal())
    assert principal is not None
    assert principal.account_id == made.account_id
    assert principal.permissions == frozenset(Permission)
    assert (await tenancy.get_account(made.account_id)).name == "dev"
    assert await tenancy.find_operator(made.operator.reveal()) is not None
    assert made.api_token.reveal() not in repr(made)


async def test_what_works_is_kept(tenancy: ActingTenancy) -> None:
    made = await bootstrap(tenancy.directory)
    assert await bootstrap(tenancy.directory, made) == made
    assert len(await tenancy.list_accounts()) == 1
    assert len(await tenancy.list_api_tokens(made.account_id)) == 1
    assert len(await tenancy.list_operators()) == 1


async def test_credentials_of_another_database_are_all_replaced(tenancy: ActingTenancy) -> None:
    foreign = Bootstrapped(AccountId("f" * 32), Secret("hearth_pat_x"), Secret("hearth_op_x"))
    made = await bootstrap(tenancy.directory, foreign)
    assert made.account_id != foreign.account_id
    assert await bootstrap(tenancy.directory, made) == made


async def test_a_disabled_token_is_replaced_and_stays_disabled(tenancy: ActingTenancy) -> None:
    made = await bootstrap(tenancy.directory)
    token_id = await find_token_id(tenancy, made)
    await tenancy.set_api_token_status(made.account_id, token_id, ApiTokenStatus.DISABLED)
    again = await bootstrap(tenancy.directory, made)
    assert again.account_id == made.account_id
    assert again.operator == made.operator
    assert again.api_token != made.api_token
    old = await tenancy.get_api_token(made.account_id, token_id)
    assert old.status is ApiTokenStatus.DISABLED


async def test_a_token_without_every_permission_is_replaced(tenancy: ActingTenancy) -> None:
    made = await bootstrap(tenancy.directory)
    weak = await tenancy.create_api_token(
        made.account_id, "weak", frozenset({Permission.WORKERS_AI_READ})
    )
    again = await bootstrap(tenancy.directory, replace(made, api_token=weak.value))
    assert again.account_id == made.account_id
    assert again.api_token != weak.value


async def test_a_lost_operator_is_made_anew(tenancy: ActingTenancy) -> None:
    made = await bootstrap(tenancy.directory)
    again = await bootstrap(tenancy.directory, replace(made, operator=Secret("")))
    assert replace(again, operator=made.operator) == made
    assert await tenancy.find_operator(again.operator.reveal()) is not None


async def test_a_suspended_account_is_left_suspended(tenancy: ActingTenancy) -> None:
    made = await bootstrap(tenancy.directory)
    await tenancy.set_account_status(made.account_id, AccountStatus.SUSPENDED)
    again = await bootstrap(tenancy.directory, made)
    assert again.account_id != made.account_id
    status = (await tenancy.get_account(made.account_id)).status
    assert status is AccountStatus.SUSPENDED


async def test_an_account_id_alone_opens_nothing(tenancy: ActingTenancy) -> None:
    """A file that names somebody's account without its token must not be given a token to it."""
    victim = await tenancy.create_account("victim")
    forged = Bootstrapped(victim.account_id, Secret("hearth_pat_x"), Secret("hearth_op_x"))
    made = await bootstrap(tenancy.directory, forged)
    assert made.account_id != victim.account_id
    assert await tenancy.list_api_tokens(victim.account_id) == []


async def test_every_model_has_a_price_and_one_that_was_chosen_stays(
    tenancy: ActingTenancy,
) -> None:
    made = await bootstrap(tenancy.directory)
    price = find_price(await tenancy.list_prices(), "@cf/meta/any")
    assert price is not None
    assert price.money.output > 0
    chosen = await tenancy.set_price(EVERY_MODEL, TokenRates(1, 2, 3, 4))
    await bootstrap(tenancy.directory, made)
    assert find_price(await tenancy.list_prices(), "@cf/meta/any") == chosen
