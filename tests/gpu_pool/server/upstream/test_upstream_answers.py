"""What a gateway gets of an engine of others: text, calls, thoughts, logprobs, usage, ends.

Against servers that speak as vLLM and SGLang do, over real sockets.
"""

from typing import Any

import msgspec
import pytest

from contracts.encoding import EncodeRequest, EncoderTask
from contracts.errors import ErrorReport
from contracts.inference import (
    Accepted,
    ChatMessage,
    ChatPrompt,
    ChoiceFinished,
    CountTokensRequest,
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    JsonConstraint,
    ReasoningDelta,
    Resumption,
    SchemaConstraint,
    TextPrompt,
    TokenPrompt,
    TokensCounted,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    ToolChoiceMode,
)
from tests.fixtures.engine_process import EngineProcess
from tests.fixtures.gateway_client import GatewayClient, NodeAddress, ask, join_text

Pair = tuple[EngineProcess, NodeAddress]
WEATHER = Tool(name="weather", description="Of a city.", parameters='{"type": "object"}')


async def generate(address: NodeAddress, request: GenerateRequest) -> list[GenerationEvent]:
    async with GatewayClient(address) as client:
        return await client.generate(request)


def change(request: GenerateRequest, **changes: Any) -> GenerateRequest:
    return msgspec.structs.replace(request, **changes)


def with_tools(request: GenerateRequest, **choice: Any) -> GenerateRequest:
    prompt = msgspec.structs.replace(request.prompt, tools=(WEATHER,))
    return change(request, prompt=prompt, tool_choice=ToolChoice(**choice))


async def test_usage_is_the_engines_and_says_what_was_cached(pair: Pair) -> None:
    _, address = pair
    request = ask(address.model, " ".join(f"word{n}" for n in range(40)))
    first = await generate(address, request)
    again = await generate(address, request)
    for events in (first, again):
        assert isinstance(events[0], Accepted)
        assert isinstance(events[-1], Finished)
        assert events[0].num_prompt_tokens == events[-1].usage.num_prompt_tokens > 40
        assert events[-1].usage.num_completion_tokens == 8
    assert first[-1].usage.num_cached_tokens == 0
    assert again[-1].usage.num_cached_tokens == 40
    assert join_text(first) == join_text(again) != ""


async def test_a_chat_goes_there_with_all_that_was_said(pair: Pair) -> None:
    engine, address = pair
    call = ToolCall(id="call-7", name="weather", arguments='{"city": "Rome"}')
    prompt = ChatPrompt(
        messages=(
            ChatMessage(role="system", content="Be brief."),
            ChatMessage(role="user", content="Rome?", name="ann"),
            ChatMessage(role="assistant", content="", tool_calls=(call,), reasoning="Hm."),
            ChatMessage(role="tool", content="21 degrees", tool_call_id="call-7"),
        ),
        reasoning_effort="low",
    )
    await generate(address, change(ask(address.model), prompt=prompt))
    body = engine.see_requests()[-1]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Rome?", "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [
                {
                    "id": "call-7",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
                }
            ],
        },
        {"role": "tool", "content": "21 degrees", "tool_call_id": "call-7"},
    ]
    assert body["reasoning_effort"] == "low"


async def test_sampling_goes_there_in_full(pair: Pair) -> None:
    """What is left out of a body, engines would take from the model's own files."""
    engine, address = pair
    await generate(address, ask(address.model, temperature=1.0))
    plain = engine.see_requests()[-1]
    wanted = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    wanted |= {"repetition_penalty": 1.0, "max_tokens": 8}
    assert {name: plain[name] for name in wanted} == wanted
    options: dict[str, Any] = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 2**62}
    options |= {"frequency_penalty": 0.5, "presence_penalty": -0.5, "logit_bias": ((7, -3.0),)}
    await generate(address, ask(address.model, stop=("END",), ignore_eos=True, **options))
    body = engine.see_requests()[-1]
    options |= {"stop": ["END"], "ignore_eos": True, "logit_bias": {"7": -3.0}}
    assert {name: body[name] for name in options} == options
    assert "bad_words" not in body


