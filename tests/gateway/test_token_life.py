"""An API token's whole life through Cloudflare's own client (conformance test 16)."""

import time
from datetime import UTC, datetime, timedelta

import cloudflare
import pytest

from tests.gateway.cloudflare_client import ACCOUNT, allow, connect, find_groups
from tests.gateway.running_gateway import RunningGateway, Tenant, wait_until_async
from tests.gateway.scripted_node import MODEL


async def is_refused(gateway: RunningGateway, tenant: Tenant) -> bool:
    """Whether the tenant's token opens nothing any more."""
    path = gateway.account_path("/tokens/verify", tenant)
    return (await gateway.send("GET", path, api_token=tenant.api_token)).status == 401


@pytest.mark.parametrize("owner", ["account", "user"])
async def test_a_token_is_made_used_rolled_disabled_and_deleted(
    gateway: RunningGateway, admin: Tenant, owner: str
) -> None:
    account_id = admin.account_id
    async with connect(gateway, admin.api_token) as client:
        tokens = client.accounts.tokens if owner == "account" else client.user.tokens
        where = {"account_id": account_id} if owner == "account" else {}
        groups = await find_groups(client, account_id, "Workers AI Read")
        policies = allow(account_id, groups)
        made = await tokens.create(name="ci", policies=policies, **where)
        assert made is not None
        assert made.value is not None
        assert (made.name, made.status) == ("ci", "active")
        child = Tenant(account_id, made.value)
        assert (await gateway.run({"prompt": "Hi"}, tenant=child)).status == 200

        shown = await tokens.get(made.id, **where)
        assert shown is not None
        assert made.value not in shown.model_dump_json()  # once and never again
        assert shown.policies is not None
        assert shown.policies[0].permission_groups[0].name == "Workers AI Read"
        listed = {token.id: token async for token in tokens.list(**where)}
        assert made.id in listed
        assert made.value not in listed[made.id].model_dump_json()
        async with connect(gateway, made.value) as own:
            verified = await own.user.tokens.verify()
        assert verified is not None
        assert (verified.id, verified.status) == (made.id, "active")

        rolled = await tokens.value.update(made.id, **where)
        assert isinstance(rolled, str)
        assert await is_refused(gateway, child)
        child = Tenant(account_id, rolled)
        assert (await gateway.run({"prompt": "Hi"}, tenant=child)).status == 200

        for status, answer in (("disabled", 401), ("active", 200)):
            changed = await tokens.update(
                made.id, name="renamed", policies=policies, status=status, **where
            )
            assert changed is not None
            assert (changed.status, changed.name) == (status, "renamed")
            assert (await gateway.run({"prompt": "Hi"}, tenant=child)).status == answer

        deleted = await tokens.delete(made.id, **where)
        assert deleted is not None
        assert deleted.id == made.id
        assert await is_refused(gateway, child)
        with pytest.raises(cloudflare.NotFoundError):
            await tokens.get(made.id, **where)


async def test_what_was_read_can_be_written_back(gateway: RunningGateway, admin: Tenant) -> None:
    account_id = admin.account_id
    async with connect(gateway, admin.api_token) as client:
        groups = await find_groups(client, account_id, "Workers AI Read", "API Tokens Read")
        made = await client.accounts.tokens.create(
            account_id=account_id,
            name="t",
            policies=allow(account_id, groups),  # type: ignore[arg-type]
            condition={
                "request_ip": {"in": ["127.0.0.0/8", "2001:db8::/32"], "not_in": ["127.9.9.9"]}
            },
            expires_on="2100-01-01T00:00:00Z",
            not_before=datetime(2020, 1, 1, tzinfo=UTC),
        )
        assert made is not None
        read = await client.accounts.tokens.get(str(made.id), account_id=account_id)
        assert read is not None
        written = await client.accounts.tokens.update(
            str(made.id),
            account_id=account_id,
            name="t",
            policies=[policy.model_dump(exclude_none=True) for policy in read.policies or []],  # type: ignore[misc]
        )
    assert written is not None
    assert written.model_dump(exclude={"modified_on"}) == read.model_dump(exclude={"modified_on"})
    assert read.condition is not None
    assert read.condition.request_ip is not None
    assert read.condition.request_ip.in_ == ["127.0.0.0/8", "2001:db8::/32"]
    assert read.condition.request_ip.not_in == ["127.9.9.9/32"]
    assert read.expires_on == datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("spelling", ["request_ip", "request.ip"])
