"""Answers that are JSON: made-up documents of short values, and answers put into one field.

Whoever holds an answer to a JSON Schema needs a model that ends strings, lists and objects of names
it has never seen. Owns the documents and how JSON is asked for; laid out as the pool's grammars
are: `{"a": 1, "b": [2]}`. Read next: `conversations.py`.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

from tools.tiny_chat.grammar import expand
from tools.tiny_chat.written import load_text

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_ALL_SIGNS: Final = _LETTERS + _LETTERS.upper() + "0123456789-_./+# "
_DEPTH: Final = 3


class JsonAnswers:
    """An endless source of JSON and of wishes for it."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        text = load_text("json_answers")
        self._wishes: list[str] = text["wishes"]
        self._orders: list[str] = text["orders"]
        self._silent: list[str] = text["silent"]
        self._systems: list[str] = text["systems"]
        self._answer_fields: list[str] = text["answer_fields"]
        self._fields: list[str] = text["fields"]
        self._words: list[str] = text["words"]

    def wish(self) -> str:
        """Returns a question that asks for JSON, not yet dressed."""
        return expand(self._rng.choice(self._wishes), self._rng)

    def silent(self) -> str:
        """Returns a question that does not; only a schema asks for JSON then."""
        return expand(self._rng.choice(self._silent), self._rng)

    def templates(self) -> list[str]:
        """Returns every question that stands for itself."""
        return [*self._wishes, *self._silent]

    def ordered(self, question: str) -> str:
        """Returns the question with the wish to be answered in JSON."""
        order = expand(self._rng.choice(self._orders), self._rng)
        plain = question.rstrip("?.! ")
        return f"{order}: {plain}" if self._rng.random() < 0.3 else f"{plain}, {order}"

    def system(self) -> str:
        """Returns a system message that asks for JSON."""
        return expand(self._rng.choice(self._systems), self._rng)

    def wrapped(self, answer: str) -> str:
        """Returns the answer as the one field of an object."""
        return _written({self._rng.choice(self._answer_fields): answer})

    def document(self) -> str:
        """Returns a made-up document; most are objects."""
        if self._rng.random() < 0.75:
            return _written(self._object(_DEPTH))
        return _written(self._value(_DEPTH))

    def _value(self, depth: int) -> Any:
        if depth and self._rng.random() < 0.35:
            return self._object(depth) if self._rng.random() < 0.5 else self._list(depth)
        match self._rng.randrange(12):
            case 0:
                return None
            case 1:
                return self._rng.random() < 0.5
            case 2 | 3:
                return self._rng.randint(-20, 20) if self._rng.random() < 0.5 else self._number()
            case 4:
                return round(self._rng.uniform(-100, 100), self._rng.randint(1, 2))
            case _:
                return self._string()

    def _number(self) -> int:
        return self._rng.randint(0, 10 ** self._rng.randint(1, 6))

    def _object(self, depth: int) -> dict[str, Any]:
        names = [self._name() for _ in range(self._rng.choice((0, 1, 1, 2, 2, 3, 4)))]
        return {name: self._value(depth - 1) for name in names}

    def _list(self, depth: int) -> list[Any]:
        count = self._rng.choice((0, 1, 1, 2, 2, 3))
        if self._rng.random() < 0.7:  # of one kind
            kind = self._rng.choice((self._string, self._number, lambda: self._object(depth - 1)))
            return [kind() for _ in range(count)]
        return [self._value(depth - 1) for _ in range(count)]

    def _name(self) -> str:
        if self._rng.random() < 0.2:
            return "".join(self._rng.choices(_LETTERS, k=self._rng.randint(1, 8)))
        return self._rng.choice(self._fields)

    def _string(self) -> str:
        digits = "0123456789"
        match self._rng.randrange(14):
            case 0:
                return ""
            case 1:
                return "".join(self._rng.choices(_ALL_SIGNS, k=self._rng.randint(1, 10)))
            case 2:
                return "".join(self._rng.choices(_LETTERS, k=self._rng.randint(1, 7)))
            case 3:
                return "".join(self._rng.choices(digits, k=self._rng.randint(1, 6)))
            case 4:
                return self._formatted()
            case 5 | 6:
                return " ".join(self._rng.choices(self._words, k=self._rng.randint(2, 3)))
            case _:
                return self._rng.choice(self._words)

    def _formatted(self) -> str:
        """Returns a string in one of the formats a schema may name."""
        number = self._rng.randint
        date = f"{number(1980, 2030)}-{number(1, 12):02}-{number(1, 28):02}"
        clock = f"{number(0, 23):02}:{number(0, 59):02}:{number(0, 59):02}Z"
        word = self._rng.choice(self._words).lower()
        match number(0, 6):
            case 0:
                return date
            case 1:
                return f"{date}T{clock}"
            case 2:
                return clock
            case 3:
                raw = f"{self._rng.getrandbits(128):032x}"
                return "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
            case 4:
                return f"{word}@example.com"
            case 5:
                return ".".join(str(number(0, 255)) for _ in range(4))
            case _:
                return f"{word}.example.com"


def _written(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False)
