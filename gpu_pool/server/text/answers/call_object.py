"""One tool call written as a JSON object, understood while it arrives.

Owns `{"name": …, "arguments": …}` in its variants: `parameters`, an `id`, any order, arguments that
are themselves a string of JSON. Constant work per character. Read next: `object_calls`.
"""

import json
from collections.abc import Callable
from enum import Enum
from typing import Final

from gpu_pool.server.text.answers.json_span import WHITE_SPACE, JsonSpan, Place
from gpu_pool.server.text.answers.parts import CallArguments, CallBegun, Part

_ARGUMENT_KEYS: Final = frozenset(("arguments", "parameters"))
_NAME_KEYS: Final = frozenset(("name", "id"))
_USUAL_KEYS: Final = _ARGUMENT_KEYS | _NAME_KEYS | {"type"}


class _Expect(Enum):
    """What comes next."""

    OPEN = 1
    KEY = 2
    """Or the end of an empty object."""
    COLON = 3
    VALUE = 4
    COMMA = 5
    """Or the end of the object."""
    NOTHING = 6


class CallObject:
    """One call. Characters go in, parts come out of `take`."""

    __slots__ = (
        "_arguments",
        "_buffer",
        "_expect",
        "_has_arguments",
        "_has_begun",
        "_id",
        "_is_known",
        "_is_string",
        "_key",
        "_name",
        "_new",
        "_raw",
        "_span",
        "is_broken",
    )

    def __init__(self, is_known: Callable[[str], bool] | None = None) -> None:
        """The first character should open the object.

        With `is_known` nothing marks it as a call, so that only such names and the usual keys do.
        """
        self._is_known = is_known
        self._expect = _Expect.OPEN
        self._span: JsonSpan | None = None
        """The key or value that is being read."""
        self._buffer: list[str] = []
        """Its characters, unless they are arguments that go straight out."""
        self._key = ""
        self._name: str | None = None
        self._id: str | None = None
        self._has_arguments = False
        self._is_string = False
        self._arguments: list[str] = []
        self._has_begun = False
        self._new: list[Part] = []
        self._raw: list[str] = []
        """All characters until the call has begun: what it is if it turns out to be none."""
        self.is_broken = False
        """True when this is no call; nothing may follow then."""

    @property
    def is_over(self) -> bool:
        """True behind the closing brace."""
        return self._expect is _Expect.NOTHING

    @property
    def has_begun(self) -> bool:
        """True when it is known to be a call."""
        return self._has_begun

    def push(self, character: str) -> None:
        """Takes the next character of the object."""
        if not self._has_begun:
            self._raw.append(character)
        if self._span is not None:
            place = self._span.push(character)
            if place is not Place.BEHIND:
                self._keep(character)
            if place is Place.INSIDE:
                return
            self._end_value()
            if place is Place.LAST:
                return
        self._push_between(character)

    def take(self) -> list[Part]:
        """What is new since the last time."""
        if self._has_begun and self._arguments:
            self._new.append(CallArguments("".join(self._arguments)))
            self._arguments = []
        new, self._new = self._new, []
        return new

    def give_back(self) -> str:
        """The text so far of what turned out to be no call."""
        raw, self._raw = "".join(self._raw), []
        return raw

    def _push_between(self, character: str) -> None:
        """Takes a character outside of keys and values."""
        if character in WHITE_SPACE:
            return
        expect = self._expect
        if expect is _Expect.OPEN and character == "{":
            self._expect = _Expect.KEY
        elif expect is _Expect.KEY and character == '"':
            self._start(character)
        elif expect is _Expect.COLON and character == ":":
            self._expect = _Expect.VALUE
        elif expect is _Expect.VALUE and character not in ",:]}":
            self._is_string = character == '"'
            self._start(character)
        elif expect is _Expect.COMMA and character == ",":
            self._expect = _Expect.KEY
        elif expect in (_Expect.KEY, _Expect.COMMA) and character == "}":
            self._close()
        else:
            self._break()

    def _start(self, character: str) -> None:
        """The first character of a key or value."""
        self._span = JsonSpan()
        self._span.push(character)
        self._keep(character)

    @property
    def _is_in_arguments(self) -> bool:
        """True while the value that is being read are the arguments."""
        is_value = self._expect is _Expect.VALUE
        return is_value and self._key in _ARGUMENT_KEYS and not self._has_arguments

    def _keep(self, character: str) -> None:
        """Notes a character of a key or value, if it matters."""
        if self._is_in_arguments and not self._is_string:
            self._arguments.append(character)
            if self._name is not None:
                self._begin()
        elif self._expect is _Expect.KEY or self._is_in_arguments or self._key in _NAME_KEYS:
            self._buffer.append(character)

    def _end_value(self) -> None:
        """A key or value is complete."""
        self._span = None
        text, self._buffer = "".join(self._buffer), []
        if self._expect is _Expect.KEY:
            self._key = _decode_string(text) or ""
            self._expect = _Expect.COLON
            if self._is_known is not None and self._key not in _USUAL_KEYS:
                self._break()
            return
        if self._is_in_arguments:
            self._has_arguments = True
            if self._is_string:
                self._arguments.append(_decode_string(text) or "{}")
        elif self._key == "name" and self._name is None:
            self._name = _decode_string(text)
            if self._name is None or not (self._is_known is None or self._is_known(self._name)):
                self._break()
                return
        elif self._key == "id" and self._id is None:
            self._id = _decode_string(text)
        self._expect = _Expect.COMMA
        if self._name is not None and self._has_arguments:
            self._begin()

    def _begin(self) -> None:
        """It is a call."""
        if not self._has_begun:
            self._has_begun = True
            self._raw = []
            self._new.append(CallBegun(self._name or "", self._id))

    def _close(self) -> None:
        """The closing brace."""
        self._expect = _Expect.NOTHING
        if self._name is None:
            self._break()
        elif not self._has_begun:
            self._begin()
            self._arguments = ["{}"]

    def _break(self) -> None:
        """It is not written as a call is."""
        self.is_broken = True
        self._expect = _Expect.NOTHING


def _decode_string(text: str) -> str | None:
    """The string that `text` spells in JSON, None when it spells none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, str) or not value:
        return None
    return value.encode(errors="replace").decode()  # a lone surrogate cannot be sent
