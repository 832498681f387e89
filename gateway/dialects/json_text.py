"""Decoded JSON back into a text, for what travels to nodes unread.

Read next: `gateway.dialects.strict_json`, where it was decoded.
"""

from typing import Any

import msgspec

from contracts.errors import InvalidRequest


def to_json_text(value: Any, param: str) -> str:
    """`value` as JSON. Raises: `InvalidRequest` when it is nested too deeply."""
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError as error:
        raise InvalidRequest(f"`{param}` is nested too deeply.", param=param) from error
