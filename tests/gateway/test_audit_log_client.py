"""The audit log as Cloudflare's own client reads and filters it, in both versions."""

from typing import Any

import cloudflare
import pytest
from cloudflare.types.shared import AuditLog

from contracts.ids import AccountId
from tenancy.audit.entries import AuditFilter
from tests.gateway.cloudflare_client import allow, connect, find_groups
from tests.gateway.running_gateway import RunningGateway, Tenant


async def test_the_audit_log_is_filtered_as_the_client_asks(
    gateway: RunningGateway, admin: Tenant
) -> None:
    async with connect(gateway, admin.api_token) as client:
        groups = await find_groups(client, admin.account_id, "Workers AI Read")
        made = await client.accounts.tokens.create(
            account_id=admin.account_id,
            name="made",
            policies=allow(admin.account_id, groups),  # type: ignore[arg-type]
        )
        await client.accounts.tokens.value.update(str(made.id), account_id=admin.account_id)

        async def read(**filters: Any) -> list[str]:
            """What was done, oldest first."""
            entries = client.accounts.logs.audit.list(
                account_id=admin.account_id,
                since="2020-01-01",
                before="2100-01-01",
                direction="asc",
                **filters,
            )
            return [str(e.action.description) async for e in entries if e.action]

        own = await read(extra_query={"actor_type": "user"})
        assert own == ["api_token.create", "api_token.roll"]
        assert await read(actor_type={"not": ["system"]}) == own
        assert await read(actor_type={"not": ["user"]}) == ["account.create", "api_token.create"]
        assert await read(action_type={"not": ["create", "delete"]}) == ["api_token.roll"]
        assert await read(extra_query={"action_type": ["update", "view"]}) == ["api_token.roll"]
        assert await read(extra_query={"resource_type": "account"}) == ["account.create"]
        of_made = {"resource_id": made.id, "action_result": "success"}
        assert await read(extra_query=of_made) == own
        assert await read(extra_query={"action_result": "failure"}) == []
        assert await read(resource_id={"not": [str(made.id)]}, actor_context={"not": ["dash"]}) == [
            "account.create",
            "api_token.create",
        ]


async def test_the_first_version_of_the_audit_log_is_read_by_cloudflares_client(
    gateway: RunningGateway, admin: Tenant
) -> None:
    async with connect(gateway, admin.api_token) as client:
        groups = await find_groups(client, admin.account_id, "Workers AI Read")
        made = await client.accounts.tokens.create(
            account_id=admin.account_id,
            name="made",
            policies=allow(admin.account_id, groups),  # type: ignore[arg-type]
        )
        await client.accounts.tokens.value.update(str(made.id), account_id=admin.account_id)

        async def read(owner: str = "account", **filters: Any) -> list[AuditLog]:
            """The entries, oldest first, two on a page."""
            asked: dict[str, Any] = {"direction": "asc", "per_page": 2, **filters}
            if owner == "user":
                return [entry async for entry in client.user.audit_logs.list(**asked)]
            of_account = client.audit_logs.list(account_id=admin.account_id, **asked)
            return [entry async for entry in of_account]

        entries = await read()
        actions = [entry.action.type for entry in entries if entry.action]
        assert actions == [
            *("account.create", "api_token.create", "api_token.create", "api_token.roll")
        ]
        assert [e.id for e in await read(direction="desc")] == [e.id for e in entries[::-1]]
        assert [e.id for e in await read("user")] == [e.id for e in entries]
        assert [e.id for e in await read(hide_user_logs=True)] == [e.id for e in entries]
        assert [entry.actor.type for entry in entries if entry.actor] == [
            *("admin", "admin", "user", "user")
        ]
        last = entries[-1]
        assert (last.resource and last.resource.id, last.owner and last.owner.id) == (
            made.id,
            admin.account_id,
        )
        assert last.when is not None
        assert last.action is not None
        assert last.action.result is True
        assert entries[2].new_value is not None
        assert "made" in entries[2].new_value
        assert entries[0].new_value is None  # what the platform set is not the tenant's affair
        assert [e.id for e in await read(id=str(last.id))] == [last.id]
        assert await read(action={"type": "api_token.roll"}) == [last]
        assert await read(action={"type": "api_token"}) == []
        assert await read(actor={"ip": "127.0.0.1"}) == entries[2:]
        assert await read(actor={"ip": "127.0.0.2"}) == []
        assert await read(since="2100-01-01") == []
        assert await read(before="2020-01-01") == []


