"""Blocks that nobody uses are full of NaN, in every kind of KV group, and no answer changes.

Before each step whatever is free and holds nothing to be found again is poisoned. Where no prefixes
are kept that is all that is free, the blocks that have left a window or a chunk included. So is, in
the controls, one block that a running sequence reads, and one that has left its window too early.
"""

from pathlib import Path
from typing import Any, Final

import pytest
import torch

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.reach import Reach
from gpu_pool.runner.model_runner import ModelRunner
from gpu_pool.worker.plan_worker import Worker
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.models.deepseek.test_model import V3
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.models.gemma.test_model import GEMMA3
from tests.gpu_pool.models.gpt_oss.test_model import GPT_OSS
from tests.gpu_pool.models.llama4.test_model import LLAMA4

FAMILIES: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "full": ("llama", {}, 1),
    "sliding": ("gemma3_text", GEMMA3, 2),
    "chunked": ("llama4_text", LLAMA4, 2),
    "latents": ("deepseek_v3", V3, 1),
    "sinks": ("gpt_oss", GPT_OSS, 2),
}
"""Model, changes and KV groups."""
NUM_REQUESTS: Final = 6
NUM_TOKENS: Final = 10
USED_STEP: Final = 6
"""The step before which a control poisons a block in use."""


class PoisonedRig(EngineRig):
    """A rig over a real model that poisons blocks between steps."""

    def __init__(
        self,
        folder: Path,
        dtype: DtypeChoice,
        *,
        free: bool = False,
        used_group: int | None = None,
        prefix_caching: bool = True,
    ) -> None:
        worker = create_executor(
            WorkerSettings(model_dir=folder, dtype=dtype, num_blocks=30, num_threads=1)
        )
        assert isinstance(worker, Worker)
        settings = SchedulerSettings(
            max_batch_tokens=96, max_chunk_tokens=37, prefix_caching=prefix_caching
        )
        super().__init__(settings, worker.info)
        self.executor = worker  # type: ignore[assignment]
        runner = worker._runner
        assert isinstance(runner, ModelRunner)
        self._caches = [group.cache for group in runner._groups]
        self._pools = [group.pool for group in self.scheduler._kv._groups]
        self._free, self._used_group = free, used_group
        self.num_poisoned = 0
        for number in range(NUM_REQUESTS):
            prompt = create_prompt(40, 99) * (number % 2) + create_prompt(15 + 20 * number, number)
            self.add(create_request(number, prompt, max_tokens=NUM_TOKENS))
        self.run()

    def step(self) -> Any:
        """A step over what is left of the blocks."""
        for place, (cache, pool) in enumerate(zip(self._caches, self._pools, strict=True)):
            if self._free:
                useless = [b.block_id for b in pool._blocks if not b.num_users and b.owner is None]
                self._poison(cache.blocks, useless)
            if self._used_group == place and len(self.plans) == USED_STEP:
                batch = self.scheduler._books.batch
                self._poison(cache.blocks, batch[0].table.groups[place].block_ids[-1:])
        return super().step()

    def read_answers(self) -> list[list[int]]:
        """All tokens of all requests."""
        return [self.outcomes[number].token_ids for number in range(NUM_REQUESTS)]

    @torch.inference_mode()
    def _poison(self, blocks: torch.Tensor, block_ids: list[Any]) -> None:
        """Fills blocks with NaN."""
        blocks[torch.tensor(block_ids, dtype=torch.long)] = float("nan")
        self.num_poisoned += len(block_ids)


@pytest.mark.parametrize("dtype", [DtypeChoice.FLOAT32, DtypeChoice.BFLOAT16])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_lies_in_free_blocks_reaches_no_answer(
    family: str, dtype: DtypeChoice, tmp_path: Path
) -> None:
    model_type, changes, num_groups = FAMILIES[family]
    folder = write_checkpoint(tmp_path, model_type, **changes)
    clean = PoisonedRig(folder, dtype)
    poisoned = PoisonedRig(folder, dtype, free=True)
    assert poisoned.read_answers() == clean.read_answers()
    assert poisoned.num_poisoned > 100
    assert any(max(outcome.num_cached_tokens) for outcome in poisoned.outcomes.values())
    assert len(poisoned._caches) == num_groups
    forgetful = PoisonedRig(folder, dtype, free=True, prefix_caching=False)
    assert forgetful.read_answers() == clean.read_answers()
    assert forgetful.num_poisoned > poisoned.num_poisoned
    for group in range(num_groups):  # the controls
        used = PoisonedRig(folder, dtype, used_group=group)
        assert used.read_answers() != clean.read_answers()


@pytest.mark.parametrize("family", ["sliding", "chunked", "sinks"])
def test_a_block_that_leaves_too_early_is_seen(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: of windows and chunks the first block goes while it is still read."""
    model_type, changes, _ = FAMILIES[family]
    folder = write_checkpoint(tmp_path, model_type, **changes)
    clean = PoisonedRig(folder, DtypeChoice.FLOAT32)
    find_first_block = Reach.find_first_block

    def find_second_block(self: Reach, position: int) -> int:
        first, newest = find_first_block(self, position), (position - 1) // self.block_size
        return first + (0 < first < newest)

    monkeypatch.setattr(Reach, "find_first_block", find_second_block)
    early = PoisonedRig(folder, DtypeChoice.FLOAT32, free=True, prefix_caching=False)
    assert early.read_answers() != clean.read_answers()
