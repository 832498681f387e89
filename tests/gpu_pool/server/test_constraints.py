"""Constrained answers of a real node: what is asked for comes, or a sentence says why not."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.inference import (
    ChatMessage,
    ChatPrompt,
    Constraint,
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    JsonConstraint,
    SchemaConstraint,
    Tool,
    ToolCallDelta,
    ToolChoice,
    ToolChoiceMode,
)
from tests.fixtures.double_node import DoubleNode, run_double_node
from tests.fixtures.gateway_client import GatewayClient, ask, failure_code, join_text
from tests.fixtures.node_process import MODEL, list_children

COLOUR = SchemaConstraint(schema='{"enum": ["red", "green"]}')
POINT = json.dumps(
    {
        "type": "object",
        "properties": {"x": {"type": "boolean"}, "y": {"enum": ["up", "down"]}},
        "required": ["x", "y"],
        "additionalProperties": False,
    }
)
CHAT = ChatPrompt(
    messages=(ChatMessage(role="user", content="Move."),),
    tools=(Tool(name="move", parameters=POINT), Tool(name="look", parameters=POINT)),
    reasoning_effort="none",
)


@pytest.fixture
async def node(tmp_path: Path, checkpoint: Path) -> AsyncIterator[DoubleNode]:
    async with run_double_node(tmp_path, checkpoint) as node:
        yield node


def constrain(constraint: Constraint, **sampling: Any) -> GenerateRequest:
    request = ask(MODEL, **({"max_tokens": 200, "temperature": 1.0} | sampling))
    return msgspec.structs.replace(
        request,
        prompt=msgspec.structs.replace(CHAT, tools=(), reasoning_effort="none"),
        constraint=constraint,
    )


def choose(choice: ToolChoice, prompt: ChatPrompt = CHAT) -> GenerateRequest:
    # With a seed: one required call in sixty is only begun when it has come to its bound.
    request = ask(MODEL, max_tokens=300, temperature=1.0, seed=1)
    return msgspec.structs.replace(request, prompt=prompt, tool_choice=choice)


def read_calls(events: list[GenerationEvent]) -> list[tuple[str, str, Any]]:
    """Name, id and decoded arguments of each call."""
    calls: dict[int, tuple[str, str, str]] = {}
    for event in events:
        if isinstance(event, ToolCallDelta):
            name, call_id, text = calls.get(event.call_index, ("", "", ""))
            calls[event.call_index] = (
                name + event.name,
                call_id + event.id,
                text + event.arguments,
            )
    return [(name, call_id, json.loads(text)) for name, call_id, text in calls.values()]


async def test_an_answer_is_one_of_the_values(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        for stream in (True, False):
            request = msgspec.structs.replace(constrain(COLOUR), stream=stream)
            events = await client.generate(request)
            assert join_text(events) in ('"red"', '"green"')
            assert isinstance(events[-1], Finished)
            assert events[-1].reason is FinishReason.STOP
        free = await client.generate(msgspec.structs.replace(constrain(COLOUR), constraint=None))
    assert join_text(free) not in ('"red"', '"green"')  # the control


async def test_a_model_may_think_first(node: DoubleNode) -> None:
    request = constrain(COLOUR, max_tokens=3000)
    prompt = msgspec.structs.replace(CHAT, tools=(), reasoning_effort="high")
    async with GatewayClient(node.address) as client:
        events = await client.generate(msgspec.structs.replace(request, prompt=prompt))
    assert join_text(events) in ('"red"', '"green"', "")
    assert (join_text(events) == "") == (events[-1].reason is FinishReason.LENGTH)


async def test_every_choice_is_constrained(node: DoubleNode) -> None:
    request = msgspec.structs.replace(constrain(COLOUR), num_choices=4)
    async with GatewayClient(node.address) as client:
        events = await client.generate(request)
    for index in range(4):
        text = join_text([e for e in events if isinstance(e, Delta) and e.choice_index == index])
        assert text in ('"red"', '"green"')


async def test_an_object_begins_as_one(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        events = await client.generate(constrain(JsonConstraint(), max_tokens=20))
    assert join_text(events).startswith("{")


@pytest.mark.parametrize(("name", "is_parallel"), [(None, False), (None, True), ("look", False)])
async def test_a_call_that_is_required_is_made(
    node: DoubleNode, name: str | None, is_parallel: bool
) -> None:
    choice = ToolChoice(mode=ToolChoiceMode.REQUIRED, name=name, is_parallel=is_parallel)
    async with GatewayClient(node.address) as client:
        events = await client.generate(choose(choice))
    last = events[-1]
    assert isinstance(last, Finished)
    calls = read_calls(events) if last.reason is FinishReason.TOOL_CALLS else []
    assert calls or is_parallel  # calls without end are possible when any number may follow
    for called, call_id, arguments in calls:
        assert called in ((name,) if name else ("move", "look"))
        assert call_id.startswith("call_")
        assert set(arguments) == {"x", "y"}
    if not is_parallel:
        assert len(calls) == 1
    assert join_text(events) == ""


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (constrain(SchemaConstraint(schema='{"not": {}}')), "`not` is not supported"),
        (constrain(SchemaConstraint(schema="{")), "not valid JSON"),
        (constrain(SchemaConstraint(schema='{"type": "frog"}')), "frog"),
        (choose(ToolChoice(mode=ToolChoiceMode.REQUIRED, name="jump")), "'jump'"),
        (
            choose(
                ToolChoice(mode=ToolChoiceMode.REQUIRED), msgspec.structs.replace(CHAT, tools=())
            ),
            "no tools",
        ),
        (
            choose(
                ToolChoice(mode=ToolChoiceMode.REQUIRED),
                msgspec.structs.replace(
                    CHAT, tools=(Tool(name="a", parameters='{"contains": {}}'),)
                ),
            ),
            "`contains` is not supported",
        ),
    ],
)
async def test_what_cannot_be_enforced_is_refused_before_anything_is_computed(
    node: DoubleNode, request_: GenerateRequest, sentence: str
) -> None:
    async with GatewayClient(node.address) as client:
        (failed,) = await client.generate(request_)
    assert isinstance(failed, Failed)
    assert failed.error.code == "invalid_request"
    assert sentence in failed.error.message
    assert failed.usage is None


async def test_hostile_schemas_hold_up_nobody(node: DoubleNode) -> None:
    slow = {"type": "integer", "multipleOf": 999983, "minimum": -(10**11)}
    hostile = [
        constrain(SchemaConstraint(schema=json.dumps(slow))),
        constrain(SchemaConstraint(schema=json.dumps({"enum": list(range(1_000_000))}))),
        constrain(SchemaConstraint(schema='{"items":' * 10_000 + "{}" + "}" * 10_000)),
        constrain(SchemaConstraint(schema='{"type": "string", "pattern": "(.*a.*){15}b(a?){40}"}')),
        constrain(SchemaConstraint(schema='{"allOf": [{"$ref": "#"}]}')),
    ]
    async with GatewayClient(node.address) as client:
        streams = [await client.open(request) for request in hostile]
        answers = asyncio.gather(*(stream.read_all(60) for stream in streams))
        num_served = 0
        while not answers.done():
            assert isinstance((await client.generate(ask(MODEL)))[-1], Finished)
            num_served += 1
        codes = [failure_code(e) if isinstance(e[-1], Failed) else "" for e in await answers]
        assert num_served > 0
        assert codes[:3] == ["invalid_request"] * 3
        assert codes[4] == "invalid_request"
        assert join_text(await client.generate(constrain(COLOUR))) in ('"red"', '"green"')


async def test_trial_processes_end_with_the_node(tmp_path: Path, checkpoint: Path) -> None:
    before = set(list_children(os.getpid()))
    async with run_double_node(tmp_path, checkpoint) as node:
        async with GatewayClient(node.address) as client:
            await client.generate(constrain(COLOUR))
        during = set(list_children(os.getpid())) - before
        assert len(during) == 2  # the core and the trial
    assert set(list_children(os.getpid())) <= before
