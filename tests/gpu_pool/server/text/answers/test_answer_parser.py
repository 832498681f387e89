"""Answers of every family: the same parts however they arrive, and in linear time."""

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_pool.server.text.answers.answer_format import AnswerFormat
from gpu_pool.server.text.answers.answer_parser import AnswerParser
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
from gpu_pool.server.text.answers.parts import CallArguments, CallBegun, Part, Said, Thought
from tests.fixtures.step_counter import count_steps

TOOLS = frozenset(("look", "find"))
FAMILIES = (HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, DEEPSEEK_V3, DEEPSEEK_V31, KIMI)
Merged = list[tuple[str, ...]]


def create(calls: CallFormat | None, *, thinks: bool = True, inside: bool = False) -> AnswerParser:
    form = AnswerFormat(thinks=thinks, calls=calls, takes_tools=True, max_calls=None)
    return AnswerParser(form, is_thinking=inside, is_known=TOOLS.__contains__)


def merge(parts: Sequence[Part]) -> Merged:
    """The parts, neighbours of a kind joined."""
    merged: Merged = []
    for part in parts:
        if isinstance(part, CallBegun):
            merged.append(("call", part.name, part.id or "", ""))
        elif isinstance(part, CallArguments):
            *head, arguments = merged[-1]
            merged[-1] = (*head, arguments + part.text)
        else:
            kind = "said" if isinstance(part, Said) else "thought"
            if merged and merged[-1][0] == kind:
                merged[-1] = (kind, merged[-1][1] + part.text)
            else:
                merged.append((kind, part.text))
    return merged


def parse(parser: AnswerParser, pieces: Sequence[str]) -> Merged:
    parts = [part for piece in pieces for part in parser.push(piece)]
    return merge([*parts, *parser.finish()])


def spell(form: CallFormat, *calls: tuple[str, str]) -> str:
    """The calls as the family writes them."""
    spelling = form.spelling
    spelled = [
        spelling.call_begin + name + spelling.middle + arguments + spelling.call_end
        for name, arguments in calls
    ]
    return spelling.section_begin + spelling.separator.join(spelled) + spelling.section_end


def find_id(form: CallFormat, name: str) -> str:
    """The id that a model of this family writes itself."""
    return f"functions.{name}:0" if form is KIMI else ""


NASTY = json.dumps(
    {
        "q": 'a "quoted" \\ back } ] { [ </tool_call> <tool_call> \n é 🦖',
        "n": [1, -2.5e3, True, None, {}, [], {"deep": [{"er": "}"}]}],
        "": "",
    },
    ensure_ascii=False,
)


@pytest.mark.parametrize("form", FAMILIES, ids=lambda form: form.family)
@given(data=st.data())
def test_calls_are_understood_however_they_arrive(form: CallFormat, data: st.DataObject) -> None:
    text = "<think> hm </think>\n\n" + spell(form, ("look", NASTY), ("find", "{}"))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    ends = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(ends)]
    assert parse(create(form), pieces) == [
        ("thought", "hm"),
        ("call", "look", find_id(form, "look"), NASTY),
        ("call", "find", find_id(form, "find"), "{}"),
    ]


@pytest.mark.parametrize("form", FAMILIES, ids=lambda form: form.family)
def test_calls_are_understood_character_by_character(form: CallFormat) -> None:
    text = spell(form, ("look", NASTY))
    assert parse(create(form), list(text)) == [("call", "look", find_id(form, "look"), NASTY)]


def test_arguments_go_out_as_they_come() -> None:
    parser = create(HERMES)
    begin, _, _ = spell(HERMES, ("look", "")).partition("}")
    assert [type(part) for part in parser.push(begin + '{"a')] == [CallBegun, CallArguments]
    assert parser.push('": 1') == [CallArguments('": 1')]


_MARKS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
]
_CRUMBS = [
    *_MARKS,
    *'{}[]",:\\;',
    '"name"',
    '"look"',
    '"arguments"',
    "look",
    "functions.look:0",
    '{"name": "look", "parameters": {}}',
    '{"name": "look", "arguments": ',
    "<",
    "<tool",
    " ",
    "\n",
    "x",
    "```json\n",
]


@pytest.mark.parametrize("form", FAMILIES, ids=lambda form: form.family)
@given(crumbs=st.lists(st.sampled_from(_CRUMBS), max_size=25), data=st.data())
def test_any_text_gives_the_same_parts_however_it_arrives(
    form: CallFormat, crumbs: list[str], data: st.DataObject
) -> None:
    text = "".join(crumbs)
    inside = data.draw(st.booleans())
    whole = parse(create(form, inside=inside), [text])
    assert parse(create(form, inside=inside), list(text)) == whole
    cut = data.draw(st.integers(0, len(text)))
    assert parse(create(form, inside=inside), [text[:cut], text[cut:]]) == whole
    for part in whole:
        assert part[0] != "call" or part[1]


