"""Rows with and without adapters beside each other: the same bits as alone, by every way.

A third of the requests have no adapter, the others one of two, under the real scheduler.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from contracts.inference import SamplingParams
from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.engine.messages import AddSequence
from gpu_pool.layers.linear import Linear
from gpu_pool.lora.loading import LowRankProduct
from gpu_pool.plan import AdapterFile
from gpu_pool.runner.decode_graphs import DecodeGraphs
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.feature_runs import (
    CALM,
    NGRAM,
    Feature,
    assert_has_happened,
    limit,
    list_differences,
    run,
)
from tests.gpu_pool.lora.adapter_files import write_adapter
from tests.gpu_pool.models.deepseek.test_model import V3
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.runner.lane_rig import LaneRig

pytestmark = pytest.mark.slow

NUM_REQUESTS = 21
NUM_TOKENS = 30
"""Two blocks: whoever has begun beside others runs out of room."""
SCARCE = 10
"""Blocks for one to three of the requests: however adapters come, some give way."""
SCARCER = 9
"""The same where prefixes are shared."""
WIDE = {"head_dim": 32, "hidden_size": 72, "intermediate_size": 104}
FEATURES = {
    "cache": Feature(limit(2048, 2048, prefix_caching=True), at_once=1),
    "chunks of 16": Feature(limit(16, 16, 16), at_once=1),
    "batch": Feature(limit(2048, 2048)),
    "preemption": Feature(limit(64, 23), SCARCE),
    "swap": Feature(limit(64, 23), SCARCE, swap_bytes=1 << 20),
    "guesses in a batch": Feature(limit(2048, 2048, ngram=NGRAM)),
    "everything": Feature(
        limit(64, 23, prefix_caching=True, ngram=NGRAM), SCARCER, swap_bytes=1 << 20
    ),
}


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint, in what it computes, its adapters, and what every request gets alone."""

    folder: Path
    dtype: DtypeChoice
    files: tuple[AdapterFile, AdapterFile]
    calm: EngineRig


def create_requests(files: tuple[AdapterFile, AdapterFile]) -> list[AddSequence]:
    """Half share a prefix, some repeat themselves, some ask how likely their prompts were."""
    prefix = create_prompt(37, 99)
    requests: list[AddSequence] = []
    for n in range(NUM_REQUESTS):
        own = create_prompt(1 + 11 * n % 50, n)
        prompt = [prefix + own, own, (own * 9)[:70]][n % 7 % 3]
        request = create_request(
            n,
            prompt,
            max_tokens=NUM_TOKENS,
            temperature=0.7 if n % 4 == 3 else 0.0,
            seed=n,
            num_logprobs=1,
            num_prompt_logprobs=1 if n % 10 == 4 else None,
        )
        adapter = (None, *files)[n % 3]
        requests.append(msgspec.structs.replace(request, adapter=adapter))
    return requests


@pytest.fixture(
    scope="module",
    params=[
        (family, dtype)
        for family in ("qwen3", "deepseek_v3")
        for dtype in (DtypeChoice.FLOAT32, DtypeChoice.BFLOAT16)
    ],
    ids=str,
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    family, dtype = request.param
    changes = V3 if family == "deepseek_v3" else WIDE
    path = tmp_path_factory.mktemp("model")
    folder = write_checkpoint(path / "model", family, **changes)
    endings = (
        ("o_proj", "shared_experts.down_proj")
        if family == "deepseek_v3"
        else ("q_proj", "down_proj")
    )
    files = (
        write_adapter(path / "1.safetensors", folder, endings, rank=4, seed=1),
        write_adapter(path / "2.safetensors", folder, ("o_proj",), rank=16, seed=2),
    )
    return Model(folder, dtype, files, run(folder, dtype, create_requests(files), CALM))


@pytest.mark.parametrize("name", FEATURES)
def test_no_feature_changes_a_token_or_a_score(name: str, model: Model) -> None:
    feature = FEATURES[name]
    rig = run(model.folder, model.dtype, create_requests(model.files), feature)
    assert {len(outcome.token_ids) for outcome in rig.outcomes.values()} == {NUM_TOKENS}
    assert not list_differences(rig, model.calm)
    assert_has_happened(feature, rig)


def test_rows_without_adapters_are_those_of_a_run_without_any(model: Model) -> None:
    requests = create_requests(model.files)
    plain = [request for request in requests if request.adapter is None]
    rig = run(model.folder, model.dtype, plain, FEATURES["batch"])
    assert len(rig.outcomes) == NUM_REQUESTS // 3
    assert not list_differences(rig, model.calm)


def test_adapters_change_answers(model: Model) -> None:
    """The control of all of the above."""
    bare = [msgspec.structs.replace(r, adapter=None) for r in create_requests(model.files)]
    rig = run(model.folder, model.dtype, bare, FEATURES["batch"])
    adapted = {r.sequence_id for r in create_requests(model.files) if r.adapter is not None}
    assert set(list_differences(rig, model.calm)) == adapted


def test_additions_that_depend_on_their_number_are_seen(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what is added to a row must not depend on how many rows there are."""
    add = LowRankProduct.add

    def add_unevenly(self: LowRankProduct, x_TK: Tensor, y_TM: Tensor) -> None:
        add(self, x_TK if len(x_TK) == 1 else x_TK * 1.01, y_TM)

    monkeypatch.setattr(LowRankProduct, "add", add_unevenly)
    rig = run(model.folder, model.dtype, create_requests(model.files), FEATURES["batch"])
    assert list_differences(rig, model.calm)


def test_other_rows_touched_by_an_adapter_are_seen(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: an addition that reaches beyond its rows changes who has no adapter."""
    multiply: Callable[[Linear, Tensor], Tensor] = Linear.__call__

    def spill(self: Linear, x_TK: Tensor) -> Tensor:
        y_TM = multiply(self, x_TK)
        return y_TM if self.added is None else y_TM * (1 + 4 * torch.finfo(y_TM.dtype).eps)

    monkeypatch.setattr(Linear, "__call__", spill)
    rig = run(model.folder, model.dtype, create_requests(model.files), FEATURES["batch"])
    plain = {r.sequence_id for r in create_requests(model.files) if r.adapter is None}
    assert plain & set(list_differences(rig, model.calm))


def test_rows_that_stay_on_the_device_answer_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane of GPUs, run on a CPU; steps with adapters are not those that it records."""
    folder = write_checkpoint(tmp_path / "model", "qwen3", **WIDE)
    files = (
        write_adapter(tmp_path / "1.safetensors", folder, seed=1),
        write_adapter(tmp_path / "2.safetensors", folder, ("o_proj",), rank=16, seed=2),
    )
    requests = create_requests(files)
    answers = []
    for is_ahead in (False, True):
        rig = LaneRig(folder, is_ahead=is_ahead)
        answers.append(rig.serve(requests))
    assert answers[0] == answers[1]
    recorded: list[int] = []
    run_recorded = DecodeGraphs.run

    def note(self: DecodeGraphs, places: Sequence[int], *told: Any, **fields: Any) -> Tensor:
        recorded.append(len(places))
        return run_recorded(self, places, *told, **fields)

    monkeypatch.setattr(DecodeGraphs, "run", note)
    plainly = SamplingParams(temperature=0.0, seed=0, max_tokens=6, ignore_eos=True)
    alike = [msgspec.structs.replace(request, sampling=plainly) for request in requests]
    LaneRig(folder).serve([r for r in alike if r.adapter is not None])
    assert not recorded
    LaneRig(folder).serve([r for r in alike if r.adapter is None])
    assert recorded  # the control
