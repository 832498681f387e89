"""Forbidden words, by real clients of a running `hearth dev` with the demo model."""

import json
import re
import string
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import anthropic
import httpx
import openai
import pytest

from gpu_pool.model_store import BUNDLED_PATH
from gpu_pool.server.text.spelling import spell_words
from gpu_pool.server.text.tokenizer import Tokenizer
from tests.gateway.running_gateway import wait_until_async
from tests.integration.account_client import MODEL, AccountClient
from tests.integration.running_dev import RunningDev

QUESTION = "What is Hearth?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def client(dev: RunningDev) -> Iterator[openai.OpenAI]:
    """The client as its users make it."""
    base_url = f"{dev.account_url}/ai/v1"
    with openai.OpenAI(base_url=base_url, api_key=dev.access.api_token) as made:
        yield made


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The demo model's."""
    return Tokenizer(json.loads((BUNDLED_PATH / "tokenizer.json").read_text()), "")


def ask(client: openai.OpenAI, words: Sequence[str] = (), **fields: Any) -> Any:
    """A completion with scores, which tell tokens apart."""
    asked = {"temperature": 0, "max_tokens": 40} | fields
    return client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        logprobs=True,
        extra_body={"bad_words": list(words)},
        **asked,
    )


def list_tokens(choice: Any) -> list[bytes]:
    """An answer's tokens."""
    return [bytes(token.bytes) for token in choice.logprobs.content]


def find_words(text: str) -> list[str]:
    """The longer words of a text, each once."""
    words = [word.strip(string.punctuation) for word in text.split()]
    return [word for word in dict.fromkeys(words) if len(word) > 3 and word.isalpha()]


def has_word(text: str, word: str) -> bool:
    """True when it stands there by itself, in any of the ways in which it is spelled."""
    return re.search(rf"\b{word}\b", text) is not None


def says(tokens: list[bytes], words: Sequence[str], tokenizer: Tokenizer) -> bool:
    """True when a spelling of one of `words` stands somewhere."""
    spell = tokenizer.table.spell
    spelled = [[*map(spell, ids)] for ids in spell_words(tokenizer, words)]
    return any(
        tokens[first : first + len(one)] == one for one in spelled for first in range(len(tokens))
    )


