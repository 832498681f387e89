"""How people dress the same question: politeness, contractions, case, end marks and slips.

Owns the noise every question passes through, whatever its subject. Read next: `conversations.py`.
"""

from __future__ import annotations

import re
from random import Random

from tools.tiny_chat.grammar import expand, tidy
from tools.tiny_chat.written import load_templates, load_text

_KEY_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_ENDINGS = (("?", 58), ("", 32), (".", 5), ("??", 2), (" ?", 2), ("!", 1))
_LOST_SHARE = 0.1  # of the words of a question that is thinned, besides one
_STRAY_SHARE = 0.08  # of questions that get a word which says nothing
_LONG_WORD = re.compile(r"[A-Za-z]{4,}")


class Wording:
    """Dresses questions by chance."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._openers = load_templates("manner", "openers")
        self._closers = load_templates("manner", "closers")
        manner = load_text("manner")
        self._contractions: list[tuple[str, list[str]]] = manner["contractions"]
        self._synonyms: dict[str, list[str]] = {
            word: [other for other in group if other != word]
            for group in manner["synonyms"]
            for word in group
        }
        self._stray_words: list[str] = manner["stray_words"]
        self._small_words = frozenset[str](manner["small_words"])

    def loosened(self, question: str) -> str:
        """Returns the question in other words: synonyms, keywords only, or a word lost.

        The subject stays; what is taught is that it alone decides, however much is missing around.
        """
        words = question.split()
        if len(words) < 4:
            return question
        if self._rng.random() < 0.5:
            words = [self._synonym(word) for word in words]
        chance = self._rng.random()
        if chance < 0.14:
            words = self._keywords(words)
        elif chance < 0.32:
            words = self._thinned(words)
        return " ".join(words)

    def _thinned(self, words: list[str]) -> list[str]:
        """Returns most of the words, at least one of them missing."""
        lost = self._rng.randrange(len(words))
        return [
            word
            for index, word in enumerate(words)
            if index != lost and self._rng.random() >= _LOST_SHARE
        ] or words

    def _synonym(self, word: str) -> str:
        others = self._synonyms.get(word.lower())
        return self._rng.choice(others) if others and self._rng.random() < 0.4 else word

    def _keywords(self, words: list[str]) -> list[str]:
        kept = [word for word in words if word.lower().strip("?,.:") not in self._small_words]
        if len(kept) < 2:
            return words
        if self._rng.random() < 0.25:
            self._rng.shuffle(kept)
        return kept

    def dressed(self, question: str) -> str:
        """Returns the question as some person might put it, with words before or after it."""
        if self._rng.random() < _STRAY_SHARE and not any(map(str.isdigit, question)):
            question = self._with_a_stray_word(question)
        if self._rng.random() < 0.25:
            question = expand(self._rng.choice(self._openers), self._rng) + " " + question
        if self._rng.random() < 0.15:
            closer = expand(self._rng.choice(self._closers), self._rng)
            question = question + self._rng.choice((" ", ", ", "? ")) + closer
        return self.typed(question)

    def _with_a_stray_word(self, question: str) -> str:
        words = question.split()
        words.insert(self._rng.randint(1, max(1, len(words))), self._rng.choice(self._stray_words))
        return " ".join(words)

    def typed(self, question: str) -> str:
        """Returns the question as some person might type it; no words are added."""
        for plain, short in self._contractions:
            if self._rng.random() < 0.25:
                question = question.replace(plain, self._rng.choice(short))
        if self._rng.random() < 0.1:
            question = self._misspelt(question)
        question = self._cased(tidy(question)).rstrip("?.,:;- ")
        endings, weights = zip(*_ENDINGS, strict=True)
        return question + self._rng.choices(endings, weights)[0]

    def _cased(self, text: str) -> str:
        chance = self._rng.random()
        if chance < 0.5:
            return text[:1].upper() + text[1:]
        return text.lower() if chance < 0.97 else text.upper()

    def _misspelt(self, text: str) -> str:
        words = list(_LONG_WORD.finditer(text))
        if not words:
            return text
        word = self._rng.choice(words)
        at = self._rng.randrange(word.start() + 1, word.end() - 1)
        match self._rng.randrange(4):
            case 0:  # two letters change places
                return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
            case 1:  # one is missed
                return text[:at] + text[at + 1 :]
            case 2:  # one is doubled
                return text[:at] + text[at] + text[at:]
            case _:  # the key beside it is hit
                return text[:at] + self._rng.choice(_beside(text[at].lower())) + text[at + 1 :]


def _beside(letter: str) -> str:
    """Returns the letters left and right of one on the keyboard."""
    row = next(row for row in _KEY_ROWS if letter in row)
    at = row.index(letter)
    return row[max(0, at - 1) : at] + row[at + 1 : at + 2]
