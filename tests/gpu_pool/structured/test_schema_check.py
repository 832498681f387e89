"""Schemas: what can be enforced passes, everything else is named."""

import json
from typing import Any

import pytest

from benchmarks.engine.generated_schemas import list_schemas
from contracts.errors import InvalidRequest
from gpu_pool.structured.schema_check import MAX_DEPTH, check_schema


def check(schema: object) -> Any:
    return check_schema(json.dumps(schema), "response_format")


@pytest.mark.parametrize(
    "keyword",
    [
        "not",
        "if",
        "contains",
        "uniqueItems",
        "dependencies",
        "dependentRequired",
        "unevaluatedProperties",
        "$dynamicRef",
    ],
)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_keyword_that_cannot_be_enforced_is_named(keyword: str, depth: int) -> None:
    schema: dict[str, Any] = {keyword: {"type": "string"}}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"inner": {"anyOf": [schema]}}}
    with pytest.raises(InvalidRequest, match=f"`{keyword.replace('$', '[$]')}`") as refusal:
        check(schema)
    assert refusal.value.param == "response_format"


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (5, "object or a boolean"),
        ({"properties": []}, "`properties` must be an object"),
        ({"anyOf": {}}, "`anyOf` must be a list"),
        ({"items": 5}, "object or a boolean"),
        ({"$ref": "http://example.com/schema"}, "`[$]ref` may only point into"),
        ({"$ref": "#anchor"}, "`[$]ref` may only point into"),
        ({"$ref": 5}, "`[$]ref` may only point into"),
        ({"minimum": "1"}, "`minimum` must be a number"),
        ({"exclusiveMinimum": True, "minimum": 1}, "`exclusiveMinimum` must be a number"),
        ({"maximum": 10**400}, "`maximum` must be a number"),
        ({"minProperties": 2}, "`minProperties` is only supported"),
    ],
)
def test_what_is_malformed_is_named(schema: object, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        check(schema)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not valid JSON"),
        ('{"const": NaN}', "not valid JSON"),
        ('{"enum": [' + ",".join(map(str, range(1_000_000))) + "]}", "larger than"),
        ('{"items":' * 10_000 + "{}" + "}" * 10_000, "nested"),
        ('{"items":' * (MAX_DEPTH + 1) + "{}" + "}" * (MAX_DEPTH + 1), "nested more than 64"),
    ],
    ids=["cut", "NaN", "a million values", "ten thousand deep", "one too deep"],
)
def test_what_is_too_much_is_refused_before_anything_is_built(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        check_schema(text, "tools")


def test_annotations_and_unknown_members_are_left_out() -> None:
    assert check(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "T",
            "description": "D",
            "default": {"not": 1},
            "examples": [{"if": 1}],
            "x-guidance": {"lenient": True, "coerce_one_of": True},
            "uniqueItems": False,
            "type": "array",
            "items": {"type": "string", "markdownDescription": "m"},
        }
    ) == {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize("names", [True, {}, {"type": "string"}, {"title": "Name"}])
def test_names_that_may_be_any_text_demand_nothing(names: object) -> None:
    schema = {"type": "object", "additionalProperties": {"type": "number"}}
    assert check(schema | {"propertyNames": names}) == schema


def test_listed_names_become_properties_and_close_the_object() -> None:
    number, text = {"type": "number"}, {"type": "string"}
    assert check(
        {
            "type": "object",
            "propertyNames": {"type": "string", "enum": ["a", "b"]},
            "properties": {"b": text, "never": text},
            "additionalProperties": number,
            "required": ["a"],
        }
    ) == {
        "type": "object",
        "properties": {"a": number, "b": text},
        "additionalProperties": False,
        "required": ["a"],
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"pattern": "^a"}},
        {"propertyNames": {"type": "integer"}},
        {"propertyNames": {"enum": "a"}},
        {"propertyNames": {"enum": ["a"]}, "patternProperties": {"^a": True}},
    ],
)
def test_other_rules_for_names_are_refused(schema: object) -> None:
    with pytest.raises(InvalidRequest, match="`propertyNames`"):
        check(schema)


def test_names_of_properties_are_no_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {"not": {"type": "string"}, "if": True, "title": {"type": "integer"}},
        "required": ["not", "title"],
    }
    assert check(schema) == schema


def test_values_are_no_schemas() -> None:
    schema = {"anyOf": [{"enum": [{"not": 1}]}, {"const": {"if": [1]}}]}
    assert check(schema) == schema


def test_all_that_is_enforced_stays() -> None:
    for text in list_schemas(seed=3, count=200):
        checked = check_schema(text, "response_format")
        assert json.loads(text.replace('"description": "Any text.", ', "")) == checked


def test_as_deep_as_allowed_is_allowed() -> None:
    depth = MAX_DEPTH - 1
    assert check_schema('{"items":' * depth + "{}" + "}" * depth, "tools")


def test_a_closed_object_can_count_its_properties() -> None:
    schema = {"properties": {"a": True}, "additionalProperties": False, "minProperties": 1}
    assert check(schema) == schema
    assert check({"minProperties": 0}) == {}
