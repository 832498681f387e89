"""The strings a tokenizer turns into control tokens, and how user text is kept from spelling them.

User text is marked before it enters a template: a character that occurs nowhere else is put inside
everything that spells a control token, or that could complete one together with the text around
it. What still spells a control token after rendering was therefore written by the template.
Must not know templates or conversations. Read next: `text.tokenizer`.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from contracts.errors import InvalidRequest

MARK_CANDIDATES: Final = range(0x10F800, 0x10FFFE)
"""Code points of a private-use plane; the first that a conversation does not contain is used."""

Span = tuple[int, int]
_Trie = dict[str, "_Trie"]


class ControlTokens:
    """Control strings with their ids; all look-ups take time linear in the text."""

    def __init__(self, token_ids: Mapping[str, int]) -> None:
        """`token_ids` maps each control string to its id."""
        self._token_ids = dict(token_ids)
        self._ids = frozenset(token_ids.values())
        pattern = _build_pattern(token_ids)
        self._longest = re.compile(pattern)
        self._anywhere = re.compile(f"(?={pattern})")
        self._max_length = max(map(len, token_ids), default=0)
        self._beginnings = frozenset(c[:n] for c in token_ids for n in range(1, len(c)))
        self._endings = frozenset(c[n:] for c in token_ids for n in range(1, len(c) - 1))

    def __contains__(self, token_id: int) -> bool:
        """True when `token_id` is a control token."""
        return token_id in self._ids

    def find_id(self, content: str) -> int:
        """The id of the control string `content`."""
        return self._token_ids[content]

    def find_spans(self, text: str) -> list[Span]:
        """Where `text` spells control tokens, leftmost and longest first, without overlaps."""
        return [match.span() for match in self._longest.finditer(text)]

    def is_part(self, text: str) -> bool:
        """True when `text` occurs inside a control string."""
        return any(text in content for content in self._token_ids)

    def mark(self, text: str, mark: str) -> str:
        """`text` with `mark` inside all that spells a control token or may complete one."""
        cuts = {match.start() + 1 for match in self._anywhere.finditer(text)}
        cuts.update(self._find_edge_cuts(text))
        if not cuts:
            return text
        ends = [0, *sorted(cuts), len(text)]
        return mark.join(text[a:b] for a, b in pairwise(ends))

    def _find_edge_cuts(self, text: str) -> set[int]:
        """Where to cut the ends of `text`, with and without the white space a template trims."""
        cuts: set[int] = set()
        for end in {len(text), len(text.rstrip())}:
            for length in range(1, min(self._max_length, end + 1)):
                if text[end - length : end] in self._beginnings:
                    cuts.add(end - length + 1)
        for start in {0, len(text) - len(text.lstrip())}:
            for length in range(2, min(self._max_length, len(text) - start + 1)):
                if text[start : start + length] in self._endings:
                    cuts.add(start + 1)
        stripped = text.strip()
        if 2 <= len(stripped) < self._max_length and self.is_part(stripped):
            cuts.add(text.index(stripped) + 1)
        return cuts


def choose_mark(texts: Iterable[str]) -> str:
    """A character that none of `texts` contains.

    Raises: `InvalidRequest` when they use every character that has no meaning of its own.
    """
    used = {character for text in texts if not text.isascii() for character in text}
    mark = next((chr(code) for code in MARK_CANDIDATES if chr(code) not in used), None)
    if mark is None:
        raise InvalidRequest("The text uses every private-use character; leave one out.")
    return mark


def map_spans(marked: str, spans: Iterable[Span], mark: str) -> list[Span]:
    """`spans` of `marked`, none of which contains `mark`, as positions in the text without it."""
    mapped: list[Span] = []
    num_marks, position = 0, 0
    for start, end in spans:
        num_marks += marked.count(mark, position, start)
        position = start
        mapped.append((start - num_marks, end - num_marks))
    return mapped


def _build_pattern(contents: Iterable[str]) -> str:
    """A regular expression for any of `contents`, longest first, as a trie: no backtracking."""
    trie: _Trie = {}
    for content in contents:
        node = trie
        for character in content:
            node = node.setdefault(character, {})
        node[""] = {}
    return _render_trie(trie) if trie else "(?!)"


def _render_trie(trie: _Trie) -> str:
    """The pattern below one node; the empty key says that a content may end here."""
    branches = [
        re.escape(character) + _render_trie(below)
        for character, below in sorted(trie.items())
        if character
    ]
    if not branches:
        return ""
    group = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{group})?" if "" in trie else group
