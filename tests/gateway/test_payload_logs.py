"""Payload logs through a whole gateway: kept word for word for who asks for it, and nobody else."""

import asyncio
import json
from typing import Any

import pytest

from contracts.errors import InvariantBroken, StoreUnavailable
from contracts.grant import RetentionClass
from contracts.ids import AccountId
from contracts.payloads import NewPayload
from gateway.payloads.payload_log import PayloadLog
from gateway.payloads.recording import OVERHEAD_BYTES, Recording
from gateway.payloads.room import Room
from gateway.request_context import RequestContext
from gateway.settings import PayloadLogSettings
from gateway.telemetry import Telemetry
from tenancy.changes import AccountChange
from tenancy.permissions import Permission
from tests.gateway.running_gateway import (
    Reply,
    RunningGateway,
    Tenant,
    wait_until,
    wait_until_async,
)
from tests.gateway.scripted_node import ScriptedNode
from tests.gateway.test_disconnects import stream_until_aborted

HI = {"prompt": "the prompt"}
PATH = "/logs/payloads"
A, B = AccountId("a" * 32), AccountId("b" * 32)


async def opt_in(gateway: RunningGateway, days: int | None = 7) -> Tenant:
    """A tenant whose payloads are kept, known to the gateway as such."""
    tenant = await gateway.add_tenant(permissions=frozenset(Permission))
    await change(gateway, tenant, days)
    return tenant


async def change(gateway: RunningGateway, tenant: Tenant, days: int | None) -> None:
    reply = await ask(gateway, tenant, "PUT", "/logs/payload_settings", {"days": days})
    assert reply.json["result"] == {"days": days, "max_days": 90}
    await gateway.gateway._cache.poll_epoch()


async def ask(
    gateway: RunningGateway, tenant: Tenant, method: str, rest: str, body: Any = None
) -> Reply:
    path = gateway.account_path(rest, tenant)
    content = None if body is None else json.dumps(body).encode()
    return await gateway.send(method, path, content, api_token=tenant.api_token)


async def list_logs(gateway: RunningGateway, tenant: Tenant) -> list[dict[str, Any]]:
    """What is kept, once the gateway has brought all of it to the store."""
    await gateway.gateway._payload_log.flush()
    return (await ask(gateway, tenant, "GET", PATH)).json["result"]


async def read_log(gateway: RunningGateway, tenant: Tenant, request_id: str) -> dict[str, Any]:
    return (await ask(gateway, tenant, "GET", f"{PATH}/{request_id}")).json["result"]


async def test_an_answer_is_kept_word_for_word_from_the_moment_it_is_wanted(
    gateway: RunningGateway,
) -> None:
    tenant = await gateway.add_tenant(permissions=frozenset(Permission))
    await gateway.run(HI, tenant=tenant)
    assert await list_logs(gateway, tenant) == []
    await change(gateway, tenant, 7)
    reply = await gateway.run(HI, tenant=tenant)
    (head,) = await list_logs(gateway, tenant)
    assert head["id"] == reply.headers["x-request-id"]
    assert (head["status"], head["route"], head["is_cut"]) == (200, "run", False)
    kept = await read_log(gateway, tenant, head["id"])
    assert json.loads(kept["request"]) == HI
    assert kept["response"].encode() == reply.body
    assert kept["head"] == head
    await change(gateway, tenant, None)
    await gateway.run(HI, tenant=tenant)
    assert await list_logs(gateway, tenant) == []


async def test_a_stream_is_kept_as_the_client_has_read_it(gateway: RunningGateway) -> None:
    tenant = await opt_in(gateway)
    reply = await gateway.run(HI | {"stream": True}, tenant=tenant)
    assert reply.events[-1] == "[DONE]"
    (head,) = await list_logs(gateway, tenant)
    assert (await read_log(gateway, tenant, head["id"]))["response"].encode() == reply.body


async def test_refusals_are_kept_too_and_a_header_keeps_one_request_out(
    gateway: RunningGateway,
) -> None:
    tenant = await opt_in(gateway)
    bad = await gateway.run(b'{"prompt": 5, "\xff', tenant=tenant)
    path = gateway.account_path("/ai/run/@hearth/tests/small", tenant)
    out = {"cf-aig-collect-log": "False "}  # space around a value is none of it
    await gateway.send("POST", path, b"{}", api_token=tenant.api_token, headers=out)
    (head,) = await list_logs(gateway, tenant)
    assert (head["status"], head["model"]) == (400, "")
    kept = await read_log(gateway, tenant, head["id"])
    assert kept["request"] == '{"prompt": 5, "�'
    assert kept["response"].encode() == bad.body


