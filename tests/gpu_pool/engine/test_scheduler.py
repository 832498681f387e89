"""What the scheduler puts in a step, whom it lets wait, whom it refuses, and how it ends things."""

import pytest

from contracts.errors import InvariantBroken
from contracts.inference import FinishReason
from gpu_pool.engine.double_tokens import predict_tokens
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.plan import ForwardPlan, ForwardResult, SampledTokens, SequenceId
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request


def list_work(plan: ForwardPlan | None) -> list[tuple[int, int]]:
    assert plan is not None
    return [(work.sequence_id, work.num_tokens) for work in plan.scheduled]


def list_starts(rig: EngineRig) -> list[int]:
    """The sequences in the order in which they got blocks; preempted ones are there again."""
    return [new.sequence_id for plan in rig.plans for new in plan.new]


def assert_all_free(rig: EngineRig) -> None:
    load = rig.scheduler.load
    assert (load.num_running, load.num_waiting) == (0, 0)
    assert load.num_free_blocks == load.num_blocks


def test_a_sequence_gets_its_tokens_and_leaves_nothing_behind() -> None:
    rig = EngineRig()
    request = create_request(1, range(1, 10), max_tokens=7)
    outcome = rig.add(request)
    rig.run()
    assert outcome.token_ids == rig.predict(request)
    assert outcome.reasons == [FinishReason.LENGTH]
    assert outcome.num_completion_tokens == 7
    assert_all_free(rig)


def test_a_new_request_joins_the_next_step_beside_those_that_decode() -> None:
    rig = EngineRig()
    rig.add(create_request(1, [1, 2, 3]))
    rig.step()
    rig.add(create_request(2, [4, 5, 6]))
    assert list_work(rig.step()) == [(1, 1), (2, 3)]


def test_one_budget_holds_decodes_and_prompts_of_a_step() -> None:
    rig = EngineRig(SchedulerSettings(max_batch_tokens=8, max_chunk_tokens=8, max_running=4))
    rig.add(create_request(1, [1, 2, 3], max_tokens=20))
    rig.step()
    rig.add(create_request(2, range(20)))
    assert list_work(rig.step()) == [(1, 1), (2, 7)]
    assert list_work(rig.step()) == [(1, 1), (2, 7)]
    assert list_work(rig.step()) == [(1, 1), (2, 6)]
    assert list_work(rig.step()) == [(1, 1), (2, 1)]


def test_a_long_prompt_leaves_room_for_a_short_one_behind_it() -> None:
    rig = EngineRig(SchedulerSettings(max_batch_tokens=16, max_chunk_tokens=8, max_running=4))
    rig.add(create_request(1, range(100)))
    rig.add(create_request(2, range(200, 205)))
    assert list_work(rig.step()) == [(1, 8), (2, 5)]
    assert list_work(rig.step()) == [(2, 1), (1, 15)]  # alone again: the whole budget


def test_a_prompt_beside_sequences_that_decode_takes_the_whole_rest_of_the_step() -> None:
    rig = EngineRig(SchedulerSettings(max_batch_tokens=16, max_chunk_tokens=4, max_running=4))
    rig.add(create_request(1, [1, 2]))
    rig.step()
    rig.add(create_request(2, range(100, 140)))
    assert list_work(rig.step()) == [(1, 1), (2, 15)]


def test_several_long_prompts_make_progress_together() -> None:
    rig = EngineRig(SchedulerSettings(max_batch_tokens=16, max_chunk_tokens=8, max_running=4))
    rig.add(create_request(1, range(100, 140)))
    rig.add(create_request(2, range(200, 240)))
    assert list_work(rig.step()) == [(1, 8), (2, 8)]
    assert list_work(rig.step()) == [(1, 8), (2, 8)]


def test_only_a_step_with_the_newest_token_samples() -> None:
    rig = EngineRig(SchedulerSettings(max_batch_tokens=8, max_chunk_tokens=8, max_running=4))
    rig.add(create_request(1, range(12)))
    for samples in (False, True, True):
        plan = rig.step()
        assert plan is not None
        assert [work.samples for work in plan.scheduled] == [samples]


def test_the_end_of_sequence_token_ends_and_is_counted_but_not_sent() -> None:
    prompt = (5, 6, 7)
    tokens = predict_tokens(prompt, 6, vocab_size=1000)
    rig = EngineRig(info=create_double_info(eos_token_ids=(tokens[3],)))
    outcome = rig.add(create_request(1, prompt, max_tokens=6, ignore_eos=False))
    rig.run()
    assert outcome.token_ids == list(tokens[:3])
    assert outcome.reasons == [FinishReason.STOP]
    assert outcome.num_completion_tokens == 4


