"""A gateway that is cut off from its store, or was frozen, sends nobody on by rules that may have
been changed unseen: what runs at a node stays there, and no further place is taken until the store
has been asked.
"""

import asyncio
import secrets
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from contracts.errors import StoreUnavailable, StreamBroken, TransferFailed
from contracts.inference import Accepted, Delta
from gateway.auth.standing import Standing
from migrations.upgrade import upgrade_database
from tenancy.changes import AccountChange
from tenancy.encryption.key_ring_file import load_or_create_key_ring
from tests.gateway.gateway_process import GatewayProcess, open_tenancy_of, run_processes
from tests.gateway.prompt_pair import WHOLE, run_pair
from tests.gateway.raw_http import connect
from tests.gateway.running_gateway import (
    RunningGateway,
    run_gateway,
    to_bytes,
    wait_until,
    wait_until_async,
)
from tests.gateway.scripted_node import (
    MODEL,
    ScriptedNode,
    ScriptedStream,
    answer_hello,
    run_node,
)
from tests.gateway.test_continuation import STREAM, are_known, go_on, read_text
from tests.gateway.test_narrowed_accounts import HOME, NARROWED, RENAMED, SUSPENDED
from tests.gateway.test_refusing_nodes import ASK, find_fault, open_pair

FRESH, STALE = pytest.param(0.0, id="known lately"), pytest.param(1000.0, id="known long ago")
"""How long ago the store was last heard of: the first is the control, where all goes on as it does
for new requests.
"""


async def cut_off(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, age_s: float, what: AccountChange
) -> None:
    """From now on the gateway cannot ask its store, heard of it `age_s` ago, and does not see that
    the account is changed.
    """
    cache = gateway.gateway._cache  # type: ignore[reportPrivateUsage]
    directory = cache._directory  # type: ignore[reportPrivateUsage]

    async def fail(*_: object) -> None:
        raise StoreUnavailable("The store cannot be reached.")

    for name in ("read_epoch", "find_principal", "find_principal_by_id"):
        monkeypatch.setattr(directory, name, fail)
    await asyncio.sleep(0.1)  # whatever was under way
    await gateway.tenancy.change_account(gateway.tenant.account_id, what)
    monkeypatch.setattr(cache, "_confirmed_s", cache._confirmed_s - age_s)  # type: ignore[reportPrivateUsage]
    is_refused = (await gateway.run({"prompt": "Hi"})).status == 503
    assert is_refused == bool(age_s), "what new requests get"


