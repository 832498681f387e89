"""JSON that clients send inside texts: schemas of tools, arguments of calls.

Owns decoding within limits; must not know what the values mean. Read next: `conversation`.
"""

import json
from collections.abc import Callable
from typing import Any, Final, cast

from contracts.errors import InvalidRequest

MAX_JSON_DEPTH: Final = 64


def decode_object(text: str, param: str) -> dict[str, Any]:
    """The JSON object in `text`. Raises: `InvalidRequest` naming `param`."""
    try:
        value = decode_json(text)
    except ValueError as error:
        raise InvalidRequest(
            f"A JSON text of `{param}` cannot be read: {error}.", param=param
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"A JSON text of `{param}` is not an object.", param=param)
    return cast(dict[str, Any], value)


def decode_json(text: str) -> object:
    """The value in `text`. Raises: `ValueError`, also where it is nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if measure_depth(value) > MAX_JSON_DEPTH:
        raise ValueError("it is nested too deeply")
    return value


def measure_depth(value: object) -> int:
    """How many objects and lists stand inside each other, counted no further than the limit."""
    level, depth = [value], 0
    while level and depth <= MAX_JSON_DEPTH:
        depth += 1
        level = [inner for item in level for inner in list_items(item)]
    return depth


def list_items(value: object) -> list[object]:
    """What an object or a list holds; nothing of other values."""
    if isinstance(value, dict):
        return list(cast(dict[str, object], value).values())
    if isinstance(value, list):
        return cast(list[object], value)
    return []


def mark_strings(value: object, mark: Callable[[str], str]) -> Any:
    """`value` with all its strings marked, names of members included."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, dict):
        members = cast(dict[str, object], value)
        return {mark(name): mark_strings(item, mark) for name, item in members.items()}
    if isinstance(value, list):
        return [mark_strings(item, mark) for item in cast(list[object], value)]
    return value