def test_openai_gets_no_answer_with_a_word_that_it_forbids(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    forbidden: list[str] = []
    answers: list[str] = []
    for _ in range(4):  # of each answer its words are forbidden, too
        (choice,) = ask(client, forbidden).choices
        text = choice.message.content
        assert not says(list_tokens(choice), forbidden, tokenizer)
        chunks = ask(client, forbidden, stream=True)
        streamed = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
        assert streamed == text
        new = find_words(text)[:3]
        assert new
        assert says(list_tokens(choice), new, tokenizer)  # the control
        forbidden += new
        answers.append(text)
    assert len(set(answers)) == 4
    (again,) = ask(client).choices
    assert again.message.content == answers[0]


def test_sampled_choices_keep_to_it_each_by_itself(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    sampled: dict[str, Any] = {"temperature": 1.3, "seed": 5, "n": 8, "top_p": 0.98}
    free = ask(client, **sampled).choices
    words = find_words(" ".join(choice.message.content for choice in free))[:60]
    assert sum(says(list_tokens(choice), words, tokenizer) for choice in free) > 4  # the control
    bound = ask(client, words, **sampled).choices
    assert not any(says(list_tokens(choice), words, tokenizer) for choice in bound)
    assert len({choice.message.content for choice in bound}) > 1
    assert [c.message.content for c in ask(client, words, **sampled).choices] == [
        c.message.content for c in bound
    ]


def test_completions_of_several_prompts_keep_to_it(client: openai.OpenAI) -> None:
    prompts = ["Hearth is", "A gateway is", "The node"]

    def complete(*words: str) -> list[str]:
        answer = client.completions.create(
            model=MODEL,
            prompt=prompts,
            max_tokens=12,
            temperature=0,
            n=2,
            extra_body={"bad_words": list(words)},
        )
        return [choice.text for choice in answer.choices]

    free = complete()
    first = [find_words(text)[0] for text in free]
    bound = complete(*first)
    assert all(has_word(text, word) for text, word in zip(free, first, strict=True))
    assert not any(has_word(text, word) for text in bound for word in first)


async def test_the_native_route_and_a_null(account: AccountClient) -> None:
    free = (await account.run(QUESTION, max_tokens=40))["response"]
    word = find_words(free)[0]
    assert (await account.run(QUESTION, max_tokens=40, bad_words=None))["response"] == free
    bound = (await account.run(QUESTION, max_tokens=40, bad_words=[word]))["response"]
    assert has_word(free, word)
    assert not has_word(bound, word)
    assert await account.stream_text(QUESTION, max_tokens=40, bad_words=[word]) == bound


def test_anthropic_and_responses_take_it_too(dev: RunningDev, client: openai.OpenAI) -> None:
    key = dev.access.api_token
    with anthropic.Anthropic(base_url=f"{dev.account_url}/ai", api_key=key) as other:

        def say(*words: str) -> str:
            message = other.messages.create(
                model=MODEL,
                max_tokens=40,
                messages=MESSAGES,
                extra_body={"temperature": 0, "bad_words": list(words)},
            )
            return "".join(block.text for block in message.content if block.type == "text")

        free = say()
        for word in find_words(free)[:3]:
            assert has_word(free, word)
            assert not has_word(say(word), word)

    def respond(*words: str) -> str:
        return client.responses.create(
            model=MODEL,
            input=QUESTION,
            max_output_tokens=40,
            temperature=0,
            extra_body={"bad_words": list(words)},
        ).output_text

    free = respond()
    for word in find_words(free)[:3]:
        assert has_word(free, word)
        assert not has_word(respond(word), word)


async def test_each_item_of_a_batch_has_its_own(account: AccountClient) -> None:
    free = (await account.run(QUESTION, max_tokens=40))["response"]
    words = find_words(free)[:2]
    item = {"prompt": QUESTION, "max_tokens": 40, "temperature": 0}
    items = [item, *[item | {"bad_words": [word]} for word in words], item | {"bad_words": [""]}]

    async def post(body: dict[str, Any]) -> dict[str, Any]:
        response = await account.http.post(
            f"run/{quote(MODEL)}", params={"queueRequest": "true"}, json=body
        )
        return response.json()["result"]

    queued = await post({"requests": items})
    found: list[dict[str, Any]] = []

    async def is_done() -> bool:
        found[:] = [await post({"request_id": queued["request_id"]})]
        return "responses" in found[0]

    await wait_until_async(is_done)
    plain, *bound, refused = found[0]["responses"]
    assert plain["result"]["response"] == free
    for word, answer in zip(words, bound, strict=True):
        assert has_word(free, word)
        assert not has_word(answer["result"]["response"], word)
    assert not refused["success"]
    assert "bad_words[0]" in json.dumps(refused["error"])


def shape(schema: dict[str, Any]) -> Any:
    """What asks for an answer under a schema."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def test_a_schema_goes_with_it_and_fails_by_name_where_nothing_is_left(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    text = {"type": "string", "maxLength": 60}
    loose = shape({"type": "object", "properties": {"text": text}, "required": ["text"]})
    (free,) = ask(client, response_format=loose, max_tokens=90).choices
    words = find_words(json.loads(free.message.content)["text"])
    assert says(list_tokens(free), words, tokenizer)  # the control
    (bound,) = ask(client, words, response_format=loose, max_tokens=90).choices
    assert json.loads(bound.message.content)["text"]
    assert not says(list_tokens(bound), words, tokenizer)

    strict = shape({"enum": ["gateway", "node"]})
    assert ask(client, response_format=strict).choices
    beginnings = ["gateway"[:n] for n in range(8)] + ["node"[:n] for n in range(5)]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, ['"' + beginning for beginning in beginnings], response_format=strict)
    assert caught.value.param == "bad_words"
    assert "leave nothing of what its schema allows" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "param"),
    [
        ("Hearth", "bad_words"),
        ([""], "bad_words[0]"),
        (["a", "   "], "bad_words[1]"),
        (["a", 5], "bad_words[1]"),
        ([None], "bad_words[0]"),
        (["a" * 129], "bad_words[0]"),
        (["a"] * 129, "bad_words"),
        ({"a": 1}, "bad_words"),
        (["狐" * 60], "bad_words"),
    ],
)
def test_what_is_no_list_of_words_is_refused_with_its_place(
    dev: RunningDev, client: openai.OpenAI, words: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, extra_body={"bad_words": words}
        )
    assert caught.value.param == param
    native = httpx.post(
        f"{dev.account_url}/ai/run/{MODEL}",
        json={"prompt": QUESTION, "bad_words": words},
        headers={"Authorization": f"Bearer {dev.access.api_token}"},
        timeout=60,
    )
    assert native.status_code == 400
    assert "bad_words" in native.text or param != "bad_words"