async def test_a_token_works_from_its_networks_only(
    gateway: RunningGateway, admin: Tenant, spelling: str
) -> None:
    async with connect(gateway, admin.api_token) as client:
        groups = await find_groups(client, admin.account_id, "Workers AI Read")
        for networks, status in (({"in": ["10.0.0.0/8"]}, 403), ({"not_in": ["10.0.0.1"]}, 200)):
            made = await client.accounts.tokens.create(
                account_id=admin.account_id,
                name="t",
                policies=allow(admin.account_id, groups),  # type: ignore[arg-type]
                condition={spelling: networks},  # type: ignore[arg-type]
            )
            assert made is not None
            child = Tenant(admin.account_id, str(made.value))
            reply = await gateway.run({"prompt": "Hi"}, tenant=child)
            assert reply.status == status
            if status == 403:
                assert reply.code == 9109
                # A header that anybody can write changes nothing: no proxy is trusted here.
                forged = await gateway.send(
                    "POST",
                    gateway.account_path(f"/ai/run/{MODEL}", child),
                    b'{"prompt":"Hi"}',
                    api_token=child.api_token,
                    headers={"x-forwarded-for": "10.0.0.1"},
                )
                assert (forged.status, forged.code) == (403, 9109)


async def test_a_token_ends_when_its_time_is_up(gateway: RunningGateway, admin: Tenant) -> None:
    async with connect(gateway, admin.api_token) as client:
        groups = await find_groups(client, admin.account_id, "Workers AI Read")
        made = await client.accounts.tokens.create(
            account_id=admin.account_id,
            name="t",
            policies=allow(admin.account_id, groups),  # type: ignore[arg-type]
            expires_on=datetime.fromtimestamp(int(time.time()), UTC) + timedelta(seconds=4),
        )
        assert made is not None
        child = Tenant(admin.account_id, str(made.value))
        assert not await is_refused(gateway, child)

        async def has_ended() -> bool:
            return await is_refused(gateway, child)

        await wait_until_async(has_ended, 30)
        read = await client.accounts.tokens.get(str(made.id), account_id=admin.account_id)
        assert read is not None
        assert read.status == "expired"


async def test_models_outside_a_policy_do_not_exist_for_its_token(
    gateway: RunningGateway, admin: Tenant
) -> None:
    async with connect(gateway, admin.api_token) as client:
        groups = await find_groups(client, admin.account_id, "Workers AI Read")
        replies = []
        for pattern in (MODEL, "@somebody/else/*"):
            resources = {ACCOUNT + admin.account_id: {f"com.hearth.ai.model.{pattern}": "*"}}
            made = await client.accounts.tokens.create(
                account_id=admin.account_id,
                name="t",
                policies=[
                    {"effect": "allow", "permission_groups": groups, "resources": resources}  # type: ignore[list-item, typeddict-item]
                ],
            )
            assert made is not None
            child = Tenant(admin.account_id, str(made.value))
            listed = await gateway.send(
                "GET", gateway.account_path("/ai/models/search", child), api_token=child.api_token
            )
            run = await gateway.run({"prompt": "Hi"}, tenant=child)
            replies.append((run.status, [model["name"] for model in listed.json["result"]]))
            if run.status == 403:
                unknown = await gateway.run({"prompt": "Hi"}, "@a/none", tenant=child)
                assert (run.code, unknown.code) == (5018, 5018)  # nobody learns what exists
    assert replies == [(200, [MODEL]), (403, [])]


async def test_the_lists_of_an_account_are_read_to_their_end(
    gateway: RunningGateway, admin: Tenant
) -> None:
    async with connect(gateway, admin.api_token) as client:
        accounts = [account async for account in client.accounts.list()]
        assert [account.id for account in accounts] == [admin.account_id]
        await gateway.tenancy.add_member(admin.account_id, "ann@example.org")
        members = [m async for m in client.accounts.members.list(account_id=admin.account_id)]
        assert [member.email for member in members] == ["ann@example.org"]
        member = await client.accounts.members.get(str(members[0].id), account_id=admin.account_id)
        assert member is not None
        assert member.email == "ann@example.org"
        groups = await find_groups(client, admin.account_id, "Workers AI Read")
        for number in range(5):
            await client.accounts.tokens.create(
                account_id=admin.account_id,
                name=f"t{number}",
                policies=allow(admin.account_id, groups),  # type: ignore[arg-type]
            )
        tokens = client.accounts.tokens.list(account_id=admin.account_id, per_page=2)
        assert [t.name async for t in tokens][1:] == [f"t{number}" for number in range(5)]
        entries = [
            entry
            async for entry in client.accounts.logs.audit.list(
                account_id=admin.account_id, since="2020-01-01", before="2100-01-01", limit=2
            )
        ]
    made = [
        entry
        for entry in entries
        if entry.action and entry.action.description == "api_token.create"
    ]
    assert len(made) == 6
    assert {entry.actor.type for entry in made if entry.actor} == {"user", "system"}
