"""The seam of an answer that goes on here after it broke off at another node.

Owns what of the text its reader has already, which is counted by kind and then left out. Tokens say
where to go on, characters where to go on showing: text may be visible before its tokens are passed
on. Must not know the engine. Read next: `choice` (the caller), `contracts.inference.Resumption`.
"""

from collections.abc import Sequence

from contracts.inference import Delta, ReasoningDelta, Resumption, ToolCallDelta
from gpu_pool.server.text.text_stream import AnyDelta, TextStream


class ResumedAnswer:
    """What is still to be left out."""

    __slots__ = (
        "_missed",
        "_num_argument_chars",
        "_num_calls",
        "_num_reasoning_chars",
        "_num_text_chars",
    )

    def __init__(self, resumption: Resumption, echo: str, stream: TextStream) -> None:
        """Brings `stream` behind the tokens that the reader has."""
        self._num_text_chars = resumption.num_text_chars
        self._num_reasoning_chars = resumption.num_reasoning_chars
        self._num_calls = resumption.num_calls
        self._num_argument_chars = resumption.num_argument_chars
        begun = [Delta(echo, ())] if echo else []
        replayed = [*begun, *stream.replay(resumption.token_ids)]
        # Tokens may have come before the last of their text; they are not passed on again.
        self._missed = self._cut_all([_without_tokens(delta) for delta in replayed])

    def cut(self, deltas: Sequence[AnyDelta]) -> list[AnyDelta]:
        """`deltas` without what the reader has, behind what it has missed."""
        missed, self._missed = self._missed, []
        return missed + self._cut_all(deltas)

    def _cut_all(self, deltas: Sequence[AnyDelta]) -> list[AnyDelta]:
        return [left for delta in deltas if (left := self._cut_one(delta)) is not None]

    def _cut_one(self, delta: AnyDelta) -> AnyDelta | None:
        """The rest of `delta`, None when nothing is left of it."""
        if isinstance(delta, ToolCallDelta):
            return self._cut_call(delta)
        if isinstance(delta, ReasoningDelta):
            text = delta.text[self._num_reasoning_chars :]
            self._num_reasoning_chars -= min(self._num_reasoning_chars, len(delta.text))
            is_left = text or delta.token_ids
            return ReasoningDelta(text, delta.token_ids, delta.choice_index) if is_left else None
        text = delta.text[self._num_text_chars :]
        self._num_text_chars -= min(self._num_text_chars, len(delta.text))
        is_left = text or delta.token_ids
        return Delta(text, delta.token_ids, delta.choice_index, delta.logprobs) if is_left else None

    def _cut_call(self, delta: ToolCallDelta) -> ToolCallDelta | None:
        """The same for a tool call, whose beginning the reader may have."""
        call_id, name = delta.id, delta.name
        if call_id and self._num_calls:
            self._num_calls -= 1
            call_id = name = ""
        arguments = delta.arguments[self._num_argument_chars :]
        self._num_argument_chars -= min(self._num_argument_chars, len(delta.arguments))
        if not (call_id or arguments or delta.token_ids):
            return None
        return ToolCallDelta(
            delta.call_index, call_id, name, arguments, delta.token_ids, delta.choice_index
        )


def _without_tokens(delta: AnyDelta) -> AnyDelta:
    """The text of `delta` alone."""
    if isinstance(delta, ToolCallDelta):
        return ToolCallDelta(
            delta.call_index, delta.id, delta.name, delta.arguments, (), delta.choice_index
        )
    kind = ReasoningDelta if isinstance(delta, ReasoningDelta) else Delta
    return kind(delta.text, (), delta.choice_index)