def test_white_space_behind_a_section_without_calls_is_dropped_however_it_arrives() -> None:
    text = "x<｜tool▁calls▁begin｜><｜tool▁calls▁end｜> "
    for pieces in ([text], list(text)):
        assert parse(create(DEEPSEEK_V3), pieces) == [("said", "x")]


@given(st.text(alphabet='ab<>[]{} \n"', max_size=40))
def test_text_without_marks_comes_out_as_it_was(text: str) -> None:
    form = AnswerFormat(thinks=True, calls=HERMES, takes_tools=True, max_calls=None)
    parser = AnswerParser(form, is_thinking=False, is_known=TOOLS.__contains__)
    assert parse(parser, list(text)) == ([("said", text)] if text else [])


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, "1 <tool_call> 2", [("said", "1"), ("said", "<tool_call> 2")]),
        (HERMES, "<tool_call>{}</tool_call>", [("said", "<tool_call>{}</tool_call>")]),
        (HERMES, '<tool_call>{"name": "x"}', [("call", "x", "", "{}")]),
        (
            HERMES,
            '<tool_call>{"arguments": {"a": 1}, "id": "i-1", "name": "x"}</tool_call> Done',
            [("call", "x", "i-1", '{"a": 1}'), ("said", "Done")],
        ),
        (
            HERMES,
            '<tool_call>{"name": "x", "arguments": "{\\"a\\": 1}"}</tool_call>',
            [("call", "x", "", '{"a": 1}')],
        ),
        (
            HERMES,
            '<tool_call>{"name": "x", "arguments": {"a',
            [("call", "x", "", '{"a')],
        ),
        (LLAMA, '{"name": "Ann", "age": 3}', [("said", '{"name": "Ann", "age": 3}')]),
        (LLAMA, '{"answer": {"name": "look"}}', [("said", '{"answer": {"name": "look"}}')]),
        (
            LLAMA,
            '<|python_tag|>{"type": "function", "name": "look", "parameters": {}}',
            [("call", "look", "", "{}")],
        ),
        (LLAMA, "<|python_tag|>print(1)", [("said", "print(1)")]),
        (LLAMA, 'See {"name": "look", "parameters": {}}', None),
        (
            MISTRAL,
            '[TOOL_CALLS] [{"name": "x", "arguments": {}}, {"name": "y", "arguments": {}}]',
            [("call", "x", "", "{}"), ("call", "y", "", "{}")],
        ),
        (
            MISTRAL_NAMED,
            '[TOOL_CALLS]look[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]find{}',
            [("call", "look", "abcdefghi", '{"a": 1}'), ("call", "find", "", "{}")],
        ),
        (
            DEEPSEEK_V3,
            (
                "So: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n"
                '```json\n{"a": "<｜tool▁call▁end｜>"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
            ),
            [("said", "So:"), ("call", "look", "", '{"a": "<｜tool▁call▁end｜>"}')],
        ),
        (
            KIMI,
            (
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:7"
                "<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>"
            ),
            [("call", "look", "functions.look:7", "{}")],
        ),
    ],
)
def test_what_families_write(form: CallFormat, text: str, expected: Merged | None) -> None:
    assert parse(create(form), list(text)) == merge_said(expected or [("said", text)])


def merge_said(merged: Merged) -> Merged:
    """Neighbouring text joined, as a reader sees it."""
    joined: Merged = []
    for part in merged:
        if joined and part[0] == joined[-1][0] == "said":
            joined[-1] = ("said", joined[-1][1] + part[1])
        else:
            joined.append(part)
    return joined


def test_a_prompt_may_have_begun_the_thoughts() -> None:
    parser = create(HERMES, inside=True)
    assert parser.is_thinking
    assert parse(parser, ["\nhm", "\n</think>\n\nYes"]) == [("thought", "hm"), ("said", "Yes")]


def test_thoughts_come_first_or_not_at_all() -> None:
    text = "Yes <think>no</think>"
    assert parse(create(HERMES), list(text)) == [("said", text)]


@pytest.mark.parametrize("form", FAMILIES, ids=lambda form: form.family)
@pytest.mark.parametrize(
    "crumb",
    ['{"name": "', "<tool_call>", "<tool_call>{", "[", '{"a":', "<|tool", "  \n", "\\", '"'],
)
def test_hostile_text_takes_linear_time(form: CallFormat, crumb: str) -> None:
    opening = spell(form, ("look", "")).partition("look")[0]
    parser = create(form)
    parser.push(opening)

    def push_many() -> None:
        for _ in range(300):
            parser.push(crumb)

    steps = [count_steps(push_many, "gpu_pool/server/text") for _ in range(4)]
    per_character = 60
    assert max(steps) < 300 * (len(crumb) + 2) * per_character
    assert steps[3] <= 1.5 * steps[1] + 100


def test_thinking_is_told_from_the_text_it_holds() -> None:
    parser = create(None)
    parts = [*parser.push("<think>a"), *parser.push("</think>b"), *parser.finish()]
    assert parts == [Thought("a"), Said("b")]
