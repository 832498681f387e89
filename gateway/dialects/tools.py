"""Tools as clients declare them, and how they may be used.

Owns the flat and OpenAI's form of a declaration and every spelling of a choice. Must not know how
a model is told of tools: its node renders them. Read next: `gateway.dialects.chat_fields`.
"""

from typing import Annotated, Any, Final, Literal

import msgspec

from contracts.errors import InvalidRequest, UnsupportedFeature
from contracts.inference import Tool, ToolChoice, ToolChoiceMode
from gateway.dialects.json_text import to_json_text

ToolName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.\-]{1,128}$(?!\n)")]
MAX_TOOLS: Final = 256
_MODES: Final = {
    "auto": ToolChoiceMode.AUTO,
    "none": ToolChoiceMode.NONE,
    "required": ToolChoiceMode.REQUIRED,
    "any": ToolChoiceMode.REQUIRED,
}
_FUNCTION: Final = "function"
_ALLOWED: Final = "allowed_tools"


class FunctionTool(msgspec.Struct, frozen=True):
    """A function that may be called."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """The JSON Schema of its arguments."""


class InputTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool in OpenAI's form (`function`) or flat, as it is repeated where an answer does that."""

    type: str | None = None
    function: FunctionTool | None = None
    name: ToolName | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Only repeated: arguments are always held to their schema."""


class NamedFunction(msgspec.Struct, frozen=True):
    """The function that must be called."""

    name: str


class AllowedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the tools that may be called."""

    type: str
    function: NamedFunction | None = None
    name: str | None = None
    """The flat form of `function`."""


class AllowedTools(msgspec.Struct, frozen=True):
    """Some of the declared tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[tuple[AllowedTool, ...], msgspec.Meta(min_length=1, max_length=MAX_TOOLS)]


class InputToolChoice(AllowedTool, frozen=True, omit_defaults=True):
    """A choice as an object."""

    allowed_tools: AllowedTools | None = None
    mode: Literal["auto", "required"] | None = None
    """With `tools` the flat form of `allowed_tools`."""
    tools: tuple[AllowedTool, ...] | None = None


InputTools = Annotated[tuple[InputTool, ...], msgspec.Meta(max_length=MAX_TOOLS)]


def to_tools(
    tools: tuple[InputTool, ...] | None, choice: str | InputToolChoice | None
) -> tuple[Tool, ...]:
    """The declared functions; of these the ones that `choice` allows, if it lists some.

    Raises: `InvalidRequest`, `UnsupportedFeature`.
    """
    if not tools:
        return ()
    found = tuple(_to_tool(tool) for tool in tools)
    names = {tool.name for tool in found}
    if len(names) < len(found):
        raise InvalidRequest("Two tools have the same name.", param="tools")
    allowed = _find_allowed(choice)
    if allowed is None:
        return found
    wanted = {_find_name(tool) for tool in allowed.tools}
    if not wanted <= names:
        raise _refuse_undeclared()
    return tuple(tool for tool in found if tool.name in wanted)


def to_tool_choice(
    choice: str | InputToolChoice | None, is_parallel: bool | None, tools: tuple[Tool, ...]
) -> ToolChoice:
    """How `tools` may be used.

    Raises: `InvalidRequest` for a choice that no tool fits, `UnsupportedFeature`.
    """
    mode, name = _read_choice(choice)
    if mode is ToolChoiceMode.REQUIRED and not tools:
        raise InvalidRequest("`tool_choice` demands a call, but no tools are given.", param="tools")
    if name is not None and all(tool.name != name for tool in tools):
        raise _refuse_undeclared()
    return ToolChoice(mode=mode, name=name, is_parallel=is_parallel is not False)


def create_tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> Tool:
    """A declared function, its schema as a text. Raises: `InvalidRequest`."""
    return Tool(
        name=name,
        description=description or "",
        parameters="{}" if not parameters else to_json_text(parameters, "tools"),
    )


def _to_tool(tool: InputTool) -> Tool:
    """One function, from either form."""
    if tool.type not in (None, _FUNCTION):
        raise UnsupportedFeature(
            f"Tools of type `{tool.type[:64]}` are not supported.", param="tools"
        )
    if tool.function is not None:
        inner = tool.function
        return create_tool(inner.name, inner.description, inner.parameters)
    if tool.name is None:
        raise InvalidRequest("A tool has no name.", param="tools")
    return create_tool(tool.name, tool.description, tool.parameters)


def _read_choice(choice: str | InputToolChoice | None) -> tuple[ToolChoiceMode, str | None]:
    """The mode, and the one tool that must be called if one is named."""
    if choice is None:
        return ToolChoiceMode.AUTO, None
    if isinstance(choice, str):
        mode = _MODES.get(choice)
        if mode is None:
            raise InvalidRequest(
                "`tool_choice` must be `auto`, `none`, `required` or name a function.",
                param="tool_choice",
            )
        return mode, None
    if choice.type in _MODES:
        return _MODES[choice.type], None
    allowed = _find_allowed(choice)
    if allowed is not None:
        return _MODES[allowed.mode], None
    return ToolChoiceMode.REQUIRED, _find_name(choice)


def _find_allowed(choice: str | InputToolChoice | None) -> AllowedTools | None:
    """The tools that a choice of either form is limited to, None if it has no list."""
    if choice is None or isinstance(choice, str) or choice.type != _ALLOWED:
        return None
    if choice.allowed_tools is not None:
        return choice.allowed_tools
    if choice.mode is None or not choice.tools:
        raise InvalidRequest(
            "`tool_choice` with allowed tools needs `mode` and `tools`.", param="tool_choice"
        )
    return AllowedTools(choice.mode, choice.tools)


def _find_name(choice: AllowedTool) -> str:
    """The function that `choice` means."""
    if choice.type != _FUNCTION:
        raise UnsupportedFeature(
            f"`tool_choice` of type `{choice.type[:64]}` is not supported.", param="tool_choice"
        )
    name = choice.name if choice.function is None else choice.function.name
    if name is None:
        raise InvalidRequest("`tool_choice` does not say which function.", param="tool_choice")
    return name


def _refuse_undeclared() -> InvalidRequest:
    return InvalidRequest("`tool_choice` names a tool that is not declared.", param="tool_choice")
