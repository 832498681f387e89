"""Every operation of the operators' OpenAPI document, as `test_document` has it for tenants."""

import asyncio
import os
import secrets
from pathlib import Path

import pytest

from contracts.finetunes import NewFinetune
from tests.gateway.conftest import database_template
from tests.gateway.running_gateway import run_gateway
from tests.gateway.scripted_node import MODEL, run_node
from tests.integration.document_client import Names
from tests.integration.operator_document_client import OperatorDocumentClient

pytestmark = pytest.mark.slow

__all__ = ["database_template"]
NUM_CASES = int(os.environ.get("HEARTH_TEST_DOCUMENT_CASES", "2"))
MAX_CASES = max(NUM_CASES, 40)


@pytest.mark.timeout(0 if "HEARTH_TEST_DOCUMENT_CASES" in os.environ else 600)
async def test_every_operation_answers_as_the_operators_document_says(
    tmp_path: Path, database_template: Path
) -> None:
    async with run_node() as node, run_gateway(tmp_path, database_template, [node]) as gateway:
        account_id = gateway.tenant.account_id
        member = await gateway.tenancy.add_member(account_id, "a@example.org")
        loop = asyncio.get_running_loop()

        def create_finetune() -> str:
            new = NewFinetune(name=f"made {secrets.token_hex(8)}", model=MODEL)
            made = gateway.tenancy.create_finetune(account_id, new, 1_000_000)
            return asyncio.run_coroutine_threadsafe(made, loop).result().finetune_id

        names = Names(
            base=gateway.admin,
            account_id=account_id,
            api_token=gateway.operator,
            member_id=member.member_id,
            generator=MODEL,
            embedder=MODEL,
            base_model=MODEL,
            create_finetune=create_finetune,
            entry_id="0",
            keep_request=lambda: "",  # no operator's route names one
        )
        client = OperatorDocumentClient(names, node.node_id)
        document = await asyncio.to_thread(client.read_document)
        found = await asyncio.to_thread(client.try_all, document, NUM_CASES, MAX_CASES)
    assert {name: one.faults for name, one in found.items() if one.faults} == {}
    assert {name: one.statuses for name, one in found.items() if not one.has_success} == {}
    assert len(found) == sum(map(len, document["paths"].values())) > 35
    assert not any(path.startswith("/console") for path in document["paths"])
