"""The Workers AI dialect as pure functions: ranges, defaults, both shapes, events."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import (
    ConstraintUnmet,
    InvalidModelName,
    InvalidRequest,
    ServiceError,
    UnsupportedFeature,
)
from contracts.inference import (
    ChatMessage,
    ChatPrompt,
    Delta,
    Finished,
    FinishReason,
    JsonConstraint,
    SchemaConstraint,
    TextPrompt,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from gateway.dialects.dialect import ReplyForm
from gateway.dialects.workers_ai import WORKERS_AI
from tests.gateway.dialects.dialect_words import (
    CALL_END,
    CALL_EVENTS,
    CHAT_MODEL,
    END,
    MODEL,
    TOOLS,
    USAGE_FIELDS,
    parse_body,
    read_data,
    render_stream,
    render_whole,
    to_deltas,
    to_generate,
)

PLAIN = {"prompt": "Hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def parse(body: Any, model: str | None = MODEL) -> Any:
    """The request in `body`."""
    return to_generate(parse_body(WORKERS_AI, body, model))


def find_form(body: Any, model: str = MODEL) -> ReplyForm:
    """How `body` wants its answer."""
    return parse_body(WORKERS_AI, body, model).form


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
    *("tools", "image", "guided_json", "ignore_eos", "messages", "tool_choice", "logit_bias"),
    *("reasoning_effort", "chat_template_kwargs", "n", "logprobs", "top_logprobs", "min_p"),
    *("parallel_tool_calls", "stream_options", "max_completion_tokens", "requests", "bad_words"),
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
        {"image": "AAAA"},
        {"n": 2},
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


@pytest.mark.parametrize(("lora", "expected"), [("mine", "mine"), ("", None), (None, None)])
def test_an_adapter_is_passed_on_by_its_name(lora: str | None, expected: str | None) -> None:
    assert parse_body(WORKERS_AI, PLAIN | {"lora": lora}, MODEL).lora == expected
    assert parse_body(WORKERS_AI, PLAIN | {"lora": lora}, CHAT_MODEL).lora == expected
    response = {"input": "Hi", "lora": lora}
    assert parse_body(WORKERS_AI, response, CHAT_MODEL).lora == expected


def test_bad_words_are_passed_on_in_every_shape() -> None:
    for body in (PLAIN, {"messages": [{"role": "user", "content": "Hi"}]}):
        for model in (MODEL, CHAT_MODEL):
            parsed = parse_body(WORKERS_AI, body | {"bad_words": ["London"]}, model)
            assert parsed.request.bad_words == ("London",)  # type: ignore[union-attr]
            none = parse_body(WORKERS_AI, body | {"bad_words": []}, model)
            assert none.request == parse_body(WORKERS_AI, body, model).request
    response = {"input": "Hi", "bad_words": ["London"]}
    parsed = parse_body(WORKERS_AI, response, CHAT_MODEL)
    assert parsed.request.bad_words == ("London",)  # type: ignore[union-attr]


def test_an_image_is_refused_rather_than_dropped() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(UnsupportedFeature):
        parse({"messages": [{"role": "user", "content": [part]}]})


def test_tools_come_flat_or_wrapped_and_go_with_a_prompt_as_well() -> None:
    for body in (PLAIN, {"messages": [{"role": "user", "content": "Hi"}]}):
        prompt = parse(body | {"tools": TOOLS}).prompt
        assert [tool.name for tool in prompt.tools] == ["get_weather", "get_time"]
        assert msgspec.json.decode(prompt.tools[0].parameters)["type"] == "object"
        assert prompt.tools[1].parameters == "{}"
    with pytest.raises(InvalidRequest):
        parse(PLAIN | {"tools": TOOLS, "raw": True})


@pytest.mark.parametrize(
    "call",
    [
        {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "call_a", "name": "f", "arguments": {"a": 1}},
    ],
)
def test_a_call_of_an_earlier_turn_is_read_in_every_form(call: Any) -> None:
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_a", "name": "f", "content": "2"},
    ]
    said, answered = parse({"messages": turns}).prompt.messages
    assert said.content == ""
    assert said.tool_calls == (ToolCall(id="call_a", name="f", arguments='{"a":1}'),)
    assert (answered.tool_call_id, answered.content) == ("call_a", "2")


@pytest.mark.parametrize(
    "extra",
    [
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        {"guided_json": SCHEMA},
    ],
)
def test_a_schema_comes_bare_or_wrapped(extra: Any) -> None:
    constraint = parse(PLAIN | extra).constraint
    assert isinstance(constraint, SchemaConstraint)
    assert msgspec.json.decode(constraint.schema) == SCHEMA


@pytest.mark.parametrize("schema", [{}, {"json_schema": None}, {"json_schema": {}}])
def test_a_missing_schema_asks_for_any_object(schema: Any) -> None:
    response_format = {"type": "json_schema"} | schema
    assert parse(PLAIN | {"response_format": response_format}).constraint == JsonConstraint()


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


# -- answers -------------------------------------------------------------------------------------


def test_the_classic_result_is_text_and_usage() -> None:
    body = render_whole(find_form(PLAIN), *to_deltas(["Hel", "lo"]), END)
    assert body == {
        "result": {"response": "Hello", "usage": USAGE_FIELDS},
        "success": True,
        "errors": [],
        "messages": [],
    }


def test_calls_are_objects_with_their_ids_and_the_reason_is_told() -> None:
    result = render_whole(find_form(PLAIN), *CALL_EVENTS, CALL_END)["result"]
    assert result["response"] == ""
    assert result["reasoning_content"] == "Let me see."
    assert result["finish_reason"] == "tool_calls"
    assert result["tool_calls"] == [
        {"id": "call_a", "name": "get_weather", "arguments": {"city": "Rome"}, "index": 0},
        {"id": "call_b", "name": "get_time", "arguments": {}, "index": 1},
    ]
    assert result["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_arguments_that_are_no_json_stay_a_text() -> None:
    broken = ToolCallDelta(0, "call_a", "f", '{"a":', (1,))
    result = render_whole(find_form(PLAIN), broken, CALL_END)["result"]
    assert result["tool_calls"][0]["arguments"] == '{"a":'


def test_in_json_mode_the_response_is_the_parsed_object() -> None:
    form = find_form(PLAIN | {"response_format": {"type": "json_object"}})
    assert render_whole(form, Delta('{"a": 1}', (1,)), END)["result"]["response"] == {"a": 1}
    assert render_whole(find_form(PLAIN), Delta('{"a": 1}', (1,)), END)["result"]["response"] == (
        '{"a": 1}'
    )
    with pytest.raises(ConstraintUnmet, match="JSON Mode couldn't be met"):
        render_whole(form, Delta('{"a": ', (1,)), Finished(FinishReason.LENGTH, Usage(3, 0, 1)))


def test_a_stream_gives_its_calls_whole_and_together_before_the_usage() -> None:
    thought, calls, last, done = read_data(render_stream(find_form(PLAIN), *CALL_EVENTS, CALL_END))
    assert thought == {"response": "", "reasoning_content": "Let me see."}
    assert [call["id"] for call in calls["tool_calls"]] == ["call_a", "call_b"]
    assert calls["tool_calls"][0]["arguments"] == {"city": "Rome"}
    assert last["finish_reason"] == "tool_calls"
    assert done == "[DONE]"


@given(st.lists(st.text(), max_size=20))
def test_events_carry_any_text_and_no_other_line_breaks(texts: list[str]) -> None:
    *events, last, done = read_data(render_stream(find_form(PLAIN), *to_deltas(texts), END))
    assert done == "[DONE]"
    assert [event["response"] for event in events] == texts
    assert last == {"response": "", "usage": USAGE_FIELDS}


# -- models that answer in the chat shape --------------------------------------------------------


def test_such_a_model_has_no_length_of_its_own_and_another_temperature() -> None:
    sampling = parse({"messages": [{"role": "user", "content": "Hi"}]}, CHAT_MODEL).sampling
    assert sampling.max_tokens is None
    assert sampling.temperature == 1.0


def test_messages_are_answered_by_a_chat_completion_inside_the_envelope() -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "n": 2}
    assert parse(body, CHAT_MODEL).num_choices == 2
    whole = render_whole(find_form(body, CHAT_MODEL), *CALL_EVENTS, CALL_END)
    assert whole["success"] is True
    completion = whole["result"]
    assert completion["object"] == "chat.completion"
    message = completion["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city":"Rome"}'


def test_a_prompt_is_continued_as_it_stands() -> None:
    assert parse(PLAIN, CHAT_MODEL).prompt == TextPrompt(text="Hi")
    whole = render_whole(find_form(PLAIN, CHAT_MODEL), Delta("Hello", (1,)), END)
    assert whole["result"]["object"] == "text_completion"
    assert whole["result"]["choices"][0]["text"] == "Hello"


def test_its_streams_tell_the_usage_even_if_nobody_asks() -> None:
    form = find_form({"messages": [{"role": "user", "content": "Hi"}]}, CHAT_MODEL)
    *_, last, done = read_data(render_stream(form, Delta("Hello", (1,)), END))
    assert (last["usage"], done) == (USAGE_FIELDS, "[DONE]")
    assert last["choices"][0]["finish_reason"] == "stop"