async def test_nothing_of_another_account_or_of_retention_none_is_kept(
    gateway: RunningGateway,
) -> None:
    tenant = await opt_in(gateway)
    other = await gateway.add_tenant(permissions=frozenset(Permission))
    await gateway.run(HI, tenant=other)
    assert await list_logs(gateway, other) == await list_logs(gateway, tenant) == []
    await gateway.run(HI, tenant=tenant)
    await gateway.tenancy.change_account(
        tenant.account_id, AccountChange(retention=RetentionClass.NONE)
    )
    # The gateway has not heard of it: the store has the last word.
    assert await list_logs(gateway, tenant) == []
    await gateway.gateway._cache.poll_epoch()
    await gateway.run(HI, tenant=tenant)
    assert await list_logs(gateway, tenant) == []
    refused = await ask(gateway, tenant, "PUT", "/logs/payload_settings", {"days": 1})
    assert refused.status == 409
    assert b"retention" in refused.body


async def test_pages_follow_one_another_and_deletion_is_exact(gateway: RunningGateway) -> None:
    tenant = await opt_in(gateway)
    for _ in range(3):
        await gateway.run(HI, tenant=tenant)
    heads = await list_logs(gateway, tenant)
    first = (await ask(gateway, tenant, "GET", f"{PATH}?limit=2")).json
    assert first["result"] == heads[:2]
    rest = f"{PATH}?limit=2&cursor={first['result_info']['cursor']}"
    second = (await ask(gateway, tenant, "GET", rest)).json
    assert (second["result"], second["result_info"]["cursor"]) == (heads[2:], "")
    one = await ask(gateway, tenant, "DELETE", f"{PATH}/{heads[0]['id']}")
    assert one.json["result"] == {"id": heads[0]["id"]}
    assert (await ask(gateway, tenant, "GET", f"{PATH}/{heads[0]['id']}")).status == 404
    assert (await ask(gateway, tenant, "DELETE", PATH)).json["result"] == {"deleted": 2}
    assert await list_logs(gateway, tenant) == []