async def test_what_became_of_one_resource_and_its_product(
    gateway: RunningGateway, admin: Tenant
) -> None:
    async with connect(gateway, admin.api_token) as client:
        groups = await find_groups(client, admin.account_id, "Workers AI Read")
        policies = allow(admin.account_id, groups)
        ids: list[str] = []
        for name in ("one", "other"):
            made = await client.accounts.tokens.create(
                account_id=admin.account_id,
                name=name,
                policies=policies,  # type: ignore[arg-type]
            )
            ids.append(str(made.id))
        for token_id in ids:
            await client.accounts.tokens.value.update(token_id, account_id=admin.account_id)
        window = {"since": "2020-01-01", "before": "2100-01-01"}
        audit = client.accounts.logs.audit
        listed = [
            entry
            async for entry in audit.list(
                account_id=admin.account_id,
                since=window["since"],
                before=window["before"],
                product_category=["Identity_and_Access"],
                resource_id={"not": [ids[1]]},
            )
        ]
        assert {entry.resource.product for entry in listed if entry.resource} == {"api_token"}
        roll = listed[0]
        assert roll.action is not None
        assert roll.action.time is not None
        history = await audit.history(
            str(roll.id),
            account_id=admin.account_id,
            action_time=roll.action.time,
            since=window["since"],
            before=window["before"],
        )
        done = [(entry.action.description, entry.resource.id) for entry in history]  # type: ignore[union-attr]
        assert done == [("api_token.roll", ids[0]), ("api_token.create", ids[0])]
        with pytest.raises(cloudflare.NotFoundError):
            await audit.history(
                str(roll.id),
                account_id=admin.account_id,
                action_time="2020-01-01T00:00:00Z",
                since=window["since"],
                before=window["before"],
            )
        categories = audit.product_categories(account_id=admin.account_id)
        products = {
            product.value
            async for category in categories
            for product in category.products or []
            if category.value != "logging"
        }
        assert products == {"account", "quota", "data_key", "api_token", "member", "finetune"}


async def test_no_filter_finds_out_who_of_the_platform_has_acted(
    gateway: RunningGateway, admin: Tenant
) -> None:
    entries = await gateway.tenancy.list_audit_entries(AuditFilter(AccountId(admin.account_id)))
    somebody = entries[-1].actor.actor_id
    whole = "/logs/audit?since=2020-01-01&before=2100-01-01"
    for query, num_found in (("", len(entries)), (f"&actor_id={somebody}", 0)):
        path = gateway.account_path(whole + query, admin)
        reply = await gateway.send("GET", path, api_token=admin.api_token)
        assert len(reply.json["result"]) == num_found
    for query, num_found in (("", len(entries)), ("?actor.ip=127.0.0.1", 0)):
        reply = await gateway.send(
            "GET", gateway.account_path("/audit_logs" + query, admin), api_token=admin.api_token
        )
        assert len(reply.json["result"]) == num_found
        assert all(entry["actor"] == {"type": "admin"} for entry in reply.json["result"])
    path = f"/operator/v1/audit?account_id={admin.account_id}&actor_id={somebody}"
    reply = await gateway.send("GET", path, api_token=gateway.operator, origin=gateway.admin)
    assert len(reply.json["result"]) == len(entries)  # the control


@pytest.mark.parametrize(
    "query",
    [
        "action_type=made",
        "actor_type=",
        "zone_id=1",
        "resource_id=1" + "&resource_id=2" * 100,
        "resource_id=%00",  # PostgreSQL would refuse it as if it were away
        "actor_ip_address.not=a&actor_ip_address.not=b%00",
        "action=a%00b",
        "product_category=made",
    ],
)
async def test_a_filter_that_would_be_passed_over_is_refused(
    gateway: RunningGateway, admin: Tenant, query: str
) -> None:
    path = f"/logs/audit?since=2020-01-01&before=2100-01-01&{query}"
    reply = await gateway.send("GET", gateway.account_path(path, admin), api_token=admin.api_token)
    assert (reply.status, reply.code) == (400, 5006)


@pytest.mark.parametrize(
    "query",
    [
        "actor.email=a@example.org",
        "zone.name=example.org",
        "export=true",
        "actor.ip=127.0.0.0/8",
        "actor_ip=127.0.0.1",
        "hide_user_logs=perhaps",
        "page=1001&per_page=100",
        "per_page=1001",
        "action.type=%00",
    ],
)
async def test_the_first_version_passes_over_no_filter_either(
    gateway: RunningGateway, admin: Tenant, query: str
) -> None:
    for path in (gateway.account_path("/audit_logs?", admin), "/client/v4/user/audit_logs?"):
        reply = await gateway.send("GET", path + query, api_token=admin.api_token)
        assert (reply.status, reply.code) == (400, 5006)
        reply = await gateway.send("GET", path + "page=1000", api_token=admin.api_token)
        assert reply.json["result_info"] == {"page": 1000, "per_page": 100, "count": 0}
