"""Where a JSON value ends in a text that arrives character by character.

Owns strings, escapes and nesting, and nothing else of JSON: what is inside is the reader's concern.
Constant work per character. Read next: `call_object`.
"""

from enum import Enum
from typing import Final

WHITE_SPACE: Final = frozenset(" \t\r\n")
_SCALAR_ENDS: Final = WHITE_SPACE | frozenset(",]}")


class Place(Enum):
    """Where a character stands."""

    INSIDE = 1
    LAST = 2
    """It completes the value."""
    BEHIND = 3
    """The value was complete before it."""


class JsonSpan:
    """One value; the first character given belongs to it."""

    __slots__ = ("_depth", "_is_escaped", "_is_in_string", "_is_scalar")

    def __init__(self) -> None:
        """Nothing has been seen."""
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self._is_scalar = False

    def push(self, character: str) -> Place:
        """Where `character` stands; nothing may follow once the value is complete."""
        if self._is_scalar:
            return Place.BEHIND if character in _SCALAR_ENDS else Place.INSIDE
        if self._is_in_string:
            return self._push_in_string(character)
        if character == '"':
            self._is_in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return Place.INSIDE if self._depth > 0 else Place.LAST
        elif self._depth == 0:
            self._is_scalar = True
        return Place.INSIDE

    def _push_in_string(self, character: str) -> Place:
        """The same between quotes."""
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_in_string = False
            if self._depth == 0:
                return Place.LAST
        return Place.INSIDE
