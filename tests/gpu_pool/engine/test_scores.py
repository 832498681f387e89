"""Scores of tokens: complete, in order, each told once, whatever the schedule."""

import pytest

from contracts.inference import SamplingParams
from gpu_pool.engine.admission import MAX_BIASES, MAX_LOGPROBS
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.planner import MAX_STEP_SCORES
from gpu_pool.engine.settings import SchedulerSettings
from tests.gpu_pool.engine.engine_rig import EngineRig, Outcome, create_request

PROMPT = list(range(1, 12))
FEW_SCORES = 4500
"""What a step may bring, whatever its limit is called: each costs everybody some microseconds."""


def score(settings: SchedulerSettings | None = None, **fields: int) -> Outcome:
    """What is told of `PROMPT` when it is alone."""
    rig = EngineRig(settings)
    outcome = rig.add(create_request(1, PROMPT, **fields))  # type: ignore[arg-type]
    rig.run()
    return outcome


def test_every_generated_token_has_its_score() -> None:
    outcome = score(max_tokens=5, num_logprobs=3)
    assert len(outcome.scores) == len(outcome.token_ids) == 5
    assert all(len(token.top) == 3 for token in outcome.scores)
    assert outcome.prompt_scores == []


def test_an_end_of_sequence_token_has_none() -> None:
    info = create_double_info(eos_token_ids=tuple(range(1000)))
    rig = EngineRig(info=info)
    outcome = rig.add(create_request(1, PROMPT, ignore_eos=False, num_logprobs=0))
    rig.run()
    assert (outcome.token_ids, outcome.scores) == ([], [])


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
def test_a_prompt_is_scored_whole_whatever_its_chunks(chunk: int) -> None:
    whole = score(num_prompt_logprobs=2)
    limits = SchedulerSettings(max_batch_tokens=chunk, max_running=1, max_chunk_tokens=chunk)
    assert score(limits, num_prompt_logprobs=2).prompt_scores == whole.prompt_scores
    assert len(whole.prompt_scores) == len(PROMPT)
    assert whole.prompt_scores[0].logprob is None
    assert all(token.logprob is not None for token in whole.prompt_scores[1:])
    assert whole.scores == []


@pytest.mark.parametrize("asked", [None, 0, 20, 100])
def test_a_step_brings_a_bounded_number_of_scores(asked: int | None) -> None:
    """Everybody waits while they are passed on. Without scores, the control, steps are large."""
    info = create_double_info(num_blocks=2000, context_window=4096)
    rig = EngineRig(SchedulerSettings(max_batch_tokens=6000), info, check_every=100)
    prompts = [[number, *range(100, 900), *range(100, 800)] for number in range(1, 4)]
    outcomes = [
        rig.add(create_request(number, prompt, num_prompt_logprobs=asked, max_tokens=1))
        for number, prompt in enumerate(prompts, 1)
    ]
    rig.run()
    sizes = [sum(item.num_tokens for item in plan.scheduled) for plan in rig.plans]
    assert sum(sizes) == sum(map(len, prompts))
    if asked is None:
        assert max(sizes) > 3000
        return
    # Single tokens at the end of prompts go with answers under way.
    assert max(sizes) * (1 + asked) <= MAX_STEP_SCORES + len(prompts) * (1 + asked)
    assert max(sizes) * (1 + asked) < FEW_SCORES < sum(sizes) * (1 + asked)
    assert len(sizes) <= 2 + 2 * sum(sizes) * (1 + asked) // MAX_STEP_SCORES
    assert [len(outcome.prompt_scores) for outcome in outcomes] == list(map(len, prompts))


def test_a_prompt_to_be_scored_takes_nothing_from_the_cache_but_fills_it() -> None:
    rig = EngineRig()
    rig.add(create_request(1, PROMPT))
    rig.run()
    scored = rig.add(create_request(2, PROMPT, num_prompt_logprobs=0))
    rig.run()
    control = rig.add(create_request(3, PROMPT))
    rig.run()
    assert scored.num_cached_tokens == [0]
    assert len(scored.prompt_scores) == len(PROMPT)
    assert control.num_cached_tokens == [8]


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_preemption_tells_no_score_twice_and_loses_none(max_in_flight: int) -> None:
    """A long prompt loses its blocks half-way and finds some of them in the cache later."""
    long = create_request(1, range(100, 160), num_prompt_logprobs=1)
    alone = EngineRig(info=create_double_info(num_blocks=18))
    expected = alone.add(long)
    alone.run()
    info = create_double_info(num_blocks=18, max_in_flight=max_in_flight)
    crowd = EngineRig(SchedulerSettings(max_batch_tokens=4, max_running=2), info)
    crowd.add(create_request(2, [7] * 5, max_tokens=30, priority=1))
    preempted = crowd.add(long)
    for _ in range(14 + max_in_flight):
        crowd.step()
    assert 8 < len(preempted.prompt_scores) < 50
    crowd.run()
    assert sum(len(plan.new) for plan in crowd.plans) > 2, "nobody was preempted"
    assert preempted.prompt_scores == expected.prompt_scores
    assert preempted.token_ids == expected.token_ids


BAD_SAMPLING = {
    "num_logprobs": SamplingParams(max_tokens=1, num_logprobs=MAX_LOGPROBS + 1),
    "num_prompt_logprobs": SamplingParams(max_tokens=1, num_prompt_logprobs=-1),
    "logit_bias": SamplingParams(max_tokens=1, logit_bias=((1000, 1.0),)),
    "logit_bias ": SamplingParams(max_tokens=1, logit_bias=((1, float("nan")),)),
    "logit_bias  ": SamplingParams(max_tokens=1, logit_bias=((1, 1.0),) * (MAX_BIASES + 1)),
    "logit_bias   ": SamplingParams(max_tokens=1, logit_bias=((-1, 1.0),)),
}


@pytest.mark.parametrize("name", BAD_SAMPLING)
def test_what_would_break_the_sampler_is_refused_by_name(name: str) -> None:
    rig = EngineRig()
    good = create_request(1, PROMPT)
    fields = {field: getattr(good, field) for field in good.__struct_fields__}
    outcome = rig.add(AddSequence(**fields | {"sampling": BAD_SAMPLING[name]}))
    assert outcome.error_codes == ["invalid_request"]
