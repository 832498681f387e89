"""From a header to a principal: what is taken, what is refused, in which order and as what."""

import secrets
import shutil
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import AccountSuspended, Forbidden, ServiceError, Unauthenticated
from contracts.ids import AccountId, ApiTokenId
from gateway.auth.access import ANY_API_TOKEN, OPERATOR, PUBLIC, Access, Needs
from gateway.auth.bearer import MAX_CREDENTIAL_BYTES, read_bearer
from gateway.auth.composition import Authenticators, create_authenticators
from gateway.settings import AuthSettings, ProxySettings
from gateway.sources import Sources
from tenancy.encryption.key_ring import create_key_ring
from tenancy.interfaces import AccountStatus, ApiTokenStatus, Permission, Principal
from tenancy.tokens.format import CredentialKind, create_credential
from tests.fixtures.acting_tenancy import ActingTenancy, open_tenancy

READ = Needs(Permission.WORKERS_AI_READ)
START_UNIX_S = 1_700_000_000
Headers = list[tuple[bytes, bytes]]


def bear(value: str, scheme: str = "Bearer") -> Headers:
    """The headers of a request with this credential."""
    return [(b"host", b"test"), (b"authorization", f"{scheme} {value}".encode())]


@dataclass
class World:
    """A tenancy, authenticators in front of it, and a clock that the test moves."""

    database: Path
    now_s: float = START_UNIX_S
    tenancy: ActingTenancy = field(init=False)
    authenticators: Authenticators = field(init=False)

    def __post_init__(self) -> None:
        ring = create_key_ring(secrets.token_bytes)
        self.tenancy = open_tenancy(self.database, ring, lambda: self.now_s)
        sources = Sources(lambda: self.now_s, lambda: self.now_s, lambda _: 0)
        proxies = ProxySettings(trusted=("10.0.0.0/8",))
        self.authenticators = create_authenticators(
            self.tenancy.directory, AuthSettings(), None, proxies, sources
        )

    async def issue(
        self, *permissions: Permission, **times: int
    ) -> tuple[AccountId, ApiTokenId, str]:
        """Account, id and value of a new token."""
        account = await self.tenancy.create_account("a")
        issued = await self.tenancy.create_api_token(
            account.account_id, "t", frozenset(permissions or {Permission.WORKERS_AI_READ}), **times
        )
        return account.account_id, issued.api_token.api_token_id, issued.value.reveal()

    async def ask(
        self, value: str, account_id: AccountId | None = None, access: Access = READ
    ) -> Principal:
        """What a route does, its cache up to date."""
        await self.authenticators.cache.poll_epoch()
        return await self.authenticators.api_tokens.authenticate(bear(value), account_id, access)


@pytest.fixture
async def world(tmp_path: Path, database_template: Path) -> AsyncGenerator[World]:
    """Nobody is known yet."""
    opened = World(shutil.copy(database_template, tmp_path / "hearth.db"))
    yield opened
    await opened.tenancy.close()


# -- headers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [b"Bearer secret", b"bearer secret", b"BEARER secret", b"Bearer   secret  "]
)
def test_the_scheme_is_read_in_any_case_and_spacing(value: bytes) -> None:
    assert read_bearer([(b"authorization", value)]) == "secret"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer    ")],
        [(b"authorization", b"secret")],
        [(b"authorization", b"Basic secret")],
        [(b"authorization", b"Bearer\tsecret")],
        [(b"authorization", b"BearerX secret")],
        [(b"authorization", "Bearer sécret".encode())],
        [(b"authorization", b"Bearer \xff")],
        [(b"authorization", b"Bearer " + b"a" * (MAX_CREDENTIAL_BYTES + 1))],
        [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")],
        [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer a")],
        [(b"authorization", b""), (b"authorization", b"Bearer a")],
        [(b"x-api-key", b"secret"), (b"cookie", b"authorization=secret")],
    ],
)
def test_any_other_header_is_no_credential(headers: Headers) -> None:
    with pytest.raises(Unauthenticated) as caught:
        read_bearer(headers)
    assert "secret" not in caught.value.message


