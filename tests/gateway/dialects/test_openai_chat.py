"""OpenAI's chat dialect as pure functions."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import (
    InvalidModelName,
    InvalidRequest,
    StreamBroken,
    UnsupportedFeature,
)
from contracts.ids import ModelName, RequestId
from contracts.inference import FinishReason, Usage
from gateway.dialects.dialect import ReplyHead
from gateway.dialects.openai_chat import OPENAI_CHAT

MODEL = "@hearth/tests/small"
HEAD = ReplyHead(RequestId("r"), ModelName(MODEL), 1_700_000_000, includes_usage=True)
PLAIN: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


def parse(**extra: Any) -> Any:
    """The plain request with more fields."""
    return OPENAI_CHAT.parse(msgspec.json.encode(PLAIN | extra), None)


def test_defaults_leave_the_length_to_the_model() -> None:
    sampling = parse().generate.sampling
    assert sampling.max_tokens is None
    assert sampling.temperature == 1.0
    assert sampling.top_p == 1.0


def test_either_name_of_the_length_is_taken_and_a_contradiction_is_not() -> None:
    assert parse(max_tokens=5).generate.sampling.max_tokens == 5
    assert parse(max_completion_tokens=6).generate.sampling.max_tokens == 6
    assert parse(max_tokens=5, max_completion_tokens=5).generate.sampling.max_tokens == 5
    with pytest.raises(InvalidRequest):
        parse(max_tokens=5, max_completion_tokens=6)


def test_stop_is_a_text_or_a_list() -> None:
    assert parse(stop="a").generate.sampling.stop == ("a",)
    assert parse(stop=["a", "b"]).generate.sampling.stop == ("a", "b")


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 2.1), ("top_p", 1.1), ("n", 0), ("messages", []), ("model", None)],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 2},
        {"tools": [{"type": "function"}]},
        {"functions": [{"name": "f"}]},
        {"logprobs": True},
        {"top_logprobs": 3},
        {"logit_bias": {"1": 2}},
        {"response_format": {"type": "json_schema"}},
    ],
)
def test_what_is_not_served_yet_is_refused_by_name(extra: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        parse(**extra)
    assert caught.value.param in extra


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 1},
        {"tools": None},
        {"logprobs": False},
        {"response_format": {"type": "text"}},
        {"user": "me", "metadata": {"a": "b"}, "store": True, "parallel_tool_calls": True},
    ],
)
def test_fields_that_ask_for_nothing_are_taken(extra: dict[str, Any]) -> None:
    assert parse(**extra) == parse()


def test_a_model_of_another_family_is_a_malformed_name() -> None:
    with pytest.raises(InvalidModelName):
        parse(model="gpt-4o")


@pytest.mark.parametrize(
    ("options", "included"),
    [(None, True), ({}, True), ({"include_usage": True}, True), ({"include_usage": False}, False)],
)
def test_usage_is_left_out_only_when_that_was_asked(options: Any, included: bool) -> None:
    assert parse(stream=True, stream_options=options).includes_usage is included
    renderer = OPENAI_CHAT.create_renderer(msgspec.structs.replace(HEAD, includes_usage=included))
    last = renderer.finish(FinishReason.STOP, Usage(1, 0, 1))
    assert (b'"usage"' in last) is included


def test_the_whole_answer_is_a_chat_completion() -> None:
    body = OPENAI_CHAT.render_reply(HEAD, "Hello", FinishReason.LENGTH, Usage(3, 1, 2))
    assert msgspec.json.decode(body) == {
        "id": "chatcmpl-r",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "finish_reason": "length",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


@given(st.lists(st.text(min_size=1), max_size=20))
def test_a_stream_is_a_role_texts_and_one_finish_reason(texts: list[str]) -> None:
    renderer = OPENAI_CHAT.create_renderer(HEAD)
    stream = renderer.begin() + b"".join(map(renderer.render_text, texts))
    stream += renderer.finish(FinishReason.STOP, Usage(3, 1, 2))
    *events, done, rest = stream.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [msgspec.json.decode(event.removeprefix("data: ")) for event in events]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"].get("content") for choice in choices[1:-1]] == texts
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(texts) + 1) + ["stop"]
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-r"}


def test_an_error_after_the_first_byte_is_an_event_without_an_end_mark() -> None:
    event = OPENAI_CHAT.create_renderer(HEAD).fail(StreamBroken("It broke."))
    assert event.endswith(b"}\n\n")
    assert b"[DONE]" not in event
    assert msgspec.json.decode(event[6:])["error"]["code"] == "stream_broken"
