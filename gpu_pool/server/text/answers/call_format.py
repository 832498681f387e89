"""How model families write tool calls: what opens them, who reads them, and how one is spelled.

The spelling is what a grammar enforces and what an earlier call looks like in a prompt whose
template knows no tools. Read next: `answer_format` (which family a model is of).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpu_pool.server.text.answers.header_calls import HeaderCalls, HeaderMarks, MistralCalls
from gpu_pool.server.text.answers.object_calls import read_bare_objects, read_tagged_objects
from gpu_pool.server.text.answers.parts import CallReader


class CallFamily(StrEnum):
    """Formats of tool calls."""

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    MISTRAL_NAMED = "mistral_named"
    DEEPSEEK_V3 = "deepseek_v3"
    DEEPSEEK_V31 = "deepseek_v31"
    KIMI = "kimi"


@dataclass(frozen=True, slots=True)
class CallSpelling:
    """A section of calls as text; control tokens appear as the strings that they stand for."""

    section_begin: str
    call_begin: str
    """In front of the name."""
    middle: str
    """Between the name and the arguments."""
    call_end: str
    separator: str
    """Between two calls."""
    section_end: str


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family's tool calls."""

    family: CallFamily
    marks: tuple[str, ...]
    """Each of them opens a section of calls, wherever it stands."""
    is_bare: bool
    """An answer that begins with a brace may be a call, too."""
    spelling: CallSpelling
    inner_marks: tuple[str, ...] = ()
    """Marks inside a section that `spelling` does without."""

    def create_reader(self, mark: str, is_known: Callable[[str], bool]) -> CallReader:
        """The reader of a section that `mark` (or, when it is empty, a brace) has opened."""
        match self.family:
            case CallFamily.HERMES:
                return read_tagged_objects(_HERMES_BEGIN, _HERMES_END)
            case CallFamily.LLAMA:
                return read_bare_objects(is_known)
            case CallFamily.MISTRAL | CallFamily.MISTRAL_NAMED:
                return MistralCalls(mark)
            case CallFamily.DEEPSEEK_V3 | CallFamily.DEEPSEEK_V31:
                return HeaderCalls(_DEEPSEEK_MARKS)
            case CallFamily.KIMI:
                return HeaderCalls(_KIMI_MARKS)


_HERMES_BEGIN: Final = "<tool_call>"
_HERMES_END: Final = "</tool_call>"
_PYTHON_TAG: Final = "<|python_tag|>"
_MISTRAL_BEGIN: Final = "[TOOL_CALLS]"
_DEEPSEEK_MARKS: Final = HeaderMarks(
    section_begin="<｜tool▁calls▁begin｜>",
    call_begin="<｜tool▁call▁begin｜>",
    separator="<｜tool▁sep｜>",
    call_end="<｜tool▁call▁end｜>",
    section_end="<｜tool▁calls▁end｜>",
    header_is_id=False,
)
_KIMI_MARKS: Final = HeaderMarks(
    section_begin="<|tool_calls_section_begin|>",
    call_begin="<|tool_call_begin|>",
    separator="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    section_end="<|tool_calls_section_end|>",
    header_is_id=True,
)

HERMES: Final = CallFormat(
    CallFamily.HERMES,
    (_HERMES_BEGIN,),
    is_bare=False,
    spelling=CallSpelling(
        "",
        _HERMES_BEGIN + '\n{"name": "',
        '", "arguments": ',
        "}\n" + _HERMES_END,
        "\n",
        "",
    ),
)
LLAMA: Final = CallFormat(
    CallFamily.LLAMA,
    (_PYTHON_TAG,),
    is_bare=True,
    spelling=CallSpelling("", '{"name": "', '", "parameters": ', "}", "; ", ""),
)
MISTRAL: Final = CallFormat(
    CallFamily.MISTRAL,
    (_MISTRAL_BEGIN,),
    is_bare=False,
    spelling=CallSpelling(_MISTRAL_BEGIN + " [", '{"name": "', '", "arguments": ', "}", ", ", "]"),
)
MISTRAL_NAMED: Final = CallFormat(
    CallFamily.MISTRAL_NAMED,
    (_MISTRAL_BEGIN,),
    is_bare=False,
    spelling=CallSpelling("", _MISTRAL_BEGIN, "[ARGS]", "", "", ""),
    inner_marks=("[CALL_ID]",),
)


def _create_header_format(family: CallFamily, marks: HeaderMarks, spelling: str) -> CallFormat:
    """A family with sections; `spelling` is one call, with `NAME` and `ARGUMENTS` in it."""
    call_begin, _, behind = spelling.partition("NAME")
    middle, _, call_end = behind.partition("ARGUMENTS")
    separator = "\n" if family is CallFamily.DEEPSEEK_V3 else ""
    return CallFormat(
        family,
        (marks.section_begin,),
        is_bare=False,
        spelling=CallSpelling(
            marks.section_begin,
            marks.call_begin + call_begin,
            middle,
            call_end + marks.call_end,
            separator,
            marks.section_end,
        ),
    )


DEEPSEEK_V3: Final = _create_header_format(
    CallFamily.DEEPSEEK_V3,
    _DEEPSEEK_MARKS,
    f"function{_DEEPSEEK_MARKS.separator}NAME\n```json\nARGUMENTS\n```",
)
DEEPSEEK_V31: Final = _create_header_format(
    CallFamily.DEEPSEEK_V31, _DEEPSEEK_MARKS, f"NAME{_DEEPSEEK_MARKS.separator}ARGUMENTS"
)
KIMI: Final = _create_header_format(
    CallFamily.KIMI, _KIMI_MARKS, f"functions.NAME:0{_KIMI_MARKS.separator}ARGUMENTS"
)
