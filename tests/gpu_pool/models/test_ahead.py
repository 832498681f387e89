"""Families with windows, chunks, sinks and experts in the lane that runs ahead: answers stay."""

from pathlib import Path

import pytest

from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.models.test_under_the_scheduler import FAMILIES, create_requests
from tests.gpu_pool.runner.lane_rig import LaneRig, make_kernels
from tests.gpu_pool.runner.tape import TapeRecorder

LIMITS = {"max_batch_tokens": 96, "max_chunk_tokens": 37}


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_steps_ahead_of_their_results_change_no_answer(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_kernels(monkeypatch)
    model_type, changes = FAMILIES[family]
    folder = write_checkpoint(tmp_path, model_type, **changes)
    expected = LaneRig(folder, is_ahead=False).serve(create_requests())
    rig = LaneRig(folder, TapeRecorder(), num_blocks=18, **LIMITS)
    assert rig.serve(create_requests()) == expected
    assert rig.lane._graphs.num_replays > 10
