"""Blocks of a long prompt are told, and can be fetched, while the rest of it is computed."""

from pathlib import Path
from typing import Final

import pytest

from contracts.kv_transfer import KvExported, KvLanded, KvReserved
from gpu_pool.engine.settings import SchedulerSettings
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.transfer.core_pair import Split
from tests.gpu_pool.transfer.split_rig import PATIENCE_S, HalfRig, open_pair, run_pair, settle

pytestmark = pytest.mark.slow

NUM_TOKENS: Final = 320
BLOCK_TOKENS: Final = 16


def count_told(split: Split) -> int:
    """Blocks that the node for prompts has told of."""
    events = split.prefill.answers[split.prefill_id].events
    told = [event for event in events if isinstance(event, KvExported)]
    return sum(len(run.tags) for event in told for run in event.runs)


def count_computed(prefill: HalfRig) -> int:
    """Tokens of the prompt in all steps so far."""
    return sum(part.num_tokens for plan in prefill.plans for part in plan.scheduled)


@pytest.mark.parametrize("step_tokens", [32, NUM_TOKENS])
def test_blocks_are_told_before_their_prompt_is_computed(tmp_path: Path, step_tokens: int) -> None:
    """Each step's while the next one is computed. The control has no next one."""
    settings = SchedulerSettings(max_batch_tokens=step_tokens, max_running=4)
    folder = write_checkpoint(tmp_path, "llama")
    with open_pair(folder, "memory", settings, NUM_TOKENS // BLOCK_TOKENS + 4) as pair:
        decode, prefill = pair
        request = create_request(0, create_prompt(NUM_TOKENS, 1), max_tokens=2)
        split = Split(decode, prefill, request)  # type: ignore[arg-type]
        split.open()
        settle([decode], lambda: split.answer.find(KvReserved) is not None)
        split.carry()
        seen: list[tuple[int, int]] = []
        while count_computed(prefill) < NUM_TOKENS:
            prefill.turn()
            seen.append((count_computed(prefill), count_told(split)))
            assert prefill.news.wait(PATIENCE_S), "the tags of that step's blocks"
        assert seen == [
            (num_tokens, (num_tokens - step_tokens) // BLOCK_TOKENS)
            for num_tokens in range(step_tokens, NUM_TOKENS + 1, step_tokens)
        ]
        run_pair(pair, [split], lambda: None)
        assert split.answer.find(KvLanded)
