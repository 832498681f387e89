"""Random storms through the lane that runs ahead: no answer, score or bill changes.

Arrivals, aborts and deadlines of requests of every kind, of several accounts, crowded and swapped,
while two steps are under way. After every move the runner's own books are looked at: places, and
who holds which block.
"""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from contracts.grant import RetentionClass
from contracts.ids import AccountId
from contracts.inference import FinishReason
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import NgramSettings
from gpu_pool.runner.device_rows import DeviceRows
from gpu_pool.runner.drawn_tokens import Fetched
from gpu_pool.runner.sequence_row import SequenceRow
from tests.gpu_pool.engine.engine_rig import Outcome, create_request
from tests.gpu_pool.engine.list_matcher import Lists
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.models.test_under_the_scheduler import FAMILIES
from tests.gpu_pool.runner.lane_rig import MAX_RUNNING, LaneRig, make_kernels
from tests.gpu_pool.runner.tape import TapeRecorder
from tests.gpu_pool.tiny_llama import write_tiny_llama

NUM_REQUESTS = 60
NUM_STORMS = 10
VOCAB = 300
ENDS = list(range(24))
"""Tokens that end an answer: so many that steps ahead of their results meet them often."""
STORMY = (None, FinishReason.LENGTH, FinishReason.STOP, FinishReason.ABORTED)
"""How requests of a storm end: None is an error, of a deadline."""
EDGES = (0, 1, -1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 12345)
"""Seeds where 64 bits end."""
TIGHT: dict[str, Any] = {
    "num_blocks": 14,
    "max_batch_tokens": 48,
    "max_chunk_tokens": 17,
    "swap_bytes": 1 << 18,
    "ngram": NgramSettings(min_match_tokens=1),
}
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0},
    {"temperature": 1e-30},
    {"temperature": 0.8, "top_k": 10_000},
    {"temperature": 1.3, "top_k": 5, "top_p": 0.8, "min_p": 0.02},
    {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"frequency_penalty": 0.7},
    {"temperature": 1.0, "num_logprobs": 3},
    {"num_prompt_logprobs": 2},
    {"logit_bias": ((7, 6.0), (8, -100.0))},
    {"temperature": 0.5, "bad_spellings": tuple([(n, n) for n in range(VOCAB)])},
    {"bad_spellings": (*((n,) for n in range(0, VOCAB, 3)), *((n, n + 1) for n in range(100)))},
)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are one operator each."""
    make_kernels(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint."""
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(path, eos_token_id=ENDS)
    return path


def create_storm(random: Random) -> list[AddSequence]:
    """Requests of every kind; some are choices of one prompt, some have one token."""
    prefixes = [[random.randrange(VOCAB) for _ in range(70)] for _ in range(2)]
    prompt: list[int] = []
    requests: list[AddSequence] = []
    for number in range(NUM_REQUESTS):
        if not prompt or random.random() < 0.7:  # else another choice of the one before
            own = [random.randrange(VOCAB) for _ in range(random.choice([1, 1, 3, 15, 16, 40]))]
            prompt = (random.choice(prefixes) if random.random() < 0.4 else []) + own
        is_private = random.random() < 0.2
        account = random.randrange(3)
        kind = random.choice(KINDS)
        grammar = None
        if not kind and random.random() < 0.3:
            places = random.randint(1, 12)
            grammar = " ".join(f"{random.randrange(VOCAB)}|{n}" for n in range(places))
        request = create_request(
            number,
            prompt,
            max_tokens=random.choice([1, 2, 9, 33]),
            salt=bytes([65 + account]) + bytes([number]) * is_private,
            account_id=AccountId(f"{account:032x}"),
            retention=RetentionClass.NONE if is_private else RetentionClass.STANDARD,
            priority=int(random.random() < 0.1),
            ignore_eos=random.random() < 0.5,
            seed=random.choice(EDGES) if random.random() < 0.3 else number,
            grammar=grammar,
        )
        sampling = msgspec.structs.replace(request.sampling, **kind)
        requests.append(msgspec.structs.replace(request, sampling=sampling))
    return requests


def answer_alone(folder: Path, requests: list[AddSequence]) -> list[Outcome]:
    """What each request is told if nobody else is there, by the lane that goes step by step."""
    rig = LaneRig(folder, is_ahead=False, create_matcher=Lists, prefix_caching=False)
    for request in requests:
        rig.add(request)
        rig.run()
    return [rig.outcomes[request.sequence_id] for request in requests]


def play(folder: Path, requests: list[AddSequence], random: Random) -> LaneRig:
    """The storm; the runner's books are looked at after every move."""
    rig = LaneRig(folder, TapeRecorder(), create_matcher=Lists, **TIGHT)
    for number, request in enumerate(requests):
        if random.random() < 0.15:
            late = rig.now_ms + random.randint(0, 30)
            request = msgspec.structs.replace(request, deadline_ms=late)
        rig.add(request)
        if random.random() < 0.15:
            rig.abort(random.randint(max(0, number - 12), number))
        for _ in range(random.choice([0, 0, 0, 1, 2])):
            move(rig)
    while rig.scheduler.has_work:
        if random.random() < 0.05:
            rig.abort(random.randrange(len(requests)))
        move(rig)
    return rig


def move(rig: LaneRig) -> None:
    """One step, a millisecond long."""
    rig.now_ms += 1
    rig.step()
    check_books(rig)


