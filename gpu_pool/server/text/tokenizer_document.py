"""What is believed of a checkpoint's `tokenizer.json`, and what is refused before it costs.

Pure. A file is the work of others: an id or a replacement in it may ask for all memory of a node
that serves other models as well. Read next: `tokenizer` (the caller).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec

from contracts.errors import UnsupportedFeature

MAX_TOKEN_ID: Final = (1 << 22) - 1
"""Far beyond what vocabularies have; tables have an entry for each."""
MAX_CONTROL_CHARS: Final = 256
"""Of one control token."""
MAX_CONTROL_SQUARES: Final = 1 << 27
"""Of their lengths, all together: what is kept of their beginnings and ends."""
MAX_GROWTH: Final = 64
"""What a character may become before it is divided."""
MAX_AROUND: Final = 256
"""Tokens that are put around a text, or a pair of them."""


class AddedToken(msgspec.Struct, frozen=True):
    """A token beside the vocabulary's own."""

    id: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
    content: str
    special: bool


class _Pattern(msgspec.Struct, frozen=True):
    """What is replaced: a text, or what an expression matches."""

    String: str | None = None


class _Normalizer(msgspec.Struct, frozen=True):
    """A step, or several; steps that replace have `pattern` and `content`, others `prepend`."""

    normalizers: "tuple[_Normalizer, ...]" = ()
    pattern: _Pattern | None = None
    content: str = ""
    prepend: str = ""


class _Place(msgspec.Struct, frozen=True):
    """Where a template has a token; nothing is said of texts."""

    id: str


class _Piece(msgspec.Struct, frozen=True):
    """A part of a template."""

    SpecialToken: _Place | None = None


class _Special(msgspec.Struct, frozen=True):
    """What a template's token stands for."""

    ids: tuple[int, ...] = ()


class _PostProcessor(msgspec.Struct, frozen=True):
    """A step, or several; templates have `single` and `pair`."""

    processors: "tuple[_PostProcessor, ...]" = ()
    single: tuple[_Piece, ...] = ()
    pair: tuple[_Piece, ...] = ()
    special_tokens: dict[str, _Special] = {}


class _Document(msgspec.Struct, frozen=True):
    """What is read of the file here."""

    added_tokens: tuple[AddedToken, ...]
    normalizer: _Normalizer | None = None
    post_processor: _PostProcessor | None = None


def read_added_tokens(document: Mapping[str, Any]) -> tuple[AddedToken, ...]:
    """The added tokens of a document that is otherwise in bounds. Raises: `UnsupportedFeature`."""
    try:
        read = msgspec.convert(document, _Document)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnsupportedFeature(
            f"`tokenizer.json` of the checkpoint cannot be used: {error}"
        ) from error
    growth = _find_growth(read.normalizer)
    if growth > MAX_GROWTH:
        raise UnsupportedFeature(
            f"The tokenizer's normalizer makes up to {growth:.0f} characters of one; {MAX_GROWTH} "
            "are taken."
        )
    num_around = _count_around(read.post_processor)
    if num_around > MAX_AROUND:
        raise UnsupportedFeature(
            f"The tokenizer puts {num_around} tokens around a text; {MAX_AROUND} are taken."
        )
    return read.added_tokens


def check_control(contents: Iterable[str]) -> None:
    """Raises: `UnsupportedFeature` for control tokens that would be costly to look for."""
    lengths = [len(content) for content in contents]
    longest = max(lengths, default=0)
    if longest > MAX_CONTROL_CHARS:
        raise UnsupportedFeature(
            f"A control token of the tokenizer has {longest} characters; {MAX_CONTROL_CHARS} are "
            "taken."
        )
    if sum(length * length for length in lengths) > MAX_CONTROL_SQUARES:
        raise UnsupportedFeature("The tokenizer has too many long control tokens.")


def check_ids(added: Iterable[AddedToken], vocabulary: Mapping[str, int]) -> None:
    """Raises: `UnsupportedFeature` where the ids that the tokenizer gives are not those of the
    file, or are beyond any bound.

    Whoever keeps users from spelling a control token goes by the file's.
    """
    highest = max(vocabulary.values(), default=0)
    if highest > MAX_TOKEN_ID:
        raise UnsupportedFeature(
            f"The tokenizer has a token {highest}; ids up to {MAX_TOKEN_ID} are taken."
        )
    for token in added:
        given = vocabulary.get(token.content)
        if token.content and given != token.id:
            raise UnsupportedFeature(
                f"`tokenizer.json` says that `{token.content}` is token {token.id}; the tokenizer "
                f"made of it says {'nothing of it' if given is None else given}."
            )


def _find_growth(normalizer: _Normalizer | None) -> float:
    """How many characters the steps of a normalizer may make of one by replacing."""
    if normalizer is None:
        return 1.0
    product = math.prod(map(_find_growth, normalizer.normalizers)) * (1 + len(normalizer.prepend))
    if normalizer.pattern is None:
        return product
    replaced = normalizer.pattern.String
    num_replaced = 1 if replaced is None else max(len(replaced), 1)  # as few as one match may have
    return product * max(1.0, len(normalizer.content) / num_replaced)


def _count_around(step: _PostProcessor | None) -> int:
    """How many tokens a post-processor puts around a text and a pair, together; a text is one."""
    if step is None:
        return 0
    own = 0
    for piece in (*step.single, *step.pair):
        place = piece.SpecialToken
        special = None if place is None else step.special_tokens.get(place.id)
        own += 1 if special is None else max(1, len(special.ids))
    return own + sum(map(_count_around, step.processors))
