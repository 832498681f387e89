"""A canary in every slot: nothing that a client sends or holds shows up where it should not."""

import logging
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from contracts.sections import LogFormat, LogLevel, LogSettings
from telemetry.log_output import configure_command_log, configure_log
from tests.gateway.running_gateway import RunningGateway, run_gateway
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream

CANARY = "canary-7f3a9c"


@pytest.fixture(autouse=True)
def _log_as_before() -> Generator[None]:
    """The log that a test sets up writes to a stream that ends with it; nobody else may get it."""
    yield
    configure_command_log()


@pytest.mark.parametrize("log_format", LogFormat)
async def test_neither_prompts_nor_credentials_reach_log_metrics_or_errors(
    tmp_path: Path,
    database_template: Path,
    node: ScriptedNode,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    log_format: LogFormat,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure_log(LogSettings(level=LogLevel.DEBUG, format=log_format))
    caplog.set_level(logging.DEBUG)
    async with run_gateway(tmp_path, database_template, [node]) as gateway:
        bodies = await _provoke(gateway, node, monkeypatch)
        metrics = await gateway.send(
            "GET", "/metrics", api_token=gateway.operator, origin=gateway.admin
        )
        secrets = (CANARY, gateway.tenant.api_token, gateway.operator, node.pair_key.hex())
    captured = capfd.readouterr()
    seen = {
        "log": captured.out + captured.err + caplog.text,
        "metrics": metrics.body.decode(),
        "errors": "\n".join(bodies),
        "settings": repr(gateway.gateway),
    }
    assert "request_failed_unexpectedly" in seen["log"]  # the log was on, and something went wrong
    for place, text in seen.items():
        for secret in secrets:
            assert secret not in text, place
    assert re.search(r"node_connected", seen["log"])


async def _provoke(
    gateway: RunningGateway, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Bodies of every kind of failure that could quote what was sent."""
    path = gateway.account_path(f"/ai/run/{MODEL}")
    replies = [
        await gateway.run({"prompt": CANARY, "temperature": 9}),
        await gateway.run(b'{"prompt": "' + CANARY.encode() + b'\xff"}'),
        await gateway.run(b'{"prompt": ' + CANARY.encode()),
        await gateway.run({"prompt": 5, "x": CANARY}),
        await gateway.run({"messages": [{"role": CANARY, "content": 5}]}),
        await gateway.send("POST", path, b"{}", api_token=f"{CANARY}"),
        await gateway.send("POST", path, b"{}", api_token=None, headers={"authorization": CANARY}),
        await gateway.send("POST", f"{path}?q={CANARY}", b"{}", headers={"x-a": CANARY}),
    ]

    async def die(stream: ScriptedStream) -> None:
        node.drop_connections()

    node.script = die
    replies.append(await gateway.run({"prompt": CANARY}))
    await gateway.wait_until_ready()
    monkeypatch.setattr("gateway.forwarding.encode_request", _fail_with_its_argument)
    replies.append(await gateway.run({"prompt": CANARY}))
    assert replies[-1].status == 500
    return [reply.body.decode() for reply in replies]


def _fail_with_its_argument(request: object) -> bytes:
    """A defect whose message quotes the prompt."""
    raise ValueError(f"cannot encode {request!r}")
