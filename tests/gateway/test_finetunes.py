"""Finetunes through a whole gateway: made and filled by Cloudflare's client, named by requests."""

from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudflare
import pytest
from sqlalchemy import Engine, event

from contracts.adapters import AdapterRef
from contracts.ids import ModelName
from contracts.inference import GenerateRequest
from gateway.finetunes.reader import FinetuneReader
from tenancy.audit.entries import AuditFilter
from tenancy.interfaces import AccountStatus
from tenancy.permissions import Permission
from tenancy.policies import Effect, Policy
from tests.gateway.batch_client import run_batch
from tests.gateway.cloudflare_client import ALL, connect
from tests.gateway.finetune_client import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    ask,
    complete,
    create,
    upload,
)
from tests.gateway.finetunes.adapter_files import format_config, make_weights
from tests.gateway.running_gateway import (
    Reply,
    RunningGateway,
    Tenant,
    run_gateway,
    to_bytes,
    wait_until_async,
)
from tests.gateway.scripted_node import MODEL, ScriptedNode

HI: dict[str, Any] = {"prompt": "Hi"}
MESSAGES = [{"role": "user", "content": "Hi"}]
PLAIN = ModelName("@hearth/tests/plain")
MAX_RANK = 16
NOBODYS_REDIS = {"url": "redis://127.0.0.1:1/0"}


