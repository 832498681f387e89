"""Blocks that became another's are never read; of who wants nothing kept, nothing remains."""

from contracts.grant import RetentionClass
from contracts.inference import FinishReason
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.plan import ForwardResult, SampledTokens, SequenceId
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request


def test_a_sequence_whose_blocks_became_anothers_is_aborted_and_nobody_else() -> None:
    rig = EngineRig()
    robbed = rig.add(create_request(1, [1, 2]))
    whole = rig.add(create_request(2, [3, 4]))
    plan = rig.scheduler.schedule(0)
    assert plan is not None
    sampled = (SampledTokens(SequenceId(2), (7,)),)
    rig.scheduler.update(ForwardResult(plan.step, sampled, failed=(SequenceId(1),)))
    rig.note()
    assert (robbed.error_codes, robbed.token_ids) == (["internal_error"], [])
    assert (whole.error_codes, whole.token_ids) == ([], [7])


def test_every_new_block_comes_with_a_tag_that_it_never_had_for_another() -> None:
    rig = EngineRig(info=create_double_info(num_blocks=8))
    for n in range(1, 5):
        rig.add(create_request(n, range(n * 10, n * 10 + 6), max_tokens=18, salt=bytes([n])))
    rig.run()
    owners: dict[tuple[int, int], int] = {}
    for plan in rig.plans:
        for work in plan.scheduled:
            for block_id, tag in zip(work.new_block_ids[0], work.new_block_tags[0], strict=True):
                assert owners.setdefault((block_id, tag), work.sequence_id) == work.sequence_id
    assert len(owners) > 8  # some blocks changed hands


def test_of_a_request_without_retention_nothing_remains() -> None:
    rig = EngineRig()
    private = rig.add(
        create_request(1, range(100, 110), salt=b"own", retention=RetentionClass.NONE)
    )
    kept = rig.add(create_request(2, range(200, 210)))
    rig.run()
    zeroed = [block_id for plan in rig.plans for block_id in (plan.zeroed or ((),))[0]]
    given = [
        block_id
        for plan in rig.plans
        for work in plan.scheduled
        if work.sequence_id == 1
        for block_id in work.new_block_ids[0]
    ]
    assert sorted(zeroed) == sorted(given)
    again = rig.add(create_request(3, range(100, 110), salt=b"own", retention=RetentionClass.NONE))
    control = rig.add(create_request(4, range(200, 210)))
    rig.run()
    assert again.num_cached_tokens == [0]
    assert control.num_cached_tokens == [8]
    assert private.reasons == kept.reasons == [FinishReason.LENGTH]


def test_blocks_are_zeroed_in_a_plan_of_their_own_when_there_is_nothing_else_to_do() -> None:
    rig = EngineRig()
    rig.add(create_request(1, [1, 2, 3], max_tokens=20, retention=RetentionClass.NONE))
    rig.step()
    rig.abort(1)
    assert rig.scheduler.has_work
    plan = rig.step()
    assert plan is not None
    assert (plan.scheduled, len(plan.zeroed[0]), plan.released) == ((), 1, (1,))
    assert not rig.scheduler.has_work
