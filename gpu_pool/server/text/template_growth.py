"""How much a template may make at once: told before it is made, by what it is made of.

Pure. Containers count with all that they hold, each time that they hold it: a list of two lists of
two lists takes no memory before it is written, and then all of it. Must not know Jinja's filters
nor what a rendering may take. Read next: `template_sandbox` (the caller).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, MappingView
from types import MappingProxyType
from typing import Any, Final, cast

from jinja2.exceptions import SecurityError

MAX_FACTOR: Final = 4096
_MAX_PADDING_CHARS: Final = 64
_DEFAULT_WIDTH: Final = 8
"""Of a tab; other filters pad by less."""
_WIDE: Final = re.compile(r"\d{5,}|%[^%a-zA-Z]*\*|\{[^{}]*\{")
"""A width in a format that is large, or handed in."""
_NAMED: Final = re.compile(r"%\(([^)]*)\)|\{([^{}.\[!:]+)")
"""A field of either kind of format that can stand there twice."""
_REACHING: Final = re.compile(r"\{[^{}:!]*[.\[]")
"""A field that is a part of a value."""
_HOLDERS: Final = (list, tuple, set, frozenset, MappingView)


Known = Mapping[int, tuple[object, int]]
"""Containers that were measured lately, by their ids, and their sizes."""


def measure(
    value: object, most: float, known: Known = MappingProxyType({}), each: int = 1, indent: int = 0
) -> int:
    """About how many characters `value` has when it is written, or some number beyond `most`.

    Of these `each` stand around a part, and `indent` more for each level that it is down; those
    that are `known` have none of that.
    """
    size = 0
    parts: list[tuple[Any, int]] = [(value, 0)]
    while parts and size <= most:
        one, depth = parts.pop()
        size += each + depth
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, int):
            size += one.bit_length() // 3
        elif id(one) in known:
            size += known[id(one)][1]
        elif isinstance(one, dict):
            held = cast("dict[Any, Any]", one)
            parts += [(part, depth + indent) for pair in held.items() for part in pair]
        elif isinstance(one, _HOLDERS):
            parts += [(part, depth + indent) for part in cast("Iterable[Any]", one)]
    return size


def measure_filled(form: str, values: object, most: float) -> float:
    """About how long a format is at most once `values` are in it."""
    names = Counter(_NAMED.findall(form))
    return len(form) + measure(values, most) * max(names.values(), default=1)


def measure_padded(name: str, text: str, asked: Iterable[Any]) -> int:
    """How long a text is at most that a filter or method pads, at one place or at many."""
    widths = [len(one) if isinstance(one, str) else one for one in asked if one is not text]
    widest = max([int(one) for one in widths if isinstance(one, int | float)], default=0)
    num_places = {"indent": len(text.splitlines()) + 1, "expandtabs": text.count("\t")}
    return len(text) + num_places.get(name, 1) * max(widest, _DEFAULT_WIDTH)


def measure_json(value: object, asked: Iterable[Any], most: float) -> int:
    """About how long `value` is as JSON, by what else was asked for: indents and separators."""
    indent, each = 0, 1
    for one in asked:
        if isinstance(one, list | tuple):  # separators
            each += measure(cast("Iterable[Any]", one), most)
        elif isinstance(one, int | str) and not isinstance(one, bool):
            indent = max(indent, len(one) if isinstance(one, str) else one)
    return measure(value, most, each=each, indent=indent)


def measure_translated(text: str, tables: Iterable[Any], most: float) -> float:
    """How long `text` is at most once each of its characters was looked up."""
    longest = 1
    for table in tables:
        held = cast("Mapping[Any, Any]", table).values() if isinstance(table, Mapping) else table
        longest = max([longest, *(measure(one, most) for one in held)])
    return len(text) * longest


def check_factors(left: Any, right: Any) -> None:
    """Raises for a product that may be large."""
    sizes = [len(v) if isinstance(v, str) else v for v in (left, right)]
    is_small = all(isinstance(s, int | float) and abs(s) <= MAX_FACTOR for s in sizes)
    has_text = isinstance(left, str) or isinstance(right, str)
    if not is_small or (has_text and sizes[0] * sizes[1] > MAX_FACTOR):
        raise SecurityError("A template may multiply small numbers only.")


def check_format(form: str) -> None:
    """Raises for a format that may make much of little."""
    if _WIDE.search(form):
        raise SecurityError("A template may pad by small numbers only.")


def check_fields(form: str) -> None:
    """Raises for a `format` that reaches into values: what namespaces hold is not measured."""
    if _REACHING.search(form):
        raise SecurityError("A template may format whole values only.")


def check_padding(name: str, text: str, asked: Iterable[Any]) -> None:
    """Raises for padding, or pieces, by large numbers or long texts."""
    for value in asked:
        if isinstance(value, int | float) and abs(value) > MAX_FACTOR:
            raise SecurityError("A template may pad by small numbers only.")
        if isinstance(value, str) and value is not text and len(value) > _MAX_PADDING_CHARS:
            raise SecurityError(f"A template may hand short texts only to `{name}`.")
