"""Readers for families whose tool calls are JSON objects.

Hermes and Qwen: `<tool_call>{…}</tool_call>`; Mistral: `[TOOL_CALLS][{…}, {…}]`; Llama 3: the whole
answer is `{…}`, several are separated by semicolons. What turns out to be no call is given back as
text. Read next: `call_object`, `header_calls` (the other kind).
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from gpu_pool.server.text.answers.call_object import CallObject
from gpu_pool.server.text.answers.json_span import WHITE_SPACE
from gpu_pool.server.text.answers.parts import Part, Said
from gpu_pool.server.text.marks import MarkScanner

_WHITE: Final = "".join(WHITE_SPACE)
_BETWEEN_BARE: Final = _WHITE + ";,"


class Next(Enum):
    """What follows an object."""

    UNKNOWN = auto()
    """More text will tell."""
    OBJECT = auto()
    END = auto()


FindNext = Callable[[str], tuple[Next, str]]
"""What follows an object, and the rest of the text behind what says so."""


class CallObjects:
    """Objects one after another; what lies between them is the format's own."""

    __slots__ = ("_begin", "_create", "_find_next", "_object")

    def __init__(
        self, begin: str, find_next: FindNext, create: Callable[[], CallObject] = CallObject
    ) -> None:
        """Stands in front of the first object. `begin` is given back with what is no call."""
        self._begin = begin
        self._find_next = find_next
        self._create = create
        self._object: CallObject | None = create()

    def push(self, text: str, parts: list[Part]) -> str | None:
        """Adds what `text` brought to `parts`; the rest behind the calls, None while they go on."""
        while text:
            if self._object is None:
                following, text = self._find_next(text)
                if following is Next.UNKNOWN:
                    return None
                if following is Next.END:
                    return text
                self._object = self._create()
            text = _push_object(self._object, text, parts)
            if self._object.is_broken and not self._object.has_begun:
                parts.append(Said(self._begin + self._object.give_back()))
                return text
            if self._object.is_over:
                self._object = None
        return None

    def finish(self, parts: list[Part]) -> None:
        """Adds what was held back when the answer ends here: it was not known to be a call yet."""
        if self._object is not None and not self._object.has_begun:
            raw = self._begin + self._object.give_back()
            if raw:
                parts.append(Said(raw))


def read_tagged_objects(begin: str, end: str) -> CallObjects:
    """Objects between two marks each, from behind the first `begin`."""
    scanner = MarkScanner((begin, end))

    def find_next(text: str) -> tuple[Next, str]:
        _, mark, rest = scanner.push(text)
        if mark is None:
            return Next.UNKNOWN, ""  # what stands between an object and its end mark means nothing
        return Next.OBJECT if mark == begin else Next.END, rest

    return CallObjects(begin, find_next)


def read_object_list(begin: str) -> CallObjects:
    """One JSON list of objects, from behind `begin`, which ends with the opening bracket."""

    def find_next(text: str) -> tuple[Next, str]:
        text = text.lstrip(_WHITE)
        if not text:
            return Next.UNKNOWN, ""
        return (Next.OBJECT, text[1:]) if text[0] == "," else (Next.END, text.removeprefix("]"))

    return CallObjects(begin, find_next)


def read_bare_objects(is_known: Callable[[str], bool]) -> CallObjects:
    """Objects without any mark, which are calls only if they name a tool that was offered."""

    def find_next(text: str) -> tuple[Next, str]:
        text = text.lstrip(_BETWEEN_BARE)
        if not text:
            return Next.UNKNOWN, ""
        return Next.OBJECT if text[0] == "{" else Next.END, text

    return CallObjects("", find_next, lambda: CallObject(is_known))


def _push_object(call: CallObject, text: str, parts: list[Part]) -> str:
    """Feeds `text` to `call` until it is over; the rest behind it."""
    for index, character in enumerate(text):
        call.push(character)
        if call.is_over or call.is_broken:
            parts.extend(call.take())
            return text[index + 1 :]
    parts.extend(call.take())
    return ""