@pytest.fixture
async def gateway(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway in front of a node that takes adapters."""
    node.max_adapter_rank = MAX_RANK
    async with run_gateway(tmp_path, database_template, [node]) as running:
        yield running


def find_adapter(node: ScriptedNode) -> AdapterRef | None:
    """What the latest request was to be computed with."""
    request = node.streams[-1].question
    assert isinstance(request, GenerateRequest)
    return request.adapter


async def test_cloudflares_client_makes_one_uploads_both_files_and_asks_by_name_and_id(
    gateway: RunningGateway, node: ScriptedNode, admin: Tenant
) -> None:
    account_id = admin.account_id
    weights = make_weights()
    async with connect(gateway, admin.api_token) as client:
        made = await client.ai.finetunes.create(
            account_id=account_id, model=MODEL, name="cats", description="All of them."
        )
        assert (made.name, made.model, made.public) == ("cats", MODEL, False)
        assert made.created_at == made.modified_at
        for file_name, file in ((CONFIG_FILE, format_config()), (WEIGHTS_FILE, weights)):
            done = await client.ai.finetunes.assets.create(
                made.id, account_id=account_id, file=file, file_name=file_name
            )
            assert done.success
        listed: Any = await client.ai.finetunes.list(account_id=account_id)
        assert [(one.id, one.description) for one in listed] == [(made.id, "All of them.")]
        for name in ("cats", made.id):
            result: Any = await client.ai.run(
                MODEL, account_id=account_id, prompt="Hi", raw=True, lora=name
            )
            assert result["response"] == "Hello"
            adapter = find_adapter(node)
            assert adapter is not None
            assert (adapter.rank, adapter.scale, adapter.num_bytes) == (8, 2.0, len(weights))
        with pytest.raises(cloudflare.NotFoundError) as caught:
            await client.ai.run(MODEL, account_id=account_id, prompt="Hi", lora="dogs")
        assert "finetune" in str(caught.value)
    reader = FinetuneReader(gateway.tenancy.directory)
    assert await reader.read(adapter, 0, len(weights)) == weights


async def test_public_ones_are_listed_in_pages_and_used_by_their_id_alone(
    gateway: RunningGateway, node: ScriptedNode, admin: Tenant
) -> None:
    other = await gateway.add_tenant(permissions=ALL)
    names = ["b", "a", "c"]
    made = {name: await complete(gateway, admin, name, public=True) for name in names}
    await complete(gateway, admin, "private")
    await create(gateway, admin, "half", public=True)
    async with connect(gateway, other.api_token) as client:
        public = client.ai.finetunes.public
        found = [one async for one in public.list(account_id=other.account_id)]
        assert [one.name for one in found] == names
        assert set(found[0].to_dict()) == {
            *("id", "created_at", "modified_at", "model", "name", "description", "public")
        }  # nothing of whose it is
        page = await public.list(account_id=other.account_id, limit=1, offset=1, order_by="name")
        assert [one.name for one in page.result] == ["b"]
        own: Any = await client.ai.finetunes.list(account_id=other.account_id)
        assert own == []
    assert (await gateway.run(HI | {"lora": made["a"]["id"]}, tenant=other)).status == 200
    assert find_adapter(node) is not None
    assert (await gateway.run(HI | {"lora": "a"}, tenant=other)).status == 404
    for query in ("?limit=0", "?limit=x", "?offset=-1", "?orderBy=account_id", "?model=x"):
        assert (await ask(gateway, other, "GET", f"/public{query}")).status == 400


async def test_every_route_has_a_slash_at_its_end_or_not(
    gateway: RunningGateway, admin: Tenant
) -> None:
    path = gateway.account_path("/ai/finetunes/", admin)
    body = b'{"model": "%b", "name": "mine"}' % MODEL.encode()
    reply = await gateway.send("POST", path, body, api_token=admin.api_token)
    made = reply.json["result"]
    assert set(made) >= {"id", "created_at", "modified_at", "model", "name", "public"}
    assert (await ask(gateway, admin, "GET", "/")).json["result"] == [made]
    assert (await ask(gateway, admin, "GET", "/public/")).json["result"] == []
    for rest in ("/mine", "/mine/", f"/{made['id']}"):
        assert (await ask(gateway, admin, "GET", rest)).json["result"] == made
    config = await upload(gateway, admin, "mine", CONFIG_FILE, format_config())
    assert config.json["success"] is True
    assert config.json["result"] == {"id": made["id"], "file_name": CONFIG_FILE, "ready": False}
    assert (await ask(gateway, admin, "DELETE", "/mine/")).json["result"] == {"id": made["id"]}
    assert (await ask(gateway, admin, "DELETE", "/mine")).status == 404


@pytest.mark.parametrize("is_file_first", [False, True])
async def test_the_parts_of_a_form_may_come_in_either_order(
    gateway: RunningGateway, node: ScriptedNode, admin: Tenant, is_file_first: bool
) -> None:
    made = await create(gateway, admin)
    weights = make_weights(num_layers=12, width=1024)
    assert len(weights) > 65_536  # a name that comes behind it has to be believed
    for file_name, data in ((WEIGHTS_FILE, weights), (CONFIG_FILE, format_config())):
        reply = await upload(gateway, admin, "mine", file_name, data, is_file_first=is_file_first)
        assert reply.json["result"]["file_name"] == file_name, reply.body
    shown = (await ask(gateway, admin, "GET", f"/{made['id']}")).json["result"]
    assert (shown["ready"], shown["rank"], shown["num_bytes"]) == (True, 8, len(weights))
    assert (await gateway.run(HI | {"lora": "mine"}, tenant=admin)).status == 200
    adapter = find_adapter(node)
    assert adapter is not None
    assert adapter.num_bytes == len(weights)


async def test_all_routes_that_generate_take_an_adapter_and_batches_too(
    gateway: RunningGateway, node: ScriptedNode, admin: Tenant
) -> None:
    made = await complete(gateway, admin)
    node.chat_models = (MODEL,)
    expected: AdapterRef | None = None
    bodies = {
        "/ai/run": {"model": MODEL, "input": HI | {"lora": "mine"}},
        f"/ai/run/{MODEL}": {"messages": MESSAGES, "lora": made["id"]},
        "/ai/v1/chat/completions": {"model": MODEL, "messages": MESSAGES, "lora": "mine"},
        "/ai/v1/completions": {"model": MODEL, "prompt": "Hi", "lora": "mine"},
        "/ai/v1/responses": {"model": MODEL, "input": "Hi", "lora": "mine"},
        "/ai/v1/messages": {
            "model": MODEL,
            "messages": MESSAGES,
            "max_tokens": 5,
            "lora": "mine",
        },
    }
    for rest, body in bodies.items():
        path = gateway.account_path(rest, admin)
        reply = await gateway.send("POST", path, to_bytes(body), api_token=admin.api_token)
        assert reply.status == 200, reply.body
        assert find_adapter(node) is not None
        expected = expected or find_adapter(node)
        assert find_adapter(node) == expected
    node.streams.clear()
    items = ({"prompt": "a", "lora": "mine"}, {"prompt": "b", "lora": "none"}, {"prompt": "c"})
    done = await run_batch(gateway, *items, tenant=admin)
    first, second, third = done
    assert (first["success"], second["success"], third["success"]) == (True, False, True)
    assert second["error"]["code"] == 7000
    adapters = [stream.request.adapter for stream in node.streams]
    assert sorted(adapters, key=bool) == [None, expected]


async def test_an_empty_name_asks_for_none(
    gateway: RunningGateway, node: ScriptedNode, admin: Tenant
) -> None:
    for lora in ("", None):
        assert (await gateway.run(HI | {"lora": lora}, tenant=admin)).status == 200
        assert find_adapter(node) is None
    for lora in (5, ["a"], "x" * 101):
        refused = await gateway.run(HI | {"lora": lora}, tenant=admin)
        assert (refused.status, refused.code) == (400, 5006)
        assert b"lora" in refused.body


def describe_error(reply: Reply) -> tuple[int, int, str | None]:
    """Status, code and field of a refusal."""
    chat = reply.json.get("error") or {}
    return reply.status, reply.code, chat.get("param")


async def test_each_refusal_has_the_code_of_the_contract(
    gateway: RunningGateway, node: ScriptedNode, admin: Tenant
) -> None:
    node.models = (MODEL, PLAIN)
    await node.send_report()

    async def is_known() -> bool:
        return (await gateway.run(HI, PLAIN, admin)).status == 200

    await wait_until_async(is_known)
    await complete(gateway, admin)
    await create(gateway, admin, "half")
    before = len(node.streams)
    for name, model, expected in (
        ("nothing", MODEL, (404, 7000)),
        ("half", MODEL, (400, 3039)),
        ("mine", PLAIN, (405, 5005)),
        ("mine", "@hearth/tests/none", (400, 5007)),
    ):
        native = await gateway.run(HI | {"lora": name}, model, admin)
        assert (native.status, native.code) == expected, native.body
        assert native.headers["x-should-retry"] == "false"
        chat = await gateway.chat({"model": model, "messages": MESSAGES, "lora": name}, admin)
        assert (chat.status, chat.code) == expected
        if model != "@hearth/tests/none":
            assert describe_error(chat)[2] == "lora"
    assert len(node.streams) == before  # none of these has reached a node
    node.max_adapter_rank = 0
    await node.send_report()

    async def is_refused() -> bool:
        reply = await gateway.run(HI | {"lora": "mine"}, tenant=admin)
        return (reply.status, reply.status == 200 or reply.code) == (405, 5005)

    await wait_until_async(is_refused)
    for model, expected in ((MODEL, (405, 5005)), ("@hearth/tests/none", (400, 5007))):
        reply = await ask(gateway, admin, "POST", "", {"model": model, "name": "new"})
        assert (reply.status, reply.code) == expected


async def test_another_accounts_finetune_looks_like_one_that_does_not_exist(
    gateway: RunningGateway, node: ScriptedNode, admin: Tenant
) -> None:
    stranger = await gateway.add_tenant(permissions=ALL)
    made = await complete(gateway, admin, "secret-name")
    nobody = "0" * 8 + "-0000" * 3 + "-" + "0" * 12

    async def try_all(name: str, tenant: Tenant) -> list[tuple[int, bytes]]:
        replies = [
            await gateway.run(HI | {"lora": name}, tenant=tenant),
            await gateway.chat({"model": MODEL, "messages": MESSAGES, "lora": name}, tenant),
            await ask(gateway, tenant, "GET", f"/{name}"),
            await upload(gateway, tenant, name, CONFIG_FILE, format_config()),
            await upload(gateway, tenant, name, WEIGHTS_FILE, make_weights()),
            await ask(gateway, tenant, "DELETE", f"/{name}"),
        ]
        return [(reply.status, reply.body) for reply in replies]

    for name, missing in ((made["id"], nobody), ("secret-name", "no-such-name")):
        of_another = await try_all(name, stranger)
        assert of_another == await try_all(missing, stranger)
        assert {status for status, _ in of_another} == {404}
    assert (await ask(gateway, stranger, "GET")).json["result"] == []
    assert b"secret-name" not in (await ask(gateway, stranger, "GET", "/public")).body
    # The name is free for everybody else, and means each account's own.
    await complete(gateway, stranger, "secret-name", seed=1)
    refs = []
    for tenant in (admin, stranger):
        assert (await gateway.run(HI | {"lora": "secret-name"}, tenant=tenant)).status == 200
        refs.append(find_adapter(node))
    assert refs[0] != refs[1]
    # The control: the owner finds it, unchanged by all attempts.
    owned = await try_all(made["id"], admin)
    assert [status for status, _ in owned] == [200, 200, 200, 409, 409, 200]


async def test_a_request_costs_the_store_nothing_once_its_adapter_is_known(
    gateway: RunningGateway, admin: Tenant
) -> None:
    await complete(gateway, admin)
    with note_all_statements() as first:
        assert (await gateway.run(HI | {"lora": "mine"}, tenant=admin)).status == 200
    assert any("finetunes" in statement for statement in first)  # the control
    with note_all_statements() as later:
        for body in (HI | {"lora": "mine"}, HI):
            assert (await gateway.run(body, tenant=admin)).status == 200
    assert not [statement for statement in later if "finetunes" in statement]


@contextmanager
def note_all_statements() -> Generator[list[str]]:
    """What is asked of the database meanwhile, by whomever."""
    noted: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        noted.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield noted
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def test_a_change_holds_here_at_once_and_elsewhere_within_seconds(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    node.max_adapter_rank = MAX_RANK
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    shared = {"shared_limits": NOBODYS_REDIS}
    async with run_gateway(folders[0], database_template, [node], **shared) as one:
        url = f"sqlite+aiosqlite:///{folders[0] / 'hearth.db'}"
        ring = {"key_ring": {"file": str(folders[0] / "key_ring.json")}}
        async with run_gateway(folders[1], url, [node], **shared, **ring) as two:
            admin = await one.add_tenant(permissions=ALL)
            body = HI | {"lora": "mine"}
            for gateway in (one, two):
                assert (await gateway.run(body, tenant=admin)).status == 404
            await complete(one, admin)
            assert (await one.run(body, tenant=admin)).status == 200

            async def has_status(expected: int) -> bool:
                return (await two.run(body, tenant=admin)).status == expected

            await wait_until_async(lambda: has_status(200))
            await ask(one, admin, "DELETE", "/mine")
            assert (await one.run(body, tenant=admin)).status == 404
            await wait_until_async(lambda: has_status(404))


async def test_a_suspended_accounts_public_finetune_is_closed_with_it(
    gateway: RunningGateway, admin: Tenant
) -> None:
    made = await complete(gateway, admin, public=True)
    body = HI | {"lora": made["id"]}
    assert (await gateway.run(body)).status == 200
    await gateway.tenancy.set_account_status(admin.account_id, AccountStatus.SUSPENDED)

    async def is_closed() -> bool:
        return (await gateway.run(body)).status == 404

    await wait_until_async(is_closed)


async def test_a_token_for_other_models_sees_nothing_of_it(
    gateway: RunningGateway, admin: Tenant
) -> None:
    made = await complete(gateway, admin, public=True)
    rights = frozenset({Permission.WORKERS_AI_READ, Permission.WORKERS_AI_WRITE})
    policies = (Policy(Effect.ALLOW, rights, (PLAIN,)),)
    issued = await gateway.tenancy.create_api_token(admin.account_id, "narrow", policies)
    narrow = Tenant(admin.account_id, issued.value.reveal())
    assert (await ask(gateway, narrow, "GET")).json["result"] == []
    assert (await ask(gateway, narrow, "GET", "/public")).json["result"] == []
    for method in ("GET", "DELETE"):
        assert (await ask(gateway, narrow, method, f"/{made['id']}")).status == 404
    assert (await upload(gateway, narrow, "mine", CONFIG_FILE, b"{}")).status == 404
    refused = await ask(gateway, narrow, "POST", "", {"model": MODEL, "name": "x"})
    assert (refused.status, refused.code) == (403, 5018)
    assert [one["id"] for one in (await ask(gateway, admin, "GET")).json["result"]] == [made["id"]]


async def test_reading_and_writing_need_their_permissions(
    gateway: RunningGateway, admin: Tenant
) -> None:
    await create(gateway, admin)
    tenants = {}
    for permission in (Permission.WORKERS_AI_READ, Permission.WORKERS_AI_WRITE):
        issued = await gateway.tenancy.create_api_token(
            admin.account_id, "one", frozenset({permission})
        )
        tenants[permission] = Tenant(admin.account_id, issued.value.reveal())
    reader = tenants[Permission.WORKERS_AI_READ]
    writer = tenants[Permission.WORKERS_AI_WRITE]
    body = {"model": MODEL, "name": "second"}
    for tenant, expected in (
        (reader, [200, 200, 403, 403, 403]),
        (writer, [403, 403, 200, 200, 200]),
    ):
        statuses = [
            (await ask(gateway, tenant, "GET")).status,
            (await ask(gateway, tenant, "GET", "/mine")).status,
            (await ask(gateway, tenant, "POST", "", body)).status,
            (await upload(gateway, tenant, "mine", CONFIG_FILE, format_config())).status,
            (await ask(gateway, tenant, "DELETE", "/mine")).status,
        ]
        assert statuses == expected


async def test_operators_list_and_delete_those_of_any_account_and_all_is_in_the_audit_log(
    gateway: RunningGateway, admin: Tenant
) -> None:
    made = await complete(gateway, admin)
    base = f"/operator/v1/accounts/{admin.account_id}/finetunes"
    sent = {"api_token": gateway.operator, "origin": gateway.admin}
    listed = await gateway.send("GET", base, **sent)  # type: ignore[arg-type]
    assert [one["name"] for one in listed.json["result"]] == ["mine"]
    gone = await gateway.send("DELETE", f"{base}/{made['id']}", **sent)  # type: ignore[arg-type]
    assert gone.json["result"] == {"id": made["id"]}
    again = await gateway.send("DELETE", f"{base}/{made['id']}", **sent)  # type: ignore[arg-type]
    assert again.status == 404
    assert (await gateway.run(HI | {"lora": "mine"}, tenant=admin)).status == 404
    entries = await gateway.tenancy.list_audit_entries(AuditFilter(admin.account_id))
    told = [(one.action, one.actor.kind) for one in entries if one.resource_id == made["id"]]
    assert told == [
        ("finetune.delete", "operator"),
        ("finetune.upload", "api_token"),
        ("finetune.upload", "api_token"),
        ("finetune.create", "api_token"),
    ]
    audit = gateway.account_path("/logs/audit?since=2020-01-01&before=2100-01-01", admin)
    shown = await gateway.send("GET", audit, api_token=admin.api_token)
    assert shown.json["result"][0]["resource"]["product"] == "finetune"


async def test_the_catalogue_says_which_models_take_adapters_and_how(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    path = gateway.account_path("/ai/models/search")
    (model,) = (await gateway.send("GET", path)).json["result"]
    assert {"property_id": "lora", "value": "true"} in model["properties"]
    schema = gateway.account_path(f"/ai/models/schema?model={MODEL}")
    taken = (await gateway.send("GET", schema)).json["result"]["input"]
    assert "lora" in str(taken)
    node.max_adapter_rank = 0
    await node.send_report()

    async def is_told() -> bool:
        (model,) = (await gateway.send("GET", path)).json["result"]
        return "lora" not in str(model["properties"])

    await wait_until_async(is_told)


async def test_an_account_has_so_many_finetunes_and_a_name_once(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    node.max_adapter_rank = MAX_RANK
    bounds = {"finetunes": {"max_per_account": 2}}
    async with run_gateway(tmp_path, database_template, [node], **bounds) as gateway:
        admin = await gateway.add_tenant(permissions=ALL)
        await create(gateway, admin, "a")
        again = await ask(gateway, admin, "POST", "", {"model": MODEL, "name": "a"})
        assert (again.status, again.code) == (409, 7409)
        assert again.headers["x-should-retry"] == "false"
        await create(gateway, admin, "b")
        third = await ask(gateway, admin, "POST", "", {"model": MODEL, "name": "c"})
        assert (third.status, third.code) == (409, 7409)
        await ask(gateway, admin, "DELETE", "/a")
        await create(gateway, admin, "c")
        for name in ("", "a/b", "public", "x" * 101, made_up_id()):
            bad = await ask(gateway, admin, "POST", "", {"model": MODEL, "name": name})
            assert (bad.status, bad.code) == (400, 5006)


def made_up_id() -> str:
    return "0" * 8 + "-0000" * 3 + "-" + "0" * 12
