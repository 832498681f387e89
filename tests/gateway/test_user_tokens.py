"""`/user/tokens` is about the caller's own account; no token of it reaches another (ADR 0040)."""

import cloudflare
import pytest

from contracts.ids import AccountId
from tenancy.permissions import Permission
from tests.gateway.cloudflare_client import ACCOUNT, ALL, allow, connect, find_groups
from tests.gateway.running_gateway import RunningGateway, Tenant

USER = "com.cloudflare.api.user."


async def make(gateway: RunningGateway, owner: Tenant, resource: str) -> Tenant:
    """A token made at `/user/tokens`, strong as its maker, over `resource`."""
    async with connect(gateway, owner.api_token) as client:
        groups = await find_groups(client, owner.account_id, *Permission)
        policy = {"effect": "allow", "permission_groups": groups, "resources": {resource: "*"}}
        made = await client.user.tokens.create(name="made", policies=[policy])  # type: ignore[list-item]
    assert made is not None
    return Tenant(owner.account_id, str(made.value))


async def test_every_way_to_name_the_resources_means_the_own_account(
    gateway: RunningGateway,
) -> None:
    mine = await gateway.add_tenant(permissions=ALL)
    theirs = await gateway.add_tenant(permissions=ALL)
    for resource in (ACCOUNT + mine.account_id, USER + mine.account_id, ACCOUNT + "*"):
        token = await make(gateway, mine, resource)
        async with connect(gateway, token.api_token) as client:
            verified = await client.user.tokens.verify()
            assert verified is not None
            assert verified.status == "active"
            assert [account.id async for account in client.accounts.list()] == [mine.account_id]
            listed = {str(one.id) async for one in client.user.tokens.list()}
            own = client.accounts.tokens.list(account_id=mine.account_id)
            assert listed == {str(one.id) async for one in own}  # the control: it sees its own
            with pytest.raises(cloudflare.PermissionDeniedError):
                _ = [one async for one in client.accounts.tokens.list(account_id=theirs.account_id)]
        assert (await gateway.run({"prompt": "Hi"}, tenant=token)).status == 200
        astray = Tenant(theirs.account_id, token.api_token)
        assert (await gateway.run({"prompt": "Hi"}, tenant=astray)).status == 403


async def test_no_token_is_made_or_changed_to_reach_another_account(
    gateway: RunningGateway,
) -> None:
    mine = await gateway.add_tenant(permissions=ALL)
    theirs = await gateway.add_tenant(permissions=ALL)
    (other,) = await gateway.tenancy.list_api_tokens(theirs.account_id)
    async with connect(gateway, mine.api_token) as client:
        groups = await find_groups(client, mine.account_id, "Workers AI Read")
        (own,) = [one async for one in client.user.tokens.list()]
        policies = allow(theirs.account_id, groups)
        with pytest.raises(cloudflare.BadRequestError, match="own account only"):
            await client.user.tokens.create(name="t", policies=policies)  # type: ignore[arg-type]
        with pytest.raises(cloudflare.BadRequestError, match="own account only"):
            await client.user.tokens.update(str(own.id), name="t", policies=policies)  # type: ignore[arg-type]
        for attempt in (
            client.user.tokens.get(other.api_token_id),
            client.user.tokens.value.update(other.api_token_id),
            client.user.tokens.delete(other.api_token_id),
        ):
            with pytest.raises(cloudflare.NotFoundError):
                await attempt
    assert (await gateway.run({"prompt": "Hi"}, tenant=theirs)).status == 200  # nothing happened
    assert await gateway.tenancy.list_api_tokens(AccountId(theirs.account_id)) == [other]