def test_an_ignored_end_of_sequence_token_is_a_token_like_any_other() -> None:
    prompt = (5, 6, 7)
    tokens = predict_tokens(prompt, 6, vocab_size=1000)
    rig = EngineRig(info=create_double_info(eos_token_ids=(tokens[3],)))
    outcome = rig.add(create_request(1, prompt, max_tokens=6, ignore_eos=True))
    rig.run()
    assert outcome.token_ids == list(tokens)
    assert outcome.reasons == [FinishReason.LENGTH]


def test_a_request_without_a_seed_gets_one_and_a_given_seed_is_kept() -> None:
    rig = EngineRig()
    prompt = (1, 2, 3)
    drawn = rig.add(create_request(1, prompt, temperature=1.0))
    given = rig.add(create_request(2, prompt, temperature=1.0, seed=77))
    zero = rig.add(create_request(3, prompt, temperature=1.0, seed=0))
    rig.run()
    assert drawn.token_ids == list(predict_tokens(prompt, 4, vocab_size=1000, seed=1))
    assert given.token_ids == list(predict_tokens(prompt, 4, vocab_size=1000, seed=77))
    assert zero.token_ids == list(predict_tokens(prompt, 4, vocab_size=1000, seed=0))


# -- prefix cache ---------------------------------------------------------------------------------


def test_another_account_gets_no_cached_tokens_and_the_same_account_does() -> None:
    rig = EngineRig()
    prompt = range(100, 117)
    first = rig.add(create_request(1, prompt, salt=b"A"))
    rig.run()
    other = rig.add(create_request(2, prompt, salt=b"B"))
    rig.run()
    again = rig.add(create_request(3, prompt, salt=b"A"))
    rig.run()
    assert first.num_cached_tokens == [0]
    assert other.num_cached_tokens == [0]
    assert again.num_cached_tokens == [16]  # the control: there was something to find
    assert first.token_ids == other.token_ids == again.token_ids


def test_generated_tokens_are_found_in_the_next_turn() -> None:
    rig = EngineRig()
    first = rig.add(create_request(1, range(100, 107), max_tokens=10))
    rig.run()
    history = [*range(100, 107), *first.token_ids, 1, 2, 3]
    second = rig.add(create_request(2, history))
    rig.run()
    assert second.num_cached_tokens == [16]  # 16 of the 17 tokens were computed


def test_a_prompt_is_shared_while_its_first_sequence_still_runs() -> None:
    rig = EngineRig()
    rig.add(create_request(1, range(100, 110), max_tokens=30))
    rig.step()
    second = rig.add(create_request(2, range(100, 110)))
    rig.step()
    assert second.num_cached_tokens == [8]
    rig.run()
    assert_all_free(rig)


def test_without_prefix_caching_nothing_is_cached() -> None:
    rig = EngineRig(SchedulerSettings(prefix_caching=False))
    for sequence_id in (1, 2):
        outcome = rig.add(create_request(sequence_id, range(100, 117)))
        rig.run()
        assert outcome.num_cached_tokens == [0]


def test_without_prefix_caching_the_choices_of_one_request_share_its_prompt() -> None:
    rig = EngineRig(SchedulerSettings(prefix_caching=False))
    salts = {1: b"own", 2: b"own", 3: b"own", 4: b"another's", 5: b""}
    choices = {
        number: create_request(number, range(100, 117), max_tokens=9, choices_salt=salt)
        for number, salt in salts.items()
    }
    outcomes = {1: rig.add(choices[1])}
    rig.step()
    outcomes |= {number: rig.add(choices[number]) for number in (2, 3, 4, 5)}
    rig.run()
    found = {number: outcome.num_cached_tokens for number, outcome in outcomes.items()}
    assert found == {1: [0], 2: [16], 3: [16], 4: [0], 5: [0]}
    for number, outcome in outcomes.items():
        assert outcome.token_ids == rig.predict(choices[number])
    assert_all_free(rig)


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("shares", [True, False])
def test_choices_hold_whole_blocks_of_their_prompt_once_and_one_block_each(
    prefix_caching: bool, shares: bool
) -> None:
    rig = EngineRig(SchedulerSettings(prefix_caching=prefix_caching))
    prompt = range(100, 117)  # four blocks and a token
    for number in (1, 2, 3):
        salt = b"own" if shares else bytes([number])
        rig.add(create_request(number, prompt, salt=salt, choices_salt=salt))
        rig.step()  # each finds what was computed before
    load = rig.scheduler.load
    held = load.num_blocks - load.num_free_blocks
    assert held == (4 + 3 if shares else 3 * (4 + 1))
    rig.run()
    assert_all_free(rig)


# -- preemption -----------------------------------------------------------------------------------


