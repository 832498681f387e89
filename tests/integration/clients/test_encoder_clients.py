"""Embeddings, reranking and classification by real clients, from a real gateway and a real node.

One node serves four models, each in an engine core of its own: real MiniLM weights, a reranker and
a classifier with random ones, and a generator beside them. Numbers are compared with what
transformers computes of the same files, pooled and normed as sentence-transformers does.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import cloudflare
import httpx
import numpy as np
import openai
import pytest
import torch
from cloudflare import AsyncCloudflare
from openai import AsyncOpenAI

from contracts.ids import NodeId
from contracts.pricing import TokenRates
from tenancy.permissions import Permission
from tests.fixtures.encoder_checkpoint import EncoderReference, write_encoder_checkpoint
from tests.fixtures.minilm import find_minilm
from tests.fixtures.node_process import MODEL as GENERATOR
from tests.fixtures.node_process import run_node_process
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until_async
from tests.integration.node_entry import NodeEntry

MINILM = "@hearth/tests/minilm"
RERANKER = "@hearth/tests/reranker"
CLASSIFIER = "@hearth/tests/classifier"
LABELS = {0: "NEGATIVE", 1: "POSITIVE", 2: "NEITHER"}
TEXTS = [
    "The cat sat on the mat.",
    "A feline rested upon a rug.",
    "Stock prices fell sharply on Monday.",
    "Ein Gruß aus München: naïve café 你好.",
    "a [SEP] b [CLS]",
]
LONG = "ocean " * 400
MAX_ERROR = 1e-4


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeEntry]:
    folder = tmp_path_factory.mktemp("encoders")
    write_random_checkpoint(folder / "generator")
    write_encoder_checkpoint(
        folder / "reranker", "XLMRobertaForSequenceClassification", num_labels=1
    )
    write_encoder_checkpoint(
        folder / "classifier", "BertForSequenceClassification", num_labels=3, id2label=LABELS
    )
    paths = {
        MINILM: find_minilm(),
        RERANKER: folder / "reranker",
        CLASSIFIER: folder / "classifier",
    }
    more = "".join(
        f"[[models]]\nname = {json.dumps(name)}\npath = {json.dumps(str(path))}\n"
        for name, path in paths.items()
    )
    with run_node_process(folder, folder / "generator", more_settings=more) as (_, address):
        yield NodeEntry(
            address.url.replace("http", "ws"), address.pair_key, folder, NodeId("test-node")
        )


@pytest.fixture
async def gateway(
    tmp_path: Path, database_template: Path, encoders: NodeEntry
) -> AsyncGenerator[RunningGateway]:
    nodes: Any = [encoders]
    async with run_gateway(tmp_path, database_template, nodes) as running:
        yield running


@pytest.fixture
async def native(gateway: RunningGateway) -> AsyncGenerator[AsyncCloudflare]:
    async with AsyncCloudflare(
        base_url=gateway.base + "/client/v4",
        api_token=gateway.tenant.api_token,
        http_client=httpx.AsyncClient(),
    ) as made:
        yield made


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=gateway.base + gateway.account_path("/ai/v1"), api_key=gateway.tenant.api_token
    ) as made:
        yield made


@pytest.fixture(scope="module")
def reference() -> EncoderReference:
    return EncoderReference(find_minilm(), "BertModel")


def embed(reference: EncoderReference, texts: list[str], pooling: str = "mean") -> np.ndarray:
    """What transformers makes of them."""
    return np.array([reference.embed(text, pooling, 256).numpy() for text in texts])


async def run(native: AsyncCloudflare, gateway: RunningGateway, model: str, **body: Any) -> Any:
    """The result of one native call."""
    return await native.ai.run(model, account_id=gateway.tenant.account_id, **body)


async def test_embeddings_are_those_of_transformers(
    native: AsyncCloudflare, gateway: RunningGateway, reference: EncoderReference
) -> None:
    plain = [*TEXTS[:4], LONG]  # the last of TEXTS spells control tokens
    result = await run(native, gateway, MINILM, text=plain)
    assert result["shape"] == [5, 384]
    assert result["pooling"] == "mean"
    assert np.abs(np.array(result["data"]) - embed(reference, plain)).max() <= MAX_ERROR
    alone = await run(native, gateway, MINILM, text=TEXTS[0])
    assert alone["shape"] == [1, 384]
    assert np.abs(np.array(alone["data"][0]) - result["data"][0]).max() <= MAX_ERROR
    similar, other = (np.dot(result["data"][0], result["data"][i]) for i in (1, 2))
    assert similar > 0.4 > 0.2 > other


async def test_pooling_is_what_was_asked_for(
    native: AsyncCloudflare, gateway: RunningGateway, reference: EncoderReference
) -> None:
    results: list[Any] = []
    for pooling in ("mean", "cls"):
        result = await run(native, gateway, MINILM, text=TEXTS[0], extra_body={"pooling": pooling})
        expected = embed(reference, TEXTS[:1], pooling)
        assert np.abs(np.array(result["data"]) - expected).max() <= MAX_ERROR
        results.append(result["data"][0])
    assert np.abs(np.array(results[0]) - results[1]).max() > 100 * MAX_ERROR


async def test_control_tokens_that_a_user_types_are_text(
    native: AsyncCloudflare, gateway: RunningGateway, reference: EncoderReference
) -> None:
    result = await run(native, gateway, MINILM, text=TEXTS[4])
    (typed,) = reference.tokenize(TEXTS[4:])
    assert result["usage"]["prompt_tokens"] > len(typed)
    assert np.abs(np.array(result["data"]) - embed(reference, TEXTS[4:])).max() > 100 * MAX_ERROR


async def test_a_hundred_texts_are_the_most(
    native: AsyncCloudflare, gateway: RunningGateway, reference: EncoderReference
) -> None:
    texts = [f"Text number {i} is about {i} things." * (1 + i % 7) for i in range(100)]
    result = await run(native, gateway, MINILM, text=texts)
    assert result["shape"] == [100, 384]
    some = [0, 13, 57, 99]
    expected = embed(reference, [texts[i] for i in some])
    assert np.abs(np.array(result["data"])[some] - expected).max() <= MAX_ERROR
    for wrong in (["a"] * 101, [], [""], "", 5, None):
        with pytest.raises(cloudflare.BadRequestError) as caught:
            await run(native, gateway, MINILM, extra_body={"text": wrong})
        assert caught.value.errors[0].code == 5006
    with pytest.raises(cloudflare.BadRequestError, match="256 tokens"):
        await run(native, gateway, MINILM, extra_body={"text": LONG, "truncate_inputs": False})


async def test_a_reranker_puts_the_best_first(
    native: AsyncCloudflare, gateway: RunningGateway, encoders: NodeEntry
) -> None:
    contexts = ["the capital of paris", "hot dog", "blue ocean " * 60, "why a cat sat"]
    body = {"query": "what city", "contexts": [{"text": text} for text in contexts]}
    result = await run(native, gateway, RERANKER, extra_body=body)
    plain = EncoderReference(encoders.folder / "reranker", "XLMRobertaForSequenceClassification")
    scores = [plain.score("what city", text, max_tokens=65) for text in contexts]
    expected = [score.sigmoid().item() for score in scores]
    assert np.ptp(expected) > 0.05
    order = sorted(range(4), key=lambda index: -expected[index])
    assert [entry["id"] for entry in result["response"]] == order
    for entry in result["response"]:
        assert abs(entry["score"] - expected[entry["id"]]) <= MAX_ERROR
    best = await run(native, gateway, RERANKER, extra_body=body | {"top_k": 2})
    assert best["response"] == result["response"][:2]
    for wrong in ({"query": ""}, {"contexts": []}, {"contexts": ["text"]}, {"top_k": 0}):
        with pytest.raises(cloudflare.BadRequestError):
            await run(native, gateway, RERANKER, extra_body=body | wrong)
    with pytest.raises(cloudflare.BadRequestError, match="query has"):
        await run(native, gateway, RERANKER, extra_body=body | {"query": LONG})


async def test_a_classifier_names_its_labels(
    native: AsyncCloudflare, gateway: RunningGateway, encoders: NodeEntry
) -> None:
    result = await run(native, gateway, CLASSIFIER, text="a good film")
    plain = EncoderReference(encoders.folder / "classifier", "BertForSequenceClassification")
    expected = plain.score("a good film").softmax(-1)
    assert [entry.label for entry in result] == list(LABELS.values())
    assert torch.tensor([entry.score for entry in result]).sub(expected).abs().max() <= 1e-4


@pytest.mark.parametrize("encoding_format", ["float", "base64", openai.NOT_GIVEN])
async def test_openai_reads_floats_and_base64(
    client: AsyncOpenAI, reference: EncoderReference, encoding_format: Any
) -> None:
    reply = await client.embeddings.create(
        model=MINILM, input=TEXTS[:3], encoding_format=encoding_format, dimensions=384
    )
    vectors: Any = [entry.embedding for entry in reply.data]
    if encoding_format == "base64":
        vectors = [np.frombuffer(base64.b64decode(text), "<f4") for text in vectors]
    assert np.abs(np.array(vectors) - embed(reference, TEXTS[:3])).max() <= MAX_ERROR
    assert [entry.index for entry in reply.data] == [0, 1, 2]
    assert (reply.object, reply.model) == ("list", MINILM)
    num_tokens = sum(map(len, reference.tokenize(TEXTS[:3])))
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == num_tokens


async def test_openai_sends_token_ids(client: AsyncOpenAI, reference: EncoderReference) -> None:
    ids = reference.tokenize(TEXTS[:2])
    many = await client.embeddings.create(model=MINILM, input=ids)
    one = await client.embeddings.create(model=MINILM, input=ids[0])
    found = np.array([many.data[0].embedding, many.data[1].embedding, one.data[0].embedding])
    expected = embed(reference, TEXTS[:2])
    assert np.abs(found - expected[[0, 1, 0]]).max() <= MAX_ERROR


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input": "a", "dimensions": 128}, "384 dimensions"),
        ({"input": []}, "1 to 2048"),
        ({"input": ["a", ""]}, "empty text"),
        ({"input": [[1], []]}, "empty text"),
        ({"input": [1, "a"]}, "must not mix"),
        ({"input": [999_999]}, "vocabulary"),
        ({"input": LONG}, "256 tokens"),
        ({"input": "a", "model": CLASSIFIER}, "Text Classification"),
        ({"input": "a", "model": GENERATOR}, "Text Generation"),
        ({"input": "a", "model": "@hearth/tests/none"}, "There is no model"),
    ],
)
async def test_openai_is_told_precisely_what_is_wrong(
    client: AsyncOpenAI, body: dict[str, Any], message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        await client.post("/embeddings", body={"model": MINILM} | body, cast_to=object)


async def test_models_refuse_what_others_are_for(
    native: AsyncCloudflare, gateway: RunningGateway, client: AsyncOpenAI
) -> None:
    asked: Any = [{"role": "user", "content": "Hello"}]
    with pytest.raises(openai.BadRequestError, match="encodes text; it generates none"):
        await client.chat.completions.create(model=MINILM, messages=asked)
    with pytest.raises(cloudflare.BadRequestError, match="Exactly one of"):
        await run(native, gateway, GENERATOR, text="a")
    with pytest.raises(cloudflare.BadRequestError) as unknown:
        await run(native, gateway, "@hearth/tests/none", text="a")
    assert unknown.value.errors[0].code == 5007


async def test_the_catalogue_says_what_each_model_is_for(
    native: AsyncCloudflare, gateway: RunningGateway
) -> None:
    account_id = gateway.tenant.account_id
    listed: Any = [model async for model in native.ai.models.list(account_id=account_id)]
    assert {model["name"]: model["task"]["name"] for model in listed} == {
        MINILM: "Text Embeddings",
        RERANKER: "Reranker",
        CLASSIFIER: "Text Classification",
        GENERATOR: "Text Generation",
    }
    (minilm,) = (model for model in listed if model["name"] == MINILM)
    facts = {entry["property_id"]: entry["value"] for entry in minilm["properties"]}
    assert (facts["output_dimensions"], facts["max_input_tokens"]) == ("384", "256")
    for name, field in ((MINILM, "pooling"), (RERANKER, "contexts"), (CLASSIFIER, "text")):
        schema: Any = await native.ai.models.schema.get(account_id=account_id, model=name)
        assert field in json.dumps(schema.to_dict())


async def test_texts_are_billed_as_input_and_beside_generation(
    native: AsyncCloudflare, gateway: RunningGateway, client: AsyncOpenAI
) -> None:
    account_id = gateway.tenant.account_id
    reader = await gateway.tenancy.create_api_token(
        account_id, "reads", frozenset({Permission.BILLING_READ})
    )
    await gateway.tenancy.set_price(GENERATOR, TokenRates(1, 1, 1, 1))
    asked: Any = [{"role": "user", "content": "Hello"}]

    async def is_priced() -> bool:
        try:
            await client.chat.completions.create(model=GENERATOR, messages=asked, max_tokens=1)
        except openai.PermissionDeniedError:
            return False
        return True

    await wait_until_async(is_priced, 20)
    generating = client.chat.completions.create(model=GENERATOR, messages=asked, max_tokens=50)
    results = await asyncio.gather(
        *(run(native, gateway, MINILM, text=text) for text in TEXTS[:4]), generating
    )
    expected = sum(result["usage"]["prompt_tokens"] for result in results[:4])
    rows: list[Any] = []

    async def are_written() -> bool:
        while await gateway.tenancy.roll_up_usage():
            pass
        path = gateway.account_path("/usage")
        reply = await gateway.send("GET", path, api_token=reader.value.reveal())
        rows[:] = [row for row in reply.json["result"] if row["model"] == MINILM]
        return sum(row["requests"] for row in rows) == 4

    await wait_until_async(are_written, 20)
    assert expected > 0
    assert sum(row["tokens"]["num_uncached"] for row in rows) == expected
    assert sum(row["tokens"]["num_output"] for row in rows) == 0