async def test_bad_words_go_to_engines_that_know_them_and_are_refused_for_others(
    pair: Pair,
) -> None:
    engine, address = pair
    num_before = len(engine.see_requests())
    request = change(ask(address.model), bad_words=("London", "New York"))
    events = await generate(address, request)
    if engine.kind == "vllm":
        assert engine.see_requests()[-1]["bad_words"] == ["London", "New York"]
        assert isinstance(events[-1], Finished)
    else:
        assert len(engine.see_requests()) == num_before
        assert code_of(events) == "unsupported_feature"
        assert events[-1].error.param == "bad_words"  # type: ignore[union-attr]


async def test_tool_calls_come_in_pieces_and_end_the_answer(pair: Pair) -> None:
    engine, address = pair
    events = await generate(address, with_tools(ask(address.model)))
    calls = [event for event in events if isinstance(event, ToolCallDelta)]
    assert (calls[0].id, calls[0].name, calls[0].call_index) == ("call-1", "weather", 0)
    assert [call.id for call in calls[1:]] == [""] * len(calls[1:])
    assert msgspec.json.decode("".join(call.arguments for call in calls)) == {"city": "Paris"}
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is FinishReason.TOOL_CALLS
    body = engine.see_requests()[-1]
    function = {"name": "weather", "description": "Of a city.", "parameters": {"type": "object"}}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == "auto"


async def test_how_tools_may_be_used_is_said(pair: Pair) -> None:
    engine, address = pair
    request, required = ask(address.model), ToolChoiceMode.REQUIRED
    await generate(address, with_tools(request, mode=required, is_parallel=False))
    body = engine.see_requests()[-1]
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", False)
    await generate(address, with_tools(request, mode=required, name="weather"))
    named = {"type": "function", "function": {"name": "weather"}}
    assert engine.see_requests()[-1]["tool_choice"] == named
    events = await generate(address, with_tools(request, mode=ToolChoiceMode.NONE))
    assert "tools" not in engine.see_requests()[-1]
    assert join_text(events) != ""


async def test_the_form_of_an_answer_is_asked_for(pair: Pair) -> None:
    engine, address = pair
    schema = '{"type": "object", "properties": {"answer": {"type": "integer"}}}'
    request = change(ask(address.model), constraint=SchemaConstraint(schema=schema))
    assert join_text(await generate(address, request)) == '{"answer": 42}'
    wanted = engine.see_requests()[-1]["response_format"]
    assert wanted["json_schema"]["schema"] == msgspec.json.decode(schema)
    assert (wanted["type"], wanted["json_schema"]["strict"]) == ("json_schema", True)
    await generate(address, change(ask(address.model), constraint=JsonConstraint()))
    assert engine.see_requests()[-1]["response_format"] == {"type": "json_object"}


async def test_thoughts_are_told_apart(pair: Pair) -> None:
    _, address = pair
    events = await generate(address, ask(address.model, "THINK BRIEF"))
    thoughts = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert (thoughts, join_text(events)) == ("Let me see.", "Yes.")


async def test_a_stop_string_is_named(pair: Pair) -> None:
    _, address = pair
    events = await generate(address, ask(address.model, "BRIEF", stop=("END",)))
    assert isinstance(events[-1], Finished)
    assert (events[-1].reason, events[-1].stop) == (FinishReason.STOP, "END")
    events = await generate(address, ask(address.model, "BRIEF"))
    assert isinstance(events[-1], Finished)
    assert events[-1].stop is None


@pytest.mark.parametrize("is_chat", [True, False])
async def test_logprobs_come_with_their_tokens(pair: Pair, is_chat: bool) -> None:
    _, address = pair
    request = ask(address.model, "BRIEF", num_logprobs=2)
    if not is_chat:
        request = change(request, prompt=TextPrompt(text="BRIEF"))
    events = await generate(address, request)
    scores = [one for event in events if isinstance(event, Delta) for one in event.logprobs]
    assert [(one.token, one.logprob) for one in scores] == [(b"Yes", -0.5), (b".", -0.5)]
    assert [(token, logprob) for _, token, logprob in scores[0].top] == [
        (b"Yes", -0.5),
        (b"other", -2.5),
    ]


