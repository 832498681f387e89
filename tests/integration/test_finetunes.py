"""Finetunes from upload to answer: a gateway with its store, a node process, and merged weights.

An answer with an adapter has to be that of a checkpoint which has taken the adapter in, beside
requests with others and with none, whatever becomes of the processes.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.ids import NodeId
from tenancy.permissions import Permission
from tests.fixtures.node_process import MODEL, list_children, run_node_process
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.conftest import database_template
from tests.gateway.finetune_client import CONFIG_FILE, WEIGHTS_FILE, ask, create, upload
from tests.gateway.finetunes.adapter_files import format_config
from tests.gateway.running_gateway import RunningGateway, Tenant, wait_until_async
from tests.gpu_pool.lora.adapter_files import merge, write_adapter
from tests.gpu_pool.models.family_checkpoint import Reference, create_prompt
from tests.integration.node_entry import NodeEntry
from tests.integration.scored_completions import complete, run_priced_gateway, score

__all__ = ["database_template"]
RANK, ALPHA = 4, 2
NUM_KNOWN = 399
"""Of the checkpoint's ids, those that its tokenizer has."""
MAX_ERROR = 2e-3
"""Of one score, in fp32."""
NAMES = ("cats", "dogs")


@dataclass(frozen=True)
class Bench:
    """A node process, and the checkpoints that answers are compared with."""

    entry: NodeEntry
    process_id: int
    files: dict[str, bytes]
    references: dict[str | None, Reference]
    """By adapter; None: the model itself."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("finetunes")
    checkpoint = write_random_checkpoint(folder / "model")
    files: dict[str, bytes] = {}
    references: dict[str | None, Reference] = {None: Reference(checkpoint)}
    for seed, name in enumerate(NAMES):
        path = folder / f"{name}.safetensors"
        adapter = write_adapter(path, checkpoint, rank=RANK, seed=seed, scale=ALPHA / RANK)
        files[name] = path.read_bytes()
        references[name] = Reference(merge(checkpoint, adapter, folder / name))
    with run_node_process(folder, checkpoint) as (process, address):
        url = address.url.replace("http", "ws")
        entry = NodeEntry(url, address.pair_key, folder, NodeId("test-node"))
        yield Bench(entry, process.pid, files, references)


@asynccontextmanager
async def run(
    tmp_path: Path, database_template: Path, bench: Bench
) -> AsyncIterator[tuple[RunningGateway, Tenant]]:
    """A gateway, and a tenant who has uploaded every adapter."""
    async with run_priced_gateway(tmp_path, database_template, bench.entry) as gateway:
        tenant = await gateway.add_tenant(permissions=frozenset(Permission))
        for name in NAMES:
            await add(gateway, tenant, name, bench.files[name])
        yield gateway, tenant


async def add(gateway: RunningGateway, tenant: Tenant, name: str, weights: bytes) -> Any:
    """A finetune with both files."""
    made = await create(gateway, tenant, name, model=MODEL)
    config = format_config(r=RANK, lora_alpha=ALPHA)
    for file_name, data in ((CONFIG_FILE, config), (WEIGHTS_FILE, weights)):
        reply = await upload(gateway, tenant, name, file_name, data)
        assert reply.status == 200, reply.body
    return made


async def ask_scores(
    gateway: RunningGateway, tenant: Tenant, ids: Sequence[int], lora: str | None, **more: Any
) -> Any:
    """The reply about a prompt whose tokens are to be scored."""
    body = {"model": MODEL, "prompt": ids, "temperature": 0, "max_tokens": 1}
    body |= {"logprobs": 1, "echo": True} | more | ({} if lora is None else {"lora": lora})
    return await complete(gateway, body, tenant)


async def check_scores(
    gateway: RunningGateway, tenant: Tenant, bench: Bench, length: int, lora: str | None
) -> None:
    """A prompt's scores are those of the model that has taken the adapter in."""
    ids = create_prompt(length, length, NUM_KNOWN)
    reply = await ask_scores(gateway, tenant, ids, lora)
    assert reply.status == 200, reply.body
    (choice,) = reply.json["choices"]
    found = torch.tensor(choice["logprobs"]["token_logprobs"][1:-1])
    assert (found - score(bench.references[lora], ids)).abs().max() <= MAX_ERROR


