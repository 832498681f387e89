"""Kimi's `tiktoken.model`, brought into the form of `tokenizer.json`.

Owns how ranks become merges, and what Kimi's tokenizer has beside that file: the pattern that cuts
texts into pieces, and 256 ids of special tokens. Must not know where the result goes.
Source: Kimi-K2-Instruct's tokenization_kimi.py, and how tiktoken merges.
Read next: `tokenizer` (who reads it), `cli.model_tokenizer` (who asks for it).
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from contracts.errors import InvalidRequest
from gpu_pool.server.text.token_bytes import byte_level_characters

TIKTOKEN_FILE: Final = "tiktoken.model"
TOKENIZER_FILE: Final = "tokenizer.json"
OPTIONS_FILE: Final = "tokenizer_config.json"
NUM_SPECIAL: Final = 256
"""Ids behind those of the file, named by the options or reserved."""
MAX_TOKEN_BYTES: Final = 4096
"""Far beyond what vocabularies have; merges of a token take the square of its length."""
_NUM_BYTES: Final = 256
_TOKENS_PER_REPORT: Final = 2048
_NOT_HAN: Final = r"&&[^\p{Han}]]"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}" + _NOT_HAN
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}" + _NOT_HAN
_BEFORE_WORD: Final = r"[^\r\n\p{L}\p{N}]?"
_CONTRACTION: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN: Final = "|".join(
    (
        r"[\p{Han}]+",
        f"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{_CONTRACTION}",
        f"{_BEFORE_WORD}{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""The pieces of a text, across which nothing is merged. Oniguruma reads it as tiktoken does."""


class _SpecialToken(msgspec.Struct, frozen=True):
    """A token beyond the file; whether it may touch spaces is nothing that tiktoken knows of."""

    content: str
    special: bool = True
    """False for marks that are shown, such as those around a tool call."""


class _Options(msgspec.Struct, frozen=True):
    """What is read of `tokenizer_config.json`."""

    added_tokens_decoder: Mapping[int, _SpecialToken] = {}


def is_convertible(folder: Path) -> bool:
    """True when `folder` has no `tokenizer.json`, but the file that one can be made of."""
    return (folder / TIKTOKEN_FILE).is_file() and not (folder / TOKENIZER_FILE).exists()


def create_tokenizer_json(folder: Path, progress: Callable[[int, int], None]) -> bytes:
    """The content of `tokenizer.json` that has the ids of the `tiktoken.model` in `folder`.

    `progress` is called with how many of the file's bytes are done and how many there are.

    Raises: `InvalidRequest` that says what is wrong with which file.
    """
    ranks_path = folder / TIKTOKEN_FILE
    total = ranks_path.stat().st_size
    tokens = _read_tokens(ranks_path)
    special = _list_special(_read_special(folder / OPTIONS_FILE), len(tokens))
    spellings = {byte: char for char, byte in byte_level_characters().items()}
    spelled = ["".join([spellings[byte] for byte in token]) for token in tokens]
    vocabulary = {text: token_id for token_id, text in enumerate(spelled)}
    for token_id, token in special.items():
        if (other := vocabulary.get(token.content)) is not None:
            raise InvalidRequest(
                f"Tokens {other} and {token_id} are both spelled `{token.content}`."
            )
    merges: list[tuple[str, str]] = []
    for token_id, pair in enumerate(_list_merges(tokens)):
        merges += [(spelled[left], spelled[right]) for left, right in pair]
        if token_id % _TOKENS_PER_REPORT == 0:
            progress(total * token_id // len(tokens), total)
    progress(total, total)
    return msgspec.json.encode(_describe(vocabulary, merges, special))


def _describe(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    special: Mapping[int, _SpecialToken],
) -> dict[str, Any]:
    """The document, as the library `tokenizers` reads it."""
    whole = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    byte_level["use_regex"] = False
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated"}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token_id, "content": token.content, "special": token.special, **whole}
            for token_id, token in special.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{**split, "invert": False}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,  # tiktoken looks for a whole piece before it merges
            "vocab": vocabulary,
            "merges": merges,
        },
    }


# -- the file of ranks ---------------------------------------------------------------------------


