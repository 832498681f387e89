"""What a plan costs grows neither with prompts that wait, nor with answers under way."""

from collections.abc import Callable

import pytest

from contracts.ids import AccountId
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.settings import SchedulerSettings
from tests.fixtures.step_counter import count_steps
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request


def create_rig() -> EngineRig:
    """Four places, and blocks for all."""
    limits = SchedulerSettings(max_batch_tokens=9000, max_chunk_tokens=9000, max_running=4)
    info = create_double_info(num_blocks=6000, context_window=4096)
    return EngineRig(limits, info, check_every=100)


def add(rig: EngineRig, number: int, num_tokens: int, max_tokens: int) -> None:
    """A request of the account with this number, which has begun no other prompt."""
    account_id = AccountId(f"{number:032x}")
    prompt = [(number + n) % 900 for n in range(num_tokens)]
    rig.add(
        create_request(
            len(rig.outcomes) + 1,
            prompt,
            max_tokens=max_tokens,
            account_id=account_id,
            salt=account_id.encode(),
        )
    )


def count_plan(rig: EngineRig) -> int:
    """Lines of our own in a step's plan, KV memory's alone."""
    return count_steps(rig.step, "gpu_pool/kv/")


def wait_with_cached_prompts(num_tokens: int) -> int:
    """Three wait for a place whose prompts are in the cache."""
    rig = create_rig()
    for number in range(3):
        add(rig, number, num_tokens, 1)
    rig.run()
    for number in range(10, 14):
        add(rig, number, 5, 200)
    rig.step()
    for number in range(3):
        add(rig, number, num_tokens, 1)
    rig.step()
    assert rig.scheduler.load.num_waiting == 3
    return count_plan(rig)


def wait_beside_answers(num_tokens: int) -> int:
    """Three wait for a place beside four that hold many blocks."""
    rig = create_rig()
    for number in range(10, 14):
        add(rig, number, num_tokens, 200)
    rig.step()
    for number in range(3):
        add(rig, number, 5, 1)
    rig.step()
    assert rig.scheduler.load.num_waiting == 3
    return count_plan(rig)


@pytest.mark.parametrize("count", [wait_with_cached_prompts, wait_beside_answers])
def test_a_plan_costs_the_same_however_long_prompts_are(count: Callable[[int], int]) -> None:
    short, long = count(41), count(2001)
    assert 0 < long <= short + 50