def count_questions(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The accounts about which the store is asked in vain from now on."""
    directory = gateway.gateway._cache._directory  # type: ignore[reportPrivateUsage]
    asked: list[object] = []

    async def fail(account_id: object, _: object) -> None:
        asked.append(account_id)
        raise StoreUnavailable("The store cannot be reached.")

    monkeypatch.setattr(directory, "find_principal_by_id", fail)
    return asked


@asynccontextmanager
async def run_site(
    folder: Path, template: Path, resume_patience_s: float = 0.5
) -> AsyncGenerator[tuple[RunningGateway, ScriptedNode, ScriptedNode]]:
    """A gateway before a node at home, which is nearer, and one abroad."""
    sections = {"routing": {"resume_patience_s": resume_patience_s, "max_waiting_per_model": 1}}
    async with (
        run_node("node-1", HOME) as home,
        run_node("node-2", "enam") as abroad,
        run_gateway(folder, template, [home, abroad], **sections) as gateway,
    ):
        await wait_until_async(lambda: are_known(gateway, 2))
        yield gateway, home, abroad


@pytest.mark.parametrize("age_s", [FRESH, STALE])
@pytest.mark.parametrize("what", [NARROWED, SUSPENDED], ids=["narrowed", "suspended"])
@pytest.mark.parametrize("has_begun", [True, False])
async def test_what_is_lost_goes_nowhere_while_nobody_knows_the_rules(
    tmp_path: Path,
    database_template: Path,
    monkeypatch: pytest.MonkeyPatch,
    age_s: float,
    what: AccountChange,
    has_begun: bool,
) -> None:
    is_changed = asyncio.Event()

    async def begin_and_fail(stream: ScriptedStream) -> None:
        if has_begun and not is_changed.is_set():
            await stream.put(Accepted(7, 0))
            await stream.put(Delta("Hal", (11, 12, 13)))
        await is_changed.wait()
        await stream.fail(StreamBroken("The engine died."))

    async with run_site(tmp_path, database_template) as (gateway, home, abroad):
        home.script, abroad.script = begin_and_fail, go_on
        running = asyncio.create_task(gateway.run(STREAM))
        await wait_until(lambda: bool(home.streams))
        home.script, script = answer_hello, home.script
        await cut_off(gateway, monkeypatch, age_s, what)
        home.script = script
        num_before = len(home.streams) + len(abroad.streams)
        is_changed.set()
        reply = await running
        num_after = len(home.streams) + len(abroad.streams)
        if age_s:
            assert num_after == num_before
            assert reply.status == (200 if has_begun else 503)
            assert b"[DONE]" not in reply.body
        else:
            assert num_after > num_before
            assert read_text(reply).startswith("Hal") is has_begun
            assert b"[DONE]" in reply.body


async def test_what_is_lost_goes_on_when_the_store_is_back_in_time(
    tmp_path: Path, database_template: Path
) -> None:
    """It is asked for the one account, and the rules of now hold."""
    is_changed = asyncio.Event()

    async def begin_and_fail(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Hal", (11, 12, 13)))
        await is_changed.wait()
        await stream.fail(StreamBroken("The engine died."))

    async with run_site(tmp_path, database_template) as (gateway, home, abroad):
        home.script, abroad.script = begin_and_fail, go_on
        running = asyncio.create_task(gateway.run(STREAM))
        await wait_until(lambda: bool(home.streams))
        with pytest.MonkeyPatch.context() as patches:
            await cut_off(gateway, patches, 1000.0, RENAMED)
            is_changed.set()
            await asyncio.sleep(0.2)
            assert abroad.streams == []
        assert read_text(await running) == "Hallo"
        assert len(abroad.streams) == 1


@pytest.mark.parametrize("is_back", [True, False])
@pytest.mark.parametrize("waits", [True, False])
async def test_an_answer_asks_again_whether_it_may_go_on_where_it_has_found_a_place(
    tmp_path: Path, database_template: Path, waits: bool, is_back: bool
) -> None:
    """Whether that was free or had to be waited for."""
    is_cut = asyncio.Event()

    async def begin_and_fail(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Hal", (11, 12, 13)))
        await is_cut.wait()
        await stream.fail(StreamBroken("The engine died."))

    patience = {"resume_patience_s": 10.0 if is_back else 1.0}
    async with run_site(tmp_path, database_template, **patience) as (gateway, home, abroad):
        queue = gateway.gateway._pool.forwarding.queue  # type: ignore[reportPrivateUsage]
        home.script, abroad.script = begin_and_fail, go_on
        running = asyncio.create_task(gateway.run(STREAM))
        await wait_until(lambda: bool(home.streams))
        with pytest.MonkeyPatch.context() as patches:
            await cut_off(gateway, patches, 1000.0, RENAMED)
            asked = count_questions(gateway, patches)
            for node in (home, abroad) if waits else ():
                node.max_running, node.num_running, node.num_waiting = 1, 1, 5
                await node.send_report()
            await asyncio.sleep(0.2)
            is_cut.set()
            if waits:
                with pytest.MonkeyPatch.context() as answers:  # until it waits, it may
                    answers.setattr(Standing, "is_current", lambda *_: True)
                    await wait_until(lambda: queue.num_waiting == 1)
                assert not asked
                for node in (home, abroad):
                    node.num_running = node.num_waiting = 0
                    await node.send_report()
            await wait_until(lambda: len(asked) > 2)
            if not is_back:
                assert b"[DONE]" not in (await running).body
                return
        assert read_text(await running) == "Hallo"


@pytest.mark.parametrize("age_s", [FRESH, STALE])
async def test_who_waits_gets_no_place_while_nobody_knows_the_rules(
    tmp_path: Path, database_template: Path, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    async with run_site(tmp_path, database_template) as (gateway, home, abroad):
        queue = gateway.gateway._pool.forwarding.queue  # type: ignore[reportPrivateUsage]
        for node in (home, abroad):
            node.max_running, node.num_running, node.num_waiting = 1, 1, 5
            await node.send_report()
        await asyncio.sleep(0.2)
        waiting = asyncio.create_task(gateway.run({"prompt": "Hi"}))
        await wait_until(lambda: queue.num_waiting == 1)
        if age_s:
            await cut_off(gateway, monkeypatch, age_s, NARROWED)
        abroad.num_running = abroad.num_waiting = 0
        await abroad.send_report()
        reply = await waiting
        assert (reply.status, len(abroad.streams)) == ((503, 0) if age_s else (200, 1))


@pytest.mark.parametrize("age_s", [FRESH, STALE])
async def test_a_prompt_that_was_given_up_goes_nowhere_while_nobody_knows_the_rules(
    tmp_path: Path, database_template: Path, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    is_changed = asyncio.Event()

    async def give_up(stream: ScriptedStream) -> None:
        await is_changed.wait()
        await stream.fail(TransferFailed("No room after all."))

    async with run_pair(tmp_path, database_template) as pair:
        pair.prompts.script = give_up
        running = asyncio.create_task(pair.gateway.run(STREAM | WHOLE))
        await wait_until(lambda: bool(pair.prompts.streams))
        await cut_off(pair.gateway, monkeypatch, age_s, NARROWED)
        is_changed.set()
        assert read_text(await running) == ("local" if age_s else "Hello")
        assert len(pair.others.streams) == (not age_s)


@pytest.mark.parametrize("age_s", [FRESH, STALE])
async def test_nobody_else_is_asked_for_an_opinion_while_nobody_knows_the_rules(
    tmp_path: Path, database_template: Path, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    async with open_pair(tmp_path, database_template) as (gateway, near, far):
        near.script = find_fault
        for _ in range(3):
            assert (await gateway.run(ASK)).status == 400

        async def find_fault_meanwhile(stream: ScriptedStream) -> None:
            near.script = find_fault
            await cut_off(gateway, monkeypatch, age_s, NARROWED)
            far.streams.clear()
            await find_fault(stream)

        near.script = find_fault_meanwhile
        assert (await gateway.run(ASK)).status == (400 if age_s else 200)
        assert len(far.streams) == (not age_s)


@pytest.mark.parametrize("age_s", [FRESH, STALE])
async def test_a_body_that_comes_slowly_goes_nowhere_while_nobody_knows_the_rules(
    tmp_path: Path, database_template: Path, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    body = to_bytes({"prompt": "Hi"})
    async with run_site(tmp_path, database_template) as (gateway, home, abroad):
        head = (
            f"POST {gateway.account_path(f'/ai/run/{MODEL}')} HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {gateway.tenant.api_token}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        async with connect(gateway) as (reader, writer):
            writer.write(head.encode() + body[:3])
            await asyncio.sleep(0.1)
            if age_s:
                await cut_off(gateway, monkeypatch, age_s, NARROWED)
            writer.write(body[3:])
            status = (await asyncio.wait_for(reader.readline(), 20)).split()[1]
        num_streams = len(home.streams) + len(abroad.streams)
        assert (status, num_streams) == ((b"503", 0) if age_s else (b"200", 1))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", [RENAMED, NARROWED], ids=["renamed", "narrowed"])
async def test_a_gateway_that_was_frozen_asks_before_it_sends_anybody_on(
    tmp_path: Path, what: AccountChange
) -> None:
    """SIGSTOP for longer than what is known is trusted, while the rules change and a node fails."""
    is_changed = asyncio.Event()

    async def begin_and_fail(stream: ScriptedStream) -> None:
        if len(home.streams) == 1:
            await stream.put(Accepted(7, 0))
            await stream.put(Delta("Hal", (11, 12, 13)))
            await is_changed.wait()
        await stream.fail(StreamBroken("The engine died."))

    url = f"sqlite+aiosqlite:///{tmp_path / 'hearth.db'}"
    await asyncio.to_thread(upgrade_database, url)
    load_or_create_key_ring(tmp_path / "key_ring.json", secrets.token_bytes)
    sections = {"auth": {"max_staleness_s": 2.0}, "routing": {"resume_patience_s": 5}}
    async with run_node("node-1", HOME) as home, run_node("node-2", "enam") as abroad:
        home.script, abroad.script = begin_and_fail, go_on
        process = GatewayProcess(tmp_path, url, [home, abroad], **sections)
        async with run_processes([process], open_tenancy_of(tmp_path, url)) as (gateway,):
            gateway.operator = (await gateway.tenancy.create_operator("tests")).value.reveal()
            await wait_until_async(lambda: are_known(gateway, 2))
            running = asyncio.create_task(gateway.run(STREAM))
            await wait_until(lambda: bool(home.streams))
            await asyncio.sleep(0.3)
            process.signal(signal.SIGSTOP)
            try:
                await gateway.tenancy.change_account(gateway.tenant.account_id, what)
                is_changed.set()
                await asyncio.sleep(4)
            finally:
                process.signal(signal.SIGCONT)
            reply = await running
            assert len(abroad.streams) == (what is RENAMED)
            assert (b"[DONE]" in reply.body) is (what is RENAMED)