def test_the_youngest_gives_way_and_its_answer_stays_the_same() -> None:
    rig = EngineRig(info=create_double_info(num_blocks=8))
    requests = [create_request(n, range(n * 10, n * 10 + 6), max_tokens=18) for n in (1, 2, 3)]
    outcomes = [rig.add(request) for request in requests]
    rig.run()
    starts = list_starts(rig)
    assert starts.count(1) == 1
    assert starts.count(3) > 1
    assert rig.scheduler.load.num_preempted == len(starts) - len(requests)
    for request, outcome in zip(requests, outcomes, strict=True):
        assert outcome.token_ids == rig.predict(request)
        assert len(outcome.num_cached_tokens) == 1  # told once, not again after the preemption
    assert_all_free(rig)


def test_a_preempted_sequence_goes_before_those_that_have_not_run() -> None:
    rig = EngineRig(
        SchedulerSettings(max_running=2, max_batch_tokens=64), create_double_info(num_blocks=8)
    )
    for n in (1, 2, 3):
        rig.add(create_request(n, range(n * 10, n * 10 + 6), max_tokens=18))
    rig.run()
    assert list_starts(rig)[:3] == [1, 2, 2]
    assert list_starts(rig)[-1] == 3


def test_a_sequence_starts_only_when_the_running_ones_keep_a_free_block_each() -> None:
    rig = EngineRig(info=create_double_info(num_blocks=4))
    rig.add(create_request(1, range(10, 16), max_tokens=10))
    rig.step()
    rig.add(create_request(2, range(20, 26)))  # two blocks are free: it would lose them at once
    rig.run()
    assert list_starts(rig) == [1, 2]


def test_a_preempted_prompt_is_found_in_the_cache_again() -> None:
    rig = EngineRig(info=create_double_info(num_blocks=8))
    rig.add(create_request(1, range(10, 16), max_tokens=18))
    rig.add(create_request(2, range(20, 32), max_tokens=18))
    rig.run()
    resumed = [new for plan in rig.plans for new in plan.new if new.sequence_id == 2][1:]
    assert resumed
    assert all(new.num_computed_tokens > 0 for new in resumed)


def test_a_lower_priority_gives_way_before_a_younger_sequence() -> None:
    rig = EngineRig(info=create_double_info(num_blocks=8))
    rig.add(create_request(1, range(10, 16), max_tokens=18, priority=0))
    rig.step()
    rig.add(create_request(2, range(20, 26), max_tokens=18, priority=5))
    rig.run()
    starts = list_starts(rig)
    assert starts.count(1) > 1
    assert starts.count(2) == 1


def test_the_higher_priority_starts_first() -> None:
    rig = EngineRig(SchedulerSettings(max_running=1))
    rig.add(create_request(1, [1, 2], priority=0))
    rig.add(create_request(2, [3, 4], priority=1))
    assert list_work(rig.step()) == [(2, 2)]


# -- refusals -------------------------------------------------------------------------------------


def test_a_full_queue_refuses_and_says_so_at_once() -> None:
    rig = EngineRig(SchedulerSettings(max_running=1, max_waiting=1))
    outcomes = [rig.add(create_request(n, [n, n])) for n in (1, 2, 3)]
    assert outcomes[2].error_codes == ["pool_saturated"]
    rig.run()
    assert [len(outcome.token_ids) for outcome in outcomes] == [4, 4, 0]


def test_an_idle_core_without_a_queue_still_serves() -> None:
    rig = EngineRig(SchedulerSettings(max_running=1, max_waiting=0))
    outcome = rig.add(create_request(1, [1, 2]))
    rig.run()
    assert outcome.reasons == [FinishReason.LENGTH]


def test_who_does_not_want_to_wait_is_refused_in_the_next_step_or_served() -> None:
    rig = EngineRig(SchedulerSettings(max_running=1))
    served = rig.add(create_request(1, [1, 2], reject_if_busy=True))
    rig.step()
    refused = rig.add(create_request(2, [3, 4], reject_if_busy=True))
    patient = rig.add(create_request(3, [5, 6]))
    rig.step()
    assert refused.error_codes == ["pool_saturated"]
    rig.run()
    assert served.reasons == patient.reasons == [FinishReason.LENGTH]


def test_who_did_not_want_to_wait_is_not_refused_after_a_preemption() -> None:
    rig = EngineRig(info=create_double_info(num_blocks=8))
    requests = [
        create_request(n, range(n * 10, n * 10 + 6), max_tokens=18, reject_if_busy=True)
        for n in (1, 2)
    ]
    outcomes = [rig.add(request) for request in requests]
    rig.run()
    assert sum(len(plan.new) for plan in rig.plans) > 2
    assert [outcome.reasons for outcome in outcomes] == [[FinishReason.LENGTH]] * 2


