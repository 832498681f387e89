"""Writes grammars as the text that crosses to trial process and engine core.

Owns the notation (llguidance's: rules in its variant of Lark, JSON Schemas beside them) and how
JSON is laid out; must not know model families: spellings come in as text and control tokens.
Read next: `grammar_trial` (what becomes of it), `matcher`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_pool.structured.schema_check import Schema

Spelled = tuple[str | int, ...]
"""Text, and ids of control tokens where it cannot be spelled."""

ANY_OBJECT: Final[Schema] = {"type": "object"}
_LAYOUT: Final = {
    "x-guidance": {
        # One way to write each value: free white space would let a model idle for ever, and a
        # name written with an escape would pass for another one.
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
        "json_allowed_escapes": 'bfnrt"\\',
        "lenient": False,
        "coerce_one_of": False,
    }
}


@dataclass(frozen=True, slots=True)
class Thoughts:
    """What may stand in front of an answer."""

    begin: Spelled | None
    """None when the prompt has begun them: they have to end then."""
    end: Spelled


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """One tool's call: what is written around its arguments, and their schema."""

    before: Spelled
    arguments: Schema
    after: Spelled


@dataclass(frozen=True, slots=True)
class CallsGrammar:
    """An answer that is calls."""

    begin: Spelled
    calls: tuple[CallGrammar, ...]
    separator: Spelled | None
    """None when one call is all."""
    end: Spelled


@dataclass(frozen=True, slots=True)
class AnswerGrammar:
    """All that an answer may be: `value`, or `calls`, whichever is there."""

    thoughts: Thoughts | None
    value: Schema | None
    calls: CallsGrammar | None


def is_opaque(content: str, is_special: bool) -> bool:
    """True for added tokens whose text masks do not see, so that grammars have to use their ids.

    Source: llguidance 1.9 counts tokens that look like tags among the control tokens.
    """
    return is_special or (content.startswith("<") and content.endswith(">"))


def write_grammar(grammar: AnswerGrammar) -> str:
    """The grammar as text; equal grammars give equal text."""
    return _Writer().write(grammar)


class _Writer:
    """The rules of one grammar."""

    def __init__(self) -> None:
        """No rule is there yet."""
        self._rules: list[str] = []
        self._schemas: list[dict[str, Any]] = []

    def write(self, grammar: AnswerGrammar) -> str:
        """The whole text."""
        bodies: list[str] = []
        if grammar.value is not None:
            bodies.append(self._add_schema(grammar.value))
        if grammar.calls is not None:
            bodies.append(self._add_calls(grammar.calls))
        self._rules.append(f"body: {' | '.join(bodies)}")
        start = "body"
        if grammar.thoughts is not None:
            self._add_thoughts(grammar.thoughts)
            is_open = grammar.thoughts.begin is None
            start = "thoughts SPACE body" if is_open else "(thoughts SPACE)? body"
            self._rules.append("SPACE: /[ \\n]{0,4}/")
        rules = "\n".join([f"start: {start}", *self._rules, ""])
        return json.dumps({"grammars": [{"lark_grammar": rules}, *self._schemas]})

    def _add_schema(self, schema: Schema) -> str:
        """The name of a rule for values of `schema`."""
        name = f"value_{len(self._schemas)}"
        if isinstance(schema, bool):
            schema = {} if schema else {"enum": []}
        self._schemas.append({"name": name, "json_schema": schema | _LAYOUT})
        return f"@{name}"

    def _add_calls(self, calls: CallsGrammar) -> str:
        """The name of a rule for calls."""
        names: list[str] = []
        for index, call in enumerate(calls.calls):
            arguments = self._add_schema(call.arguments)
            parts = (*_write(call.before), arguments, *_write(call.after))
            self._rules.append(f"call_{index}: {' '.join(parts)}")
            names.append(f"call_{index}")
        self._rules.append(f"call: {' | '.join(names)}")
        more = ""
        if calls.separator is not None:
            more = f"({' '.join((*_write(calls.separator), 'call'))})*"
        parts = (*_write(calls.begin), "call", more, *_write(calls.end))
        self._rules.append(f"calls: {' '.join(filter(None, parts))}")
        return "calls"

    def _add_thoughts(self, thoughts: Thoughts) -> None:
        """A rule for thoughts, which end where their end mark first stands."""
        begin = " ".join(_write(thoughts.begin or ()))
        end = thoughts.end
        if len(end) == 1 and isinstance(end[0], str):
            pattern = _escape_pattern(end[0])
            self._rules.append(f"thinking[lazy]: /(?s:.*){pattern}/")
            self._rules.append(f"thoughts: {begin} thinking")
        else:
            self._rules.append("THINKING: /(?s:.*)/")
            self._rules.append(f"thoughts: {begin} THINKING {' '.join(_write(end))}")


def _write(spelled: Sequence[str | int]) -> list[str]:
    """Text and control tokens in the notation of rules."""
    return [json.dumps(piece) if isinstance(piece, str) else f"<[{piece}]>" for piece in spelled]


def _escape_pattern(text: str) -> str:
    """`text` as a regular expression between slashes that matches nothing else."""
    return "".join(c if c.isalnum() or c in "<>_ " else f"\\x{{{ord(c):x}}}" for c in text)
