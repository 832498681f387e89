"""Names for the beginnings of a prompt, by which the router remembers who has computed them.

Each key is a 64-bit xxh3 hash of a piece of the prompt's text, seeded with the key before it; the
first is seeded with the account's cache salt, the model and the adapter, so that no account's keys
meet another's. A hint and no more: nodes find cached blocks by their own SHA-256 keys. Read next:
`gateway.routing.prefix_index`.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from contracts.adapters import AdapterRef
from contracts.ids import ModelName
from contracts.inference import ChatMessage, ChatPrompt, GenerateRequest, Prompt, TextPrompt

_STEPS: Final = ((16, 256), (48, 1024), (64, 4096))
"""How many pieces of how many bytes: short ones first, where prompts part."""
_SEPARATOR: Final = "\x1e"
_SESSION: Final = b"session\0"
_OPENING: Final = b"opening\0"
BYTES_PER_TOKEN: Final = 4.0
"""Of text, until nodes have said otherwise."""
_encoder: Final = msgspec.json.Encoder()


def list_piece_ends() -> tuple[int, ...]:
    """Where the pieces end, in bytes from the beginning."""
    ends: list[int] = []
    for count, size in _STEPS:
        for _ in range(count):
            ends.append((ends[-1] if ends else 0) + size)
    return tuple(ends)


PIECE_ENDS: Final = list_piece_ends()


class PromptKeys(msgspec.Struct, frozen=True):
    """A prompt as the router sees it."""

    keys: tuple[int, ...]
    num_bytes: int


def hash_prompt(
    prompt: Prompt, model: ModelName, cache_salt: bytes, adapter: AdapterRef | None = None
) -> PromptKeys:
    """The keys of all whole pieces of `prompt`, as far as there are pieces; with another adapter
    nothing is cached of it.
    """
    text = _join(prompt)
    key = xxh3_64_intdigest(cache_salt + model.encode())
    if adapter is not None:
        key = xxh3_64_intdigest(adapter.digest, key)
    keys: list[int] = []
    start = 0
    for end in PIECE_ENDS:
        if end > len(text):
            break
        key = xxh3_64_intdigest(text[start:end], key)
        keys.append(key)
        start = end
    return PromptKeys(tuple(keys), len(text))


def measure_prompt(prompt: Prompt) -> int:
    """The prompt's length in bytes, as `hash_prompt` counts it."""
    return len(_join(prompt))


def hash_owner(cache_salt: bytes) -> int:
    """A number that stands for the account."""
    return xxh3_64_intdigest(cache_salt)


def hash_session(value: bytes, model: ModelName, cache_salt: bytes) -> int:
    """A session's key in the account's own namespace."""
    return xxh3_64_intdigest(value, xxh3_64_intdigest(_SESSION + cache_salt + model.encode()))


def hash_opening(prompt: Prompt, model: ModelName, cache_salt: bytes) -> int | None:
    """A session's key for a client that names none: all turns of a conversation begin with the same
    words, up to its user's first. None where a prompt has no turns.
    """
    if not isinstance(prompt, ChatPrompt):
        return None
    for place, message in enumerate(prompt.messages):
        if message.role == "user":
            opening = ChatPrompt(messages=prompt.messages[: place + 1], tools=prompt.tools)
            seed = xxh3_64_intdigest(_OPENING + cache_salt + model.encode())
            return xxh3_64_intdigest(_join(opening), seed)
    return None


def expect_output(request: GenerateRequest, usual: int) -> int:
    """How many tokens an answer is expected to have; `usual` is what answers have had lately."""
    limit = request.sampling.max_tokens
    return usual if limit is None else min(usual, limit)


def _join(prompt: Prompt) -> bytes:
    """The prompt's text in the order in which templates put it: tools, then turn by turn."""
    if isinstance(prompt, TextPrompt):
        return prompt.text.encode(errors="replace")
    if not isinstance(prompt, ChatPrompt):
        return b"".join([token_id.to_bytes(4, "little") for token_id in prompt.token_ids])
    tools = _encoder.encode(prompt.tools) if prompt.tools else b""
    turns = [part for message in prompt.messages for part in _list_parts(message)]
    return tools + _SEPARATOR.join(turns).encode(errors="replace")


def _list_parts(message: ChatMessage) -> Iterator[str]:
    """The texts of one turn."""
    yield message.role
    if message.tool_calls:
        yield _encoder.encode(message.tool_calls).decode()
    yield message.content
