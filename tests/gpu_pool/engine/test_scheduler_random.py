"""Whatever arrives in whatever order: each answer is the one the request would get alone."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InvariantBroken
from contracts.grant import RetentionClass
from contracts.ids import AccountId
from contracts.inference import FinishReason
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import NgramSettings, SchedulerSettings
from gpu_pool.kv.block_pool import BlockPool
from gpu_pool.plan import BlockId, KvGroup, KvGroupKind
from tests.gpu_pool.engine.engine_rig import NEVER_MS, EngineRig, create_request


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request whose prompt starts like those of its family."""

    family: int
    num_shared: int
    num_own: int
    max_tokens: int
    salt: bytes
    priority: int
    deadline_ms: int | None
    reject_if_busy: bool
    is_random: bool
    ignore_eos: bool
    is_private: bool = False

    def to_request(self, sequence_id: int, now_ms: int, vocab_size: int) -> AddSequence:
        first = self.family * 100
        shared = [n % vocab_size for n in range(first, first + self.num_shared)]
        own = [(500 + sequence_id % 400) % vocab_size] * self.num_own
        deadline = NEVER_MS if self.deadline_ms is None else now_ms + self.deadline_ms
        return create_request(
            sequence_id,
            [*shared, *own],
            max_tokens=self.max_tokens,
            salt=self.salt + bytes([sequence_id % 256]) * self.is_private,
            account_id=AccountId(self.salt.hex() * 16),
            retention=RetentionClass.NONE if self.is_private else RetentionClass.STANDARD,
            priority=self.priority,
            deadline_ms=deadline,
            reject_if_busy=self.reject_if_busy,
            temperature=float(self.is_random),
            seed=sequence_id if self.is_random else None,
            ignore_eos=self.ignore_eos,
        )


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends the request that arrived `age` requests ago, if it is not over."""

    age: int


@dataclass(frozen=True, slots=True)
class Steps:
    """Lets time pass: one millisecond a step."""

    count: int


STORM_MOVES = [
    1500,
    pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
]
"""Moves of the long storms; the whole proof takes most of a minute of a core each."""
STORM_ROUND = 500
"""After so many moves everything has to be given back, and the storm goes on in the same engine."""
NGRAM = NgramSettings(max_draft_tokens=4, max_step_drafts=6, min_match_tokens=1)
FULL = KvGroup(KvGroupKind.FULL, 1, 1)
SLIDING = KvGroup(KvGroupKind.SLIDING_WINDOW, 1, 1, 5)
CHUNKED = KvGroup(KvGroupKind.CHUNKED, 1, 1, 6)
WIDE = KvGroup(KvGroupKind.SLIDING_WINDOW, 1, 1, 500)
"""Sees further than all memory of these tests reaches."""
SWAPPED = KvGroup(KvGroupKind.FULL, 1, 1, num_host_blocks=12)
SWAPPED_SLIDING = KvGroup(KvGroupKind.SLIDING_WINDOW, 1, 1, 5, num_host_blocks=6)
KV_GROUPS = {
    "full": (FULL,),
    "full, swapped": (SWAPPED,),
    "full and sliding, swapped": (SWAPPED, SWAPPED_SLIDING),
    "full and sliding": (FULL, SLIDING),
    "chunked and full": (CHUNKED, FULL),
    "sliding": (SLIDING,),
    "wider than the memory": (WIDE, CHUNKED),
}

arrivals = st.builds(
    Arrival,
    family=st.integers(0, 1),
    num_shared=st.integers(1, 12),
    num_own=st.integers(0, 6),
    max_tokens=st.integers(1, 14),
    salt=st.sampled_from([b"A", b"B"]),
    priority=st.sampled_from([0, 0, 0, 1]),
    deadline_ms=st.sampled_from([None, None, None, 0, 5, 20]),
    reject_if_busy=st.sampled_from([False, False, False, True]),
    is_random=st.booleans(),
    ignore_eos=st.booleans(),
    is_private=st.sampled_from([False, False, False, True]),
)
moves = st.lists(
    st.one_of(
        arrivals,
        arrivals,
        st.builds(Abort, st.integers(0, 8)),
        st.builds(Steps, st.integers(1, 4)),
    ),
    min_size=8,
    max_size=60,
)
engines = st.builds(
    lambda size, blocks, running, extra, chunk, flight, caching, mix, drafts, vocab: EngineRig(
        SchedulerSettings(
            max_batch_tokens=running + extra,
            max_chunk_tokens=chunk,
            max_running=running,
            max_waiting=6,
            prefix_caching=caching,
            ngram=NGRAM if drafts else None,
        ),
        create_double_info(
            block_size=size,
            num_blocks=blocks,
            context_window=30,
            kv_groups=KV_GROUPS[mix],
            eos_token_ids=tuple(range(0, 1000, 12)) if vocab == 1000 else (),
            vocab_size=vocab,
            max_in_flight=flight,
        ),
    ),
    size=st.integers(1, 4),
    blocks=st.integers(4, 20),
    running=st.integers(1, 5),
    extra=st.integers(0, 12),
    chunk=st.integers(1, 12),
    flight=st.integers(1, 3),
    caching=st.sampled_from([True, True, False]),
    mix=st.sampled_from(sorted(KV_GROUPS)),
    drafts=st.booleans(),
    vocab=st.sampled_from([1000, 2, 3]),
)


@dataclass(slots=True)
class Story:
    """All requests of a run, and what they were told."""

    rig: EngineRig
    requests: dict[int, AddSequence] = field(default_factory=dict[int, AddSequence])
    first_id: int = 0

    def play(self, moves: list[Arrival | Abort | Steps]) -> None:
        """All moves, and then steps until nothing is left to do."""
        self.play_on(moves)
        self.rig.run()

    def play_on(self, moves: list[Arrival | Abort | Steps]) -> None:
        """All moves."""
        for move in moves:
            if isinstance(move, Arrival):
                number = self.first_id + len(self.requests)
                request = move.to_request(number, self.rig.now_ms, self.rig.info.vocab_size)
                self.requests[request.sequence_id] = request
                self.rig.add(request)
            elif isinstance(move, Abort):
                self.rig.abort(self.first_id + len(self.requests) - 1 - move.age)
            else:
                for _ in range(move.count):
                    self.rig.now_ms += 1
                    self.rig.step()

    def check_answer(self, request: AddSequence) -> None:
        outcome = self.rig.outcomes[request.sequence_id]
        expected = self.rig.predict(request)
        assert len(outcome.reasons) == 1
        (reason,) = outcome.reasons
        is_whole = reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert outcome.token_ids == (expected if is_whole else expected[: len(outcome.token_ids)])
        assert outcome.num_completion_tokens == len(outcome.token_ids) + (
            reason is FinishReason.STOP
        )
        assert (reason is FinishReason.STOP) == (
            is_whole and len(expected) < (request.sampling.max_tokens or 0)
        )
        assert len(outcome.num_cached_tokens) <= 1
        assert not outcome.token_ids or len(outcome.num_cached_tokens) == 1

    def check_cached(self, request: AddSequence) -> None:
        """What was cached has been computed for another request with the same salt."""
        outcome = self.rig.outcomes[request.sequence_id]
        for num_cached in outcome.num_cached_tokens:
            assert num_cached < len(request.token_ids)
            prefix = list(request.token_ids[:num_cached])
            assert not prefix or any(
                [*other.token_ids, *self.rig.outcomes[other.sequence_id].token_ids][:num_cached]
                == prefix
                for other in self.requests.values()
                if other is not request and other.cache_salt == request.cache_salt
            )

    def check(self) -> None:
        """Every answer is right, and nothing is left behind."""
        for request in self.requests.values():
            self.check_answer(request)
            self.check_cached(request)
        load = self.rig.scheduler.load
        assert (load.num_running, load.num_waiting) == (0, 0)
        assert load.num_free_blocks == load.num_blocks


@settings(max_examples=300)
@given(rig=engines, moves=moves)
def test_every_answer_is_the_one_the_request_would_get_alone(
    rig: EngineRig, moves: list[Arrival | Abort | Steps]
) -> None:
    story = Story(rig)
    story.play(moves)
    story.check()


@pytest.mark.parametrize("mix", sorted(KV_GROUPS))
@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_a_storm_in_a_small_pool_reaches_every_corner_and_leaks_nothing(
    max_in_flight: int, mix: str
) -> None:
    """The control of the test above: preemption, caching and every ending do occur."""
    info = create_double_info(
        num_blocks=14,
        context_window=40,
        eos_token_ids=tuple(range(0, 1000, 25)),
        max_in_flight=max_in_flight,
        kv_groups=KV_GROUPS[mix],
    )
    limits = SchedulerSettings(
        max_batch_tokens=12, max_chunk_tokens=6, max_running=6, max_waiting=8
    )
    story = Story(EngineRig(limits, info))
    random = Random(7)
    story.play([draw_move(random) for _ in range(1500)])
    story.check()
    outcomes = story.rig.outcomes.values()
    num_starts = sum(len(plan.new) for plan in story.rig.plans)
    assert num_starts > sum(len(outcome.num_cached_tokens) for outcome in outcomes) + 20
    num_returns = sum(bool(plan.moved_in) for plan in story.rig.plans)
    assert (num_returns > 10) == ("swapped" in mix)
    assert sum(sum(outcome.num_cached_tokens) for outcome in outcomes) > 100
    reasons = {reason for outcome in outcomes for reason in outcome.reasons}
    assert reasons == {None, *FinishReason} - {FinishReason.TOOL_CALLS}  # the server's to tell
    codes = {code for outcome in outcomes for code in outcome.error_codes}
    assert codes == {"pool_saturated", "deadline_exceeded"}


@pytest.mark.parametrize("num_moves", STORM_MOVES)
@pytest.mark.parametrize("mix", ["full and sliding, swapped", "chunked and full"])
def test_a_long_storm_loses_no_block_and_counts_exactly(mix: str, num_moves: int) -> None:
    info = create_double_info(
        num_blocks=40, context_window=40, kv_groups=KV_GROUPS[mix], max_in_flight=2
    )
    limits = SchedulerSettings(
        max_batch_tokens=24, max_chunk_tokens=9, max_running=9, max_waiting=8, ngram=NGRAM
    )
    rig = EngineRig(limits, info, check_every=100)
    random = Random(8)
    num_requests = 0
    for _ in range(num_moves // STORM_ROUND):
        story = Story(rig, first_id=num_requests)
        story.play([draw_move(random) for _ in range(STORM_ROUND)])
        story.check()
        num_requests += len(story.requests)
        rig.scheduler.check()
        rig.outcomes.clear()
        rig.plans.clear()


@pytest.mark.parametrize("fault", ["lost", "counted twice"])
def test_one_wrong_reference_in_a_storm_is_seen(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: of hundreds of releases one forgets a block, or one share counts twice."""
    release, num_calls = BlockPool.release, 0

    def wrong(self: BlockPool, block_ids: Iterable[BlockId], **fields: bool) -> None:
        nonlocal num_calls
        held = list(block_ids)
        num_calls += bool(held)
        if num_calls == 150 and held:
            num_calls += 1
            held = held[1:] if fault == "lost" else [*held, held[0]]
        release(self, held, **fields)

    monkeypatch.setattr(BlockPool, "release", wrong)
    info = create_double_info(num_blocks=40, context_window=40)
    story = Story(EngineRig(SchedulerSettings(max_running=9, max_waiting=8), info))
    random = Random(8)
    with pytest.raises((AssertionError, InvariantBroken)):
        story.play([draw_move(random) for _ in range(600)])
    monkeypatch.undo()
    story.rig.outcomes.clear()  # its books are wrong for good
    story.rig.scheduler = EngineRig().scheduler


def draw_move(random: Random) -> Arrival | Abort | Steps:
    """A move of the storm: as many steps as arrivals, an abort now and then."""
    kind = random.random()
    if kind < 0.1:
        return Abort(random.randrange(8))
    if kind < 0.6:
        return Steps(random.randint(1, 4))
    return Arrival(
        family=random.randrange(2),
        num_shared=random.randint(1, 16),
        num_own=random.randint(0, 6),
        max_tokens=random.randint(1, 18),
        salt=random.choice([b"A", b"B"]),
        priority=random.choice([0, 0, 0, 1]),
        deadline_ms=random.choice([None, None, None, 5, 20]),
        reject_if_busy=random.random() < 0.2,
        is_random=random.random() < 0.5,
        ignore_eos=random.random() < 0.5,
        is_private=random.random() < 0.1,
    )
