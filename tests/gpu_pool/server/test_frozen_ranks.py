"""A model on two ranks, each a real process: one that freezes is replaced with all the others."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.model_settings import EngineSettings, ServedModelSettings
from gpu_pool.node import CORE_COMMAND
from gpu_pool.server.core_supervisor import CoreSupervisor
from tests.fixtures.node_process import MODEL, is_alive, wait_until
from tests.fixtures.supervised_core import supervise
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.parallel.test_families import FAMILIES
from tests.gpu_pool.server.test_core_watch import ask
from tests.integration.process_tree import list_descendants

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

BOUND_S = 45.0
"""Longer than two processes take to import torch, side by side on a busy machine."""
PATIENCE_S = 150


def list_ranks(supervisor: CoreSupervisor) -> list[int]:
    """The processes of the ranks."""
    assert supervisor.process_id is not None
    rows = list_descendants(supervisor.process_id)
    return [row.pid for row in rows if "rank_process" in row.command]


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_rank_that_freezes_is_replaced_with_its_model(
    tmp_path: Path, is_loaded: bool
) -> None:
    model_type, changes = FAMILIES["llama"]
    folder = write_checkpoint(tmp_path / "model", model_type, **changes)
    model = ServedModelSettings(
        name=MODEL, path=folder, dtype=DtypeChoice.FLOAT32, tensor_parallel=2
    )
    engine = EngineSettings(max_silence_s=BOUND_S, kv_bytes=16 << 20, num_threads=1)
    private = tmp_path / "p"
    private.mkdir()
    async with supervise(private, CORE_COMMAND, engine=engine, model=model) as supervisor:
        if is_loaded:
            await asyncio.wait_for(supervisor.wait_started(), PATIENCE_S)
        await wait_until(
            lambda: supervisor.process_id is not None and len(list_ranks(supervisor)) == 2,
            PATIENCE_S,
        )
        ranks = list_ranks(supervisor)
        os.kill(ranks[1], signal.SIGSTOP)
        if is_loaded:
            listener = ask(supervisor)  # broken by the node, or ended by the other rank in time
            await wait_until(
                lambda: listener.error is not None or listener.finished is not None, PATIENCE_S
            )
            assert listener.num_tokens == 0
        await wait_until(lambda: not any(map(is_alive, ranks)), PATIENCE_S)
        await asyncio.wait_for(supervisor.wait_started(), PATIENCE_S)
        assert not set(list_ranks(supervisor)) & set(ranks)
        again = ask(supervisor, max_tokens=3)
        await wait_until(lambda: again.finished is not None, PATIENCE_S)
        assert again.num_tokens == 3
