"""What is refused before anything is scheduled, right up to the limit and one beyond it."""

import pytest

from contracts.errors import (
    ContextTooLong,
    InvalidRequest,
    InvariantBroken,
    OutOfBlocks,
    ServiceError,
)
from gpu_pool.engine.admission import check_admission
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.assembly import create_kv_memory
from gpu_pool.plan import ExecutorInfo, KvGroup, KvGroupKind
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request


def check(request: AddSequence, info: ExecutorInfo) -> int:
    """What an idle core says to `request`."""
    return check_admission(
        request, info, create_kv_memory(info, SchedulerSettings().max_batch_tokens)
    )


@pytest.mark.parametrize(
    ("token_ids", "max_tokens", "error"),
    [
        ([], 4, InvalidRequest),
        ([1, -1], 4, InvalidRequest),
        ([1, 1000], 4, InvalidRequest),
        ([1], 0, InvalidRequest),
        ([1], -5, InvalidRequest),
        ([1], None, InvariantBroken),
        ([1] * 253, 4, ContextTooLong),
        ([1] * 256, 1, ContextTooLong),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(
    token_ids: list[int], max_tokens: int | None, error: type[ServiceError]
) -> None:
    with pytest.raises(error):
        check(create_request(1, token_ids, max_tokens=max_tokens), create_double_info())


def test_a_request_that_just_fits_the_context_is_served_to_its_last_token() -> None:
    rig = EngineRig()
    outcome = rig.add(create_request(1, [999] * 252, max_tokens=4))
    rig.run()
    assert len(outcome.token_ids) == 4


def test_a_request_without_a_salt_is_refused_and_one_with_a_salt_is_not() -> None:
    info = create_double_info()
    with pytest.raises(InvariantBroken):
        check(create_request(1, [1], salt=b""), info)
    assert check(create_request(1, [1], salt=b"A"), info) == 4


def test_a_request_that_fills_the_pool_to_its_last_slot_is_served_and_a_larger_one_refused() -> (
    None
):
    info = create_double_info(num_blocks=4, block_size=4)
    rig = EngineRig(info=info)
    with pytest.raises(OutOfBlocks):
        check(create_request(1, range(10), max_tokens=8), info)
    outcome = rig.add(create_request(1, range(10), max_tokens=7))  # 17 tokens, 16 in memory
    rig.run()
    assert len(outcome.token_ids) == 7


@pytest.mark.parametrize("kind", [KvGroupKind.SLIDING_WINDOW, KvGroupKind.CHUNKED])
def test_memory_that_is_smaller_than_a_window_serves_what_fits_into_it(kind: KvGroupKind) -> None:
    wide = KvGroup(kind, 1, 1, 100)
    info = create_double_info(num_blocks=4, block_size=4, kv_groups=(wide,))
    rig = EngineRig(info=info)
    with pytest.raises(OutOfBlocks):
        check(create_request(1, range(10), max_tokens=8), info)
    outcome = rig.add(create_request(1, range(10), max_tokens=7))
    rig.run()
    assert len(outcome.token_ids) == 7


def test_a_refusal_is_answered_and_harms_nobody() -> None:
    rig = EngineRig()
    good = rig.add(create_request(1, [1, 2]))
    bad = rig.add(create_request(2, [1, 2000]))
    assert bad.error_codes == ["invalid_request"]
    rig.run()
    assert len(good.token_ids) == 4
