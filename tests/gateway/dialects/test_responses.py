"""OpenAI's Responses API as pure functions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidModelName, InvalidRequest, StreamBroken, UnsupportedFeature
from contracts.inference import (
    ChatMessage,
    Delta,
    Finished,
    FinishReason,
    JsonConstraint,
    SchemaConstraint,
    ToolCall,
    Usage,
)
from gateway.dialects.responses import RESPONSES
from gateway.dialects.workers_ai import WORKERS_AI
from tests.gateway.dialects.dialect_words import (
    CALL_END,
    CALL_EVENTS,
    CHAT_MODEL,
    END,
    HEAD,
    MODEL,
    create_logprob,
    parse_body,
    read_named,
    render_stream,
    render_whole,
    to_deltas,
    to_generate,
)

PLAIN: dict[str, Any] = {"model": MODEL, "input": "Hi"}
FORM = parse_body(RESPONSES, PLAIN).form


def parse(**extra: Any) -> Any:
    """The plain request with more fields."""
    return to_generate(parse_body(RESPONSES, PLAIN | extra))


def test_an_input_of_text_is_a_turn_of_the_user() -> None:
    assert parse().prompt.messages == (ChatMessage(role="user", content="Hi"),)
    system, _ = parse(instructions="Be brief.").prompt.messages
    assert system == ChatMessage(role="system", content="Be brief.")


def test_items_of_a_tool_loop_become_turns() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": "two"},
    ]
    system, user, said, one, two = parse(input=items).prompt.messages
    assert (system.role, user.content) == ("system", "Hi")
    assert said == ChatMessage(
        role="assistant",
        content="Wait.",
        tool_calls=(
            ToolCall(id="c1", name="f", arguments='{"a":1}'),
            ToolCall(id="c2", name="g", arguments="{}"),
        ),
        reasoning="Hm.",
    )
    assert (one.role, one.tool_call_id, one.content) == ("tool", "c1", "one")
    assert (two.tool_call_id, two.content) == ("c2", "two")


@pytest.mark.parametrize(
    "extra",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"background": True},
        {"prompt": {"id": "p"}},
    ],
)
def test_what_needs_a_memory_is_refused_by_name(extra: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        parse(**extra)
    assert caught.value.param in extra


@pytest.mark.parametrize(
    "extra",
    [
        {"input": []},
        {"input": [{"content": "no role"}]},
        {"input": [{"type": "function_call", "name": "f"}]},
        {"input": [{"type": "function_call_output", "output": "1"}]},
        {"max_output_tokens": 0},
        {"temperature": 2.1},
    ],
)
def test_what_cannot_be_is_refused(extra: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse(**extra)


@pytest.mark.parametrize(
    "extra",
    [
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
        {"tools": [{"type": "web_search"}]},
    ],
)
def test_what_is_not_served_is_refused(extra: Any) -> None:
    with pytest.raises(UnsupportedFeature):
        parse(**extra)


def test_a_request_must_name_its_model() -> None:
    with pytest.raises(InvalidModelName):
        parse(model=None)


def test_what_is_asked_beside_the_input_reaches_the_node() -> None:
    request = parse(
        max_output_tokens=7,
        temperature=0,
        top_p=0.5,
        tools=[{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        reasoning={"effort": "low"},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        options={"rejectIfBusy": True},
    )
    assert (request.sampling.max_tokens, request.sampling.temperature) == (7, 0.0)
    assert request.sampling.num_logprobs == 2
    assert request.tool_choice.name == "f"
    assert request.constraint == SchemaConstraint(schema='{"type":"object"}')
    assert request.prompt.reasoning_effort == "low"
    assert request.reject_if_busy
    assert parse(text={"format": {"type": "json_object"}}).constraint == JsonConstraint()


# -- answers -------------------------------------------------------------------------------------


def test_the_whole_answer_is_a_response() -> None:
    response = render_whole(FORM, Delta("Hello", (1,)), END)
    assert (response["object"], response["status"], response["id"]) == (
        "response",
        "completed",
        "resp_r",
    )
    (item,) = response["output"]
    assert (item["type"], item["role"], item["content"][0]["text"]) == (
        "message",
        "assistant",
        "Hello",
    )
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    }


def test_a_response_repeats_the_shape_and_the_tools_as_they_were_given() -> None:
    shape = {"type": "json_schema", "name": "city", "strict": True, "schema": {"type": "object"}}
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    choice = {"type": "function", "name": "f"}
    asked = PLAIN | {"text": {"format": shape}, "tools": [tool], "tool_choice": choice}
    response = render_whole(parse_body(RESPONSES, asked).form, Delta("{}", (1,)), END)
    assert response["text"] == {"format": shape}
    assert (response["tools"], response["tool_choice"]) == ([tool], choice)


def test_an_image_is_refused_by_name_and_place() -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    with pytest.raises(UnsupportedFeature, match="`input_image`") as caught:
        parse(input=[{"role": "user", "content": [part]}])
    assert caught.value.param == "input"


def test_an_answer_that_was_cut_says_so() -> None:
    last = Finished(FinishReason.LENGTH, Usage(1, 0, 1))
    response = render_whole(FORM, Delta("Hello", (1,)), last)
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    name, data = read_named(render_stream(FORM, Delta("Hello", (1,)), last))[-1]
    assert (name, data["response"]["status"]) == ("response.incomplete", "incomplete")


def test_thoughts_and_calls_are_items() -> None:
    thought, weather, time = render_whole(FORM, *CALL_EVENTS, CALL_END)["output"]
    assert thought["content"][0] == {"type": "reasoning_text", "text": "Let me see."}
    assert (weather["call_id"], weather["arguments"]) == ("call_a", '{"city":"Rome"}')
    assert (time["call_id"], time["name"], time["arguments"]) == ("call_b", "get_time", "{}")


def test_a_stream_tells_how_items_grow_and_ends_with_the_whole() -> None:
    events = read_named(render_stream(FORM, *CALL_EVENTS, Delta("Done.", (6,)), CALL_END))
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(name == data["type"] for name, data in events)
    assert [name.removeprefix("response.") for name, _ in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    done = [data["item"] for name, data in events if name == "response.output_item.done"]
    assert events[-1][1]["response"]["output"] == done
    assert [item["type"] for item in done] == [
        *("reasoning", "function_call", "function_call", "message"),
    ]
    added = [data["item"]["id"] for name, data in events if name == "response.output_item.added"]
    assert added == [item["id"] for item in done]


@given(st.lists(st.text(min_size=1), max_size=10))
def test_text_arrives_as_it_was(texts: list[str]) -> None:
    renderer = FORM.create_renderer(HEAD)
    cheap = b"".join([renderer.render_text(text) for text in texts]) + renderer.finish(END)
    events = read_named(cheap)
    deltas = [d["delta"] for name, d in events if name == "response.output_text.delta"]
    assert deltas == texts
    (item,) = events[-1][1]["response"]["output"]
    assert item["content"][0]["text"] == "".join(texts)
    general = read_named(render_stream(FORM, *to_deltas(texts), END))[2:]
    assert [name for name, _ in general] == [name for name, _ in events]


def test_logprobs_stand_beside_their_text() -> None:
    delta = Delta("Hi", (1,), 0, (create_logprob("Hi", -0.5),))
    (item,) = render_whole(FORM, delta, END)["output"]
    assert item["content"][0]["logprobs"][0]["logprob"] == -0.5
    events = dict(read_named(render_stream(FORM, delta, END)))
    assert events["response.output_text.delta"]["logprobs"][0]["token"] == "Hi"


def test_an_error_is_a_named_event() -> None:
    ((name, data),) = read_named(FORM.create_renderer(HEAD).fail(StreamBroken("It broke.")))
    assert (name, data["code"], data["message"]) == ("error", "stream_broken", "It broke.")


def test_the_native_route_takes_an_input_where_the_model_answers_so() -> None:
    parsed = parse_body(WORKERS_AI, {"input": "Hi"}, CHAT_MODEL)
    assert to_generate(parsed).model == CHAT_MODEL
    whole = render_whole(parsed.form, Delta("Hello", (1,)), END)
    assert whole["result"]["object"] == "response"
    with pytest.raises(InvalidRequest, match="Exactly one"):
        parse_body(WORKERS_AI, {"input": "Hi"}, MODEL)
