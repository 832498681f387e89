"""The words of the executor double: what follows a history of tokens, and how likely it was.

Pure; must not know plans. Read next: `executor_double`.
"""

import hashlib

from gpu_pool.plan import TokenScore

Digest = bytes


def predict_tokens(
    token_ids: tuple[int, ...],
    count: int,
    *,
    vocab_size: int,
    seed: int = 0,
    adapter_digest: bytes = b"",
) -> tuple[int, ...]:
    """The `count` tokens that a double generates after `token_ids`; `seed` 0 stands for greedy."""
    history = list(token_ids)
    digest = digest_all(history, adapter_digest)[-1]
    for _ in range(count):
        history.append(int.from_bytes(digest_next(digest, seed)) % vocab_size)
        digest = digest_next(digest, history[-1])
    return tuple(history[len(token_ids) :])


def digest_all(token_ids: list[int] | tuple[int, ...], adapter_digest: bytes = b"") -> list[Digest]:
    """The digest of every prefix of `token_ids`, which depends on the adapter as well."""
    digests: list[Digest] = []
    for token_id in token_ids:
        digests.append(digest_next(digests[-1] if digests else adapter_digest, token_id))
    return digests


def digest_next(history: Digest, number: int) -> Digest:
    """The digest of a history followed by `number`."""
    return hashlib.blake2b(history + number.to_bytes(8, "little"), digest_size=8).digest()


def score(content: Digest, token_id: int, num_top: int) -> TokenScore:
    """A made-up score that depends on all tokens before `token_id` and on itself."""
    logprob = -float(int.from_bytes(digest_next(content, token_id)) % 1000)
    return TokenScore(logprob, tuple((rank, -float(rank)) for rank in range(num_top)))
