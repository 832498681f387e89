"""Bad words in the engine: what is refused, what an answer ends with that they leave nothing."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from contracts.errors import InvalidRequest, InvariantBroken
from contracts.inference import FinishReason, SamplingParams
from gpu_pool.engine.admission import MAX_SPELLING_TOKENS, MAX_SPELLINGS
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import NgramSettings, SchedulerSettings
from gpu_pool.plan import NO_TOKEN, ForwardResult
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.engine.list_matcher import Lists

Spellings = tuple[tuple[int, ...], ...]


def forbid(request: AddSequence, *spellings: tuple[int, ...]) -> AddSequence:
    """`request`, whose answer must not contain some token sequences."""
    sampling = msgspec.structs.replace(request.sampling, bad_spellings=spellings)
    return msgspec.structs.replace(request, sampling=sampling)


def has_piece(answer: list[int], spellings: Spellings) -> bool:
    """True when a spelling stands somewhere in `answer`."""
    return any(
        tuple(answer[first : first + len(spelling)]) == spelling
        for spelling in spellings
        for first in range(len(answer))
    )


@pytest.mark.parametrize(
    ("spellings", "words"),
    [
        (((1,),) * (MAX_SPELLINGS + 1), ["513 ways", "may be 512"]),
        (((1,), (2,) * (MAX_SPELLING_TOKENS + 1)), ["65 tokens", "may have 64"]),
    ],
)
def test_more_than_a_row_keeps_is_refused_with_the_bound(
    spellings: Spellings, words: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        EngineRig().scheduler._entrance._admission.admit(forbid(create_request(1, [1]), *spellings))
    assert caught.value.param == "bad_words"
    assert all(word in caught.value.message for word in words)


@pytest.mark.parametrize("spellings", [((),), ((1,), ()), ((1000,),), ((2, -1),)])
def test_a_spelling_that_is_none_is_an_error_of_ours(spellings: Spellings) -> None:
    with pytest.raises(InvariantBroken):
        EngineRig().scheduler._entrance._admission.admit(forbid(create_request(1, [1]), *spellings))


def test_what_is_just_within_the_bounds_is_taken() -> None:
    longest = (1,) * MAX_SPELLING_TOKENS
    rig = EngineRig()
    answered = rig.add(forbid(create_request(1, [1, 2]), *[longest] * MAX_SPELLINGS))
    rig.run()
    assert answered.reasons == [FinishReason.LENGTH]


SETTINGS: dict[str, dict[str, Any]] = {
    "calm": {},
    "ahead": {"max_in_flight": 3},
    "crowded": {"num_blocks": 36, "max_in_flight": 2},
}


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_answers_keep_to_it_with_guesses_ahead_and_preempted(name: str, drafts: bool) -> None:
    """Of two tokens, so that endings repeat; three of one kind in a row are forbidden."""
    spellings = ((0, 0, 0), (1, 1, 1), (0, 1, 0, 1))
    info = create_double_info(
        vocab_size=2, eos_token_ids=(), **({"num_blocks": 200} | SETTINGS[name])
    )
    ngram = NgramSettings(min_match_tokens=1) if drafts else None
    rig = EngineRig(SchedulerSettings(ngram=ngram, max_running=4), info)
    calm = EngineRig(SchedulerSettings(), replace(info, num_blocks=200, max_in_flight=1))
    plain = [create_request(n, [n % 2] * 5, max_tokens=50, seed=n) for n in range(6)]
    bound = [forbid(request, *spellings) for request in plain]
    for request in bound:
        rig.add(request)
        calm.add(request)
    rig.run()
    calm.run()
    for request in plain:
        answer = rig.outcomes[request.sequence_id].token_ids
        assert answer == calm.outcomes[request.sequence_id].token_ids
        assert len(answer) == 50
        assert not has_piece(answer, spellings)
        assert has_piece(rig.predict(request), spellings)  # the control
    guesses = [w.draft_token_ids for plan in rig.plans for w in plan.scheduled]
    assert any(guesses) == drafts
    assert (sum(len(plan.new) for plan in rig.plans) > 6) == (name == "crowded")


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_where_nothing_is_left_the_request_fails_by_name_and_others_go_on(
    max_in_flight: int,
) -> None:
    info = create_double_info(max_in_flight=max_in_flight)
    rig = EngineRig(info=info, create_matcher=Lists)
    bound = create_request(1, [1, 2], max_tokens=9, grammar="5|6 7 8|9")
    stuck = rig.add(forbid(bound, (5,), (7, 8), (9,)))
    plain = create_request(2, [1, 2], max_tokens=9)
    free = rig.add(plain)
    rig.run()
    assert (stuck.token_ids, stuck.error_codes) == ([6, 7], ["constraint_unmet"])
    assert free.token_ids == rig.predict(plain)


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_a_vocabulary_that_is_forbidden_whole_ends_the_answer_likewise(max_in_flight: int) -> None:
    info = create_double_info(vocab_size=2, eos_token_ids=(), max_in_flight=max_in_flight)
    rig = EngineRig(info=info)
    stuck = rig.add(forbid(create_request(1, [0], max_tokens=9), (0, 1), (0, 0), (1, 0), (1, 1)))
    rig.run()
    assert len(stuck.token_ids) == 1
    assert stuck.error_codes == ["constraint_unmet"]


@pytest.mark.parametrize("spellings", [(), ((5,), (6, 7))])
def test_logits_without_a_number_are_not_put_down_to_bad_words(spellings: Spellings) -> None:
    rig = EngineRig()
    collect = rig.executor.collect

    def garble() -> ForwardResult:
        result = collect()
        sampled = [msgspec.structs.replace(s, token_ids=(NO_TOKEN,)) for s in result.sampled]
        return replace(result, sampled=tuple(sampled))

    rig.executor.collect = garble  # type: ignore[method-assign]
    failed = rig.add(forbid(create_request(1, [1, 2]), *spellings))
    rig.run()
    assert failed.error_codes == ["internal_error"]


def test_parameters_travel_to_cores_and_ranks_whole() -> None:
    sampling = SamplingParams(bad_spellings=((1,), (2, 3)))
    packed = msgspec.msgpack.encode(sampling)
    assert msgspec.msgpack.decode(packed, type=SamplingParams) == sampling
    assert b"bad_spellings" not in msgspec.msgpack.encode(SamplingParams())
