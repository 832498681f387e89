"""A whole answer, gathered from the events of its stream.

Must not know dialects: they say how an answer is written. Read next: `contracts.inference`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from contracts.encoding import Encoded
from contracts.inference import (
    Accepted,
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    GenerationEvent,
    PromptScored,
    ReasoningDelta,
    TokenLogprob,
    TokensCounted,
    ToolCall,
    ToolCallDelta,
    Usage,
)

NO_USAGE = Usage(0, 0, 0)


class Choice(msgspec.Struct):
    """One of the answers to a prompt; mutable while it is gathered."""

    index: int
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = msgspec.field(default_factory=list[ToolCall])
    logprobs: tuple[TokenLogprob, ...] = ()
    reason: FinishReason = FinishReason.STOP
    stop: str | None = None
    """The stop string that ended it, if one did."""


class Answer(msgspec.Struct, frozen=True):
    """Everything that came back for one request."""

    choices: tuple[Choice, ...]
    """In order of their index, at least one."""
    usage: Usage = NO_USAGE
    prompt_logprobs: Mapping[int, Sequence[TokenLogprob]] = {}
    """Of each prompt that was scored, by the first of its choices."""
    num_tokens: int = 0
    """The answer to a question for a count."""
    vectors: tuple[bytes, ...] = ()
    """An encoder's results, in the order of the texts."""


def gather_answer(events: Sequence[GenerationEvent]) -> Answer:
    """The answer that `events` amount to; the last one is `Finished`."""
    plain = _gather_plain(events)
    if plain is not None:
        return plain
    gathering = _Gathering()
    for event in events:
        gathering.add(event)
    return gathering.finish()


def _gather_plain(events: Sequence[GenerationEvent]) -> Answer | None:
    """The answer if it is one choice of nothing but text, as most are, in a tenth of the time."""
    texts: list[str] = []
    last: Finished | None = None
    for event in events:
        if type(event) is Delta:
            if event.choice_index or event.logprobs:
                return None
            texts.append(event.text)
        elif type(event) is Finished:
            last = event
        elif type(event) is not Accepted:
            return None
    if last is None:
        return None
    return Answer((Choice(0, "".join(texts), reason=last.reason, stop=last.stop),), last.usage)


class _Gathering:
    """Choices while they grow."""

    def __init__(self) -> None:
        self._choices: dict[int, Choice] = {0: Choice(0)}
        self._texts: dict[int, list[str]] = {}
        self._reasoning: dict[int, list[str]] = {}
        self._calls: dict[tuple[int, int], _Call] = {}
        self._prompt_logprobs: dict[int, list[TokenLogprob]] = {}
        self._usage = NO_USAGE
        self._num_tokens = 0
        self._vectors: dict[int, bytes] = {}
        self._ended: set[int] = set()

    def add(self, event: GenerationEvent) -> None:
        """Takes one event in."""
        match event:
            case Delta(text, _, index, logprobs):
                self._texts.setdefault(index, []).append(text)
                if logprobs:
                    self._find(index).logprobs += logprobs
            case ReasoningDelta(text, _, index):
                self._reasoning.setdefault(index, []).append(text)
            case ToolCallDelta():
                key = (event.choice_index, event.call_index)
                call = self._calls.get(key)
                if call is None:
                    call = self._calls[key] = _Call(event.id, event.name, [])
                call.arguments.append(event.arguments)
            case ChoiceFinished(index, reason):
                self._find(index).reason = reason
                self._ended.add(index)
            case PromptScored(logprobs, index):
                self._prompt_logprobs.setdefault(index, []).extend(logprobs)
            case TokensCounted(num_tokens):
                self._num_tokens = num_tokens
            case Encoded(indices, vectors):
                self._vectors.update(zip(indices, vectors, strict=True))
            case Finished():
                self._end(event)
            case _:
                pass

    def finish(self) -> Answer:
        """All of it."""
        for index, texts in self._texts.items():
            self._find(index).text = "".join(texts)
        for index, texts in self._reasoning.items():
            self._find(index).reasoning = "".join(texts)
        for (index, _), call in sorted(self._calls.items()):
            arguments = "".join(call.arguments)
            made = ToolCall(id=call.id, name=call.name, arguments=arguments)
            self._find(index).tool_calls.append(made)
        choices = tuple(choice for _, choice in sorted(self._choices.items()))
        vectors = tuple(self._vectors[index] for index in sorted(self._vectors))
        return Answer(choices, self._usage, self._prompt_logprobs, self._num_tokens, vectors)

    def _end(self, last: Finished) -> None:
        """Every choice that has not said so ends like the last."""
        self._usage = last.usage
        for index in {*self._texts, *self._choices} - self._ended:
            choice = self._find(index)
            choice.reason, choice.stop = last.reason, last.stop

    def _find(self, index: int) -> Choice:
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = Choice(index)
        return choice


@dataclass(slots=True)
class _Call:
    """A tool call while its arguments arrive."""

    id: str
    name: str
    arguments: list[str]