async def test_a_client_that_leaves_has_its_answer_kept_as_far_as_it_went(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.script = stream_until_aborted
    tenant = await opt_in(gateway)
    url = gateway.base + gateway.account_path("/ai/run/@hearth/tests/small", tenant)
    headers = {"authorization": f"Bearer {tenant.api_token}"}
    async with gateway.session.post(url, json=HI | {"stream": True}, headers=headers) as response:
        read = await response.content.readuntil(b"word")
        response.close()
    await wait_until(node.streams[0].aborted.is_set)
    await wait_until_async(lambda: list_logs(gateway, tenant))
    (head,) = await list_logs(gateway, tenant)
    assert head["status"] == 499
    kept = await read_log(gateway, tenant, head["id"])
    assert kept["response"].encode().startswith(read)
    assert "[DONE]" not in kept["response"]


def test_a_recording_holds_no_more_than_its_bounds_and_says_so() -> None:
    room = Room(4000)
    whole = Recording(b"asked", A, 10, room)
    for piece in (b"12345", b"67890"):
        whole.hear(piece)
    assert (whole.asked, whole.answered, whole.is_cut) == (b"asked", b"1234567890", False)
    cut = Recording(b"asked for more than ten", A, 10, room)
    for piece in (b"12345", b"67890!", b"a part after the gap"):
        cut.hear(piece)
    assert (cut.asked, cut.answered, cut.is_cut) == (b"asked for ", b"1234567890", True)
    assert room.num_bytes == 2 * OVERHEAD_BYTES + 35


def test_one_account_cannot_take_the_room_of_another() -> None:
    room = Room(100)
    assert room.take(A, 50)
    assert not room.take(A, 1)  # half of it is taken
    assert not Recording(b"x", A, 10, room).is_kept
    assert room.take(B, 50)
    assert not room.take(AccountId("c" * 32), 1)
    room.give_back(A, 50)
    assert room.take(A, 50)


class FaultyStore:
    """Is away, or refuses what one account asks for."""

    def __init__(self) -> None:
        self.is_away = False
        self.kept: list[NewPayload] = []

    async def keep_payloads(self, payloads: list[NewPayload]) -> int:
        """All of them or none."""
        await asyncio.sleep(0)
        if self.is_away:
            raise StoreUnavailable("away")
        if any(payload.account_id == B for payload in payloads):
            raise InvariantBroken("The key is lost.")
        self.kept += payloads
        return len(payloads)

    async def drop_payloads(self, max_bytes: int) -> int:
        """None."""
        return 0


class Asked:
    """An exchange that nobody hears."""

    tap = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


def count_payloads(telemetry: Telemetry) -> dict[str, float]:
    """What has become of them, from the metrics."""
    (family,) = (one for one in telemetry.collect() if one.name == "hearth_gateway_payload_logs")
    return {sample.labels["outcome"]: sample.value for sample in family.samples}


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


def serve(log: PayloadLog, account_id: AccountId, number: int, body: bytes = b"asked") -> None:
    """One request, from its beginning to its end."""
    principal = type("P", (), {"account_id": account_id, "api_token_id": "t"})()
    principal.wants_payloads_kept = True
    context = RequestContext(f"{account_id[0]}{number}", "run", 0.0, 1.0, 0, principal=principal)  # type: ignore[arg-type]
    exchange = Asked()
    log.begin(context, exchange, body)
    if exchange.tap is not None:
        exchange.tap(b"answered")  # type: ignore[misc]
    log.end(context, 200)


async def test_while_the_store_is_away_payloads_wait_within_their_bound(
    store: FaultyStore,
) -> None:
    telemetry = Telemetry()
    room = 2 * (3 * OVERHEAD_BYTES + 33)  # half of it: three requests, the last one's answer not
    log = PayloadLog(store, PayloadLogSettings(max_waiting_bytes=room), telemetry)  # type: ignore[arg-type]
    store.is_away = True
    for number in range(5):
        serve(log, A, number)
    with pytest.raises(StoreUnavailable):
        await log.flush()
    assert count_payloads(telemetry) == {"kept": 0, "unwanted": 0, "dropped": 2}
    store.is_away = False
    await log.flush()
    assert [payload.request_id for payload in store.kept] == ["a0", "a1", "a2"]
    assert [payload.is_cut for payload in store.kept] == [False, False, True]
    serve(log, A, 9)  # there is room again
    await log.flush()
    assert store.kept[-1].request_id == "a9"


async def test_requests_without_words_fill_no_memory_either(store: FaultyStore) -> None:
    telemetry = Telemetry()
    settings = PayloadLogSettings(max_waiting_bytes=20 * OVERHEAD_BYTES)
    log = PayloadLog(store, settings, telemetry)  # type: ignore[arg-type]
    store.is_away = True
    for number in range(100):
        serve(log, A, number, b"")
    with pytest.raises(StoreUnavailable):
        await log.flush()
    store.is_away = False
    await log.flush()
    assert len(store.kept) == 9  # half of the room; all hundred, if words alone were counted
    assert count_payloads(telemetry)["dropped"] == 91
    assert log._room.num_bytes == 0


async def test_what_can_never_be_kept_holds_up_nobody(store: FaultyStore) -> None:
    telemetry = Telemetry()
    log = PayloadLog(store, PayloadLogSettings(), telemetry)  # type: ignore[arg-type]
    for number, account_id in enumerate((A, B, A)):
        serve(log, account_id, number)
    await log.flush()
    assert [payload.request_id for payload in store.kept] == ["a0", "a2"]
    assert count_payloads(telemetry) == {"kept": 2, "unwanted": 0, "dropped": 1}


async def test_two_that_bring_payloads_to_the_store_bring_each_once(store: FaultyStore) -> None:
    log = PayloadLog(store, PayloadLogSettings(), Telemetry())  # type: ignore[arg-type]
    for number in range(200):
        serve(log, A, number)
    await asyncio.gather(log.flush(), log.flush())
    ids = [payload.request_id for payload in store.kept]
    assert sorted(set(ids)) == sorted(ids)
    assert len(ids) == 200
