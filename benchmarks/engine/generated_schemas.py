"""JSON Schemas drawn at random, of every keyword that can be enforced, none of them too large.

`draw_schema(random)` gives another schema for each state of `random`; all can be satisfied.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

Schema = dict[str, Any]

_NAMES: Final = ("name", "age", "city", "tags", "id", "is open", "größe", 'a"b', "x/y", "$ref2")
_PATTERNS: Final = (
    "^[a-z]{1,6}$",
    "^(yes|no)$",
    "[0-9]{2}",
    "^A-[A-Z]{2}-[0-9]{3}$",
    "^\\d{3}-\\w+$",
    "^[^x]{0,5}$",
)
_FORMATS: Final = ("date", "date-time", "time", "uuid", "email", "ipv4", "ipv6", "hostname")
_VALUES: Final = (
    "red",
    "grün",
    'quo"te',
    "",
    0,
    1,
    -7,
    2.5,
    True,
    False,
    None,
    ["a", 1],
    {"k": []},
)


def draw_schema(random: Random, depth: int = 3) -> Schema:
    """A schema whose values nest at most about `depth` deep."""
    leaves = (_draw_string, _draw_number, _draw_integer, _draw_enum, _draw_const, _draw_simple)
    nodes = (_draw_object, _draw_array, _draw_any_of, _draw_one_of, _draw_all_of, _draw_tree)
    if depth == 3:
        return random.choice((_draw_object, _draw_object, *nodes))(random, depth)
    draw: Callable[[Random, int], Schema] = random.choice(leaves + nodes if depth else leaves)
    return draw(random, depth)


def list_schemas(seed: int, count: int) -> list[str]:
    """`count` different schemas as JSON texts."""
    random = Random(seed)
    schemas: dict[str, None] = {}
    while len(schemas) < count:
        schemas[json.dumps(draw_schema(random))] = None
    return list(schemas)


def _draw_string(random: Random, _: int) -> Schema:
    kind = random.randrange(4)
    if kind == 0:
        low = random.randrange(4)
        return {"type": "string", "minLength": low, "maxLength": low + random.randrange(12)}
    if kind == 1:
        return {"type": "string", "pattern": random.choice(_PATTERNS)}
    if kind == 2:
        return {"type": "string", "format": random.choice(_FORMATS)}
    return {"type": "string", "description": "Any text.", "maxLength": 40}


def _draw_integer(random: Random, _: int) -> Schema:
    low = random.randrange(-50, 50)
    schema: Schema = {"type": "integer"}
    if random.random() < 0.5:
        schema["minimum" if random.random() < 0.5 else "exclusiveMinimum"] = low
    if random.random() < 0.7:
        schema["maximum" if random.random() < 0.5 else "exclusiveMaximum"] = low + 60
    if random.random() < 0.2:
        schema["multipleOf"] = random.choice((2, 3, 5, 10))
    return schema


def _draw_number(random: Random, _: int) -> Schema:
    low = random.randrange(-50, 50) / 4
    schema: Schema = {"type": "number"}
    if random.random() < 0.6:
        schema["minimum"] = low
    if random.random() < 0.6:
        schema["exclusiveMaximum"] = low + 10.5
    return schema


def _draw_enum(random: Random, _: int) -> Schema:
    return {"enum": random.sample(_VALUES, random.randrange(1, 6))}


def _draw_const(random: Random, _: int) -> Schema:
    return {"const": random.choice(_VALUES)}


def _draw_simple(random: Random, _: int) -> Schema:
    return {"type": random.choice(("boolean", "null", ["boolean", "null"], ["integer", "null"]))}


def _draw_object(random: Random, depth: int) -> Schema:
    names = random.sample(_NAMES, random.randrange(1, 5))
    properties = {name: draw_schema(random, depth - 1) for name in names}
    schema: Schema = {"type": "object", "properties": properties}
    schema["required"] = [name for name in names if random.random() < 0.6]
    kind = random.randrange(4)
    if kind < 2:
        schema["additionalProperties"] = False
    elif kind == 2:
        schema["additionalProperties"] = {"type": "integer", "minimum": 0, "maximum": 9}
        schema["additionalProperties"] = random.choice((schema["additionalProperties"], False))
    if random.random() < 0.1:
        schema["patternProperties"] = {"^p_[a-z]{1,3}$": {"type": "boolean"}}
        schema["additionalProperties"] = False
    return schema


def _draw_array(random: Random, depth: int) -> Schema:
    schema: Schema = {"type": "array", "items": draw_schema(random, depth - 1)}
    low = random.randrange(3)
    if random.random() < 0.5:
        schema["minItems"] = low
    schema["maxItems"] = low + random.randrange(4)
    if random.random() < 0.3:
        schema["prefixItems"] = [draw_schema(random, depth - 1) for _ in range(2)]
    return schema


def _draw_any_of(random: Random, depth: int) -> Schema:
    return {"anyOf": [draw_schema(random, depth - 1) for _ in range(random.randrange(1, 4))]}


def _draw_one_of(random: Random, _: int) -> Schema:
    types = random.sample(("string", "integer", "boolean", "null"), random.randrange(1, 4))
    return {
        "oneOf": [{"type": kind} | ({"maxLength": 9} if kind == "string" else {}) for kind in types]
    }


def _draw_all_of(random: Random, depth: int) -> Schema:
    first = _draw_object(random, depth)
    first.pop("additionalProperties", None)
    first.pop("patternProperties", None)
    second = {"type": "object", "required": list(first["properties"])[:1]}
    return {"allOf": [first, second]}


def _draw_tree(random: Random, depth: int) -> Schema:
    leaf = draw_schema(random, 0)
    node: Schema = {
        "type": "object",
        "properties": {
            "value": leaf,
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    if depth < 3:  # definitions stand at the root only
        return leaf
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}
