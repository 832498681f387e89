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
from contracts.inference import (
    ChatMessage,
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    SchemaConstraint,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
    Usage,
)
from gateway.dialects.chat_replies import ChatForm
from gateway.dialects.openai_chat import OPENAI_CHAT
from tests.gateway.dialects.dialect_words import (
    CALL_END,
    CALL_EVENTS,
    END,
    HEAD,
    MODEL,
    TOOLS,
    USAGE_FIELDS,
    create_logprob,
    parse_body,
    read_data,
    render_stream,
    render_whole,
    to_deltas,
    to_generate,
)

PLAIN: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def parse(**extra: Any) -> Any:
    """The plain request with more fields."""
    return to_generate(parse_body(OPENAI_CHAT, PLAIN | extra))


def test_defaults_leave_the_length_to_the_model() -> None:
    sampling = parse().sampling
    assert sampling.max_tokens is None
    assert sampling.temperature == 1.0
    assert sampling.top_p == 1.0


def test_either_name_of_the_length_is_taken_and_a_contradiction_is_not() -> None:
    assert parse(max_tokens=5).sampling.max_tokens == 5
    assert parse(max_completion_tokens=6).sampling.max_tokens == 6
    assert parse(max_tokens=5, max_completion_tokens=5).sampling.max_tokens == 5
    with pytest.raises(InvalidRequest):
        parse(max_tokens=5, max_completion_tokens=6)


def test_stop_is_a_text_or_a_list() -> None:
    assert parse(stop="a").sampling.stop == ("a",)
    assert parse(stop=["a", "b"]).sampling.stop == ("a", "b")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.1),
        ("top_p", 1.1),
        ("n", 0),
        ("n", 129),
        ("messages", []),
        ("model", None),
        ("top_logprobs", 21),
        ("reasoning_effort", "much"),
        ("tool_choice", "maybe"),
        ("logit_bias", {"token": 1}),
        ("bad_words", "London"),
        ("bad_words", ["a"] * 129),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize("word", ["", "  ", "a" * 129, 5, None, ["a"]])
def test_a_bad_word_that_is_none_is_refused_by_its_place(word: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(bad_words=["London", word])
    assert caught.value.param is not None
    assert caught.value.param.startswith("bad_words[")


def test_the_old_way_to_declare_functions_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        parse(functions=[{"name": "f"}])
    assert caught.value.param == "functions"


def test_what_is_asked_beside_the_messages_reaches_the_node() -> None:
    request = parse(
        n=3,
        logprobs=True,
        top_logprobs=4,
        logit_bias={"17": -100, "4": 2.5},
        seed=7,
        frequency_penalty=-2,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "get_time"}},
        parallel_tool_calls=False,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        reasoning_effort="low",
        bad_words=["London", " New York", "\n"],
    )
    assert request.bad_words == ("London", " New York", "\n")
    assert request.num_choices == 3
    assert request.sampling.num_logprobs == 4
    assert request.sampling.logit_bias == ((17, -100.0), (4, 2.5))
    assert (request.sampling.seed, request.sampling.frequency_penalty) == (7, -2.0)
    assert [tool.name for tool in request.prompt.tools] == ["get_weather", "get_time"]
    assert request.tool_choice == ToolChoice(
        mode=ToolChoiceMode.REQUIRED, name="get_time", is_parallel=False
    )
    assert isinstance(request.constraint, SchemaConstraint)
    assert msgspec.json.decode(request.constraint.schema) == SCHEMA
    assert request.prompt.reasoning_effort == "low"


def test_logprobs_without_alternatives_are_those_of_the_chosen_tokens() -> None:
    assert parse(logprobs=True).sampling.num_logprobs == 0
    assert parse().sampling.num_logprobs is None
    with pytest.raises(InvalidRequest):
        parse(top_logprobs=2)


@pytest.mark.parametrize("switches", [{"enable_thinking": False}, {"thinking": False}])
def test_a_switch_of_the_template_turns_thinking_off(switches: Any) -> None:
    assert parse(chat_template_kwargs=switches).prompt.reasoning_effort == "none"
    assert parse(chat_template_kwargs={"enable_thinking": True}).prompt.reasoning_effort is None


def test_a_tool_loop_comes_back_with_its_ids() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]},
    ]
    system, said, answered = parse(messages=messages).prompt.messages
    assert system == ChatMessage(role="system", content="Be brief.")
    assert said.tool_calls == (ToolCall(id="c1", name="f", arguments="{}"),)
    assert said.reasoning == "Hm."
    assert answered == ChatMessage(role="tool", content="2", tool_call_id="c1")


@pytest.mark.parametrize(
    ("choice", "mode"),
    [
        (None, ToolChoiceMode.AUTO),
        ("auto", ToolChoiceMode.AUTO),
        ("none", ToolChoiceMode.NONE),
        ("required", ToolChoiceMode.REQUIRED),
        ({"type": "auto"}, ToolChoiceMode.AUTO),
    ],
)
def test_a_choice_of_tools_has_a_mode(choice: Any, mode: ToolChoiceMode) -> None:
    assert parse(tools=TOOLS, tool_choice=choice).tool_choice.mode is mode


@pytest.mark.parametrize(
    "tools", [[{"type": "function"}], [{"name": "f"}, {"name": "f"}], [{"name": "no blanks"}]]
)
def test_tools_that_cannot_be_called_are_refused(tools: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(tools=tools)
    assert (caught.value.param or "").startswith("tools")


ALLOWED = [{"type": "function", "function": {"name": "b"}}]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": ALLOWED}},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "b"}],
        },
    ],
)
def test_a_choice_may_allow_some_of_the_tools_only(choice: Any) -> None:
    request = parse(tools=[{"name": "a"}, {"name": "b"}], tool_choice=choice)
    assert [tool.name for tool in request.prompt.tools] == ["b"]
    assert request.tool_choice.mode is ToolChoiceMode.REQUIRED
    assert request.tool_choice.name is None


