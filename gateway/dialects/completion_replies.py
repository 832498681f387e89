"""`text_completion` objects and events: the older completions' answers.

Owns their fields; a prompt's likelihoods come before its continuation's.
Source: OpenAI's API reference. Read next: `gateway.dialects.completions`.
"""

from dataclasses import dataclass

import msgspec

from contracts.errors import ServiceError
from contracts.inference import (
    Accepted,
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    PromptScored,
    ReasoningDelta,
    ToolCallDelta,
)
from gateway.dialects.answer import Answer, Choice
from gateway.dialects.choice_ends import ChoiceEnds, open_event
from gateway.dialects.dialect import EventRenderer, MiddleEvent, ReplyHead
from gateway.dialects.logprobs import CompletionColumns, CompletionLogprobs
from gateway.dialects.replies import (
    SuccessEnvelope,
    UsageFields,
    encoder,
    frame_event,
    to_usage_fields,
)
from gateway.errors import render_error


class CompletionChoice(msgspec.Struct, frozen=True):
    """One of the answers."""

    index: int
    text: str
    finish_reason: FinishReason
    logprobs: CompletionLogprobs | None


class Completion(msgspec.Struct, frozen=True):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: UsageFields
    object: str = "text_completion"


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """How a request wants its completion."""

    num_choices: int = 1
    """Of all prompts together."""
    num_prompts: int = 1
    includes_usage: bool = True
    """Of streams; whole answers always tell."""
    is_wrapped: bool = False
    """True on the native route: the object is the result inside an envelope."""

    @property
    def num_per_prompt(self) -> int:
        """Choices of each prompt."""
        return self.num_choices // self.num_prompts

    def render_reply(self, head: ReplyHead, answer: Answer) -> bytes:
        """A `text_completion` object."""
        completion = Completion(
            _to_completion_id(head),
            head.created_unix_s,
            head.model,
            tuple(self._to_choice(choice, answer) for choice in answer.choices),
            to_usage_fields(answer.usage),
        )
        return encoder.encode(SuccessEnvelope(completion) if self.is_wrapped else completion)

    def create_renderer(self, head: ReplyHead) -> EventRenderer:
        """`text_completion` events."""
        return CompletionEvents(head, self)

    def _to_choice(self, choice: Choice, answer: Answer) -> CompletionChoice:
        """One of the answers, its prompt's likelihoods before its own."""
        first = choice.index - choice.index % self.num_per_prompt
        entries = (*answer.prompt_logprobs.get(first, ()), *choice.logprobs)
        return CompletionChoice(
            choice.index,
            choice.text,
            choice.reason,
            CompletionColumns().add(entries) if entries else None,
        )


class CompletionEvents:
    """`text_completion` events: one finish reason per choice, then usage."""

    __slots__ = ("_before_choices", "_before_text", "_columns", "_ends", "_num_per_prompt")

    def __init__(self, head: ReplyHead, form: CompletionForm) -> None:
        """Encodes what all events share once."""
        opened = open_event(_to_completion_id(head), "text_completion", head)
        self._ends = ChoiceEnds(
            opened, b'"text":""', form.num_choices, includes_usage=form.includes_usage
        )
        self._columns = [CompletionColumns() for _ in range(form.num_choices)]
        self._num_per_prompt = form.num_per_prompt
        self._before_choices = opened
        self._before_text = b'%b{"index":0,"text":' % self._before_choices

    def begin(self, accepted: Accepted) -> bytes:
        """Nothing: the first text is the first event."""
        return b""

    def render_text(self, text: str) -> bytes:
        """An event with more text; the fixed parts are not encoded anew."""
        return b'%b%b,"logprobs":null,"finish_reason":null}]}\n\n' % (
            self._before_text,
            encoder.encode(text),
        )

    def render_event(self, event: MiddleEvent) -> bytes:
        """An event with whatever has come."""
        match event:
            case Delta(text, _, index, logprobs):
                if not logprobs:
                    return self._render(index, text, None)
                return self._render(index, text, self._columns[index].add(logprobs))
            case PromptScored(logprobs, first):
                pieces = [
                    self._render(index, "", self._columns[index].add(logprobs))
                    for index in range(first, first + self._num_per_prompt)
                ]
                return b"".join(pieces)
            case ChoiceFinished(index, reason):
                return self._ends.end_choice(index, reason)
            case ReasoningDelta() | ToolCallDelta():
                return b""

    def finish(self, last: Finished) -> bytes:
        """The ends that are missing."""
        return self._ends.end_stream(last)

    def fail(self, error: ServiceError) -> bytes:
        """The error object as an event."""
        return frame_event(render_error(error))

    def _render(self, index: int, text: str, logprobs: CompletionLogprobs | None) -> bytes:
        """An event of one choice."""
        return b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null}]}\n\n' % (
            self._before_choices,
            index,
            encoder.encode(text),
            encoder.encode(logprobs),
        )


def _to_completion_id(head: ReplyHead) -> str:
    """The id of the answer, which follows from the request's."""
    return f"cmpl-{head.request_id}"
