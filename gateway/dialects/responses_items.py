"""The input of OpenAI's Responses API: items of several kinds, taken apart into plain turns.

Calls that follow one another belong to one turn of the model; what it thought goes with what it
said next. Must not know sampling. Read next: `gateway.dialects.responses`.
"""

from typing import Annotated, Final

import msgspec

from contracts.errors import InvalidRequest, UnsupportedFeature
from contracts.inference import ChatMessage, ToolCall
from gateway.dialects.messages import ContentPart, Identifier, Role, join_content

_ASSISTANT: Final = "assistant"
_SYSTEM: Final = "system"


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item; which fields count depends on `type`, which messages may leave out."""

    type: str = "message"
    role: Role | None = None
    content: str | tuple[ContentPart, ...] | None = None
    call_id: Identifier | None = None
    name: Identifier | None = None
    arguments: str | None = None
    output: str | tuple[ContentPart, ...] | None = None
    """What a call gave."""


InputItems = Annotated[tuple[InputItem, ...], msgspec.Meta(min_length=1)]


def to_item_messages(
    instructions: str | None, items: str | tuple[InputItem, ...]
) -> tuple[ChatMessage, ...]:
    """The conversation. Raises: `InvalidRequest`, `UnsupportedFeature`."""
    turns = _Turns()
    if instructions:
        turns.say(_SYSTEM, instructions)
    if isinstance(items, str):
        turns.say("user", items)
    else:
        for item in items:
            turns.add(item)
    return turns.finish()


class _Turns:
    """Turns while they are gathered."""

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._text = ""
        self._calls: list[ToolCall] = []
        self._reasoning: str | None = None

    def add(self, item: InputItem) -> None:
        """Takes one item in. Raises: `InvalidRequest`, `UnsupportedFeature`."""
        match item.type:
            case "message":
                if item.role is None:
                    raise InvalidRequest("A message has no role.", param="input")
                self.say(item.role, join_content(item.content, "input"))
            case "function_call":
                self._call(item)
            case "function_call_output":
                if item.call_id is None:
                    raise InvalidRequest("A call's output has no `call_id`.", param="input")
                self._flush()
                output = join_content(item.output, "input")
                self._messages.append(
                    ChatMessage(role="tool", content=output, tool_call_id=item.call_id)
                )
            case "reasoning":
                self._flush()
                self._reasoning = _join_thoughts(item.content) or None
            case _:
                raise UnsupportedFeature(
                    f"Input items of type `{item.type[:64]}` are not supported.", param="input"
                )

    def say(self, role: str, text: str) -> None:
        """A turn of text; the model's may go on with calls."""
        if role == _ASSISTANT:
            if self._text or self._calls:
                self._flush()
            self._text = text
            return
        self._flush()
        self._messages.append(
            ChatMessage(role=_SYSTEM if role == "developer" else role, content=text)
        )

    def finish(self) -> tuple[ChatMessage, ...]:
        """All turns."""
        self._flush()
        return tuple(self._messages)

    def _call(self, item: InputItem) -> None:
        """A call that the model made, in the turn that is open."""
        if item.call_id is None or item.name is None:
            raise InvalidRequest("A function call needs `call_id` and `name`.", param="input")
        self._calls.append(
            ToolCall(id=item.call_id, name=item.name, arguments=item.arguments or "{}")
        )

    def _flush(self) -> None:
        """Ends the model's turn, if one is open."""
        if self._text or self._calls:
            self._messages.append(
                ChatMessage(
                    role=_ASSISTANT,
                    content=self._text,
                    tool_calls=tuple(self._calls),
                    reasoning=self._reasoning,
                )
            )
            self._text, self._calls, self._reasoning = "", [], None


def _join_thoughts(content: str | tuple[ContentPart, ...] | None) -> str:
    """The text of a reasoning item, whose parts have a type of their own."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text or "" for part in content)
