"""Deltas that wait to be sent, merged so that their number and their size stay small.

The order within a choice is kept; choices do not wait for each other. Time is linear in the text.
Must not know credit. Read next: `stream`.
"""

from collections import deque
from collections.abc import Iterator

from contracts.inference import Delta, ReasoningDelta, TokenLogprob, ToolCallDelta

AnyDelta = Delta | ReasoningDelta | ToolCallDelta

MAX_DELTA_TOKENS = 64 * 1024
MAX_DELTA_CHARS = 16 * 1024
"""A delta beyond these is sent in parts, so that it fits in a frame, and so that credit, which
counts deltas, bounds what the gateway holds of a stream."""
MAX_DELTA_LOGPROBS = 256
"""The same where each token brings its alternatives."""


class _Run:
    """Deltas of one kind that become one."""

    __slots__ = ("first", "logprobs", "texts", "token_ids")

    def __init__(self, first: AnyDelta) -> None:
        """Begins with `first`, which says what kind they are."""
        self.first = first
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.add(first)

    def takes(self, delta: AnyDelta) -> bool:
        """True when `delta` goes on where this ends."""
        first = self.first
        if isinstance(first, ToolCallDelta) and isinstance(delta, ToolCallDelta):
            return first.call_index == delta.call_index
        return type(first) is type(delta)

    def add(self, delta: AnyDelta) -> None:
        """Appends `delta`."""
        is_call = isinstance(delta, ToolCallDelta)
        self.texts.append(delta.arguments if is_call else delta.text)
        self.token_ids += delta.token_ids
        if isinstance(delta, Delta):
            self.logprobs += delta.logprobs

    def join(self) -> Iterator[AnyDelta]:
        """One delta, or several that each fit in a frame."""
        text, ids, first = "".join(self.texts), self.token_ids, self.first
        if self.logprobs:
            yield from self._join_scored(text)
            return
        for part in range(count_parts(len(text), len(ids))):
            part_text = text[part * MAX_DELTA_CHARS : (part + 1) * MAX_DELTA_CHARS]
            part_ids = tuple(ids[part * MAX_DELTA_TOKENS : (part + 1) * MAX_DELTA_TOKENS])
            index = first.choice_index
            if isinstance(first, Delta):
                yield Delta(part_text, part_ids, index)
            elif isinstance(first, ReasoningDelta):
                yield ReasoningDelta(part_text, part_ids, index)
            else:
                call_id, name = ("", "") if part else (first.id, first.name)
                yield ToolCallDelta(first.call_index, call_id, name, part_text, part_ids, index)

    def _join_scored(self, text: str) -> Iterator[Delta]:
        """The same for text whose tokens bring their logprobs; the text goes with the first."""
        size, ids, index = MAX_DELTA_LOGPROBS, self.token_ids, self.first.choice_index
        num_parts = max(-(-len(self.logprobs) // size), count_parts(len(text), len(ids)))
        for part in range(num_parts):
            part_text = text[part * MAX_DELTA_CHARS : (part + 1) * MAX_DELTA_CHARS]
            tokens = slice(part * size, (part + 1) * size)
            yield Delta(part_text, tuple(ids[tokens]), index, tuple(self.logprobs[tokens]))


class DeltaBuffer:
    """What waits, by choice."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._waiting: dict[int, deque[_Run | AnyDelta]] = {}
        """Of each choice: the parts of a run of which one has been taken, then runs."""

    def __bool__(self) -> bool:
        """True while something waits."""
        return bool(self._waiting)

    def __contains__(self, choice_index: int) -> bool:
        """True while something of this choice waits."""
        return choice_index in self._waiting

    def add(self, delta: AnyDelta) -> None:
        """Puts `delta` behind what waits of its choice."""
        waiting = self._waiting.setdefault(delta.choice_index, deque())
        latest = waiting[-1] if waiting else None
        if isinstance(latest, _Run) and latest.takes(delta):
            latest.add(delta)
        else:
            waiting.append(_Run(delta))

    def pop(self, choice_index: int | None = None) -> AnyDelta | None:
        """The next of what waits of one choice, or of any; None when nothing does."""
        if choice_index is None:
            choice_index = next(iter(self._waiting), 0)
        waiting = self._waiting.get(choice_index)
        if waiting is None:
            return None
        first = waiting.popleft()
        if isinstance(first, _Run):
            first, *rest = first.join()
            waiting.extendleft(reversed(rest))
        if not waiting:
            del self._waiting[choice_index]
        return first

    def take(self, choice_index: int | None = None) -> Iterator[AnyDelta]:
        """What waits of one choice, or of all; what was taken no longer waits."""
        while (delta := self.pop(choice_index)) is not None:
            yield delta

    def clear(self) -> None:
        """Forgets everything."""
        self._waiting.clear()


def fits(delta: AnyDelta) -> bool:
    """True for a delta that may be sent as it is."""
    text = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
    if len(text) > MAX_DELTA_CHARS or len(delta.token_ids) > MAX_DELTA_TOKENS:
        return False
    return not isinstance(delta, Delta) or len(delta.logprobs) <= MAX_DELTA_LOGPROBS


def count_parts(num_chars: int, num_tokens: int) -> int:
    """Into how many deltas so much is divided."""
    return max(-(-num_chars // MAX_DELTA_CHARS), -(-num_tokens // MAX_DELTA_TOKENS), 1)
