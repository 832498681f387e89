"""What a node says in the conformance tests: short, the same every time, and fit for the request.

A double for the model only: gateway, wire and clients are real. Must not know clients.
"""

import asyncio
from typing import Final

from contracts.errors import PoolSaturated
from contracts.ids import ModelName
from contracts.inference import (
    Accepted,
    ChatPrompt,
    ChoiceFinished,
    CountTokensRequest,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    PromptScored,
    ReasoningDelta,
    TokenLogprob,
    TokensCounted,
    ToolCallDelta,
    ToolChoiceMode,
    Usage,
)
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream

CLASSIC: Final = ModelName("@hearth/tests/classic-1b")
CHAT: Final = ModelName("@hearth/tests/chat-1b")
"""Answers the native route with chat completions, and thinks first when asked to."""
TEXT: Final = ("Hello", " there", ", friend.")
JSON_TEXT: Final = ('{"city":', ' "Rome",', ' "sunny": true}')
JSON_VALUE: Final = {"city": "Rome", "sunny": True}
CITY_SCHEMA: Final = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "sunny": {"type": "boolean"}},
    "required": ["city", "sunny"],
    "additionalProperties": False,
}
CALL_ID: Final = "call_9f8e7d6c5"
ARGUMENTS: Final = ('{"city"', ': "Rome"}')
NUM_PROMPT: Final = 20
NUM_CACHED: Final = 16


class TalkingNode:
    """A script for a node with both models."""

    def __init__(self) -> None:
        self.has_room = asyncio.Event()
        """While it is not set, whoever may not wait is refused and everybody else waits."""
        self.has_room.set()
        self.requests: list[GenerateRequest] = []

    def take_over(self, node: ScriptedNode) -> None:
        """Makes `node` speak this script."""
        node.models = (CLASSIC, CHAT)
        node.chat_models = (CHAT,)
        node.script = self.play

    async def play(self, stream: ScriptedStream) -> None:
        """One stream."""
        question = stream.question
        if isinstance(question, CountTokensRequest):
            await stream.put(TokensCounted(count_words(question.prompt)))
            await stream.put(Finished(FinishReason.STOP, Usage(0, 0, 0)))
            return
        self.requests.append(question)
        if question.reject_if_busy and not self.has_room.is_set():
            await stream.fail(PoolSaturated("Capacity temporarily exceeded, please try again."))
            return
        await self.has_room.wait()
        await stream.put(Accepted(NUM_PROMPT, NUM_CACHED))
        for event in compose(question):
            await stream.put(event)


def compose(request: GenerateRequest) -> list[GenerationEvent]:
    """The events of an answer, the first one left out."""
    prompt = request.prompt
    is_chat = isinstance(prompt, ChatPrompt)
    may_call = request.tool_choice.mode is not ToolChoiceMode.NONE
    if may_call and is_chat and prompt.tools and prompt.messages[-1].role != "tool":
        return [*_call(request), _end(request, FinishReason.TOOL_CALLS, 9)]
    events: list[GenerationEvent] = []
    if request.sampling.num_prompt_logprobs is not None:
        events.append(PromptScored((TokenLogprob(1, b"On", None), _score(b"ce", -0.5))))
    if is_chat and prompt.reasoning_effort == "high":
        events.append(ReasoningDelta("Let me think.", (1,)))
    texts = TEXT if request.constraint is None else JSON_TEXT
    for index in range(request.num_choices):
        if request.echoes_prompt:
            events.append(Delta("Once", (), index))
        for text in texts:
            scored = request.sampling.num_logprobs is not None
            logprobs = (_score(text.encode(), -0.25),) if scored else ()
            events.append(Delta(text, (7,), index, logprobs))
        if request.num_choices > 1:
            events.append(ChoiceFinished(index, FinishReason.STOP))
    return [*events, _end(request, FinishReason.STOP, 3 * request.num_choices)]


def count_words(prompt: object) -> int:
    """A stand-in for a tokenizer."""
    assert isinstance(prompt, ChatPrompt)
    return sum(len(message.content.split()) for message in prompt.messages) + len(prompt.tools)


def _call(request: GenerateRequest) -> list[GenerationEvent]:
    assert isinstance(request.prompt, ChatPrompt)
    name = request.tool_choice.name or request.prompt.tools[0].name
    begin = ToolCallDelta(0, CALL_ID, name, "", (2,))
    return [begin, *(ToolCallDelta(0, "", "", piece, (3,)) for piece in ARGUMENTS)]


def _end(request: GenerateRequest, reason: FinishReason, num_tokens: int) -> Finished:
    return Finished(reason, Usage(NUM_PROMPT, NUM_CACHED, num_tokens))


def _score(token: bytes, logprob: float) -> TokenLogprob:
    return TokenLogprob(7, token, logprob, ((7, token, logprob), (8, b"?", -3.0)))