def check_books(rig: LaneRig) -> None:
    """Every place is a row's or free, and blocks are held by as many tables as list them."""
    runner = rig.worker._runner
    assert runner is not None
    rows = list(runner._rows.values())
    places = [row.place for row in rows]
    assert sorted([*places, *rig.lane._rows._free]) == list(range(MAX_RUNNING)), "places"
    for index, tags in enumerate(runner._tags):
        held = Counter(block for row in rows for block in row.tables[index].held_ids.tolist())
        counted = {b: n for b, n in enumerate(tags._num_holders.tolist()) if n}
        assert counted == dict(held), "holders"
        if not tags.is_suspect:
            assert all(row.tables[index].agrees_with(tags) for row in rows), "tags"


def compare(rig: LaneRig, expected: list[Outcome]) -> list[str]:
    """How outcomes differ from those of requests that were alone."""
    found: list[str] = []
    for number, alone in enumerate(expected):
        mine = rig.outcomes[number]
        count = len(mine.token_ids)
        is_whole = mine.reasons == alone.reasons and not mine.error_codes
        is_cut = mine.reasons == [FinishReason.ABORTED] or mine.error_codes == ["deadline_exceeded"]
        if not (is_whole or is_cut):
            found.append(f"{number} ended with {mine.reasons}, {mine.error_codes}")
        if mine.token_ids != (alone.token_ids if is_whole else alone.token_ids[:count]):
            found.append(f"{number} was told {mine.token_ids}, not {alone.token_ids}")
        if is_whole and mine.num_completion_tokens != alone.num_completion_tokens:
            found.append(f"{number} is billed {mine.num_completion_tokens} tokens")
        told, due = mine.scores + mine.prompt_scores, alone.scores + alone.prompt_scores
        if is_whole and [s.logprob for s in told] != pytest.approx(
            [s.logprob for s in due], abs=1e-3
        ):
            found.append(f"{number} has scores {told}, not {due}")
    return found


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[Outcome]:
    """What the requests of the first storm are told without it."""
    return answer_alone(folder, create_storm(Random(0)))


def test_a_storm_changes_no_answer_score_or_bill(folder: Path, alone: list[Outcome]) -> None:
    random = Random(0)
    rig = play(folder, create_storm(random), random)
    assert compare(rig, alone) == []
    assert_has_happened(rig)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, NUM_STORMS))
def test_no_storm_changes_an_answer(folder: Path, seed: int) -> None:
    random = Random(seed)
    requests = create_storm(random)
    rig = play(folder, requests, random)
    assert compare(rig, answer_alone(folder, requests)) == []


SLOW_FAMILIES = [
    pytest.param(family, marks=pytest.mark.slow) for family in ("windows and sinks", "chunks")
]


@pytest.mark.parametrize("family", ["windows", *SLOW_FAMILIES])
def test_windows_drop_blocks_while_steps_are_under_way(family: str, tmp_path: Path) -> None:
    model_type, changes = FAMILIES[family]
    write_checkpoint(tmp_path, model_type, **(changes | {"eos_token_id": ENDS}))
    random = Random(1)
    requests = create_storm(random)
    rig = play(tmp_path, requests, random)
    assert compare(rig, answer_alone(tmp_path, requests)) == []
    assert_has_happened(rig)
    assert any(any(item.nums_dropped) for plan in rig.plans for item in plan.scheduled)


def assert_has_happened(rig: LaneRig) -> None:
    """The control of a storm: it did what it is meant to."""
    reasons = Counter(reason for o in rig.outcomes.values() for reason in o.reasons)
    assert min(reasons[reason] for reason in STORMY) > 2
    assert any(any(plan.zeroed) for plan in rig.plans)
    assert any(plan.moved_in for plan in rig.plans)
    begun = [new.sequence_id for plan in rig.plans for new in plan.new]
    assert len(begun) > len(set(begun))
    assert rig.lane._graphs.num_replays > 10
    assert rig.most_under_way == 1


# -- controls: each breaks one rule, and a storm finds it -----------------------------------------


def _take_a_place_twice(patch: pytest.MonkeyPatch) -> None:
    """A place is somebody's before it was given back."""
    patch.setattr(DeviceRows, "release", lambda self, row: self._free.append(0))


def _keep_holders(patch: pytest.MonkeyPatch) -> None:
    """Who leaves holds on to blocks."""
    patch.setattr(SequenceRow, "let_go", lambda self, known: None)


def _keep_guesses(patch: pytest.MonkeyPatch) -> None:
    """What was drawn behind guesses, or beside a scored prompt, is not told to the device."""
    patch.setattr(DeviceRows, "tell_newest", lambda self, rows: None)


def _count_nothing(patch: pytest.MonkeyPatch) -> None:
    """Penalties look at no token that is still on the device."""
    patch.setattr(SequenceRow, "count_drawn", lambda self, token_ids: None)


def _swap_neighbours(patch: pytest.MonkeyPatch) -> None:
    """Tokens come to the host in the wrong order."""
    read = Fetched.read

    def read_reversed(self: Fetched) -> Any:
        token_ids, scores = read(self)
        return token_ids[::-1], scores

    patch.setattr(Fetched, "read", read_reversed)


@pytest.mark.parametrize(
    "defect",
    [_take_a_place_twice, _keep_holders, _keep_guesses, _count_nothing, _swap_neighbours],
)
def test_a_defect_shows(
    folder: Path, alone: list[Outcome], defect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(0)
    requests = create_storm(random)
    defect(monkeypatch)
    found: list[str] = []
    try:
        found = compare(play(folder, requests, random), alone)
    except AssertionError as error:  # the books say so before the answers
        found.append(str(error))
    assert found
