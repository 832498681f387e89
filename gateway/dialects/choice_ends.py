"""How streams of choices begin every event and end: a finish reason per choice, then the usage.

Owns what chunks of chats and of older completions have in common; must not know what stands in a
choice besides its end. Source: OpenAI's API reference.
Read next: `gateway.dialects.chat_replies`, `gateway.dialects.completion_replies` (the callers).
"""

from contracts.inference import Finished, FinishReason
from gateway.dialects.dialect import ReplyHead
from gateway.dialects.replies import DONE, encoder, to_usage_fields


def open_event(answer_id: str, kind: str, head: ReplyHead) -> bytes:
    """An event up to its choices, the same for all of a stream; `kind` is the object's name."""
    return b'data: {"id":%b,"object":%b,"created":%d,"model":%b,"choices":[' % (
        encoder.encode(answer_id),
        encoder.encode(kind),
        head.created_unix_s,
        encoder.encode(head.model),
    )


class ChoiceEnds:
    """The ends that one stream still owes."""

    __slots__ = ("_empty", "_includes_usage", "_opened", "unfinished")

    def __init__(
        self, opened: bytes, empty: bytes, num_choices: int, *, includes_usage: bool
    ) -> None:
        """`opened` is what `open_event` gave, `empty` the field of a choice that says no more."""
        self._opened = opened
        self._empty = empty
        self._includes_usage = includes_usage
        self.unfinished = list(range(num_choices))

    def end_choice(self, index: int, reason: FinishReason) -> bytes:
        """The event of a choice that ends before the stream does."""
        self.unfinished.remove(index)
        return b"%b%b]}\n\n" % (self._opened, self._render_end(index, reason))

    def end_stream(self, last: Finished) -> bytes:
        """The finish reasons that are missing together with the usage, then the end mark."""
        counted = b""
        if self._includes_usage:
            counted = b',"usage":%b' % encoder.encode(to_usage_fields(last.usage))
        ends = b",".join([self._render_end(index, last.reason) for index in self.unfinished])
        if not ends and not counted:
            return DONE
        return b"%b%b]%b}\n\n%b" % (self._opened, ends, counted, DONE)

    def _render_end(self, index: int, reason: FinishReason) -> bytes:
        """The end of one choice, inside an event."""
        return b'{"index":%d,%b,"logprobs":null,"finish_reason":%b}' % (
            index,
            self._empty,
            encoder.encode(reason),
        )
