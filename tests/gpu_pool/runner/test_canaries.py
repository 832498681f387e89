"""Thousands of requests of many accounts, each with a secret word: no answer holds another's.

The model says nothing but secrets of its own context (`canary_llama`), so every token of an answer
tells whose memory was read. The same storm with a broken block pool, a hash that forgets the words
or a salt that is everybody's shows that each of those would be seen.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from contracts.grant import RetentionClass
from contracts.ids import AccountId
from contracts.inference import FinishReason
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import NgramSettings, SchedulerSettings
from gpu_pool.kv.block_hash import BlockHasher
from gpu_pool.kv.block_pool import BlockPool
from gpu_pool.plan import BlockId
from gpu_pool.runner.block_tags import BlockTags
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.canary_llama import NUM_FILLERS, write_canary_llama
from tests.gpu_pool.engine.engine_rig import EngineRig, assert_no_leak, create_request

pytestmark = pytest.mark.slow

NUM_REQUESTS: Final = 2000
NUM_ACCOUNTS: Final = 24
SYSTEM_PROMPT: Final = [n % NUM_FILLERS for n in range(7, 47)]
"""What all accounts begin with, word by word: two full blocks and a piece."""
SHARED_TOKENS: Final = 32
SETTINGS: Final = SchedulerSettings(
    max_batch_tokens=2048,
    max_chunk_tokens=50,
    max_running=256,
    max_waiting=NUM_REQUESTS,
    max_account_waiting=NUM_REQUESTS,
    ngram=NgramSettings(min_match_tokens=1),
)


@dataclass(slots=True)
class Findings:
    """What a storm brought to light."""

    num_whole: int = 0
    """Answers of full length."""
    leaks: list[int] = field(default_factory=list[int])
    """Requests whose answer holds a token other than their word."""
    shared: list[int] = field(default_factory=list[int])
    """First requests of an account that found something in the cache."""
    num_cached: int = 0
    num_failed: int = 0
    num_swapped: int = 0
    num_preempted: int = 0


def create_word(number: int) -> int:
    """The secret of one request: a token that no other has."""
    return NUM_FILLERS + number


def create_canary(number: int, random: Random) -> AddSequence:
    """A request that is told its word somewhere behind the system prompt."""
    own = [random.randrange(NUM_FILLERS) for _ in range(random.randint(0, 40))]
    place = random.randint(0, len(own))
    is_private = random.random() < 0.1
    account = number % NUM_ACCOUNTS
    return create_request(
        number,
        [*SYSTEM_PROMPT, *own[:place], create_word(number), *own[place:]],
        max_tokens=random.choice([1, 2, 4, 28]),
        temperature=random.choice([0.0, 1.0]),
        seed=number,
        priority=int(random.random() < 0.1),
        account_id=AccountId(f"{account:032x}"),
        salt=account.to_bytes(32, "little") + bytes([number % 256, number // 256]) * is_private,
        retention=RetentionClass.NONE if is_private else RetentionClass.STANDARD,
    )


def play(folder: Path, num_requests: int, check_every: int = 200) -> Findings:
    """A storm of arrivals and aborts through the real scheduler and the real runner."""
    executor = create_executor(
        WorkerSettings(model_dir=folder, num_blocks=160, swap_bytes=1 << 20, num_threads=1)
    )
    rig = EngineRig(SETTINGS, executor.info, check_every=check_every)
    rig.executor = executor  # type: ignore[assignment]
    random = Random(11)
    requests = [create_canary(number, random) for number in range(num_requests)]
    for number, request in enumerate(requests):
        rig.add(request)
        if random.random() < 0.05:
            rig.abort(random.randint(0, number))
        if number % 24 == 23:
            rig.step()
    rig.run()
    if check_every <= num_requests:
        assert_no_leak(rig)
    return sum_up(rig, requests)


def sum_up(rig: EngineRig, requests: list[AddSequence]) -> Findings:
    """Who was told what."""
    findings = Findings()
    seen: set[bytes] = set()
    begun = [new.sequence_id for plan in rig.plans for new in plan.new]
    findings.num_preempted = len(begun) - len(set(begun))
    findings.num_swapped = sum(len(plan.moved_in) for plan in rig.plans)
    for number in dict.fromkeys(begun):
        request, outcome = requests[number], rig.outcomes[number]
        if request.cache_salt not in seen and outcome.num_cached_tokens != [0]:
            findings.shared.append(number)
        seen.add(request.cache_salt)
        findings.num_cached += sum(outcome.num_cached_tokens)
    for number, request in enumerate(requests):
        outcome = rig.outcomes[number]
        findings.num_whole += outcome.reasons == [FinishReason.LENGTH]
        findings.num_failed += bool(outcome.error_codes)
        if set(outcome.token_ids) - {create_word(number)}:
            findings.leaks.append(number)
        assert max(outcome.num_cached_tokens, default=0) <= len(request.token_ids)
    return findings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("canary")
    write_canary_llama(path)
    return path


def test_no_answer_of_thousands_holds_the_secret_of_another(folder: Path) -> None:
    findings = play(folder, NUM_REQUESTS)
    assert findings.leaks == []
    assert findings.shared == []
    assert findings.num_failed == 0
    assert findings.num_whole > 0.9 * NUM_REQUESTS
    # The storm did what it is meant to: prefixes were shared, sequences gave way and came back.
    assert findings.num_cached > NUM_REQUESTS * SHARED_TOKENS // 4
    assert findings.num_preempted > 10
    assert findings.num_swapped > 20


def hand_out_twice(allocate: Callable[..., tuple[BlockId, ...]]) -> Callable[..., Any]:
    """Every 25th time the first block that is handed out is one that somebody uses."""
    num_calls = 0

    def wrong(self: BlockPool, count: int, account_id: AccountId, **fields: bool) -> Any:
        nonlocal num_calls
        block_ids = allocate(self, count, account_id, **fields)
        num_calls += 1
        used = [b for b in map(BlockId, range(self.num_blocks)) if not self.is_free(b)]
        if num_calls % 25 == 0 and block_ids:
            stolen = next((b for b in used if b not in block_ids), block_ids[0])
            self.release(block_ids[:1])
            self.share(stolen)
            self._blocks[stolen].tag += 1
            return (stolen, *block_ids[1:])
        return block_ids

    return wrong


@pytest.mark.parametrize("has_tags", [False, True])
def test_a_block_that_is_handed_out_twice_is_seen_and_tags_keep_it_from_being_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, has_tags: bool
) -> None:
    """The first control, and what tags are for."""
    monkeypatch.setattr(BlockPool, "allocate", hand_out_twice(BlockPool.allocate))
    if not has_tags:
        monkeypatch.setattr(BlockTags, "agree", lambda *_: True)
    findings = play(folder, 150, check_every=1 << 30)
    assert bool(findings.leaks) is not has_tags
    assert bool(findings.num_failed) is has_tags


def test_a_hash_that_forgets_the_words_is_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend = BlockHasher.extend
    monkeypatch.setattr(
        BlockHasher, "extend", lambda self, parent, tokens: extend(self, parent, [0] * len(tokens))
    )
    assert play(folder, 100).leaks


def test_a_salt_that_is_everybodys_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_root = BlockHasher.create_root
    monkeypatch.setattr(BlockHasher, "create_root", lambda self, *_: create_root(self, b""))
    findings = play(folder, 100)
    assert findings.shared
    assert findings.leaks == []  # the words are still in the key
