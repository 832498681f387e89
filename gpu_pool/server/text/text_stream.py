"""One sequence's way from token ids to the events its reader sees.

Joins detokenisation, the parts of an answer and stop strings, and keeps count of which tokens the
visible text came from. Stop strings count in the text for the reader, not in thoughts and calls.
Must not know the engine. Read next: `answers.answer_parser`, `gpu_pool.server.choice` (the caller).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from contracts.inference import Delta, ReasoningDelta, TokenLogprob, ToolCallDelta
from gpu_pool.server.text.answers.answer_parser import AnswerParser
from gpu_pool.server.text.answers.parts import CallArguments, CallBegun, Part, Said, Thought
from gpu_pool.server.text.detokenizer import Detokenizer
from gpu_pool.server.text.stop_strings import StopMatcher

AnyDelta = Delta | ReasoningDelta | ToolCallDelta

_CALL_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class CallRules:
    """What becomes of tool calls."""

    create_id: Callable[[], str]
    """For calls that the model gave none."""
    max_calls: int | None
    """The answer ends in front of a further one."""


class TextStream:
    """The state of one sequence. A model whose answers are text alone needs no parser."""

    __slots__ = (
        "_choice_index",
        "_detokenizer",
        "_held_ids",
        "_held_logprobs",
        "_is_over",
        "_last",
        "_matcher",
        "_parser",
        "_rules",
        "num_calls",
        "num_reasoning_tokens",
        "num_tokens",
        "stop",
    )

    def __init__(
        self,
        choice_index: int,
        detokenizer: Detokenizer,
        matcher: StopMatcher,
        parser: AnswerParser | None,
        rules: CallRules,
    ) -> None:
        """All of them at the beginning of an answer."""
        self._choice_index = choice_index
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._parser = parser
        self._rules = rules
        self._held_ids: list[int] = []
        self._held_logprobs: list[TokenLogprob] = []
        self._is_over = False
        self._last: AnyDelta | None = None
        """What was last visible: tokens without text of their own belong to it."""
        self.num_calls = 0
        self.num_reasoning_tokens = 0
        self.num_tokens = 0
        """Tokens taken, up to and including the one that ended the answer."""
        self.stop: str | None = None
        """The stop string that ended the answer, if one did."""

    @property
    def is_over(self) -> bool:
        """True when a stop string, or a call too many, has ended the answer."""
        return self._is_over

    def push(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()
    ) -> list[AnyDelta]:
        """What became visible with `token_ids`; nothing may follow once the answer is over.

        Tokens come with the text that they complete. `logprobs` are one for each of them, or none.
        """
        deltas: list[AnyDelta] = []
        for index, token_id in enumerate(token_ids):
            self.num_tokens += 1
            self._held_ids.append(token_id)
            if logprobs:
                self._held_logprobs.append(logprobs[index])
            text = self._detokenizer.push(token_id)
            if self._parser is None:
                self._say(text, deltas)
            else:
                self.num_reasoning_tokens += self._parser.is_thinking
                self._show(self._parser.push(text), deltas)
            if self._is_over:
                self._release(deltas)
                break
            if deltas and not self._is_holding:
                self._release(deltas)
        return deltas

    def finish(self) -> list[AnyDelta]:
        """What was held back, at the end of the answer."""
        deltas: list[AnyDelta] = []
        text = self._detokenizer.finish()
        if self._parser is None:
            self._say(text, deltas)
        else:
            self._show(self._parser.push(text), deltas)
            if not self._is_over:
                self._show(self._parser.finish(), deltas)
        if not self._is_over:
            self._add_said(self._matcher.finish(), deltas)
        self._release(deltas)
        return deltas

    def replay(self, token_ids: Sequence[int]) -> list[AnyDelta]:
        """What was visible with the first tokens of an answer that its reader has in part."""
        deltas = self.push(token_ids)
        self._held_ids.clear()
        return deltas

    @property
    def _is_holding(self) -> bool:
        """True while text of the tokens so far is still to come."""
        if self._detokenizer.is_partial or self._matcher.is_holding:
            return True
        return self._parser is not None and self._parser.is_holding

    def _show(self, parts: Sequence[Part], deltas: list[AnyDelta]) -> None:
        """Adds `parts`, up to the end of the answer if it is among them."""
        for part in parts:
            if isinstance(part, Said):
                self._say(part.text, deltas)
            else:
                self._add_said(self._matcher.finish(), deltas)
            if isinstance(part, Thought):
                deltas.append(ReasoningDelta(part.text, (), self._choice_index))
            elif isinstance(part, CallBegun):
                self._begin_call(part, deltas)
            elif isinstance(part, CallArguments):
                index = self.num_calls - 1
                deltas.append(ToolCallDelta(index, "", "", part.text, (), self._choice_index))
            if self._is_over:
                return

    def _say(self, text: str, deltas: list[AnyDelta]) -> None:
        """Adds text for the reader, up to a stop string."""
        free, self.stop = self._matcher.push(text)
        self._is_over = self.stop is not None
        self._add_said(free, deltas)

    def _add_said(self, text: str, deltas: list[AnyDelta]) -> None:
        """Adds text for the reader."""
        if text:
            deltas.append(Delta(text, (), self._choice_index))

    def _begin_call(self, part: CallBegun, deltas: list[AnyDelta]) -> None:
        """Adds the beginning of a call, unless it is one too many."""
        if self.num_calls == self._rules.max_calls:
            self._is_over = True
            return
        is_usable = part.id is not None and _CALL_ID.fullmatch(part.id) is not None
        call_id = part.id if is_usable and part.id is not None else self._rules.create_id()
        deltas.append(ToolCallDelta(self.num_calls, call_id, part.name, "", (), self._choice_index))
        self.num_calls += 1

    def _release(self, deltas: list[AnyDelta]) -> None:
        """Gives the held tokens to the last delta, or to one of their own."""
        if not self._held_ids:
            return
        token_ids, self._held_ids = tuple(self._held_ids), []
        logprobs, self._held_logprobs = tuple(self._held_logprobs), []
        if deltas and not deltas[-1].token_ids:
            self._last = deltas.pop()
            deltas.append(self._with_tokens(self._last, token_ids, logprobs))
        else:
            deltas.append(self._stand_alone(token_ids, logprobs))

    def _with_tokens(
        self, delta: AnyDelta, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]
    ) -> AnyDelta:
        """`delta` with its tokens."""
        index = self._choice_index
        match delta:
            case ReasoningDelta(text=text):
                return ReasoningDelta(text, token_ids, index)
            case ToolCallDelta(call_index=call, id=call_id, name=name, arguments=arguments):
                return ToolCallDelta(call, call_id, name, arguments, token_ids, index)
            case Delta(text=text):
                return Delta(text, token_ids, index, logprobs)

    def _stand_alone(
        self, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]
    ) -> AnyDelta:
        """Tokens without text of their own: more of what was last visible."""
        index = self._choice_index
        if isinstance(self._last, ToolCallDelta):
            return ToolCallDelta(self._last.call_index, "", "", "", token_ids, index)
        if isinstance(self._last, ReasoningDelta):
            return ReasoningDelta("", token_ids, index)
        return Delta("", token_ids, index, logprobs)