@given(st.lists(st.tuples(st.just(b"authorization") | st.binary(), st.binary()), max_size=4))
def test_no_header_does_more_than_be_refused(headers: Headers) -> None:
    try:
        credential = read_bearer(headers)
    except Unauthenticated:
        return
    assert credential.isascii()
    assert 0 < len(credential) <= MAX_CREDENTIAL_BYTES


# -- tokens --------------------------------------------------------------------------------------


async def test_a_good_token_of_the_account_is_let_in(world: World) -> None:
    account_id, token_id, value = await world.issue()
    principal = await world.ask(value, account_id)
    assert (principal.account_id, principal.api_token_id) == (account_id, token_id)
    assert (await world.ask(value)).account_id == account_id  # a route without an account


async def test_one_changed_character_anywhere_is_refused(world: World) -> None:
    account_id, _, value = await world.issue()
    for index in range(len(value)):
        spoiled = value[:index] + ("a" if value[index] != "a" else "b") + value[index + 1 :]
        with pytest.raises(Unauthenticated):
            await world.ask(spoiled, account_id)
    assert (await world.ask(value, account_id)).account_id == account_id  # the control


async def test_what_is_not_the_whole_value_is_refused(world: World) -> None:
    account_id, token_id, value = await world.issue()
    for wrong in (value[:-1], value + "0", value * 2, value.upper(), token_id, account_id):
        with pytest.raises(Unauthenticated):
            await world.ask(wrong, account_id)


async def test_a_well_formed_token_that_nobody_has_is_refused(world: World) -> None:
    account_id, *_ = await world.issue()
    elsewhere = create_credential(CredentialKind.API_TOKEN, secrets.token_bytes).reveal()
    with pytest.raises(Unauthenticated):
        await world.ask(elsewhere, account_id)


async def test_an_operators_credential_is_no_api_token_and_the_other_way_round(
    world: World,
) -> None:
    account_id, _, value = await world.issue()
    operator = (await world.tenancy.create_operator("o")).value.reveal()
    with pytest.raises(Unauthenticated):
        await world.ask(operator, account_id)
    operators = world.authenticators.operators
    with pytest.raises(Unauthenticated):
        await operators.authenticate(bear(value))
    assert (await operators.authenticate(bear(operator))).name == "o"


async def test_a_token_covers_its_own_account_only(world: World) -> None:
    mine, _, value = await world.issue()
    theirs, _, other = await world.issue()
    with pytest.raises(Forbidden):
        await world.ask(value, theirs)
    assert (await world.ask(other, theirs)).account_id == theirs
    assert (await world.ask(value, mine)).account_id == mine


async def test_a_permission_that_the_token_lacks_is_refused_by_name(world: World) -> None:
    account_id, _, value = await world.issue(Permission.API_TOKENS_READ)
    with pytest.raises(Forbidden, match="Workers AI Read"):
        await world.ask(value, account_id)
    assert await world.ask(value, account_id, ANY_API_TOKEN)
    assert await world.ask(value, account_id, Needs(Permission.API_TOKENS_READ))


async def test_a_broader_sounding_permission_is_not_another(world: World) -> None:
    account_id, _, value = await world.issue(Permission.WORKERS_AI_WRITE)
    with pytest.raises(Forbidden):
        await world.ask(value, account_id)


@pytest.mark.parametrize("access", [OPERATOR, PUBLIC])
async def test_no_api_token_meets_a_demand_that_is_not_made_of_tokens(
    world: World, access: Access
) -> None:
    account_id, _, value = await world.issue(*Permission)
    with pytest.raises(Forbidden):
        await world.ask(value, account_id, access)


# -- status and times ----------------------------------------------------------------------------