async def test_several_choices_are_told_apart_and_counted_together(pair: Pair) -> None:
    _, address = pair
    events = await generate(address, change(ask(address.model), num_choices=3))
    texts = [
        "".join(e.text for e in events if isinstance(e, Delta) and e.choice_index == index)
        for index in range(3)
    ]
    assert len(set(texts)) == 3
    assert {e.choice_index for e in events if isinstance(e, ChoiceFinished)} == {0, 1, 2}
    assert isinstance(events[-1], Finished)
    assert events[-1].usage.num_completion_tokens == 24


@pytest.mark.parametrize("prompt", [TextPrompt(text="One two"), TokenPrompt(token_ids=(5, 6, 7))])
async def test_plain_prompts_are_continued(pair: Pair, prompt: TextPrompt | TokenPrompt) -> None:
    engine, address = pair
    events = await generate(address, change(ask(address.model), prompt=prompt))
    assert join_text(events).startswith(" w")
    sent = engine.see_requests()[-1]["prompt"]
    assert sent == (prompt.text if isinstance(prompt, TextPrompt) else [5, 6, 7])


async def test_a_prompt_is_echoed_before_the_answer(pair: Pair) -> None:
    _, address = pair
    request = change(ask(address.model), prompt=TextPrompt(text="Once"), echoes_prompt=True)
    assert join_text(await generate(address, request)).startswith("Once w")


async def test_tokens_are_counted_where_the_engine_counts(pair: Pair) -> None:
    engine, address = pair
    request = CountTokensRequest(model=address.model, prompt=ask(address.model, "a b c").prompt)
    async with GatewayClient(address) as client:
        events = await client.generate(request)
    if engine.kind == "vllm":
        assert events[0] == TokensCounted(5)  # the role, three words, and the tools that are none
    else:
        assert code_of(events) == "unsupported_feature"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sampling": {"num_prompt_logprobs": 1}}, "unsupported_feature"),
        ({"sampling": {"max_tokens": 0}}, "unsupported_feature"),
        ({"prompt": TokenPrompt(token_ids=(1,)), "echoes_prompt": True}, "unsupported_feature"),
        ({"resumption": Resumption(num_text_chars=3)}, "invalid_request"),
        ({"constraint": SchemaConstraint(schema='{"a": 1}, "cache_salt": "x"')}, "invalid_request"),
        ({"num_choices": 1000}, "invalid_request"),
    ],
)
async def test_what_the_engine_would_not_do_is_refused_before_it_is_asked(
    pair: Pair, changes: dict[str, Any], code: str
) -> None:
    engine, address = pair
    num_before = len(engine.see()["bodies"])
    others = {name: value for name, value in changes.items() if name != "sampling"}
    request = change(ask(address.model, **changes.get("sampling", {})), **others)
    events = await generate(address, request)
    assert code_of(events) == code
    assert len(engine.see()["bodies"]) == num_before


async def test_vectors_are_none_of_its_business(pair: Pair) -> None:
    _, address = pair
    request = EncodeRequest(model=address.model, task=EncoderTask.EMBED, inputs=("a",))
    async with GatewayClient(address) as client:
        assert code_of(await client.generate(request)) == "unsupported_feature"


async def test_the_engines_words_on_a_bad_request_reach_the_client(pair: Pair) -> None:
    _, address = pair
    events = await generate(address, ask(address.model, "x " * 9000))
    report = error_of(events)
    assert report.code == "context_too_long"
    assert "8192 tokens" in report.message


def error_of(events: list[GenerationEvent]) -> ErrorReport:
    assert isinstance(events[-1], Failed), events[-1]
    return events[-1].error


def code_of(events: list[GenerationEvent]) -> str:
    return error_of(events).code
