"""The Workers AI dialect as pure functions: ranges, defaults, both shapes, events."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidModelName, InvalidRequest, ServiceError, UnsupportedFeature
from contracts.ids import ModelName, RequestId
from contracts.inference import ChatMessage, ChatPrompt, FinishReason, TextPrompt, Usage
from gateway.dialects.dialect import ReplyHead
from gateway.dialects.workers_ai import WORKERS_AI

MODEL = "@hearth/tests/small"
HEAD = ReplyHead(RequestId("r"), ModelName(MODEL), 1_700_000_000, includes_usage=True)
PLAIN = {"prompt": "Hi"}


def parse(body: Any, model: str | None = MODEL) -> Any:
    """The request in `body`."""
    return WORKERS_AI.parse(msgspec.json.encode(body), model).generate


def test_defaults_are_those_of_the_classic_schema() -> None:
    request = parse(PLAIN)
    assert request.prompt == ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),))
    assert request.sampling.max_tokens == 256
    assert request.sampling.temperature == 0.6
    assert not request.stream
    assert not request.reject_if_busy


def test_every_sampling_field_arrives() -> None:
    sampling = parse(
        {
            "prompt": "Hi",
            "max_tokens": 5,
            "temperature": 0,
            "top_p": 0.5,
            "top_k": 50,
            "seed": 9_999_999_999,
            "repetition_penalty": 1.5,
            "frequency_penalty": -2,
            "presence_penalty": 2,
            "stop": ["a", "b"],
            "ignore_eos": True,
        }
    ).sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (5, 0.0, 0.5)
    assert (sampling.top_k, sampling.seed, sampling.ignore_eos) == (50, 9_999_999_999, True)
    assert sampling.repetition_penalty == 1.5
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (-2.0, 2.0)
    assert sampling.stop == ("a", "b")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 2**40),
        ("max_tokens", "5"),
        ("temperature", -0.1),
        ("temperature", 5.1),
        ("top_p", 2.1),
        ("top_k", 0),
        ("top_k", 51),
        ("seed", 2**64),
        ("repetition_penalty", 2.1),
        ("frequency_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("stop", [""]),
        ("stop", ["a"] * 17),
        ("stop", ["a" * 257]),
        ("stream", "yes"),
        ("options", {"rejectIfBusy": "yes"}),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(PLAIN | {field: value})
    assert caught.value.param is not None
    assert caught.value.param.startswith(field)


NULLABLE = [
    *("raw", "stream", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "options"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty", "lora", "response_format"),
    *("tools", "image", "guided_json", "ignore_eos", "messages"),
]


@pytest.mark.parametrize("field", NULLABLE)
def test_every_optional_field_may_be_null(field: str) -> None:
    assert parse(PLAIN | {field: None}) == parse(PLAIN)


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": [{"role": "user"}]}])
def test_exactly_one_of_prompt_and_messages_is_needed(body: Any) -> None:
    with pytest.raises(InvalidRequest, match="Exactly one"):
        parse(body)


@pytest.mark.parametrize("body", [{"prompt": ""}, {"messages": []}, {"messages": [{}]}])
def test_an_empty_prompt_is_refused(body: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse(body)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hi", "Hi"),
        ([{"type": "text", "text": "H"}, {"type": "text", "text": "i"}], "Hi"),
        ({"type": "text", "text": "Hi"}, "Hi"),
        (None, ""),
        ([], ""),
    ],
)
def test_content_comes_in_four_forms(content: Any, text: str) -> None:
    request = parse({"messages": [{"role": "user", "content": content}]})
    assert [message.content for message in request.prompt.messages] == [text]


def test_a_conversation_of_plain_turns_is_encoded_like_any_other() -> None:
    plain = parse({"messages": [{"role": "user", "content": "Hi", "name": "Ada"}]})
    joined = parse(
        {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}, "name": "Ada"}]}
    )
    encoded = {msgspec.msgpack.encode(request) for request in (plain, joined)}
    assert len(encoded) == 1


@pytest.mark.parametrize(
    "extra",
    [
        {"tools": [{"name": "f"}]},
        {"lora": "mine"},
        {"response_format": {"type": "json_object"}},
        {"image": "AAAA"},
        {"guided_json": {"type": "object"}},
        {"requests": [{"prompt": "a"}]},
    ],
)
def test_what_is_not_served_yet_is_refused_by_name(extra: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        parse(PLAIN | extra)
    assert caught.value.param in extra


@pytest.mark.parametrize("extra", [{"tools": []}, {"response_format": {"type": "text"}}])
def test_fields_that_ask_for_nothing_are_taken(extra: dict[str, Any]) -> None:
    assert parse(PLAIN | extra) == parse(PLAIN)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
    ],
)
def test_images_and_tool_calls_are_refused_rather_than_dropped(message: Any) -> None:
    with pytest.raises(UnsupportedFeature):
        parse({"messages": [message]})


def test_a_raw_prompt_is_text() -> None:
    assert parse({"prompt": "Once", "raw": True}).prompt == TextPrompt(text="Once")
    assert parse({"prompt": "Once", "raw": "true"}).prompt == TextPrompt(text="Once")
    with pytest.raises(InvalidRequest):
        parse({"messages": [{"role": "user", "content": "a"}], "raw": True})


def test_the_sampler_is_spared_values_that_it_cannot_compute_with() -> None:
    sampling = parse(PLAIN | {"top_p": 0, "repetition_penalty": 0}).sampling
    assert 0 < sampling.top_p < 0.001
    assert 0 < sampling.repetition_penalty < 0.1
    assert parse(PLAIN | {"top_p": 2}).sampling.top_p == 1.0


def test_waiting_can_be_declined() -> None:
    assert parse(PLAIN | {"options": {"rejectIfBusy": True}}).reject_if_busy


@pytest.mark.parametrize("model", ["", "small", "@a", "@a/../b", "@a/b c", "@a//b", "@a/b/", "é"])
def test_a_malformed_model_name_is_told_apart(model: str) -> None:
    with pytest.raises(InvalidModelName):
        parse(PLAIN, model)


@pytest.mark.parametrize(
    "body", [{"model": MODEL}, {"input": PLAIN}, {"model": MODEL, "input": []}, {"model": 1}]
)
def test_model_and_input_are_both_needed_without_a_path(body: Any) -> None:
    with pytest.raises(ServiceError):
        parse(body, None)
    assert parse({"model": MODEL, "input": PLAIN}, None) == parse(PLAIN)


@given(st.lists(st.text(), max_size=20))
def test_events_carry_any_text_and_no_other_line_breaks(texts: list[str]) -> None:
    renderer = WORKERS_AI.create_renderer(HEAD)
    stream = renderer.begin() + b"".join(map(renderer.render_text, texts))
    stream += renderer.finish(FinishReason.STOP, Usage(3, 1, 2))
    *events, done, rest = stream.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    decoded = [msgspec.json.decode(event.removeprefix("data: ")) for event in events]
    assert [event["response"] for event in decoded[:-1]] == texts
    assert decoded[-1] == {
        "response": "",
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }
