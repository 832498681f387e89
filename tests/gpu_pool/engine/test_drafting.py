"""Guesses come from a sequence's own history, follow their success, and change no answer."""

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_pool.engine.drafting import Drafter
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.settings import NgramSettings, SchedulerSettings
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request

SETTINGS = NgramSettings(max_draft_tokens=8)


def propose(tokens: list[int], settings: NgramSettings = SETTINGS, limit: int = 99) -> list[int]:
    """What a drafter that has always been right proposes."""
    drafter = Drafter(settings)
    drafter.learn(2, 2)
    drafter.learn(4, 4)
    return list(drafter.propose(tokens, limit))


def test_the_guess_is_what_followed_the_same_ending_before() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 1, 2]) == [3, 4, 5, 6, 1, 2]


def test_the_longest_ending_and_its_last_occurrence_decide() -> None:
    assert propose([9, 1, 2, 7, 7, 8, 1, 2, 5, 5, 9, 1, 2])[:2] == [7, 7]
    assert propose([1, 2, 3, 0, 1, 2, 4, 0, 1, 2])[:1] == [4]


def test_no_guess_without_a_repetition_or_room() -> None:
    assert propose([1, 2, 3, 4, 5]) == []
    assert propose([1, 2, 3, 1, 2], limit=0) == []
    assert propose([]) == []


def test_a_token_is_not_found_across_the_bytes_of_its_neighbours() -> None:
    """256 is 00 01 00 00 in memory: shifted by a byte it would look like 1."""
    assert propose([256, 256, 7, 7, 1, 1], NgramSettings(min_match_tokens=1)) == [1]
    assert propose([0x01000000, 0x00000001, 5, 6, 0x00010000, 0x00000100]) == []


@pytest.mark.parametrize("ending", [[1, 1], [256, 1], [1, 256]])
def test_looking_up_takes_as_many_moves_whatever_a_history_holds(ending: list[int]) -> None:
    """Thousands of places that look alike only by their bytes, of which every step would look at
    each: whoever writes such a prompt would hold up all others.
    """
    num_lines = 0

    def note(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal num_lines
        num_lines += event == "line" and "drafting" in frame.f_code.co_filename
        return note

    traced = sys.gettrace()
    sys.settrace(note)
    try:
        propose([256] * 8000 + ending)
    finally:
        sys.settrace(traced)
    assert 10 < num_lines < 100


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    limit=st.integers(0, 10),
)
def test_a_guess_is_always_a_piece_of_the_history_behind_a_copy_of_its_ending(
    tokens: list[int], limit: int
) -> None:
    drafts = propose(tokens, limit=limit)
    assert len(drafts) <= min(limit, 8)
    if drafts:
        places = range(len(tokens) - 1)
        assert any(
            tokens[place : place + 2] == tokens[-2:]
            and tokens[place + 2 : place + 2 + len(drafts)] == drafts
            for place in places
        )


def test_guesses_grow_with_success_and_pause_after_failure() -> None:
    history = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    drafter = Drafter(SETTINGS)
    assert len(drafter.propose(history, 99)) == 2
    drafter.learn(2, 2)
    assert len(drafter.propose(history, 99)) == 4
    drafter.learn(4, 0)
    pauses: list[int] = []
    for _ in range(8):
        num_empty = 0
        while not (drafts := drafter.propose(history, 99)):
            num_empty += 1
        pauses.append(num_empty)
        drafter.learn(len(drafts), 0)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 64]
    assert not drafter.is_hot


def create_rig(
    *, drafts: bool, max_in_flight: int = 1, num_blocks: int = 64, vocab_size: int = 2
) -> EngineRig:
    """Two tokens only, so that endings repeat."""
    info = create_double_info(
        vocab_size=vocab_size, eos_token_ids=(), max_in_flight=max_in_flight, num_blocks=num_blocks
    )
    ngram = NgramSettings(min_match_tokens=1) if drafts else None
    return EngineRig(SchedulerSettings(ngram=ngram, max_running=8), info)


@pytest.mark.parametrize("vocab_size", [1, 2])
@pytest.mark.parametrize("max_in_flight", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_save_steps_and_change_no_token_nor_score(
    max_in_flight: int, temperature: float, vocab_size: int
) -> None:
    rigs = {
        drafts: create_rig(drafts=drafts, max_in_flight=max_in_flight, vocab_size=vocab_size)
        for drafts in (False, True)
    }
    prompts = [[n % 2] * 9 for n in range(6)]
    for rig in rigs.values():
        for n, prompt in enumerate(prompts):
            rig.add(
                create_request(
                    n,
                    [t % vocab_size for t in prompt],
                    max_tokens=60,
                    temperature=temperature,
                    seed=n,
                    num_logprobs=1,
                )
            )
        rig.run()
    if vocab_size == 1 or max_in_flight == 1:
        assert any(work.draft_token_ids for plan in rigs[True].plans for work in plan.scheduled)
        assert len(rigs[True].plans) < len(rigs[False].plans)
    for n in range(len(prompts)):
        assert rigs[True].outcomes[n].token_ids == rigs[False].outcomes[n].token_ids
        assert rigs[True].outcomes[n].scores == rigs[False].outcomes[n].scores


def test_nobody_gives_way_for_a_guess() -> None:
    rig = create_rig(drafts=True, num_blocks=12)
    for n in range(3):
        rig.add(create_request(n, [0, 1] * 3, max_tokens=10))
    rig.run()
    assert sum(len(plan.new) for plan in rig.plans) == 3


def test_penalties_and_answers_without_history_are_not_guessed() -> None:
    rig = create_rig(drafts=True)
    request = create_request(1, [0, 1] * 4, max_tokens=20)
    fields = {field: getattr(request, field) for field in request.__struct_fields__}
    sampling = {f: getattr(request.sampling, f) for f in request.sampling.__struct_fields__}
    fields["sampling"] = type(request.sampling)(**sampling | {"presence_penalty": 1.0})
    rig.add(type(request)(**fields))
    rig.run()
    assert not any(work.draft_token_ids for plan in rig.plans for work in plan.scheduled)


def test_a_step_computes_no_more_guesses_than_it_may() -> None:
    info = create_double_info(vocab_size=1, eos_token_ids=())
    settings = SchedulerSettings(
        max_batch_tokens=12, max_running=8, ngram=NgramSettings(max_step_drafts=5)
    )
    rig = EngineRig(settings, info)
    for n in range(8):
        rig.add(create_request(n, [0] * 4, max_tokens=12, salt=bytes([n])))
    rig.run()
    for plan in rig.plans:
        num_drafts = sum(len(work.draft_token_ids) for work in plan.scheduled)
        assert num_drafts <= 5
        assert sum(work.num_tokens for work in plan.scheduled) + num_drafts <= 12