def test_a_used_id_ends_the_sequence_that_has_it() -> None:
    rig = EngineRig()
    outcome = rig.add(create_request(1, [1, 2]))
    rig.step()
    rig.add(create_request(1, [3, 4]))
    assert outcome.error_codes == ["internal_error"]
    assert_all_free(rig)


# -- endings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_an_abort_frees_everything_before_the_next_step(num_steps: int) -> None:
    rig = EngineRig(SchedulerSettings(max_batch_tokens=8, max_chunk_tokens=8, max_running=8))
    outcome = rig.add(create_request(1, range(12), max_tokens=20))
    for _ in range(num_steps):
        rig.step()
    rig.abort(1)
    assert outcome.reasons == [FinishReason.ABORTED]
    assert outcome.num_completion_tokens == len(outcome.token_ids)
    assert_all_free(rig)
    assert not rig.scheduler.has_work


def test_the_row_of_an_aborted_sequence_goes_with_the_next_plan() -> None:
    rig = EngineRig()
    rig.add(create_request(1, [1, 2], max_tokens=20))
    rig.add(create_request(2, [3, 4], max_tokens=20))
    rig.step()
    rig.abort(1)
    plan = rig.step()
    assert plan is not None
    assert plan.released == (1,)
    assert rig.executor.num_rows == 1


def test_an_abort_of_what_is_over_or_unknown_changes_nothing() -> None:
    rig = EngineRig()
    outcome = rig.add(create_request(1, [1, 2]))
    rig.run()
    rig.abort(1)
    rig.abort(99)
    assert outcome.reasons == [FinishReason.LENGTH]


def test_a_deadline_ends_a_running_and_a_waiting_sequence() -> None:
    rig = EngineRig(SchedulerSettings(max_running=1))
    running = rig.add(create_request(1, [1, 2], max_tokens=50, deadline_ms=1000))
    waiting = rig.add(create_request(2, [3, 4], max_tokens=50, deadline_ms=1500))
    last = rig.add(create_request(3, [5, 6], deadline_ms=9000))
    rig.now_ms = 999
    rig.step()
    assert running.reasons == []
    rig.now_ms = 1000
    rig.step()
    assert running.error_codes == ["deadline_exceeded"]
    assert waiting.error_codes == []
    rig.now_ms = 1500
    rig.step()
    assert waiting.error_codes == ["deadline_exceeded"]
    rig.run()
    assert last.reasons == [FinishReason.LENGTH]
    assert_all_free(rig)


def test_an_invalid_token_fails_its_sequence_alone() -> None:
    rig = EngineRig()
    bad = rig.add(create_request(1, [1, 2]))
    good = rig.add(create_request(2, [3, 4]))
    plan = rig.scheduler.schedule(0)
    assert plan is not None
    sampled = (SampledTokens(SequenceId(1), (1000,)), SampledTokens(SequenceId(2), (7,)))
    rig.scheduler.update(ForwardResult(plan.step, sampled))
    rig.note()
    assert bad.error_codes == ["internal_error"]
    assert bad.token_ids == []
    assert good.token_ids == [7]


@pytest.mark.parametrize(
    "result",
    [
        ForwardResult(1, (SampledTokens(SequenceId(1), (5,)),)),
        ForwardResult(0, ()),
        ForwardResult(0, (SampledTokens(SequenceId(2), (5,)),)),
    ],
)
def test_a_result_that_does_not_answer_the_plan_is_a_defect(result: ForwardResult) -> None:
    rig = EngineRig()
    rig.add(create_request(1, [1, 2]))
    rig.scheduler.schedule(0)
    with pytest.raises(InvariantBroken):
        rig.scheduler.update(result)


# -- several steps in flight ----------------------------------------------------------------------


def test_a_step_is_planned_before_the_tokens_of_the_one_before_are_known() -> None:
    rig = EngineRig(info=create_double_info(max_in_flight=2))
    request = create_request(1, [1, 2, 3], max_tokens=6)
    outcome = rig.add(request)
    rig.step()
    rig.step()
    assert len(rig.plans) == 2
    assert len(outcome.token_ids) == 1
    rig.run()
    assert outcome.token_ids == rig.predict(request)
    assert len(rig.plans) == 6  # no step is wasted on a token beyond the last


def test_the_surplus_token_after_an_end_of_sequence_is_dropped() -> None:
    prompt = (5, 6, 7)
    tokens = predict_tokens(prompt, 6, vocab_size=1000)
    rig = EngineRig(info=create_double_info(max_in_flight=2, eos_token_ids=(tokens[1],)))
    outcome = rig.add(create_request(1, prompt, max_tokens=6, ignore_eos=False))
    rig.run()
    assert len(rig.plans) == 3
    assert outcome.token_ids == list(tokens[:1])
    assert outcome.num_completion_tokens == 2
    assert_all_free(rig)
