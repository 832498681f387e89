"""Readers for families that write a tool's name in front of its arguments.

DeepSeek and Kimi put sections and calls between marks of their own; Mistral writes
`[TOOL_CALLS]name[ARGS]{…}`. Arguments are one JSON object each. What turns out to be no call is
given back as text. Read next: `object_calls` (the other kind).
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpu_pool.server.text.answers.json_span import JsonSpan, Place
from gpu_pool.server.text.answers.object_calls import read_object_list
from gpu_pool.server.text.answers.parts import CallArguments, CallBegun, CallReader, Part, Said
from gpu_pool.server.text.marks import MarkScanner

_NO_ARGUMENTS: Final = "{}"


@dataclass(frozen=True, slots=True)
class HeaderMarks:
    """What surrounds headers and arguments."""

    section_begin: str
    call_begin: str
    separator: str
    """Between header and arguments."""
    call_end: str
    section_end: str
    header_is_id: bool
    """The header is `functions.name:index`, and the call's id."""


class _State(Enum):
    """Where the reader stands."""

    BETWEEN = 1
    HEADER = 2
    NAME = 3
    """Behind the separator: a line with the name, unless arguments follow at once."""
    ARGUMENTS = 4


class HeaderCalls:
    """A section of calls."""

    __slots__ = ("_header", "_marks", "_raw", "_scanner", "_span", "_state")

    def __init__(self, marks: HeaderMarks) -> None:
        """Stands behind the mark that begins the section."""
        self._marks = marks
        every = (marks.call_begin, marks.separator, marks.call_end, marks.section_end)
        self._scanner = MarkScanner(every)
        self._state = _State.BETWEEN
        self._header = ""
        self._raw: list[str] = []
        """All text of a call until it has begun."""
        self._span: JsonSpan | None = None

    def push(self, text: str, parts: list[Part]) -> str | None:
        """Adds what `text` brought to `parts`; the rest behind the calls, None while they go on."""
        while text:
            if self._span is not None:
                text = self._push_arguments(text, parts)
                continue
            free, mark, text = self._scanner.push(text)
            rest = self._push_free(free, parts)
            if rest is not None:  # arguments have begun: what the scanner held is theirs, too
                text = rest + (mark or self._scanner.finish()) + text
                continue
            if mark is not None and self._push_mark(mark, parts):
                return text
        return None

    def finish(self, parts: list[Part]) -> None:
        """Adds what was held back when the answer ends here."""
        if self._state in (_State.HEADER, _State.NAME):
            parts.append(Said("".join(self._raw) + self._scanner.finish()))

    def _push_free(self, text: str, parts: list[Part]) -> str | None:
        """Takes text between marks; what follows the opening brace and itself, if it is there."""
        if self._state is _State.BETWEEN:
            return None
        if self._state is _State.HEADER:
            self._raw.append(text)
            return None
        head, brace, arguments = text.partition("{")
        self._raw.append(head)
        if not brace:
            return None
        if not self._begin(parts):
            self._state = _State.BETWEEN
            return None
        self._span = JsonSpan()
        return brace + arguments

    def _push_mark(self, mark: str, parts: list[Part]) -> bool:
        """Takes a mark; True when it ends the section."""
        marks = self._marks
        if mark == marks.separator and self._state is _State.HEADER:
            self._header = "".join(self._raw[1:])
            self._raw.append(mark)
            self._state = _State.NAME
            return False
        if self._state is _State.NAME and mark == marks.call_end:
            if self._begin(parts):
                parts.append(CallArguments(_NO_ARGUMENTS))
        elif self._state is not _State.BETWEEN:
            parts.append(Said("".join(self._raw) + mark))
        self._state = _State.BETWEEN
        if mark == marks.call_begin:
            self._state = _State.HEADER
            self._raw = [mark]
        return mark == marks.section_end

    def _push_arguments(self, text: str, parts: list[Part]) -> str:
        """Takes arguments as far as they reach; the rest."""
        assert self._span is not None
        for index, character in enumerate(text):
            if self._span.push(character) is Place.LAST:
                parts.append(CallArguments(text[: index + 1]))
                self._span = None
                self._state = _State.BETWEEN
                return text[index + 1 :]
        parts.append(CallArguments(text))
        return ""

    def _begin(self, parts: list[Part]) -> bool:
        """The header is complete; False when it names no tool."""
        raw, self._raw = "".join(self._raw), []
        header = self._header.strip()
        if self._marks.header_is_id:
            name = header.rpartition(":")[0].removeprefix("functions.") or header
        else:
            # `function<sep>name` and a fence in older versions, `name<sep>` in newer ones
            behind = raw.rpartition(self._marks.separator)[2]
            name = behind.strip().partition("\n")[0].strip() or header
        if not name:
            parts.append(Said(raw))
            return False
        parts.append(CallBegun(name, header if self._marks.header_is_id else None))
        return True


class MistralCalls:
    """What follows `[TOOL_CALLS]`: a list of objects in older versions, one named call in newer."""

    __slots__ = ("_begin", "_head", "_list", "_span")

    def __init__(self, begin: str) -> None:
        """Stands behind `begin`."""
        self._begin = begin
        self._head: list[str] = []
        """The text up to the arguments."""
        self._list: CallReader | None = None
        self._span: JsonSpan | None = None

    def push(self, text: str, parts: list[Part]) -> str | None:
        """Adds what `text` brought to `parts`; the rest behind the calls, None while they go on."""
        if self._list is not None:
            return self._list.push(text, parts)
        start = 0
        for index, character in enumerate(text):
            if self._span is not None:
                if self._span.push(character) is Place.LAST:
                    parts.append(CallArguments(text[start : index + 1]))
                    return text[index + 1 :]
            elif character == "{":
                call = _read_head("".join(self._head))
                if not call.name:
                    parts.append(Said(self._begin + "".join(self._head)))
                    return text[index:]
                parts.append(call)
                self._span = JsonSpan()
                self._span.push(character)
                start = index
            elif character == "[" and not self._head:
                self._list = read_object_list(self._begin + "".join(self._head) + character)
                return self._list.push(text[index + 1 :], parts)
            elif character not in " \n" or self._head:
                self._head.append(character)
        if self._span is not None:
            parts.append(CallArguments(text[start:]))
        return None

    def finish(self, parts: list[Part]) -> None:
        """Adds what was held back when the answer ends here."""
        if self._list is not None:
            self._list.finish(parts)
        elif self._span is None:
            parts.append(Said(self._begin + "".join(self._head)))


def _read_head(head: str) -> CallBegun:
    """Name and id in `name[CALL_ID]id[ARGS]`, of which each mark may be missing."""
    name, _, call_id = head.partition("[ARGS]")[0].partition("[CALL_ID]")
    return CallBegun(name.strip(), call_id.strip() or None)
