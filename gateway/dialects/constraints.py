"""What the shape of an answer is bound to, in the forms that clients write it.

Owns the difference between a bare JSON Schema and one in OpenAI's envelope. Must not judge schemas:
the node that enforces them names what it cannot. Read next: `gateway.dialects.chat_fields`.
"""

from typing import Any, Literal

import msgspec

from contracts.errors import InvalidRequest
from contracts.inference import Constraint, JsonConstraint, SchemaConstraint
from gateway.dialects.json_text import to_json_text


class ResponseFormat(msgspec.Struct, frozen=True):
    """The shape asked for."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None
    """The schema itself, or `{name, schema, strict}`."""


def to_constraint(response_format: ResponseFormat | None) -> Constraint | None:
    """The constraint, None for free text. Raises: `InvalidRequest`."""
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object" or response_format.json_schema is None:
        return JsonConstraint()
    return create_schema_constraint(_unwrap(response_format.json_schema), "response_format")


def create_schema_constraint(schema: Any, param: str) -> Constraint:
    """The constraint to `schema`; an empty one asks for any object. Raises: `InvalidRequest`."""
    if not isinstance(schema, dict):
        raise InvalidRequest("A JSON Schema must be an object.", param=param)
    if not schema:
        return JsonConstraint()
    return SchemaConstraint(schema=to_json_text(schema, param))


def _unwrap(schema: dict[str, Any]) -> Any:
    """The schema inside OpenAI's envelope, which has a name and says no type of its own."""
    if "schema" in schema and "type" not in schema and "properties" not in schema:
        return schema["schema"]
    if "name" in schema and set(schema) <= {"name", "description", "strict"}:
        return {}
    return schema
