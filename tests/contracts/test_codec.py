"""Bodies: round trip, unknown fields, newer schemas, garbage."""

import msgspec
import pytest

from contracts.codec import decode_request, encode_request
from contracts.errors import InvalidRequest
from contracts.ids import ModelName
from contracts.inference import (
    SCHEMA_VERSION,
    ChatMessage,
    ChatPrompt,
    CountTokensRequest,
    GenerateRequest,
    SamplingParams,
    TextPrompt,
)

_CHAT = GenerateRequest(
    model=ModelName("@hearth/tiny-chat"),
    prompt=ChatPrompt(messages=(ChatMessage(role="user", content="Grüße 🔥"),)),
    sampling=SamplingParams(max_tokens=5, temperature=0.0, stop=("\n",), seed=2**63),
)


def test_a_chat_survives_the_wire() -> None:
    assert decode_request(encode_request(_CHAT)) == _CHAT


def test_a_text_prompt_survives_the_wire() -> None:
    request = msgspec.structs.replace(_CHAT, prompt=TextPrompt(text="Once"), stream=False)
    assert decode_request(encode_request(request)) == request


def test_a_question_for_a_count_survives_the_wire() -> None:
    request = CountTokensRequest(model=_CHAT.model, prompt=_CHAT.prompt)
    assert decode_request(encode_request(request)) == request


def test_a_field_from_a_newer_version_is_ignored() -> None:
    body = msgspec.to_builtins(_CHAT) | {"mood": "sunny"}
    assert decode_request(msgspec.msgpack.encode(body)) == _CHAT


def test_a_newer_schema_is_refused_with_both_numbers() -> None:
    newer = msgspec.structs.replace(_CHAT, schema_version=SCHEMA_VERSION + 1)
    with pytest.raises(InvalidRequest, match=rf"{SCHEMA_VERSION + 1}.*{SCHEMA_VERSION}"):
        decode_request(encode_request(newer))


def test_a_request_of_another_kind_is_refused() -> None:
    body = msgspec.to_builtins(_CHAT) | {"type": "embed"}
    with pytest.raises(InvalidRequest, match="embed"):
        decode_request(msgspec.msgpack.encode(body))


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", msgspec.msgpack.encode({"model": 3}), b"\x81\xa5model\xa2\xff\xff"]
)
def test_garbage_is_an_invalid_request(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_request(body)
