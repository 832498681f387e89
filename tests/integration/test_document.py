"""Every operation of the OpenAPI document, asked with generated requests: each answer is one that
the document names, none is a fault of ours, and each operation succeeds for some of them."""

import asyncio
import copy
import json
import os
import secrets
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.finetunes import NewFinetune
from contracts.ids import ModelName, NodeId
from contracts.pricing import TokenRates
from tenancy.audit.entries import AuditFilter
from tenancy.permissions import Permission
from tests.fixtures.encoder_checkpoint import write_encoder_checkpoint
from tests.fixtures.node_process import MODEL as GENERATOR
from tests.fixtures.node_process import run_node_process
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.conftest import database_template
from tests.gateway.payload_words import keep_payload
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until_async
from tests.gateway.scripted_node import MODEL as TUNABLE
from tests.gateway.scripted_node import ScriptedNode, run_node
from tests.integration.document_client import DocumentClient, Names
from tests.integration.node_entry import NodeEntry

pytestmark = pytest.mark.slow

__all__ = ["database_template"]
EMBEDDER = "@hearth/tests/embedder"
NUM_CASES = int(os.environ.get("HEARTH_TEST_DOCUMENT_CASES", "3"))
MANY = 1_000_000
MAX_CASES = max(NUM_CASES, 150)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeEntry]:
    folder = tmp_path_factory.mktemp("document")
    write_random_checkpoint(folder / "generator")
    encoder = write_encoder_checkpoint(folder / "embedder", "BertModel")
    more = f"[[models]]\nname = {json.dumps(EMBEDDER)}\npath = {json.dumps(str(encoder))}\n"
    with run_node_process(folder, folder / "generator", more_settings=more) as (_, address):
        url = address.url.replace("http", "ws")
        yield NodeEntry(url, address.pair_key, folder, NodeId("test-node"))


async def create_client(gateway: RunningGateway) -> DocumentClient:
    """A client for an account of its own."""
    tenant = await gateway.add_tenant(permissions=frozenset(Permission))
    member = await gateway.send(
        "POST",
        f"/operator/v1/accounts/{tenant.account_id}/members",
        b'{"email": "somebody@example.org"}',
        api_token=gateway.operator,
        origin=gateway.admin,
    )
    entries = await gateway.tenancy.list_audit_entries(AuditFilter(tenant.account_id), limit=1)
    loop = asyncio.get_running_loop()

    def keep_request() -> str:
        kept = keep_payload(gateway.tenancy, tenant.account_id, "words")
        return asyncio.run_coroutine_threadsafe(kept, loop).result()

    def create_finetune() -> str:
        new = NewFinetune(name=f"made {secrets.token_hex(8)}", model=TUNABLE)
        made = gateway.tenancy.create_finetune(tenant.account_id, new, MANY)
        return asyncio.run_coroutine_threadsafe(made, loop).result().finetune_id

    return DocumentClient(
        Names(
            base=gateway.base,
            account_id=tenant.account_id,
            api_token=tenant.api_token,
            member_id=member.json["result"]["id"],
            generator=GENERATOR,
            embedder=EMBEDDER,
            base_model=TUNABLE,
            create_finetune=create_finetune,
            keep_request=keep_request,
            entry_id=str(entries[0].sequence),
        )
    )


@pytest.fixture
async def scripted() -> AsyncGenerator[ScriptedNode]:
    """A node whose model takes adapters."""
    async with run_node("scripted-node") as running:
        running.max_adapter_rank = 16
        yield running


@pytest.fixture
async def gateway(
    tmp_path: Path, database_template: Path, node: NodeEntry, scripted: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    bounds = {"finetunes": {"max_per_account": MANY}}
    nodes = [node, scripted]
    async with run_gateway(tmp_path, database_template, nodes, **bounds) as running:
        for model in (GENERATOR, EMBEDDER):
            await running.tenancy.set_price(ModelName(model), TokenRates(1, 1, 1, 1))

        async def serves_both() -> bool:
            replies = [
                await running.run({"prompt": "a", "max_tokens": 1}, GENERATOR),
                await running.run({"text": "a"}, EMBEDDER),
            ]
            return [reply.status for reply in replies] == [200, 200]

        await wait_until_async(serves_both, 60)
        yield running


@pytest.mark.timeout(0 if "HEARTH_TEST_DOCUMENT_CASES" in os.environ else 600)
async def test_every_operation_answers_as_the_document_says(gateway: RunningGateway) -> None:
    client = await create_client(gateway)
    document = await asyncio.to_thread(client.read_document)
    found = await asyncio.to_thread(client.try_all, document, NUM_CASES, MAX_CASES)
    assert {name: one.faults for name, one in found.items() if one.faults} == {}
    assert {name: one.statuses for name, one in found.items() if not one.has_success} == {}
    assert len(found) == sum(map(len, document["paths"].values()))


async def test_a_document_that_is_not_true_is_found_out(gateway: RunningGateway) -> None:
    client = await create_client(gateway)
    document: Any = await asyncio.to_thread(client.read_document)
    paths = copy.deepcopy(document["paths"])
    tokens = paths["/client/v4/user/tokens/verify"]["get"]["responses"]
    tokens["200"]["content"]["application/json"]["schema"] = {"required": ["more"]}
    usage = paths["/client/v4/accounts/{account_id}/usage"]["get"]["responses"]
    del usage["400"]
    wrong = document | {"paths": paths}
    found = await asyncio.to_thread(client.try_all, wrong, 10, 10, "verify", "usage")
    assert any("JsonSchemaError" in fault for fault in found["verify"].faults)
    assert any(fault.startswith("400 UndefinedStatusCode") for fault in found["usage"].faults)


async def test_a_gateway_that_fails_is_found_out(tmp_path: Path, database_template: Path) -> None:
    async with run_gateway(tmp_path, database_template, []) as gateway:
        client = await create_client(gateway)
        document = await asyncio.to_thread(client.read_document)
        found = await asyncio.to_thread(client.try_all, document, 1, 1, "ready", "live")
    assert any("ServerError" in fault for fault in found["ready"].faults)
    assert not found["ready"].has_success
    assert found["live"].has_success
