"""A conversation as a chat template sees it, with all that users wrote unable to spell control.

Owns the names and shapes that templates expect of messages, tools, calls and results; must not know
Jinja or token ids. Templates without a place for tools are told of them in words.
Read next: `prompt_encoder` (the caller), `control_tokens` (the marks).
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from contracts.errors import InvalidRequest
from contracts.inference import ChatMessage, ChatPrompt, Tool, ToolCall
from gpu_pool.server.text.answers.answer_format import AnswerFormat
from gpu_pool.server.text.answers.call_format import HERMES, CallFamily
from gpu_pool.server.text.json_text import decode_json, decode_object, mark_strings

MAX_TOOLS: Final = 512
MAX_NAME_CHARS: Final = 256
_REASONING_NAMES: Final = ("reasoning_content", "reasoning", "thinking")
_SHORT_ID: Final = re.compile(r"[A-Za-z0-9]{9}")
_EFFORT: Final = re.compile(r"[a-z]{1,16}")
_NO_EFFORT: Final = "none"
_TOOLS_IN_WORDS: Final = """\
You can call these functions, each described by a JSON object:
{tools}
To call one, answer with its name and its arguments as JSON, like this:
{example}"""
_RESULT_BEGIN: Final = "<tool_response>\n"
_RESULT_END: Final = "\n</tool_response>"

Mark = Callable[[str], str]
"""The same text, unable to spell control tokens."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template is given."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    options: dict[str, Any]
    """Variables that are set beside the messages."""


