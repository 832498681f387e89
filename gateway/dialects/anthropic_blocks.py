"""Anthropic's turns, taken apart into plain ones.

A user's turn may hold results of tools, which become turns of their own, and an assistant's turn
text, thoughts and calls at once. What is no text is known by its name, to be refused by it.
Must not know sampling. Read next: `contracts.inference`.
"""

from typing import Annotated, Any, Literal

import msgspec

from contracts.inference import ChatMessage, ToolCall
from gateway.dialects.json_text import to_json_text
from gateway.dialects.messages import Identifier, refuse_content


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """Text."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """What the model thought in an earlier turn."""

    thinking: str


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag="redacted_thinking"):
    """Thoughts that only their author can read; they are left out."""


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    """A call that the model made."""

    id: Identifier
    name: Identifier
    input: dict[str, Any] = {}  # msgspec copies an empty default


class ImageBlock(msgspec.Struct, frozen=True, tag="image"):
    """A picture, which no model here can read yet."""


class DocumentBlock(msgspec.Struct, frozen=True, tag="document"):
    """A file; refused like a picture."""


class SearchResultBlock(msgspec.Struct, frozen=True, tag="search_result"):
    """What a search found, to be cited; refused like a picture."""


UnservedBlock = ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result"):
    """What a call gave."""

    tool_use_id: Identifier
    content: str | tuple[TextBlock | UnservedBlock, ...] | None = None


Block = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | UnservedBlock
)
SystemText = str | tuple[TextBlock, ...]


class InputTurn(msgspec.Struct, frozen=True):
    """One turn as clients write it."""

    role: Literal["user", "assistant", "system"]
    content: str | tuple[Block, ...]


InputTurns = Annotated[tuple[InputTurn, ...], msgspec.Meta(min_length=1)]


def to_turns(system: SystemText | None, turns: tuple[InputTurn, ...]) -> tuple[ChatMessage, ...]:
    """The conversation as nodes read it.

    Raises: `InvalidRequest` for arguments without end, `UnsupportedFeature` for what is no text.
    """
    messages: list[ChatMessage] = []
    if system:
        messages.append(ChatMessage(role="system", content=_join(system)))
    for turn in turns:
        if isinstance(turn.content, str):
            messages.append(ChatMessage(role=turn.role, content=turn.content))
        elif turn.role == "assistant":
            messages.append(_to_answer(turn.content))
        else:
            messages += _split_turn(turn.role, turn.content)
    return tuple(messages)


def _to_answer(blocks: tuple[Block, ...]) -> ChatMessage:
    """What the model said, thought and called in one turn."""
    _refuse_unserved(blocks)
    thoughts = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    return ChatMessage(
        role="assistant",
        content="".join(block.text for block in blocks if isinstance(block, TextBlock)),
        tool_calls=tuple(
            ToolCall(id=block.id, name=block.name, arguments=to_json_text(block.input, "messages"))
            for block in blocks
            if isinstance(block, ToolUseBlock)
        ),
        reasoning=thoughts or None,
    )


def _split_turn(role: str, blocks: tuple[Block, ...]) -> list[ChatMessage]:
    """The results of tools, each a turn, and the text before, between and after them."""
    _refuse_unserved(blocks)
    messages: list[ChatMessage] = []
    texts: list[str] = []
    for block in blocks:
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ToolResultBlock):
            if texts:
                messages.append(ChatMessage(role=role, content="".join(texts)))
                texts = []
            result = _join(block.content or "")
            messages.append(
                ChatMessage(role="tool", content=result, tool_call_id=block.tool_use_id)
            )
    if texts or not messages:
        messages.append(ChatMessage(role=role, content="".join(texts)))
    return messages


def _join(content: str | tuple[TextBlock | UnservedBlock, ...]) -> str:
    """One text."""
    if isinstance(content, str):
        return content
    _refuse_unserved(content)
    return "".join(block.text for block in content if isinstance(block, TextBlock))


def _refuse_unserved(blocks: tuple[Block, ...]) -> None:
    """Raises: `UnsupportedFeature` for the first block that no model here can read."""
    for block in blocks:
        if isinstance(block, UnservedBlock):
            kind = block.__struct_config__.tag
            raise refuse_content(str(kind), "messages")
