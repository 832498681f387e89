"""Accounts behind one engine of others find nothing of each other, or it gets no request."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from contracts.grant import RetentionClass
from contracts.ids import AccountId, ModelName
from contracts.inference import Finished, GenerationEvent
from tests.fixtures.engine_process import EngineProcess
from tests.fixtures.fleet_node import FleetNode
from tests.fixtures.gateway_client import GatewayClient, ask, failure_code
from tests.fixtures.node_process import fetch_status, wait_until
from tests.gpu_pool.server.upstream.conftest import address_of

Run = Callable[..., tuple[EngineProcess, FleetNode]]
PROMPT = " ".join(f"secret{n}" for n in range(40))
ANN = {"account_id": AccountId("a" * 32), "cache_salt": b"a" * 32}
BOB = {"account_id": AccountId("b" * 32), "cache_salt": b"b" * 32}


def count_cached(events: list[GenerationEvent]) -> int:
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1].usage.num_cached_tokens


async def ask_as(node: FleetNode, *grants: dict[str, Any]) -> list[int]:
    """Cached tokens of the same prompt, asked under each grant in turn."""
    address = address_of(node)
    async with GatewayClient(address) as client:
        return [
            count_cached(await client.generate(ask(address.model, PROMPT), **grant))
            for grant in grants
        ]


@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai"])
async def test_no_account_finds_what_another_has_asked(run: Run, kind: str) -> None:
    engine, node = run(kind)
    assert await ask_as(node, ANN, BOB, ANN, BOB) == [0, 0, 40, 40]
    salts = [body["cache_salt"] for body in engine.see_requests()]
    assert len(set(salts)) == 2
    # The control: had the node sent no salt, the second account would have found the first's.
    body = engine.see_requests()[0]
    unsalted = {name: value for name, value in body.items() if name != "cache_salt"}
    cached = [read_cached(engine, unsalted) for _ in range(2)]
    assert cached == [0, 40]


def read_cached(engine: EngineProcess, body: dict[str, Any]) -> int:
    """Cached tokens of a request that goes to the engine past the node."""
    text = httpx.post(engine.url + "/v1/chat/completions", json=body, timeout=20).text
    (told,) = [line for line in text.splitlines() if "cached_tokens" in line]
    return int(told.partition('"cached_tokens": ')[2].partition("}")[0])


async def test_salts_are_no_secrets_of_the_account_and_differ_by_model(run: Run) -> None:
    engine, node = run("vllm")
    await ask_as(node, ANN)
    (body,) = engine.see_requests()
    assert len(body["cache_salt"]) == 64
    assert ("a" * 32) not in str(body)
    assert (b"a" * 32).hex() not in str(body)
    model = ModelName("@test/elsewhere")
    other_engine, other = run("vllm", name=model)
    async with GatewayClient(address_of(other)) as client:
        await client.generate(ask(model, PROMPT), model=model, **ANN)
    assert other_engine.see_requests()[0]["cache_salt"] != body["cache_salt"]


async def test_with_retention_none_not_even_the_account_finds_it_again(run: Run) -> None:
    _, node = run("vllm", keeps_nothing=True)
    standard = ANN | {"retention": RetentionClass.STANDARD}
    nothing = ANN | {"retention": RetentionClass.NONE}
    assert await ask_as(node, nothing, nothing, standard, standard) == [0, 0, 0, 40]


async def test_with_retention_none_an_engine_must_be_declared_fit(run: Run) -> None:
    engine, node = run("vllm")
    address = address_of(node)
    async with GatewayClient(address) as client:
        request = ask(address.model, PROMPT)
        refused = await client.generate(request, retention=RetentionClass.NONE)
        assert failure_code(refused) == "no_endpoint"
        assert engine.see_requests() == []
        assert count_cached(await client.generate(request)) == 0  # the control


def read_failures(node: FleetNode) -> str:
    """Why models are not on offer, as the node's log has it."""
    lines = (node.folder / "node.log").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if "is not fit" in line)


@pytest.mark.parametrize(
    ("kind", "arguments", "options", "words"),
    [
        ("vllm", ["--no-reads-salts"], {}, "does not read `cache_salt`"),
        ("sglang", ["--no-reads-salts"], {}, "does not read `cache_salt`"),
        ("vllm", [], {"prefix_cache": "off"}, "says that it keeps prefixes"),
        ("sglang", [], {"prefix_cache": "off"}, "says that it keeps prefixes"),
        ("vllm", [], {"served_name": "other"}, "has no model `other`; it has: meta/tiny"),
        ("vllm", [], {"context_window": 9000}, "`context_window` is 9000, but the engine's is 819"),
        ("vllm", ["--api-key", "k"], {}, "refuses this node's key"),
    ],
)
async def test_an_engine_that_is_not_as_it_was_described_gets_no_request(
    run: Run, kind: str, arguments: list[str], options: dict[str, Any], words: str
) -> None:
    engine, node = run(kind, *arguments, is_awaited=False, **options)
    await wait_until(lambda: words in read_failures(node), timeout_s=60)
    address = address_of(node)
    async with GatewayClient(address) as client:
        events = await client.generate(ask(address.model))
        report = await client.reports.get()
    assert failure_code(events) == "model_cold"
    assert report.models == ()
    assert words in report.failed[0].reason
    assert engine.see_requests() == []


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_an_engine_without_a_cache_needs_no_salts(run: Run, kind: str) -> None:
    engine, node = run(kind, "--no-cache", "--no-reads-salts", prefix_cache="off")
    assert await ask_as(node, ANN, ANN) == [0, 0]
    assert "cache_salt" not in engine.see_requests()[0]


async def test_the_engines_words_do_not_tell_the_salt(run: Run) -> None:
    engine, node = run("vllm")
    await ask_as(node, ANN)
    salt = engine.see_requests()[0]["cache_salt"]
    engine.behave("refuse")
    address = address_of(node)
    async with GatewayClient(address) as client:
        events = await client.generate(ask(address.model, "x"), **ANN)
    said = str(events[-1])
    assert failure_code(events) == "invalid_request"
    assert "No good" in said
    assert engine.see_requests()[-1]["cache_salt"] == salt
    assert salt not in said


async def test_the_engines_key_comes_from_a_file(run: Run, tmp_path: Any) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("open-sesame\n")
    key_file.chmod(0o600)
    _, node = run("vllm", "--api-key", "open-sesame", api_key_file=key_file)
    assert await ask_as(node, ANN) == [0]
    log = (node.folder / "node.log").read_text(encoding="utf-8")
    assert "open-sesame" not in log
    assert fetch_status(address_of(node).url + "/health/ready") == 200
