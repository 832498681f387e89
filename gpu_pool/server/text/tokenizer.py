"""A model's tokenizer, which tells what a template wrote from what a user typed.

Control tokens come from templates alone: where user text spells one, it is tokenised as the plain
characters it is. Ordinary text gets exactly the ids that `transformers` gives it.
Read next: `control_tokens` (the marks), `prompt_encoder` (the caller).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokenizers import Tokenizer as _Tokenizer

from contracts.errors import InvalidRequest, UnsupportedFeature
from gpu_pool.server.text.control_tokens import ControlTokens, Span, map_spans
from gpu_pool.server.text.native_tokenizer import encode_text, read_tokenizer
from gpu_pool.server.text.token_bytes import TokenBytes, create_token_bytes
from gpu_pool.server.text.tokenizer_document import check_control, check_ids, read_added_tokens

_PROBE: Final = "a"


class Tokenizer:
    """Text to token ids, and the table for the way back."""

    def __init__(self, document: Mapping[str, Any], template_source: str) -> None:
        """`document` is the content of `tokenizer.json`.

        Control tokens are the special ones, and those that the template writes itself.
        Raises: `UnsupportedFeature` when its decoder is not one we know, or for what would cost
        other models of a node their memory.
        """
        document = {**document, "truncation": None, "padding": None}
        added = read_added_tokens(document)
        special = {token.content: token.id for token in added if token.special}
        structural = {
            token.content: token.id
            for token in added
            if not token.special and token.content.strip() in template_source
            if token.content.strip()
        }
        check_control(special | structural)
        self.special: Final = ControlTokens(special)
        """Tokens that an answer never shows."""
        self.control: Final = ControlTokens(special | structural)
        """Those, and visible ones with a meaning, such as the marks around a tool call."""
        self._full = _create_tokenizer(document)
        check_ids(added, self._full.get_vocab(with_added_tokens=True))
        self._plain = _create_plain_tokenizer(document, special | structural)
        self._beginning = _find_beginning(self._full)
        self.table: Final[TokenBytes] = create_token_bytes(self._full, document)

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to one below this."""
        return self._full.get_vocab_size(with_added_tokens=True)

    def encode_text(self, text: str) -> list[int]:
        """Ids of a text that a user typed, behind the model's beginning-of-text token if any.

        Raises: `InvalidRequest` when control tokens cannot be kept out.
        """
        return self._beginning + self.encode_plain(text)

    def encode_plain(self, text: str) -> list[int]:
        """The same of a text that is the beginning of nothing."""
        is_plain = not self.control.find_spans(text)
        ids = _encode(self._full if is_plain else self._plain, text)
        self._check(ids, ())
        return ids

    def encode_rendered(self, marked: str, mark: str) -> list[int]:
        """Ids of a rendered conversation whose user text was marked before it was rendered.

        Raises: `InvalidRequest` when control tokens of users cannot be kept out.
        """
        spans = self.control.find_spans(marked)
        trusted = [self.control.find_id(marked[start:end]) for start, end in spans]
        text = marked.replace(mark, "")
        if self.control.find_spans(text) == map_spans(marked, spans, mark):
            ids = _encode(self._full, text)
        else:
            ids = self._encode_parts(marked, spans, mark)
        self._check(ids, trusted)
        return ids

    def _encode_parts(self, marked: str, spans: Sequence[Span], mark: str) -> list[int]:
        """Ids of what lies between control tokens, each part taken as plain characters."""
        ids: list[int] = []
        position = 0
        for start, end in [*spans, (len(marked), len(marked))]:
            part = marked[position:start].replace(mark, "")
            if part:
                ids += _encode(self._plain, part)
            if end > start:
                ids.append(self.control.find_id(marked[start:end]))
            position = end
        return ids

    def _check(self, ids: Sequence[int], trusted: Sequence[int]) -> None:
        """Refuses control tokens beyond `trusted`, whatever way they came in."""
        remaining = iter(trusted)
        control = self.control
        if not all(token_id in remaining for token_id in ids if token_id in control):
            raise InvalidRequest("The text spells one of the model's control tokens.")


def _create_tokenizer(document: Mapping[str, Any]) -> _Tokenizer:
    """The tokenizer that `document` describes."""
    try:
        text = json.dumps(document)
    except RecursionError as error:
        raise UnsupportedFeature(
            "`tokenizer.json` of the checkpoint is nested too deep."
        ) from error
    return read_tokenizer(text)


def _create_plain_tokenizer(document: Mapping[str, Any], control: Mapping[str, int]) -> _Tokenizer:
    """The same tokenizer, blind to control tokens (taking them out would renumber the others)."""
    added = [
        {**token, "special": token["content"] in control} for token in document["added_tokens"]
    ]
    plain = _create_tokenizer({**document, "added_tokens": added})
    plain.encode_special_tokens = True
    return plain


def _find_beginning(tokenizer: _Tokenizer) -> list[int]:
    """What the tokenizer puts in front of a text."""
    bare = encode_text(tokenizer, _PROBE)
    if not bare.ids:
        raise UnsupportedFeature("The tokenizer makes nothing of a letter.")
    with_special = tokenizer.post_process(bare).ids
    return with_special[: with_special.index(bare.ids[0])]


def _encode(tokenizer: _Tokenizer, text: str) -> list[int]:
    """Ids without anything added. Raises: `InvalidRequest`."""
    return encode_text(tokenizer, text).ids