class _Arguments(dict[str, Any]):
    """Arguments of a call: an object to templates that ask for one, text to those that join it."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


class ConversationWriter:
    """Writes conversations for one model's template."""

    def __init__(self, template_source: str, form: AnswerFormat) -> None:
        """`form` is what was found in that template."""
        self._form = form
        self._reasoning_names = [name for name in _REASONING_NAMES if name in template_source]
        family = form.calls.family if form.calls is not None else None
        self._knows_results = any(role in template_source for role in ("'tool'", '"tool"'))
        self._has_short_ids = family in (CallFamily.MISTRAL, CallFamily.MISTRAL_NAMED)

    def write(self, prompt: ChatPrompt, mark: Mark, mark_said: Mark) -> Conversation:
        """The conversation of `prompt`.

        `mark_said` is for what an assistant has said, where templates look for marks of thoughts.
        Raises: `InvalidRequest`.
        """
        tools = [self._write_tool(tool, mark) for tool in check_tools(prompt.tools)]
        names = {call.id: call.name for message in prompt.messages for call in message.tool_calls}
        messages: list[dict[str, Any]] = []
        for message in prompt.messages:
            said = mark_said if message.role in ("assistant", "model") else mark
            written = {"role": message.role, "content": said(message.content)}
            name = message.name or names.get(message.tool_call_id or "")
            if name is not None:
                written["name"] = mark(name)
            if message.tool_call_id is not None:
                written["tool_call_id"] = mark(self._write_id(message.tool_call_id))
            if message.reasoning is not None:
                written |= dict.fromkeys(self._reasoning_names, mark(message.reasoning))
            messages.append(self._with_calls(written, message, mark))
        options = _write_effort(prompt.reasoning_effort)
        if self._form.takes_tools:
            return Conversation(messages, tools or None, options)
        return Conversation(self._in_words(messages, tools), None, options)

    def _write_tool(self, tool: Tool, mark: Mark) -> dict[str, Any]:
        """A tool in the shape that clients send and templates print."""
        function: dict[str, Any] = {"name": mark(tool.name)}
        if tool.description:
            function["description"] = mark(tool.description)
        parameters = decode_object(tool.parameters, "tools")
        function["parameters"] = mark_strings(parameters, mark)
        return {"type": "function", "function": function}

    def _with_calls(
        self, written: dict[str, Any], message: ChatMessage, mark: Mark
    ) -> dict[str, Any]:
        """The message with its tool calls, if it has any."""
        if not message.tool_calls:
            return written
        calls = [self._write_call(call, mark) for call in message.tool_calls]
        content = written["content"] if message.content else None
        return written | {"content": content, "tool_calls": calls}

    def _write_call(self, call: ToolCall, mark: Mark) -> dict[str, Any]:
        """A call; what is no JSON object goes through as the text it is."""
        arguments: Any = mark(call.arguments)
        try:
            decoded = decode_json(call.arguments)
        except ValueError:
            decoded = None
        if isinstance(decoded, dict):
            arguments = _Arguments(mark_strings(cast(object, decoded), mark))
        function = {"name": mark(call.name), "arguments": arguments}
        return {"id": mark(self._write_id(call.id)), "type": "function", "function": function}

    def _write_id(self, call_id: str) -> str:
        """The id, or its digest where the family's ids are nine letters and digits."""
        if not self._has_short_ids or _SHORT_ID.fullmatch(call_id):
            return call_id
        return hashlib.sha256(call_id.encode()).hexdigest()[:9]

    def _in_words(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The conversation for a template that knows no tools: they and their calls become text."""
        plain = [_describe_tools(tools)] if tools else []
        joins = bool(tools)  # our words and the conversation's own first become one system message
        for message in messages:
            text = message["content"] or ""
            is_result = message["role"] == "tool" and not self._knows_results
            if is_result:
                message = {"role": "user", "content": f"{_RESULT_BEGIN}{text}{_RESULT_END}"}
            elif calls := message.get("tool_calls"):
                spelled = [_spell_call(call["function"]) for call in calls]
                content = "\n".join(filter(None, [text, *spelled]))
                message = {"role": message["role"], "content": content}
            if joins and plain[-1]["role"] == message["role"]:
                content = f"{plain[-1]['content']}\n\n{message['content']}"
                plain[-1] = plain[-1] | {"content": content}
            else:
                plain.append(message)
            joins = is_result
        return plain


def check_tools(tools: Sequence[Tool]) -> Sequence[Tool]:
    """`tools`, if there are not too many and each has a name of its own.

    Raises: `InvalidRequest`.
    """
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"There are more than {MAX_TOOLS} tools.", param="tools")
    if not all(0 < len(tool.name) <= MAX_NAME_CHARS for tool in tools):
        raise InvalidRequest(
            f"A tool's name must have 1 to {MAX_NAME_CHARS} characters.", param="tools"
        )
    if len({tool.name for tool in tools}) < len(tools):
        raise InvalidRequest("Two tools have the same name.", param="tools")
    return tools


def count_chars(prompt: ChatPrompt) -> int:
    """The size of the conversation's text in characters, without what a template adds."""
    return sum(map(len, list_texts(prompt)))


def list_texts(prompt: ChatPrompt) -> Iterator[str]:
    """All text that came from outside."""
    for message in prompt.messages:
        yield message.content
        yield message.name or ""
        yield message.tool_call_id or ""
        yield message.reasoning or ""
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments)
    for tool in prompt.tools:
        yield from (tool.name, tool.description, tool.parameters)


def _write_effort(effort: str | None) -> dict[str, Any]:
    """The variables by which templates turn thinking on and off, or up and down."""
    if effort is None:
        return {}
    if not _EFFORT.fullmatch(effort):
        raise InvalidRequest(
            "`reasoning_effort` must be a word of at most 16 letters.", param="reasoning_effort"
        )
    is_on = effort != _NO_EFFORT
    switches = {"enable_thinking": is_on, "thinking": is_on}
    return switches | {"reasoning_effort": effort} if is_on else switches


def _describe_tools(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """A system message that says which tools there are and how they are called."""
    spelling = HERMES.spelling
    example = spelling.call_begin + "NAME" + spelling.middle + "{…}" + spelling.call_end
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    content = _TOOLS_IN_WORDS.format(tools=listed, example=example)
    return {"role": "system", "content": content}


def _spell_call(function: dict[str, Any]) -> str:
    """A call as text."""
    spelling = HERMES.spelling
    arguments = str(function["arguments"])
    return spelling.call_begin + function["name"] + spelling.middle + arguments + spelling.call_end
