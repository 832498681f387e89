"""Which format a model's answers have, told from its chat template.

A template writes earlier calls and thoughts in the form in which the model itself writes them, so
its source shows the family. Must not know tokens. Read next: `call_format`, `answer_parser`.
"""

from dataclasses import dataclass
from typing import Final

from gpu_pool.server.text.answers.call_format import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    HERMES,
    KIMI,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    CallFormat,
)

THINK_BEGIN: Final = "<think>"
THINK_END: Final = "</think>"
_FOREIGN: Final = ("<function=", "<arg_key>", "<invoke")
"""Other families' ways to write what stands between marks that we know."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What a model's answers may contain besides text."""

    thinks: bool
    """It writes its thoughts between `<think>` and `</think>`."""
    calls: CallFormat | None
    """How it calls tools; None when its template knows none, or in a way that we do not."""
    takes_tools: bool
    """The template has a place for the descriptions of tools."""

    max_calls: int | None
    """Calls in one answer that the template can render again; None sets no limit."""

    @property
    def thought_marks(self) -> tuple[str, ...]:
        """Strings around thoughts."""
        return (THINK_BEGIN, THINK_END) if self.thinks else ()

    @property
    def call_marks(self) -> tuple[str, ...]:
        """Texts with the strings that stand around tool calls and inside them."""
        if self.calls is None:
            return ()
        spelling = self.calls.spelling
        begin = (spelling.section_begin, spelling.call_begin, spelling.middle)
        end = (spelling.call_end, spelling.section_end)
        return (*self.calls.marks, *self.calls.inner_marks, *begin, *end)


PLAIN: Final = AnswerFormat(thinks=False, calls=None, takes_tools=False, max_calls=None)
"""Text and nothing else."""


def find_answer_format(template_source: str | None) -> AnswerFormat:
    """The format of a model with this template, None for one that only continues text."""
    if template_source is None:
        return PLAIN
    takes_tools = "tools" in template_source
    return AnswerFormat(
        thinks=THINK_END in template_source,
        calls=_find_calls(template_source) if takes_tools else HERMES,
        takes_tools=takes_tools,
        max_calls=1 if "single tool-call" in template_source else None,
    )


def _find_calls(source: str) -> CallFormat | None:
    """The family whose marks the template writes."""
    if "<｜tool▁calls▁begin｜>" in source:
        return DEEPSEEK_V3 if "```json" in source else DEEPSEEK_V31
    if "<|tool_calls_section_begin|>" in source:
        return KIMI
    if "[TOOL_CALLS]" in source:
        return MISTRAL_NAMED if "[ARGS]" in source else MISTRAL
    if "<tool_call>" in source:
        return None if any(mark in source for mark in _FOREIGN) else HERMES
    if "<|python_tag|>" in source or ('"parameters"' in source and "ipython" in source):
        return LLAMA
    return None
