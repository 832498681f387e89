"""Readers for families whose tool calls are JSON objects.

Hermes and Qwen: `<tool_call>{…}</tool_call>`; Mistral: `[TOOL_CALLS][{…}, {…}]`; Llama 3: the whole
answer is `{…}`, several are separated by semicolons. What turns out to be no call is given back as
text. Read next: `call_object`, `header_calls` (the other kind).
"""

from collections.abc import Callable
from typing import Final

from gpu_pool.server.text.answers.call_object import CallObject
from gpu_pool.server.text.answers.json_span import WHITE_SPACE
from gpu_pool.server.text.answers.parts import Part, Said
from gpu_pool.server.text.marks import MarkScanner

_WHITE: Final = "".join(WHITE_SPACE)
_BETWEEN_BARE: Final = _WHITE + ";,"


class TaggedObjects:
    """Objects between two marks each."""

    __slots__ = ("_begin", "_object", "_scanner")

    def __init__(self, begin: str, end: str) -> None:
        """Stands behind the first `begin`."""
        self._begin = begin
        self._object: CallObject | None = CallObject()
        self._scanner = MarkScanner((begin, end))

    def push(self, text: str, parts: list[Part]) -> str | None:
        """Adds what `text` brought to `parts`; the rest behind the calls, None while they go on."""
        while text:
            if self._object is None:
                _, mark, text = self._scanner.push(text)
                if mark is None:
                    return None  # what stands between an object and its end mark means nothing
                if mark != self._begin:
                    return text
                self._object = CallObject()
            text, call = push_object(self._object, text, parts)
            if call.is_broken and not call.has_begun:
                parts.append(Said(self._begin + call.give_back()))
                return text
            if call.is_over:
                self._object = None
        return None

    def finish(self, parts: list[Part]) -> None:
        """Adds what was held back when the answer ends here."""
        finish_object(self._object, self._begin, parts)


class ObjectList:
    """One JSON list of objects behind a mark."""

    __slots__ = ("_begin", "_object")

    def __init__(self, begin: str) -> None:
        """Stands behind `begin` and the opening bracket."""
        self._begin = begin
        self._object: CallObject | None = CallObject()

    def push(self, text: str, parts: list[Part]) -> str | None:
        """Adds what `text` brought to `parts`; the rest behind the calls, None while they go on."""
        while text:
            if self._object is None:
                text = text.lstrip(_WHITE)
                if not text:
                    return None
                if text[0] != ",":
                    return text.removeprefix("]")
                text = text[1:]
                self._object = CallObject()
            text, call = push_object(self._object, text, parts)
            if call.is_broken and not call.has_begun:
                parts.append(Said(self._begin + call.give_back()))
                return text
            if call.is_over:
                self._object = None
        return None

    def finish(self, parts: list[Part]) -> None:
        """Adds what was held back when the answer ends here."""
        finish_object(self._object, self._begin, parts)


class BareObjects:
    """Objects without any mark, which are calls only if they name a tool that was offered."""

    __slots__ = ("_is_known", "_object")

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        """Stands in front of the first brace."""
        self._is_known = is_known
        self._object: CallObject | None = CallObject(is_known)

    def push(self, text: str, parts: list[Part]) -> str | None:
        """Adds what `text` brought to `parts`; the rest behind the calls, None while they go on."""
        while text:
            if self._object is None:
                text = text.lstrip(_BETWEEN_BARE)
                if not text:
                    return None
                if text[0] != "{":
                    return text
                self._object = CallObject(self._is_known)
            text, call = push_object(self._object, text, parts)
            if call.is_broken and not call.has_begun:
                parts.append(Said(call.give_back()))
                return text
            if call.is_over:
                self._object = None
        return None

    def finish(self, parts: list[Part]) -> None:
        """Adds what was held back when the answer ends here."""
        finish_object(self._object, "", parts)


def push_object(call: CallObject, text: str, parts: list[Part]) -> tuple[str, CallObject]:
    """Feeds `text` to `call` until it is over; the rest behind it, and `call`."""
    for index, character in enumerate(text):
        call.push(character)
        if call.is_over or call.is_broken:
            parts.extend(call.take())
            return text[index + 1 :], call
    parts.extend(call.take())
    return "", call


def finish_object(call: CallObject | None, begin: str, parts: list[Part]) -> None:
    """Gives back an object that was cut off before it was known to be a call."""
    if call is not None and not call.has_begun:
        raw = begin + call.give_back()
        if raw:
            parts.append(Said(raw))
