"""Conversations as clients write them, and as nodes read them.

Owns the many forms of a message's content and of the tool calls inside it; what comes out is plain.
Must not know sampling. Read next: `gateway.dialects.chat_fields`.
"""

from typing import Annotated, Any, Final, cast

import msgspec

from contracts.errors import InvalidRequest, UnsupportedFeature
from contracts.inference import ChatMessage, ToolCall
from gateway.dialects.json_text import to_json_text

Identifier = Annotated[str, msgspec.Meta(max_length=256)]
Role = Annotated[
    str,
    msgspec.Meta(
        min_length=1, max_length=64, extra_json_schema={"pattern": "^[A-Za-z][A-Za-z0-9_-]*$"}
    ),
]
"""Nodes check what it is made of, and that it spells no control token of the model."""
TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal"})
_DEVELOPER: Final = "developer"
_SYSTEM: Final = "system"


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content; only text is served yet."""

    type: Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(TEXT_PARTS)})]
    text: str | None = None
    refusal: str | None = None
    """What another model said instead of an answer: text like any other."""


class InputFunction(msgspec.Struct, frozen=True):
    """What an earlier turn called."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    arguments: str | dict[str, Any] | None = None
    """A JSON text or, from some clients, the object itself."""


class InputToolCall(msgspec.Struct, frozen=True):
    """A call of an earlier turn, in OpenAI's form (`function`) or flat (`name`, `arguments`)."""

    id: Identifier | None = None
    type: str | None = None
    function: InputFunction | None = None
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    arguments: str | dict[str, Any] | None = None


NamedToolCall = Annotated[
    InputToolCall,
    msgspec.Meta(
        extra_json_schema={
            "anyOf": [
                {"required": ["function"], "properties": {"function": {"type": "object"}}},
                {"required": ["name"], "properties": {"name": {"type": "string"}}},
            ]
        }
    ),
]
"""One that says which function, as `_to_tool_call` demands."""


class InputMessage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One turn as clients write it. Field names are those of `ChatMessage`; see below."""

    role: Role
    content: str | tuple[ContentPart, ...] | ContentPart | None = None
    name: Identifier | None = None
    tool_calls: tuple[NamedToolCall, ...] | None = None
    tool_call_id: Identifier | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


InputMessages = Annotated[tuple[InputMessage, ...], msgspec.Meta(min_length=1)]


def to_chat_messages(messages: tuple[InputMessage, ...]) -> tuple[ChatMessage, ...]:
    """The conversation with every content as one text.

    Raises: `UnsupportedFeature` for content that is not text, `InvalidRequest` for a tool call
    without a name.
    """
    if _are_plain(messages):
        # With nothing but text inside, these are `ChatMessage`s in all but name: the same fields,
        # encoded alike. Copying each turn would be a tenth of a long request.
        return cast("tuple[ChatMessage, ...]", messages)
    return tuple(_to_chat_message(item) for item in messages)


def _are_plain(messages: tuple[InputMessage, ...]) -> bool:
    """True when there is nothing but text inside; a loop, for long requests have many turns."""
    for item in messages:
        if type(item.content) is not str or item.tool_calls is not None:
            return False
        if item.reasoning_content is not None or item.role == _DEVELOPER:
            return False
    return True


def join_content(
    content: str | tuple[ContentPart, ...] | ContentPart | None, param: str = "messages"
) -> str:
    """One text from parts, a single part or nothing; `param` is where it stands.

    Raises: `UnsupportedFeature`, naming what is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    parts = (content,) if isinstance(content, ContentPart) else content
    for part in parts:
        if part.type not in TEXT_PARTS:
            raise refuse_content(part.type, param)
    return "".join(part.text or part.refusal or "" for part in parts)


def refuse_content(kind: str, param: str) -> UnsupportedFeature:
    """The error of content that no model here can read, such as images."""
    return UnsupportedFeature(
        f"Content of type `{kind[:64]}` is not supported yet, only text is.", param=param
    )


def _to_chat_message(message: InputMessage) -> ChatMessage:
    """One turn."""
    return ChatMessage(
        role=_SYSTEM if message.role == _DEVELOPER else message.role,
        content=join_content(message.content),
        name=message.name,
        tool_calls=tuple(
            _to_tool_call(call, index) for index, call in enumerate(message.tool_calls or ())
        ),
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning_content or message.reasoning,
    )


def _to_tool_call(call: InputToolCall, index: int) -> ToolCall:
    """A call of an earlier turn; one without an id gets one that only its turn knows."""
    name, arguments = call.name, call.arguments
    if call.function is not None:
        name, arguments = call.function.name, call.function.arguments
    if name is None:
        raise InvalidRequest("A tool call does not say which function.", param="messages")
    if not isinstance(arguments, str):
        arguments = to_json_text(arguments or {}, "messages")
    return ToolCall(id=call.id or f"call_{index}", name=name, arguments=arguments)
