"""Answers drawn from masks alone, as a model that knows nothing would give them."""

from random import Random

from tokenizers import Tokenizer

from gpu_pool.structured.matcher import GrammarMatcher, MatcherFactory
from tests.fixtures.random_checkpoint import VOCAB_SIZE, create_tokenizer

EOS = 2
TOKENIZER: Tokenizer = create_tokenizer()
FACTORY = MatcherFactory(TOKENIZER.to_str(), VOCAB_SIZE, (EOS,))


def list_allowed(mask: bytes) -> list[int]:
    """The token ids whose bits are set."""
    bits, ids = int.from_bytes(mask, "little"), []
    while bits:
        lowest = bits & -bits
        ids.append(lowest.bit_length() - 1)
        bits ^= lowest
    return ids


def walk(matcher: GrammarMatcher, random: Random, max_tokens: int = 1500) -> str | None:
    """A random answer, ended where it may end; None when it does not come to an end.

    Prefers tokens that close something: chance alone would write strings without end.
    """
    ids: list[int] = []
    for _ in range(max_tokens):
        allowed = list_allowed(matcher.fill_mask())
        assert allowed
        if EOS in allowed or matcher.is_finished:
            return TOKENIZER.decode(ids, skip_special_tokens=False)
        closing = [i for i in allowed if (TOKENIZER.id_to_token(i) or "x")[0] in '"]},']
        choices = closing if closing and random.random() < 0.4 else allowed
        token_id = random.choice(choices)
        assert matcher.accept(token_id)
        ids.append(token_id)
        if matcher.is_finished:
            return TOKENIZER.decode(ids, skip_special_tokens=False)
    return None


def accepts(matcher: GrammarMatcher, text: str) -> bool:
    """True when `text` is a whole answer."""
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    return all(matcher.accept(token_id) for token_id in ids) and EOS in list_allowed(
        matcher.fill_mask()
    )