def _read_tokens(path: Path) -> list[bytes]:
    """The tokens of a file, by rank. Raises: `InvalidRequest`."""
    ranks: dict[bytes, int] = {}
    tokens: dict[int, bytes] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line:
            continue
        place = f"`{path.name}`, line {number}"
        token, rank = _parse_line(line, place)
        if rank in tokens:
            raise InvalidRequest(f"{place}: two tokens have rank {rank}.")
        if token in ranks:
            raise InvalidRequest(f"{place}: the token of rank {ranks[token]} comes again.")
        ranks[token] = rank
        tokens[rank] = token
    missing = next((rank for rank in range(len(tokens)) if rank not in tokens), None)
    if missing is not None:
        raise InvalidRequest(f"`{path.name}` has {len(tokens)} tokens, but none of rank {missing}.")
    for byte in range(_NUM_BYTES):
        if bytes((byte,)) not in ranks:
            raise InvalidRequest(f"`{path.name}` has no token for the single byte 0x{byte:02x}.")
    return [tokens[rank] for rank in range(len(tokens))]


def _parse_line(line: bytes, place: str) -> tuple[bytes, int]:
    """The token and the rank that a line states. Raises: `InvalidRequest`."""
    words = line.split()
    if len(words) != 2 or not words[1].isdigit():
        raise InvalidRequest(f"{place} is not of the form `BASE64 RANK`.")
    try:
        token = base64.b64decode(words[0], validate=True)
    except binascii.Error as error:
        raise InvalidRequest(f"{place}: the token is not base64.") from error
    if not 0 < len(token) <= MAX_TOKEN_BYTES:
        raise InvalidRequest(f"{place}: a token of {len(token)} bytes.")
    return token, int(words[1])


def _list_merges(tokens: Sequence[bytes]) -> Iterator[list[tuple[int, int]]]:
    """For each token the pairs of tokens that are merged into it.

    Where lower ranks alone bring its bytes to two parts, no other pair ever meets in a text, since
    what lies inside a token is merged as it would be by itself. Some vocabularies have tokens that
    lower ranks cut otherwise (Llama 3: `.:.:`); those come of whichever tokens make them up.

    Raises: `InvalidRequest` for a token that no two of lower rank make up.
    """
    ranks = {token: rank for rank, token in enumerate(tokens)}
    for rank, token in enumerate(tokens):
        if len(token) == 1:
            yield []
            continue
        parts = _merge_below(token, ranks, rank)
        if len(parts) == 2:
            yield [(ranks[parts[0]], ranks[parts[1]])]
            continue
        cuts = [(ranks.get(token[:cut]), ranks.get(token[cut:])) for cut in range(1, len(token))]
        pairs = [(left, right) for left, right in cuts if left is not None and right is not None]
        if not any(max(pair) < rank for pair in pairs):
            raise InvalidRequest(
                f"`{TIKTOKEN_FILE}`: no two tokens of lower rank make up the token of rank {rank}."
            )
        yield pairs


def _merge_below(token: bytes, ranks: Mapping[bytes, int], limit: int) -> list[bytes]:
    """The parts to which ranks below `limit` bring the bytes of `token`; two at least."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        found = [ranks.get(parts[i] + parts[i + 1], limit) for i in range(len(parts) - 1)]
        lowest = min(found)
        if lowest >= limit:
            break
        first = found.index(lowest)
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts


# -- special tokens ------------------------------------------------------------------------------


def _read_special(path: Path) -> Mapping[int, _SpecialToken]:
    """The special tokens that the options name, by id. Raises: `InvalidRequest`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Options).added_tokens_decoder
    except FileNotFoundError as error:
        raise InvalidRequest(
            f"`{TIKTOKEN_FILE}` needs `{path.name}`, which names special tokens."
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"`{path.name}` cannot be read: {error}") from error


def _list_special(named: Mapping[int, _SpecialToken], first: int) -> dict[int, _SpecialToken]:
    """All special tokens by id, from `first` on. Raises: `InvalidRequest`."""
    ids = range(first, first + NUM_SPECIAL)
    stray = next((token_id for token_id in named if token_id not in ids), None)
    if stray is not None:
        raise InvalidRequest(
            f"`{OPTIONS_FILE}` names token {stray}; special tokens of this vocabulary have ids "
            f"{ids.start} to {ids.stop - 1}."
        )
    special = {i: named.get(i, _SpecialToken(f"<|reserved_token_{i}|>")) for i in ids}
    owners: dict[str, int] = {}
    for token_id, token in special.items():
        other = owners.setdefault(token.content, token_id)
        if other != token_id or not token.content:
            raise InvalidRequest(
                f"`{OPTIONS_FILE}`: the name of token {token_id} is empty or that of {other}."
            )
    return special
