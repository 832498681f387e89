"""npm's clients of Workers AI, OpenAI and Anthropic against a real gateway."""

from typing import Any

import pytest

from tests.fixtures.node_program import CLIENTS, install_packages, run_client
from tests.gateway.running_gateway import RunningGateway
from tests.integration.clients.talking_node import CHAT, CLASSIC, NUM_PROMPT, TEXT


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """The packages of the lockfile, installed once."""
    install_packages(CLIENTS)


async def ask(gateway: RunningGateway, client: str, model: str = CLASSIC) -> Any:
    """What a client has brought."""
    environ = {
        "HEARTH_BASE": gateway.base,
        "HEARTH_ACCOUNT": gateway.tenant.account_id,
        "HEARTH_TOKEN": gateway.tenant.api_token,
        "HEARTH_MODEL": model,
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