@pytest.mark.parametrize(
    "allowed",
    [
        {"allowed_tools": {"mode": "auto", "tools": [{"type": "function", "name": "c"}]}},
        {"allowed_tools": {"mode": "auto", "tools": [{"type": "function"}]}},
        {"allowed_tools": {"mode": "auto", "tools": []}},
        {"mode": "auto"},
        {},
    ],
)
def test_a_list_of_allowed_tools_names_declared_ones(allowed: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(tools=[{"name": "a"}], tool_choice={"type": "allowed_tools", **allowed})
    assert (caught.value.param or "").startswith("tool_choice")


def test_an_answer_that_is_more_than_text_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        parse(modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"})
    assert caught.value.param == "modalities"
    assert parse(modalities=["text"]) == parse()


def test_what_another_model_refused_is_a_turn_like_any_other() -> None:
    said = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}
    request = parse(messages=[{"role": "user", "content": "a"}, said])
    assert request.prompt.messages[1].content == "I will not."


def test_a_demand_for_a_call_needs_tools() -> None:
    with pytest.raises(InvalidRequest):
        parse(tool_choice="required")


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
    form = parse_body(OPENAI_CHAT, PLAIN | {"stream": True, "stream_options": options}).form
    assert (b'"usage"' in render_stream(form, END)) is included


def test_the_whole_answer_is_a_chat_completion() -> None:
    end = Finished(FinishReason.LENGTH, END.usage)
    assert render_whole(ChatForm(), Delta("Hello", (1,)), end) == {
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
        "usage": USAGE_FIELDS,
    }


def test_calls_and_thoughts_have_their_places_in_a_message() -> None:
    (choice,) = render_whole(ChatForm(), *CALL_EVENTS, CALL_END)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] is None
    assert message["reasoning_content"] == "Let me see."
    weather, time = message["tool_calls"]
    assert weather == {
        "id": "call_a",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
    }
    assert time["id"] == "call_b"


def test_several_answers_are_told_apart_by_their_index() -> None:
    events = (
        Delta("one", (1,), 0),
        Delta("two", (1,), 1),
        Delta("!", (2,), 0),
        ChoiceFinished(1, FinishReason.LENGTH),
        ChoiceFinished(0, FinishReason.STOP),
        Finished(FinishReason.STOP, Usage(3, 1, 3)),
    )
    choices = render_whole(ChatForm(2), *events)["choices"]
    assert [c["message"]["content"] for c in choices] == ["one!", "two"]
    assert [c["finish_reason"] for c in choices] == ["stop", "length"]

    *chunks, last, done = read_data(render_stream(ChatForm(2), *events))
    assert done == "[DONE]"
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)
    texts = {0: "", 1: ""}
    reasons: dict[int, list[str]] = {0: [], 1: []}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        reasons[choice["index"]] += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert texts == {0: "one!", 1: "two"}
    assert reasons == {0: ["stop"], 1: ["length"]}


def test_logprobs_stand_beside_the_text_they_belong_to() -> None:
    entry = create_logprob("Hé", -0.25, ("No", float("-inf")))
    delta = Delta("Hé", (1,), 0, (entry,))
    expected = {
        "token": "Hé",
        "logprob": -0.25,
        "bytes": [72, 195, 169],
        "top_logprobs": [
            {"token": "Hé", "logprob": -0.25, "bytes": [72, 195, 169]},
            {"token": "No", "logprob": -9999.0, "bytes": [78, 111]},
        ],
    }
    (choice,) = render_whole(ChatForm(), delta, END)["choices"]
    assert choice["logprobs"] == {"content": [expected], "refusal": None}
    _, chunk, _, _ = read_data(render_stream(ChatForm(), delta, END))
    assert chunk["choices"][0]["logprobs"]["content"] == [expected]


def test_calls_of_a_stream_begin_with_id_and_name_and_go_on_with_arguments() -> None:
    role, thought, *calls, last, done = read_data(render_stream(ChatForm(), *CALL_EVENTS, CALL_END))
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert thought["choices"][0]["delta"] == {"reasoning_content": "Let me see."}
    deltas = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in calls]
    assert deltas[0] == {
        "index": 0,
        "id": "call_a",
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    assert deltas[1] == {"index": 0, "function": {"arguments": '{"city":'}}
    assert (deltas[3]["index"], deltas[3]["id"]) == (1, "call_b")
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    assert done == "[DONE]"


@given(st.lists(st.text(min_size=1), max_size=20))
def test_a_stream_is_a_role_texts_and_one_finish_reason(texts: list[str]) -> None:
    *chunks, done = read_data(render_stream(ChatForm(), *to_deltas(texts), END))
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"].get("content") for choice in choices[1:-1]] == texts
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(texts) + 1) + ["stop"]
    assert chunks[-1]["usage"] == USAGE_FIELDS
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-r"}


@given(st.text())
def test_the_cheap_way_and_the_general_way_write_the_same_text(text: str) -> None:
    renderer = ChatForm().create_renderer(HEAD)
    cheap, general = renderer.render_text(text), renderer.render_event(Delta(text, (1,)))
    assert read_data(cheap) == read_data(general)


def test_an_error_after_the_first_byte_is_an_event_without_an_end_mark() -> None:
    event = ChatForm().create_renderer(HEAD).fail(StreamBroken("It broke."))
    assert event.endswith(b"}\n\n")
    assert b"[DONE]" not in event
    assert msgspec.json.decode(event[6:])["error"]["code"] == "stream_broken"
