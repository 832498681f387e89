"""Reads answers of every dialect for what they say: words, likely words, ids and usage.

A word is taken wherever it stands, whatever field an answer has it in. Must not know who asked.
Read next: `canary_requests`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tests.gpu_pool.canary_llama import NUM_FILLERS

LIKELY: Final = -12.0
"""Logarithm of a likelihood. Words of the context have far more, others far less."""
_WORD: Final = re.compile(r"\b[ws](\d+)\b")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LAST_TYPES: Final = ("message_stop", "response.completed", "response.incomplete")


@dataclass
class Said:
    """What an answer says, by choice where it has several."""

    texts: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Tokens of the text, thoughts included, each once and in order."""
    mentioned: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Every token that is named anywhere, alternatives that are likely included."""
    scored: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Tokens with a likelihood, in order."""
    ids: set[str] = field(default_factory=set[str])
    usage: dict[str, Any] | None = None
    is_ended: bool = False
    """It says itself that it is whole."""
    error: Any = None

    def add(self, event: Any) -> None:
        """Reads an event of a stream, or a whole answer."""
        if event == "[DONE]":
            self.is_ended = True
            return
        self.ids.update(_UUID.findall(msgspec.json.encode(event).decode()))
        kind = event.get("type")
        self.error = self.error or event.get("error") or (event.get("errors") or None)
        event = event["response"] if kind in _LAST_TYPES[1:] else event.get("result") or event
        self.is_ended |= kind in _LAST_TYPES
        message = event.get("message")
        for place in (event, message if isinstance(message, dict) else {}):
            self.usage = place.get("usage") or self.usage
        if kind not in _LAST_TYPES:
            for choice, text in _list_texts(event):
                self.texts[choice] += find_words(text)
        self._walk(event, 0)

    def _walk(self, node: Any, choice: int) -> None:
        """Notes every word below `node`."""
        if isinstance(node, str):
            self.mentioned[choice].update(find_words(node))
        elif isinstance(node, list):
            for item in node:
                self._walk(item, choice)
        elif isinstance(node, dict):
            if "finish_reason" in node:
                choice = node.get("index", choice)
            if "token_logprobs" in node:
                self._take_columns(node, choice)
                return
            if "logprob" in node:
                if "top_logprobs" in node:
                    self.scored[choice] += find_words(node["token"])
                elif node["logprob"] < LIKELY:
                    return
            for value in node.values():
                self._walk(value, choice)

    def _take_columns(self, columns: dict[str, Any], choice: int) -> None:
        """Tokens with their alternatives; before the first secret anything is likely."""
        for token, top in zip(columns["tokens"], columns["top_logprobs"], strict=True):
            knows = any(one >= NUM_FILLERS for one in self.scored[choice])
            self.scored[choice] += find_words(token)
            self.mentioned[choice].update(find_words(token))
            for other, likelihood in (top or {}).items():
                if knows and likelihood >= LIKELY:
                    self.mentioned[choice].update(find_words(other))


def read_whole(body: bytes) -> Said:
    """An answer in one piece."""
    said = Said()
    said.add(msgspec.json.decode(body))
    said.is_ended = said.error is None
    return said


def read_events(body: bytes) -> Said:
    """A stream, or the part of it that its client has waited for."""
    said = Said()
    for event in body.decode().split("\n\n")[:-1]:
        data = [line[6:] for line in event.split("\n") if line.startswith("data: ")]
        for one in data:
            said.add(one if one == "[DONE]" else msgspec.json.decode(one))
    return said


def find_words(text: str) -> list[int]:
    """The tokens whose words stand in a text."""
    return [int(number) for number in _WORD.findall(text)]


def count_prompt_tokens(usage: dict[str, Any]) -> int:
    """Cached ones included, which one of the dialects counts apart."""
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"]
    return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)


def count_cached_tokens(usage: dict[str, Any]) -> int:
    """Those of the prompt that were found."""
    if "cache_read_input_tokens" in usage:
        return usage["cache_read_input_tokens"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    return details["cached_tokens"] if details else 0


def count_output_tokens(usage: dict[str, Any]) -> int:
    """Of all choices."""
    return usage["completion_tokens"] if "completion_tokens" in usage else usage["output_tokens"]


def _list_texts(event: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Every piece of the text, once."""
    match event:
        case {"choices": choices}:
            for one in choices:
                part = one.get("delta") or one.get("message") or one
                for name in ("reasoning_content", "content", "text"):
                    yield one["index"], part.get(name) or ""
        case {"type": "message", "content": blocks}:
            yield from ((0, block.get("thinking") or block.get("text")) for block in blocks)
        case {"object": "response", "output": items}:
            parts: Iterable[Any] = (part for item in items for part in item["content"])
            yield from ((0, part["text"]) for part in parts)
        case {"type": "content_block_delta", "delta": delta}:
            yield 0, delta.get("text") or delta.get("thinking") or ""
        case {"type": str(kind), "delta": str(text)} if kind.endswith(".delta"):
            yield 0, text
        case {"response": str(text)}:
            yield 0, event.get("reasoning_content") or ""
            yield 0, text
        case _:
            return
