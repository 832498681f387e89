"""Requests that begin alike: who computes the beginning, and who waits for that."""

import pytest

from contracts.ids import AccountId
from contracts.inference import FinishReason
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.settings import SchedulerSettings
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request


def test_a_prefix_that_is_being_computed_is_awaited_and_shared() -> None:
    """Several answers to one prompt: it is computed once."""
    rig = EngineRig()
    requests = [create_request(n, range(100, 110), temperature=1.0, seed=n) for n in range(1, 6)]
    outcomes = [rig.add(request) for request in requests]
    rig.step()
    assert [outcome.num_cached_tokens for outcome in outcomes] == [[0], [], [], [], []]
    rig.step()
    assert [outcome.num_cached_tokens for outcome in outcomes] == [[0], [8], [8], [8], [8]]
    rig.run()
    for request, outcome in zip(requests, outcomes, strict=True):
        assert outcome.token_ids == rig.predict(request)


def test_nobody_awaits_what_another_account_computes() -> None:
    rig = EngineRig()
    outcomes = [rig.add(create_request(n, range(100, 110), salt=bytes([n]))) for n in (1, 2, 3)]
    rig.step()
    assert [outcome.num_cached_tokens for outcome in outcomes] == [[0], [0], [0]]


def test_who_awaits_a_prefix_lets_others_of_its_line_go_first() -> None:
    rig = EngineRig(SchedulerSettings(max_batch_tokens=8, max_running=4, max_chunk_tokens=4))
    rig.add(create_request(1, range(100, 130)))
    rig.step()
    rig.add(create_request(2, range(100, 130)))
    other = rig.add(create_request(3, range(500, 503)))
    rig.step()
    assert other.num_cached_tokens == [0]


def test_a_prefix_whose_maker_is_gone_is_awaited_no_more() -> None:
    rig = EngineRig(SchedulerSettings(max_batch_tokens=8, max_running=4, max_chunk_tokens=8))
    rig.add(create_request(1, range(100, 130)))
    rig.step()
    second = rig.add(create_request(2, range(100, 130)))
    rig.step()
    assert second.num_cached_tokens == []
    rig.abort(1)
    rig.step()
    assert second.num_cached_tokens == [16]


@pytest.mark.parametrize("priority", [0, 1])
def test_nobody_awaits_a_prefix_that_is_served_later_than_itself(priority: int) -> None:
    """A batch's item has begun with it, and prompts of others go before the item as long as they
    come. Of one with the same priority, the control, it is awaited and shared.
    """
    limits = SchedulerSettings(max_batch_tokens=8, max_running=4, max_chunk_tokens=8)
    rig = EngineRig(limits, create_double_info(num_blocks=64))
    rig.add(create_request(1, range(100, 140), priority=priority))
    rig.step()
    urgent = rig.add(create_request(2, range(100, 140), priority=1))
    other = AccountId("b" * 32)
    for number in range(3, 20):
        prompt = [600 + number] * 16
        rig.add(create_request(number, prompt, priority=1, account_id=other, salt=b"B"))
        for _ in range(4):
            rig.step()
    assert urgent.reasons == [FinishReason.LENGTH]
    assert (urgent.num_cached_tokens[0] > 30) == (priority == 1)
    rig.run()
    assert urgent.token_ids == rig.predict(create_request(2, range(100, 140)))
    assert rig.scheduler.load.num_free_blocks == rig.scheduler.load.num_blocks


@pytest.mark.parametrize("has_place", [True, False])
def test_who_does_not_want_to_wait_for_a_place_waits_for_its_prefix(has_place: bool) -> None:
    """Items of a batch that begin alike come at once: while there are places, none is refused."""
    others = 2 if has_place else 1
    limits = SchedulerSettings(max_batch_tokens=8, max_running=1 + others, max_chunk_tokens=8)
    rig = EngineRig(limits, create_double_info(num_blocks=64))
    prompts = [[*range(100, 124), number] for number in range(3)]
    outcomes = [
        rig.add(create_request(number, prompt, reject_if_busy=True, max_tokens=40))
        for number, prompt in enumerate(prompts, 1)
    ]
    rig.run()
    assert [outcome.error_codes for outcome in outcomes[:2]] == [[], []]
    assert outcomes[1].num_cached_tokens == [24]
    assert outcomes[2].error_codes == ([] if has_place else ["pool_saturated"])
