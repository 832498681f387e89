"""npm's clients of Workers AI, OpenAI and Anthropic against a real gateway."""

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.node_program import CLIENTS, install_packages, run_client
from tests.gateway.cloudflare_client import ALL
from tests.gateway.finetunes.adapter_files import format_config, make_weights
from tests.gateway.running_gateway import RunningGateway
from tests.gateway.scripted_node import ScriptedNode
from tests.integration.clients.talking_node import CHAT, CLASSIC, NUM_PROMPT, TEXT


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """The packages of the lockfile, installed once."""
    install_packages(CLIENTS)


async def ask(gateway: RunningGateway, client: str, model: str = CLASSIC, **more: str) -> Any:
    """What a client has brought, for the latest account."""
    environ = {
        "HEARTH_BASE": gateway.base,
        "HEARTH_ACCOUNT": gateway.tenants[-1].account_id,
        "HEARTH_TOKEN": gateway.tenants[-1].api_token,
        "HEARTH_MODEL": model,
        **more,
    }
    return await run_client("clients.mjs", environ, client)


@pytest.mark.parametrize("client", ["openai", "anthropic", "workersAiProvider", "openaiCompatible"])
async def test_plain_and_streamed_answers_are_the_same(
    gateway: RunningGateway, client: str
) -> None:
    found = await ask(gateway, client)
    assert found["text"] == found["streamed"] == "".join(TEXT)
    assert found["promptTokens"] == NUM_PROMPT
    assert found.get("finish", "stop") == "stop"
    assert found["unknown"]["status"] == 400
    assert "There is no model" in found["unknown"]["message"]


async def test_workers_ai_provider_reads_newer_models_too(gateway: RunningGateway) -> None:
    found = await ask(gateway, "workersAiProvider", CHAT)
    assert found["text"] == found["streamed"] == "".join(TEXT)


async def test_cloudflare_runs_models_and_lists_them_to_the_end(gateway: RunningGateway) -> None:
    found = await ask(gateway, "cloudflare")
    assert found["text"] == "".join(TEXT)
    assert found["promptTokens"] == NUM_PROMPT
    assert found["models"] == [CHAT, CLASSIC]
    assert found["unknown"]["status"] == 400
    assert "There is no model" in found["unknown"]["message"]


async def test_cloudflare_makes_a_finetune_uploads_its_files_and_asks_with_it(
    gateway: RunningGateway, node: ScriptedNode, tmp_path: Path
) -> None:
    node.max_adapter_rank = 16
    await node.send_report()
    await gateway.add_tenant(permissions=ALL)
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(format_config())
    (folder / "adapter_model.safetensors").write_bytes(make_weights(num_layers=20, width=1024))
    found = await ask(gateway, "cloudflareFinetunes", HEARTH_ADAPTER=str(folder))
    assert (found["name"], found["uploaded"]) == ("cats", [True, True])
    assert found["text"] == "".join(TEXT)
    assert len(found["listed"]) == 1
    assert found["unknown"]["status"] == 404
    assert "no finetune" in found["unknown"]["message"]
    request = node.streams[0].request
    assert request.adapter is not None
    assert request.adapter.rank == 8
