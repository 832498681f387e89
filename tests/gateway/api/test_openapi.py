"""The document of the API: every route in it, valid in itself, and true of what is answered."""

import re
from typing import Any

import jsonschema
import pytest

from contracts.ids import ModelName
from gateway.api.inference_routes import create_inference_routes
from gateway.api.openapi import STATUSES
from gateway.errors import ERROR_TABLE
from tenancy.permissions import Permission
from tests.gateway.running_gateway import RunningGateway, to_bytes
from tests.gateway.scripted_node import MODEL, ScriptedNode

MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, Any] = {
    "run": {"prompt": "Hi"},
    "run_named": {"model": MODEL, "input": {"prompt": "Hi"}},
    "chat_completions": {"model": MODEL, "messages": MESSAGES},
    "completions": {"model": MODEL, "prompt": "Hi"},
    "responses": {"model": MODEL, "input": "Hi"},
    "messages": {"model": MODEL, "messages": MESSAGES, "max_tokens": 5},
}


async def read_document(gateway: RunningGateway) -> Any:
    """The document as anybody gets it."""
    reply = await gateway.send("GET", "/openapi.json", api_token=None)
    assert reply.status == 200
    return reply.json


def list_operations(document: Any) -> dict[str, tuple[str, str, Any]]:
    """Path, method and operation by their names."""
    return {
        operation["operationId"]: (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def to_validator(document: Any, schema: Any) -> jsonschema.Draft202012Validator:
    """A validator of one schema of the document."""
    return jsonschema.Draft202012Validator(
        {"components": document["components"], "allOf": [schema]}
    )


async def test_every_route_is_in_it_and_every_reference_leads_somewhere(
    gateway: RunningGateway,
) -> None:
    document = await read_document(gateway)
    assert document["openapi"].startswith("3.1")
    operations = list_operations(document)
    routes = {route.name for route in create_inference_routes()}
    assert routes | {"models_search", "models_schema", "verify", "live"} <= set(operations)
    text = to_bytes(document).decode()
    references = set(re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', text))
    assert references == set(document["components"]["schemas"]) & references
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for path, _, operation in operations.values():
        named = re.findall(r"\{(\w+)\}", path)
        assert named == [p["name"] for p in operation["parameters"] if p["in"] == "path"]


async def test_no_error_has_a_status_that_it_does_not_name(gateway: RunningGateway) -> None:
    document = await read_document(gateway)
    for name, (_, _, operation) in list_operations(document).items():
        if operation.get("security") != []:
            assert {row.status for row in ERROR_TABLE.values()} == set(STATUSES)
            assert {"200", *map(str, STATUSES)} == set(operation["responses"]), name


@pytest.mark.parametrize("name", BODIES)
async def test_bodies_and_answers_are_as_it_says(gateway: RunningGateway, name: str) -> None:
    document = await read_document(gateway)
    path, method, operation = list_operations(document)[name]
    asked = operation["requestBody"]["content"]["application/json"]["schema"]
    to_validator(document, asked).validate(BODIES[name])
    assert not to_validator(document, asked).is_valid({"model": 1, "messages": 1, "prompt": 1})
    target = path.format(account_id=gateway.tenant.account_id, model=MODEL)
    reply = await gateway.send(method.upper(), target, to_bytes(BODIES[name]))
    answers = operation["responses"][str(reply.status)]["content"]["application/json"]["schema"]
    to_validator(document, answers).validate(reply.json)
    refused = await gateway.send(method.upper(), target, b"{}")
    failures = operation["responses"][str(refused.status)]["content"]["application/json"]["schema"]
    to_validator(document, failures).validate(refused.json)


@pytest.mark.parametrize(
    "name", ["models", "models_search", "tasks_search", "authors_search", "models_schema"]
)
async def test_pages_answer_as_it_says(gateway: RunningGateway, name: str) -> None:
    document = await read_document(gateway)
    path, _, operation = list_operations(document)[name]
    target = path.format(account_id=gateway.tenant.account_id)
    query = f"?model={MODEL}" if name == "models_schema" else ""
    reply = await gateway.send("GET", target + query)
    assert reply.status == 200
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    to_validator(document, schema).validate(reply.json)


async def test_a_models_own_schemas_hold_for_what_it_takes_and_gives(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.models = (MODEL, ModelName("@hearth/tests/chat"))
    node.chat_models = (ModelName("@hearth/tests/chat"),)
    await node.send_report()
    for model in node.models:
        path = gateway.account_path(f"/ai/models/schema?model={model.replace('/', '%2F')}")
        schemas = (await gateway.send("GET", path)).json["result"]
        body = {"messages": MESSAGES, "temperature": None}
        jsonschema.validate(body, schemas["input"])
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(body | {"temperature": 6}, schemas["input"])
        result = (await gateway.run(body, model)).json["result"]
        jsonschema.validate(result, schemas["output"])
        assert ("choices" in result) == (model in node.chat_models)


async def test_an_unknown_model_has_no_schema(gateway: RunningGateway) -> None:
    for query, code in (("?model=@a/none", 5007), ("", 5006)):
        reply = await gateway.send("GET", gateway.account_path(f"/ai/models/schema{query}"))
        assert (reply.status, reply.code) == (400, code)


@pytest.mark.parametrize("name", ["live", "ready"])
async def test_health_pages_answer_as_it_says(gateway: RunningGateway, name: str) -> None:
    document = await read_document(gateway)
    path, _, operation = list_operations(document)[name]
    reply = await gateway.send("GET", path, api_token=None)
    schema = operation["responses"][str(reply.status)]["content"]["application/json"]["schema"]
    to_validator(document, schema).validate(reply.json)
    assert not to_validator(document, schema).is_valid({"success": True, "result": None})


@pytest.mark.parametrize(
    ("name", "query", "accepted", "refused"),
    [
        ("models_search", "page", 1_000_000, 1_000_001),
        ("models_search", "per_page", 100, 101),
        ("tokens_list", "per_page", 500, 501),
        ("usage", "limit", 1000, 1001),
        ("usage", "step", "hour", "week"),
        ("audit", "cursor", 2**63 - 1, 0),
        ("audit", "direction", "asc", "up"),
        ("audit", "action_type", ["update", "view"], ["made"]),
        ("audit", "resource_id.not", ["1"] * 100, ["1"] * 101),
    ],
)
async def test_a_query_may_hold_what_it_says(
    gateway: RunningGateway, name: str, query: str, accepted: Any, refused: Any
) -> None:
    tenant = await gateway.add_tenant(permissions=frozenset(Permission))
    document = await read_document(gateway)
    path, _, operation = list_operations(document)[name]
    found = {one["name"]: one for one in operation["parameters"] if one["in"] == "query"}
    target = path.format(account_id=tenant.account_id)
    needed = "".join(f"&{one}=2026-01-31" for one in found if found[one]["required"])
    for value, is_good in ((accepted, True), (refused, False)):
        assert to_validator(document, found[query]["schema"]).is_valid(value) is is_good
        texts = value if isinstance(value, list) else [value]
        given = "&".join(f"{query}={text}" for text in texts)
        reply = await gateway.send("GET", f"{target}?{given}{needed}", api_token=tenant.api_token)
        assert (reply.status == 200) is is_good, reply.body


async def test_queries_that_must_be_there_are_told(gateway: RunningGateway) -> None:
    document = await read_document(gateway)
    needed = {
        name: [
            one["name"]
            for one in operation["parameters"]
            if one["in"] == "query" and one["required"]
        ]
        for name, (_, _, operation) in list_operations(document).items()
    }
    assert {name: found for name, found in needed.items() if found} == {
        "models_schema": ["model"],
        "audit": ["since", "before"],
        "audit_history": ["since", "before"],
        "usage_export": ["since", "before"],
    }


@pytest.mark.parametrize(
    ("body", "is_good"),
    [
        ({"prompt": "Hi"}, True),
        ({"messages": MESSAGES, "prompt": None}, True),
        ({}, False),
        ({"prompt": "Hi", "messages": MESSAGES}, False),
        ({"prompt": None}, False),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, False),
        ({"messages": [{"role": "<|user|>", "content": "Hi"}]}, False),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, False),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]}, True),
    ],
)
async def test_native_bodies_are_described_as_they_are_checked(
    gateway: RunningGateway, body: Any, is_good: bool
) -> None:
    document = await read_document(gateway)
    operations = list_operations(document)
    for name, whole in (("run", body), ("run_named", {"model": MODEL, "input": body})):
        content = operations[name][2]["requestBody"]["content"]["application/json"]
        assert to_validator(document, content["schema"]).is_valid(whole) is is_good, name


async def test_patterns_mean_the_same_in_every_language(gateway: RunningGateway) -> None:
    text = to_bytes(await read_document(gateway)).decode()
    patterns = re.findall(r'"pattern":"((?:[^"\\]|\\.)*)"', text)
    assert len(patterns) > 3
    for pattern in patterns:
        assert not re.search(r"\\\\[AZzG]|\(\?P", pattern), pattern  # Python's own


async def test_streams_are_described_event_by_event(gateway: RunningGateway) -> None:
    document = await read_document(gateway)
    content = list_operations(document)["run"][2]["responses"]["200"]["content"]
    event = to_validator(document, content["text/event-stream"]["schema"])
    assert event.is_valid({"data": "[DONE]"})
    assert not event.is_valid("data: [DONE]")
