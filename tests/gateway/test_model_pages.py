"""The catalogue over HTTP: filters, pages, and an end to them."""

import pytest

from contracts.fleet import ModelFeature
from contracts.ids import ModelName
from tests.gateway.running_gateway import RunningGateway, wait_until_async
from tests.gateway.scripted_node import MODEL, ScriptedNode

NAMES = ("@cf/meta/llama-1b", "@cf/qwen/qwen-600m", "@hearth/tiny-chat")


@pytest.fixture
async def catalogue(gateway: RunningGateway, node: ScriptedNode) -> RunningGateway:
    """A gateway that offers three models."""
    node.models = tuple(ModelName(name) for name in NAMES)
    await node.send_report()

    async def is_listed() -> bool:
        reply = await gateway.send("GET", _search(gateway))
        return len(reply.json["result"]) == len(NAMES)

    await wait_until_async(is_listed)
    return gateway


def _search(gateway: RunningGateway, query: str = "") -> str:
    return gateway.account_path(f"/ai/models/search{query}")


async def test_an_entry_has_the_fields_that_clients_read(gateway: RunningGateway) -> None:
    reply = await gateway.send("GET", _search(gateway))
    (model,) = reply.json["result"]
    assert model["name"] == MODEL
    assert model["task"]["name"] == "Text Generation"
    assert model["properties"] == [
        {"property_id": "context_window", "value": "4096"},
        {"property_id": "async_queue", "value": "true"},
    ]
    assert model["created_at"].startswith("2023-11-14")
    again = await gateway.send("GET", _search(gateway))
    assert again.json["result"][0]["id"] == model["id"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", NAMES),
        ("?search=LLAMA", NAMES[:1]),
        ("?search=nothing", ()),
        ("?author=qwen", NAMES[1:2]),
        ("?author=hearth", NAMES[2:]),
        ("?task=Text%20Generation", NAMES),
        ("?task=Text%20Embeddings", ()),
        ("?per_page=2", NAMES[:2]),
        ("?per_page=2&page=2", NAMES[2:]),
        ("?per_page=2&page=3", ()),
        ("?page=1000000", ()),
        ("?hide_experimental=true&source=1&unknown=1", NAMES),
    ],
)
async def test_filters_and_pages(
    catalogue: RunningGateway, query: str, expected: tuple[str, ...]
) -> None:
    reply = await catalogue.send("GET", _search(catalogue, query))
    assert tuple(model["name"] for model in reply.json["result"]) == expected
    assert reply.json["success"] is True
    assert reply.json["result_info"]["count"] == len(expected)


@pytest.mark.parametrize("query", ["?page=0", "?page=-1", "?page=x", "?per_page=101", "?page=²"])
async def test_a_page_that_is_no_number_is_400(gateway: RunningGateway, query: str) -> None:
    path = _search(gateway, query.replace("²", "%C2%B2"))
    reply = await gateway.send("GET", path)
    assert (reply.status, reply.code) == (400, 5006)


async def test_models_stay_listed_while_their_node_is_away(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.drop_connections()
    reply = await gateway.send("GET", gateway.account_path("/ai/v1/models"))
    assert [model["id"] for model in reply.json["data"]] == [MODEL]


async def test_what_a_model_can_do_is_told(catalogue: RunningGateway, node: ScriptedNode) -> None:
    node.features = (ModelFeature.FUNCTION_CALLING, ModelFeature.REASONING)
    await node.send_report()

    async def is_told() -> bool:
        reply = await catalogue.send("GET", _search(catalogue))
        properties = reply.json["result"][0]["properties"]
        told = {entry["property_id"]: entry["value"] for entry in properties}
        return told.get("function_calling") == told.get("reasoning") == "true"

    await wait_until_async(is_told)


async def test_filters_that_leave_nothing_out_are_taken(catalogue: RunningGateway) -> None:
    for query, count in (
        ("?hide_experimental=true&include_deprecated=false&format=openrouter", 3),
        ("?source=1", 3),
        ("?source=2", 0),
    ):
        reply = await catalogue.send("GET", _search(catalogue, query))
        assert (reply.status, len(reply.json["result"])) == (200, count)


async def test_tasks_and_authors_are_listed_and_end(catalogue: RunningGateway) -> None:
    for what, names in (
        ("tasks", ["Text Generation"]),
        ("authors", ["hearth", "meta", "qwen"]),
    ):
        path = catalogue.account_path(f"/ai/{what}/search")
        reply = await catalogue.send("GET", path)
        assert [entry["name"] for entry in reply.json["result"]] == names
        assert (await catalogue.send("GET", path + "?page=2")).json["result"] == []
