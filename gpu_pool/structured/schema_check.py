"""Which JSON Schemas can be enforced: everything else is refused by the name of its keyword.

Owns the keywords, their pitfalls and the limits of size; what a schema costs to enforce is tried
out in `grammar_trial`. Annotations and unknown members mean nothing (JSON Schema 2020-12, core 6.5)
and are left out. Must not know grammars. Read next: `grammar_text`.
"""

import json
import math
from typing import Any, Final, cast

from contracts.errors import InvalidRequest

MAX_SCHEMA_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 64
"""Schemas inside schemas."""

_VALUES: Final = frozenset(
    (
        "type",
        "enum",
        "const",
        "required",
        "pattern",
        "format",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "$ref",
    )
)
_SCHEMAS: Final = frozenset(("additionalProperties", "additionalItems", "items"))
_LISTS: Final = frozenset(("anyOf", "oneOf", "allOf", "prefixItems", "items"))
_MAPS: Final = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_NUMBERS: Final = frozenset(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
)
_UNSUPPORTED: Final = frozenset(
    (
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$recursiveRef",
        "extends",
        "disallow",
        "divisibleBy",
    )
)
"""Keywords of any draft that restrict values in ways that no grammar of ours expresses."""
_NAMES: Final = "propertyNames"

Schema = dict[str, Any] | bool


def check_schema(text: str, param: str) -> Schema:
    """The schema in `text`, with nothing left in it but what is enforced.

    Raises: `InvalidRequest` naming `param`, and the keyword that is at fault.
    """
    if len(text.encode()) > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"The schema is larger than {MAX_SCHEMA_BYTES} bytes.", param=param)
    try:
        return _Checker(param).check(json.loads(text, parse_constant=_refuse_constant), 1)
    except RecursionError as error:
        raise InvalidRequest("The schema is nested too deeply.", param=param) from error
    except ValueError as error:
        raise InvalidRequest("The schema is not valid JSON.", param=param) from error


class _Checker:
    """One schema on its way; `param` is the request's field that carries it."""

    def __init__(self, param: str) -> None:
        """Nothing has been checked."""
        self._param = param

    def check(self, value: object, depth: int) -> Schema:
        """`value` as a schema at `depth`. Raises: `InvalidRequest`."""
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise self._refuse("A schema must be an object or a boolean.")
        if depth > MAX_DEPTH:
            raise self._refuse(f"The schema is nested more than {MAX_DEPTH} deep.")
        schema = cast(dict[str, object], value)
        checked: dict[str, Any] = {}
        for keyword, content in schema.items():
            if keyword in _UNSUPPORTED and not (keyword == "uniqueItems" and content is False):
                raise self._refuse(f"The schema's keyword `{keyword}` is not supported.")
            if keyword in _VALUES:
                checked[keyword] = self._check_value(keyword, content)
            elif keyword in _MAPS:
                checked[keyword] = self._check_map(keyword, content, depth)
            elif keyword in _LISTS and isinstance(content, list):
                items = cast(list[object], content)
                checked[keyword] = [self.check(item, depth + 1) for item in items]
            elif keyword in _SCHEMAS:
                checked[keyword] = self.check(content, depth + 1)
            elif keyword in _LISTS:
                raise self._refuse(f"The schema's `{keyword}` must be a list.")
        if _NAMES in schema:
            self._bind_names(checked, self.check(schema[_NAMES], depth + 1))
        self._check_number_of_properties(checked)
        return checked

    def _check_value(self, keyword: str, content: object) -> object:
        """The content of a keyword that holds no schema."""
        if keyword in _NUMBERS and not _is_finite_number(content):
            raise self._refuse(f"The schema's `{keyword}` must be a number.")
        if keyword == "$ref" and not (
            isinstance(content, str) and (content == "#" or content.startswith("#/"))
        ):
            raise self._refuse("The schema's keyword `$ref` may only point into the schema itself.")
        return content

    def _check_map(self, keyword: str, content: object, depth: int) -> dict[str, Schema]:
        """Schemas by name."""
        if not isinstance(content, dict):
            raise self._refuse(f"The schema's `{keyword}` must be an object.")
        members = cast(dict[str, object], content)
        return {name: self.check(member, depth + 1) for name, member in members.items()}

    def _bind_names(self, schema: dict[str, Any], names: Schema) -> None:
        """Writes into `schema` which names its properties may have: all, or those of a list.

        Names are texts, so that demanding texts (as zod does) demands nothing.
        """
        rules: dict[str, Any] = {} if names is True else {"enum": []} if names is False else names
        if not rules.keys() <= {"type", "enum"} or rules.get("type", "string") != "string":
            raise self._refuse(f"The schema's keyword `{_NAMES}` is only supported with `enum`.")
        if "enum" not in rules:
            return
        if "patternProperties" in schema or not isinstance(rules["enum"], list):
            raise self._refuse(f"The schema's keyword `{_NAMES}` cannot be combined like this.")
        described, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        listed = [name for name in cast(list[object], rules["enum"]) if isinstance(name, str)]
        schema["properties"] = {name: described.get(name, others) for name in listed}
        schema["additionalProperties"] = False

    def _check_number_of_properties(self, schema: dict[str, Any]) -> None:
        """Refuses `minProperties` where a name may be written twice, which counts once."""
        if not schema.get("minProperties"):
            schema.pop("minProperties", None)
            return
        is_closed = schema.get("additionalProperties") is False and "properties" in schema
        if not is_closed or "patternProperties" in schema:
            raise self._refuse(
                "The schema's keyword `minProperties` is only supported beside `properties` and "
                "`additionalProperties: false`."
            )

    def _refuse(self, sentence: str) -> InvalidRequest:
        """The error that says why."""
        return InvalidRequest(sentence, param=self._param)


def _is_finite_number(value: object) -> bool:
    """True for numbers of JSON that a double can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _refuse_constant(name: str) -> object:
    """`NaN` and its like are no JSON."""
    raise ValueError(name)
