"""Anthropic's messages as pure functions."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidRequest, StreamBroken, UnsupportedFeature
from contracts.inference import (
    ChatMessage,
    CountTokensRequest,
    Delta,
    Finished,
    FinishReason,
    SchemaConstraint,
    TokensCounted,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
    Usage,
)
from gateway.dialects.anthropic_messages import ANTHROPIC_COUNT, ANTHROPIC_MESSAGES
from gateway.dialects.anthropic_replies import CountForm, MessageForm
from tests.gateway.dialects.dialect_words import (
    CALL_END,
    CALL_EVENTS,
    END,
    HEAD,
    MODEL,
    parse_body,
    read_named,
    render_stream,
    render_whole,
    to_deltas,
    to_generate,
)

PLAIN: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hi"}],
}
TOOL = {"name": "get_weather", "description": "The weather.", "input_schema": {"type": "object"}}


def parse(**extra: Any) -> Any:
    """The plain request with more fields."""
    return to_generate(parse_body(ANTHROPIC_MESSAGES, PLAIN | extra))


def test_every_sampling_field_arrives() -> None:
    sampling = parse(temperature=0.5, top_p=0.9, top_k=100, stop_sequences=["END"]).sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (9, 0.5, 0.9)
    assert (sampling.top_k, sampling.stop) == (100, ("END",))
    assert parse().sampling.temperature == 1.0


@pytest.mark.parametrize(
    "extra",
    [
        {"max_tokens": None},
        {"max_tokens": 0},
        {"temperature": 1.1},
        {"messages": []},
        {"messages": [{"role": "robot", "content": "a"}]},
        {"tool_choice": {"type": "any"}},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}},
    ],
)
def test_what_cannot_be_is_refused(extra: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse(**extra)


@pytest.mark.parametrize("kind", ["image", "document", "search_result"])
@pytest.mark.parametrize("is_result", [False, True])
def test_what_is_no_text_is_refused_by_name_wherever_it_stands(kind: str, is_result: bool) -> None:
    block: dict[str, Any] = {"type": kind, "source": {"type": "url", "url": "https://a.example"}}
    if is_result:
        block = {"type": "tool_result", "tool_use_id": "1", "content": [block]}
    with pytest.raises(UnsupportedFeature, match=f"`{kind}`") as caught:
        parse(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, block]}])
    assert caught.value.param == "messages"


def test_tools_of_anthropics_own_servers_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        parse(tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert caught.value.param == "tools"


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
def test_the_system_prompt_comes_first(system: Any) -> None:
    first, second = parse(system=system).prompt.messages
    assert first == ChatMessage(role="system", content="Be brief.")
    assert second == ChatMessage(role="user", content="Hi")


def test_a_tool_loop_becomes_turns_that_nodes_know() -> None:
    messages = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "One moment."},
                {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "Sunny."},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    _, said, result, asked = parse(messages=messages).prompt.messages
    assert said == ChatMessage(
        role="assistant",
        content="One moment.",
        tool_calls=(ToolCall(id="c1", name="get_weather", arguments='{"city":"Rome"}'),),
        reasoning="Hm.",
    )
    assert result == ChatMessage(role="tool", content="Sunny.", tool_call_id="c1")
    assert asked == ChatMessage(role="user", content="So?")


def test_a_result_in_blocks_is_one_text_and_an_empty_one_none() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for content, text in ((blocks, "ab"), (None, ""), ([], "")):
        block = {"type": "tool_result", "tool_use_id": "c1", "content": content}
        (result,) = parse(messages=[{"role": "user", "content": [block]}]).prompt.messages
        assert result.content == text


def test_tools_and_their_choice_reach_the_node() -> None:
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    request = parse(tools=[TOOL], tool_choice=choice)
    (tool,) = request.prompt.tools
    assert (tool.name, tool.parameters) == ("get_weather", '{"type":"object"}')
    assert request.tool_choice == ToolChoice(
        mode=ToolChoiceMode.REQUIRED, name="get_weather", is_parallel=False
    )


def test_thinking_can_be_turned_off_and_shapes_asked_for() -> None:
    assert parse(thinking={"type": "disabled"}).prompt.reasoning_effort == "none"
    enabled = parse(thinking={"type": "enabled", "budget_tokens": 1024})
    assert enabled.prompt.reasoning_effort is None
    shape = {"type": "json_schema", "schema": {"type": "object"}}
    for extra in ({"output_format": shape}, {"output_config": {"format": shape}}):
        assert parse(**extra).constraint == SchemaConstraint(schema='{"type":"object"}')


def test_a_count_asks_for_nothing_but_a_count() -> None:
    body = {name: value for name, value in PLAIN.items() if name != "max_tokens"}
    request = parse_body(ANTHROPIC_COUNT, body | {"tools": [TOOL]}).request
    assert isinstance(request, CountTokensRequest)
    assert request.prompt == parse(tools=[TOOL]).prompt
    assert render_whole(CountForm(), TokensCounted(17), END) == {"input_tokens": 17}


# -- answers -------------------------------------------------------------------------------------


def test_the_whole_answer_is_a_message() -> None:
    assert render_whole(MessageForm(), Delta("Hello", (1,)), END) == {
        "id": "msg_r",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "Hello", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 2,
            "output_tokens": 2,
            "cache_read_input_tokens": 1,
            "cache_creation_input_tokens": 0,
        },
    }


@pytest.mark.parametrize(
    ("last", "reason", "sequence"),
    [
        (Finished(FinishReason.LENGTH, Usage(1, 0, 1)), "max_tokens", None),
        (Finished(FinishReason.STOP, Usage(1, 0, 1), "END"), "stop_sequence", "END"),
    ],
)
def test_why_it_ended_is_told(last: Finished, reason: str, sequence: str | None) -> None:
    message = render_whole(MessageForm(), Delta("Hello", (1,)), last)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    events = dict(read_named(render_stream(MessageForm(), Delta("Hello", (1,)), last)))
    assert events["message_delta"]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_thoughts_and_calls_are_blocks() -> None:
    message = render_whole(MessageForm(), *CALL_EVENTS, CALL_END)
    thought, weather, time = message["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "Let me see.")
    assert (weather["type"], weather["id"], weather["input"]) == (
        "tool_use",
        "call_a",
        {"city": "Rome"},
    )
    assert (time["id"], time["input"]) == ("call_b", {})
    assert message["stop_reason"] == "tool_use"


def test_a_stream_opens_fills_and_closes_one_block_after_the_other() -> None:
    events = read_named(render_stream(MessageForm(), *CALL_EVENTS, CALL_END))
    assert [name for name, _ in events] == [
        *("message_start", "ping"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_delta"),
        *("content_block_stop", "content_block_start", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert all(name == data["type"] for name, data in events)
    assert events[0][1]["message"]["usage"]["input_tokens"] == 2
    starts = [data for name, data in events if name == "content_block_start"]
    assert [start["index"] for start in starts] == [0, 1, 2]
    assert [start["content_block"]["type"] for start in starts] == [
        *("thinking", "tool_use", "tool_use"),
    ]
    deltas = [data["delta"] for name, data in events if name == "content_block_delta"]
    assert deltas[0] == {"type": "thinking_delta", "thinking": "Let me see."}
    assert "".join(delta["partial_json"] for delta in deltas[1:3]) == '{"city":"Rome"}'
    assert events[-2][1]["usage"]["output_tokens"] == 9


@given(st.lists(st.text(min_size=1), max_size=10))
def test_a_stream_of_text_is_one_block(texts: list[str]) -> None:
    renderer = MessageForm().create_renderer(HEAD)
    cheap = b"".join([renderer.render_text(text) for text in texts]) + renderer.finish(END)
    events = read_named(cheap)
    deltas = [data["delta"]["text"] for name, data in events if name == "content_block_delta"]
    assert deltas == texts
    assert [name for name, _ in events].count("content_block_start") == 1
    whole = read_named(render_stream(MessageForm(), *to_deltas(texts), END))
    assert whole[2:] == events


def test_an_error_is_a_named_event_and_nothing_follows() -> None:
    ((name, data),) = read_named(
        MessageForm().create_renderer(HEAD).fail(StreamBroken("It broke."))
    )
    assert (name, data["type"]) == ("error", "error")
    assert data["error"]["message"] == "It broke."


def test_arguments_that_are_no_object_still_arrive() -> None:
    broken = msgspec.structs.replace(CALL_EVENTS[1], arguments="[1")
    (block,) = render_whole(MessageForm(), broken, CALL_END)["content"]
    assert block["input"] == {"arguments": "[1"}
