"""An engine's process that dies at any step of a hand-over, at either node, costs time only.

Read next: `test_split_exactness` (the same without deaths), `tests.integration.test_split_nodes`
(whole nodes).
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from contracts.kv_transfer import KvLanded
from gpu_pool.engine.settings import SchedulerSettings
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.transfer.core_pair import STEPS, Split
from tests.gpu_pool.transfer.peer import need_engine
from tests.gpu_pool.transfer.split_rig import HalfRig, open_pair, run_pair, settle, wait_ready
from tests.gpu_pool.transfer.test_split_exactness import KINDS, answer_alone, create_prompts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MAX_TOKENS: Final = 4


class Killer:
    """Kills one agent, once, as soon as some request has come to a step."""

    def __init__(self, half: HalfRig, has_come: Callable[[Split], bool]) -> None:
        self._half = half
        self._has_come = has_come
        self._process_id: int | None = None

    def watch(self, splits: list[Split]) -> None:
        if self._process_id is None and any(map(self._has_come, splits)):
            self._process_id = self._half.exchange.client.process_id
            assert self._process_id is not None
            os.kill(self._process_id, signal.SIGKILL)

    def wait_replaced(self, pair: tuple[HalfRig, HalfRig]) -> None:
        """Until another agent has taken the dead one's place."""
        assert self._process_id is not None, "nobody came so far"
        client = self._half.exchange.client
        settle(pair, lambda: client.process_id not in (None, self._process_id))
        wait_ready(pair)


@pytest.mark.parametrize("engine", ["memory", "nixl", "mooncake"])
def test_every_answer_is_whole_and_no_block_is_lost(engine: str, tmp_path: Path) -> None:
    """Asked again afterwards, all of them are handed over."""
    need_engine(engine)
    model_type, changes = KINDS["windows"]
    folder = write_checkpoint(tmp_path, model_type, **changes)
    prompts = create_prompts()[:6]
    expected = [answer[:MAX_TOKENS] for answer in answer_alone(folder, prompts)]
    with open_pair(folder, engine, SchedulerSettings(max_batch_tokens=64), 400) as pair:

        def ask(salt: bytes, each_turn: Callable[[list[Split]], None]) -> list[Split]:
            splits: list[Split] = []
            for prompt in prompts:
                request = create_request(0, prompt, max_tokens=MAX_TOKENS, salt=salt)
                splits.append(Split(pair[0], pair[1], request, deadline_ms=2000))  # type: ignore[arg-type]
                splits[-1].open()
            run_pair(pair, splits, lambda: each_turn(splits))
            assert [split.answer.token_ids for split in splits] == expected
            assert not any(split.answer.error for split in splits)
            return splits

        for step, has_come in STEPS.items():
            for place, half in enumerate(pair):
                killer = Killer(half, has_come)
                ask(f"{step} {place}".ljust(32).encode(), killer.watch)
                killer.wait_replaced(pair)
        again = ask(b"again".ljust(32), lambda _: None)
        assert all(split.answer.find(KvLanded) for split in again)
