"""`clients/workers-binding`, our own npm package: its own tests, then a real gateway."""

from tests.fixtures.node_program import ROOT, run_client, run_node
from tests.gateway.running_gateway import RunningGateway
from tests.integration.clients.talking_node import CHAT, CLASSIC, NUM_PROMPT, TEXT


async def test_its_own_tests_pass() -> None:
    output = await run_node("--test", ROOT / "clients" / "workers-binding" / "test")
    assert "# fail 0" in output
    assert "# pass 0" not in output


async def test_every_kind_of_call_works_against_a_gateway(gateway: RunningGateway) -> None:
    found = await run_client(
        "binding.mjs",
        {
            "HEARTH_BASE": gateway.base,
            "HEARTH_ACCOUNT": gateway.tenant.account_id,
            "HEARTH_TOKEN": gateway.tenant.api_token,
            "HEARTH_MODEL": CLASSIC,
        },
    )
    assert found["plain"]["response"] == found["streamed"] == "".join(TEXT)
    assert found["plain"]["usage"]["prompt_tokens"] == found["usage"]["prompt_tokens"] == NUM_PROMPT
    assert found["raw"] == [200, "text/event-stream; charset=utf-8", True]
    assert found["models"] == [CHAT, CLASSIC]
    unknown, stranger = found["unknown"], found["stranger"]
    assert (unknown["isOurs"], unknown["status"], unknown["code"]) == (True, 400, 5007)
    assert unknown["message"].startswith("5007: There is no model")
    assert unknown["requestId"]
    assert (stranger["isOurs"], stranger["status"], stranger["code"]) == (True, 401, 10000)