async def test_a_disabled_token_is_refused_and_good_again_once_enabled(world: World) -> None:
    account_id, token_id, value = await world.issue()
    assert await world.ask(value, account_id)
    await world.tenancy.set_api_token_status(account_id, token_id, ApiTokenStatus.DISABLED)
    with pytest.raises(Unauthenticated, match="disabled"):
        await world.ask(value, account_id)
    await world.tenancy.set_api_token_status(account_id, token_id, ApiTokenStatus.ACTIVE)
    assert await world.ask(value, account_id)


async def test_a_deleted_token_is_refused(world: World) -> None:
    account_id, token_id, value = await world.issue()
    assert await world.ask(value, account_id)
    await world.tenancy.delete_api_token(account_id, token_id)
    with pytest.raises(Unauthenticated):
        await world.ask(value, account_id)


async def test_a_suspended_account_is_refused_and_served_again_once_resumed(world: World) -> None:
    account_id, _, value = await world.issue()
    other_id, _, other = await world.issue()
    assert await world.ask(value, account_id)
    await world.tenancy.set_account_status(account_id, AccountStatus.SUSPENDED)
    for access in (READ, ANY_API_TOKEN):
        with pytest.raises(AccountSuspended):
            await world.ask(value, account_id, access)
    assert await world.ask(other, other_id)  # the control: nobody else is
    await world.tenancy.set_account_status(account_id, AccountStatus.ACTIVE)
    assert await world.ask(value, account_id)


async def test_times_hold_to_the_second_without_the_store_changing(world: World) -> None:
    account_id, _, value = await world.issue(
        not_before_unix_s=START_UNIX_S + 10, expires_unix_s=START_UNIX_S + 20
    )
    world.now_s = START_UNIX_S + 9.999
    with pytest.raises(Unauthenticated, match="not valid yet"):
        await world.ask(value, account_id)
    for second in (10.0, 19.999):
        world.now_s = START_UNIX_S + second
        assert await world.ask(value, account_id)
    world.now_s = START_UNIX_S + 20.0
    with pytest.raises(Unauthenticated, match="expired"):
        await world.ask(value, account_id)


# -- what a stranger may learn -------------------------------------------------------------------


async def test_a_bad_token_is_told_nothing_of_accounts(world: World) -> None:
    """Suspension, foreign accounts and permissions are told only to the holder of a good token."""
    account_id, token_id, value = await world.issue()
    await world.tenancy.set_account_status(account_id, AccountStatus.SUSPENDED)
    messages: set[str] = set()
    for asked in (account_id, AccountId("0" * 32)):
        with pytest.raises(Unauthenticated) as caught:
            await world.ask("hearth_pat_" + "0" * 48, asked)
        messages.add(caught.value.message)
    assert len(messages) == 1
    with pytest.raises(Forbidden):
        await world.ask(value, AccountId("0" * 32))
    await world.tenancy.set_api_token_status(account_id, token_id, ApiTokenStatus.DISABLED)
    with pytest.raises(Unauthenticated):
        await world.ask(value, account_id)


@pytest.mark.parametrize(
    "change",
    [
        {"status": ApiTokenStatus.DISABLED},
        {"account": AccountStatus.SUSPENDED},
        {"asked": AccountId("f" * 32)},
        {"access": Needs(Permission.API_TOKENS_WRITE)},
    ],
)
async def test_no_refusal_repeats_the_credential_or_the_salt(
    world: World, change: dict[str, Any]
) -> None:
    account_id, token_id, value = await world.issue()
    salt = (await world.ask(value, account_id)).cache_salt
    if "status" in change:
        await world.tenancy.set_api_token_status(account_id, token_id, change["status"])
    if "account" in change:
        await world.tenancy.set_account_status(account_id, change["account"])
    with pytest.raises(ServiceError) as caught:
        await world.ask(value, change.get("asked", account_id), change.get("access", READ))
    told = repr(caught.value) + caught.value.message
    assert value[len("hearth_pat_") :] not in told
    assert salt.hex() not in told