async def test_answers_are_those_of_merged_weights_beside_each_other(
    tmp_path: Path, database_template: Path, bench: Bench
) -> None:
    ids = create_prompt(50, 50, NUM_KNOWN)
    plain, cats = (score(bench.references[name], ids) for name in (None, "cats"))
    assert (plain - cats).abs().max() > 100 * MAX_ERROR  # else any answer would pass
    async with run(tmp_path, database_template, bench) as (gateway, tenant):
        asked = [(length, lora) for length in (3, 50, 333, 700) for lora in (None, *NAMES)]
        await asyncio.gather(
            *[check_scores(gateway, tenant, bench, length, lora) for length, lora in asked]
        )


async def test_several_prompts_are_all_computed_with_the_adapter(
    tmp_path: Path, database_template: Path, bench: Bench
) -> None:
    prompts = [create_prompt(length, length, NUM_KNOWN) for length in (20, 300, 41)]
    async with run(tmp_path, database_template, bench) as (gateway, tenant):
        body = {"model": MODEL, "prompt": prompts, "max_tokens": 1, "echo": True, "logprobs": 1}
        reply = await complete(gateway, body | {"lora": "dogs"}, tenant)
        assert reply.status == 200, reply.body
        for ids, choice in zip(prompts, reply.json["choices"], strict=True):
            found = torch.tensor(choice["logprobs"]["token_logprobs"][1:-1])
            assert (found - score(bench.references["dogs"], ids)).abs().max() <= MAX_ERROR


async def test_an_adapters_prefixes_are_found_with_that_adapter_alone(
    tmp_path: Path, database_template: Path, bench: Bench
) -> None:
    async with run(tmp_path, database_template, bench) as (gateway, tenant):
        ids = create_prompt(200, 9, NUM_KNOWN)

        async def count_cached(lora: str | None) -> int:
            reply = await ask_scores(gateway, tenant, ids, lora, logprobs=None, echo=False)
            assert reply.status == 200, reply.body
            return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]

        for lora in (None, *NAMES):
            assert await count_cached(lora) == 0
        for lora in (None, *NAMES):
            assert await count_cached(lora) >= 150  # the control: its own are there
        # Other weights under the same name are another adapter.
        assert (await ask(gateway, tenant, "DELETE", "/cats")).status == 200
        await add(gateway, tenant, "cats", bench.files["dogs"])
        assert await count_cached("cats") >= 150  # the very same file as that of dogs
        assert (await ask(gateway, tenant, "DELETE", "/cats")).status == 200
        assert (await ask_scores(gateway, tenant, ids, "cats")).status == 404


async def test_another_tenants_adapter_is_as_if_there_were_none(
    tmp_path: Path, database_template: Path, bench: Bench
) -> None:
    async with run(tmp_path, database_template, bench) as (gateway, tenant):
        other = await gateway.add_tenant(permissions=frozenset(Permission))
        ids = create_prompt(40, 1, NUM_KNOWN)
        listed = (await ask(gateway, tenant, "GET")).json["result"]
        unknown = await ask_scores(gateway, other, ids, "0" * 32)
        for lora in ("cats", *[one["id"] for one in listed]):
            reply = await ask_scores(gateway, other, ids, lora)
            assert (reply.status, reply.json["errors"]) == (404, unknown.json["errors"])
        await add(gateway, other, "cats", bench.files["dogs"])  # under the same name, its own
        await check_scores(gateway, tenant, bench, 61, "cats")
        reply = await ask_scores(gateway, other, ids, "cats")
        found = torch.tensor(reply.json["choices"][0]["logprobs"]["token_logprobs"][1:-1])
        assert (found - score(bench.references["dogs"], ids)).abs().max() <= MAX_ERROR


async def test_a_core_that_was_killed_loads_its_adapters_again(
    tmp_path: Path, database_template: Path, bench: Bench
) -> None:
    async with run(tmp_path, database_template, bench) as (gateway, tenant):
        await check_scores(gateway, tenant, bench, 80, "cats")
        for child in list_children(bench.process_id):
            os.kill(child, signal.SIGKILL)

        async def is_back() -> bool:
            return (await ask_scores(gateway, tenant, [1, 2], None)).status == 200

        await wait_until_async(is_back, 60)
        for lora in (*NAMES, None):
            await check_scores(gateway, tenant, bench, 81, lora)
