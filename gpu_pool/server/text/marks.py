"""Finds marks in a text that arrives piece by piece: stop strings, and what surrounds a tool call.

Text is held back while it could still become the beginning of a mark. The result does not depend on
how the text was cut into pieces, and the time is linear in it. Must not know what marks mean.
Read next: `stop_strings`, `answers.answer_parser`.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Scanned(NamedTuple):
    """What one piece of text brought."""

    free: str
    """Text that belongs to no mark, in front of the mark if there is one."""
    mark: str | None
    rest: str
    """Text behind the mark, which the scanner has not looked at."""


class MarkScanner:
    """One Knuth-Morris-Pratt automaton per mark, over one text."""

    __slots__ = ("_failures", "_first_characters", "_held", "_lengths", "_marks")

    def __init__(self, marks: Sequence[str]) -> None:
        """`marks` are not empty; there may be none of them."""
        self._marks = tuple(dict.fromkeys(marks))
        self._failures = [_build_failures(mark) for mark in self._marks]
        self._first_characters = frozenset(mark[0] for mark in self._marks)
        self._lengths = [0] * len(self._marks)
        """Characters of each mark that the text so far ends with."""
        self._held = ""

    @property
    def is_holding(self) -> bool:
        """True while text is held back."""
        return bool(self._held)

    def push(self, text: str) -> Scanned:
        """The text that is free now, and the mark behind it if one is complete.

        The mark that is complete first counts; of several at once, the longest. After a mark the
        scanner starts afresh.
        """
        if not self._held and self._first_characters.isdisjoint(text):
            return Scanned(text, None, "")
        num_held = len(self._held)
        buffer = self._held + text
        for index in range(num_held, len(buffer)):
            found = self._advance(buffer[index])
            if found is not None:
                self._held = ""
                self._lengths = [0] * len(self._marks)
                return Scanned(buffer[: index + 1 - len(found)], found, buffer[index + 1 :])
        free = len(buffer) - max(self._lengths, default=0)
        self._held = buffer[free:]
        return Scanned(buffer[:free], None, "")

    def finish(self) -> str:
        """The text that was held back and turned out to be ordinary."""
        held, self._held = self._held, ""
        self._lengths = [0] * len(self._marks)
        return held

    def _advance(self, character: str) -> str | None:
        """Moves every automaton; the longest mark that ends here."""
        found: str | None = None
        for index, mark in enumerate(self._marks):
            length, failures = self._lengths[index], self._failures[index]
            while length and mark[length] != character:
                length = failures[length - 1]
            if mark[length] == character:
                length += 1
            if length == len(mark):
                found = mark if found is None or len(mark) > len(found) else found
                length = failures[length - 1]
            self._lengths[index] = length
        return found


def _build_failures(mark: str) -> list[int]:
    """For each prefix of `mark`, the length of its longest proper prefix that is also its end."""
    failures = [0] * len(mark)
    length = 0
    for index in range(1, len(mark)):
        while length and mark[index] != mark[length]:
            length = failures[length - 1]
        if mark[index] == mark[length]:
            length += 1
        failures[index] = length
    return failures
