"""Where an answer has to end because it contains a stop string.

Text is held back while it could still become the beginning of one. The result does not depend on
how the text was cut into pieces, and the time is linear in it. Read next: `text_stream`.
"""

from collections.abc import Sequence


class StopMatcher:
    """One Knuth-Morris-Pratt automaton per stop string, over the text of one answer."""

    __slots__ = ("_failures", "_first_characters", "_held", "_lengths", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty; there may be none of them."""
        self._stops = tuple(dict.fromkeys(stops))
        self._failures = [_build_failures(stop) for stop in self._stops]
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._lengths = [0] * len(self._stops)
        """Characters of each stop string that the text so far ends with."""
        self._held = ""

    @property
    def is_holding(self) -> bool:
        """True while text is held back."""
        return bool(self._held)

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is free now, and whether a stop string ended the answer behind it.

        The stop string that is complete first counts; of several at once, the longest.
        """
        if not self._held and self._first_characters.isdisjoint(text):
            return text, False
        buffer = self._held + text
        for index in range(len(self._held), len(buffer)):
            found = self._advance(buffer[index])
            if found:
                self._held = ""
                return buffer[: index + 1 - found], True
        num_held = max(self._lengths)
        free = len(buffer) - num_held
        self._held = buffer[free:]
        return buffer[:free], False

    def finish(self) -> str:
        """The text that was held back and turned out to be ordinary."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """Moves every automaton; the length of the longest stop string that ends here, or 0."""
        found = 0
        for index, stop in enumerate(self._stops):
            length, failures = self._lengths[index], self._failures[index]
            while length and stop[length] != character:
                length = failures[length - 1]
            if stop[length] == character:
                length += 1
            if length == len(stop):
                found = max(found, length)
                length = failures[length - 1]
            self._lengths[index] = length
        return found


def _build_failures(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that is also its end."""
    failures = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = failures[length - 1]
        if stop[index] == stop[length]:
            length += 1
        failures[index] = length
    return failures
