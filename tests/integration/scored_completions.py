"""A gateway before a real node process that is asked for plain continuations and their scores."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contracts.pricing import TokenRates
from tests.fixtures.node_process import MODEL
from tests.gateway.running_gateway import (
    RunningGateway,
    Tenant,
    run_gateway,
    to_bytes,
    wait_until_async,
)
from tests.gpu_pool.models.family_checkpoint import Reference
from tests.integration.node_entry import NodeEntry


async def complete(gateway: RunningGateway, body: Any, tenant: Tenant | None = None) -> Any:
    """The answer of `/ai/v1/completions`."""
    path = gateway.account_path("/ai/v1/completions", tenant)
    token = "" if tenant is None else tenant.api_token
    return await gateway.send("POST", path, to_bytes(body), api_token=token)


@asynccontextmanager
async def run_priced_gateway(
    folder: Path, database_template: Path, node: NodeEntry
) -> AsyncIterator[RunningGateway]:
    """A gateway at which the model has a price."""
    nodes: Any = [node]
    async with run_gateway(folder, database_template, nodes) as gateway:
        await gateway.tenancy.set_price(MODEL, TokenRates(1, 1, 1, 1))

        async def is_priced() -> bool:
            asked = {"model": MODEL, "prompt": "a", "max_tokens": 1}
            return (await complete(gateway, asked)).status == 200

        await wait_until_async(is_priced, 20)
        yield gateway


def score(reference: Reference, ids: Sequence[int]) -> Tensor:
    """The logarithms `[T - 1]` of how likely each token but the first was, by transformers."""
    logprobs = reference.compute_logits(list(ids)).log_softmax(-1)[:-1]
    return logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
