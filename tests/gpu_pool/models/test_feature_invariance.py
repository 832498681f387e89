"""The same tokens whatever is switched on, in families that attend or compute in another way.

What `tests/gpu_pool/runner/test_feature_invariance.py` asks of keys, values and dense layers is
asked here of windows, chunks, sinks, caps, latents, and of experts, whose rows vary with who else
is in the step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.engine.messages import AddSequence
from gpu_pool.layers import experts
from gpu_pool.layers.linear import Linear
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
from tests.gpu_pool.models.deepseek.test_model import V3
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.models.gemma.test_model import GEMMA2, GEMMA3
from tests.gpu_pool.models.gpt_oss.test_model import GPT_OSS
from tests.gpu_pool.models.llama4.test_model import LLAMA4
from tests.gpu_pool.models.mistral.test_model import EXPERTS as MIXTRAL
from tests.gpu_pool.models.qwen.test_model import EXPERTS

pytestmark = pytest.mark.slow

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "windows": ("gemma3_text", GEMMA3),
    "chunks": ("llama4_text", LLAMA4),
    "latents": ("deepseek_v3", V3),
    "experts": ("qwen3_moe", EXPERTS | {"norm_topk_prob": True}),
    "sinks": ("gpt_oss", GPT_OSS),
    "caps": ("gemma2", GEMMA2 | {"sliding_window": 60}),
    "windows alone": ("mixtral", MIXTRAL | {"sliding_window": 90}),
    "windows wider than memory": ("mistral", {"sliding_window": 530}),
}
NUM_REQUESTS = 33
NUM_TOKENS, FEW_TOKENS = 20, 3
"""Of the first answers, which meet the end of a small memory, and of all others."""
NUM_LONG = 6
FEW_REQUESTS = 12
"""With which runs begin that go one by one, or in a small memory."""
LONG = 540
"""Tokens of the last prompt, more than the largest chunk."""
SCARCE = 14
"""Blocks for two or three requests."""
SCARCER = 11
"""The same where prefixes are shared."""
FEATURES = {
    "cache": Feature(limit(2048, 2048, prefix_caching=True), at_once=1),
    "chunks of 16": Feature(limit(16, 16, 16), at_once=1),
    "chunks of 64": Feature(limit(64, 64), at_once=4),
    "chunks of 512": Feature(limit(512, 512), at_once=4),
    "batch of 8": Feature(limit(2048, 2048), at_once=8, least_at_once=8),
    "batch of 33": Feature(limit(4096, 4096), least_at_once=33),
    "preemption": Feature(limit(64, 23), SCARCE),
    "swap": Feature(limit(64, 23), SCARCE, swap_bytes=1 << 21),
    "guesses": Feature(limit(4096, 4096, ngram=NGRAM)),
    "everything": Feature(
        limit(64, 23, prefix_caching=True, ngram=NGRAM), SCARCER, swap_bytes=1 << 21
    ),
}


@dataclass(frozen=True, slots=True)
class Family:
    """A checkpoint, in what it computes, and what every request gets alone."""

    folder: Path
    dtype: DtypeChoice
    calm: EngineRig


def create_requests() -> list[AddSequence]:
    """A third share a prefix that is longer than every window, a third repeat themselves."""
    prefix = create_prompt(70, 99)
    prompts: list[list[int]] = []
    for n in range(NUM_REQUESTS):
        own = create_prompt(1 + 7 * n % 30, n)
        prompts.append([prefix + own, own, (own * 9)[:50]][n % 3])
    prompts[-1] = create_prompt(LONG, 98)
    return [
        create_request(
            n, prompt, max_tokens=NUM_TOKENS if n < NUM_LONG else FEW_TOKENS, num_logprobs=1
        )
        for n, prompt in enumerate(prompts)
    ]


def run_feature(family: Family, name: str) -> EngineRig:
    """As many of the requests as the feature needs."""
    feature = FEATURES[name]
    is_short = feature.at_once == 1 or feature.num_blocks <= SCARCE
    requests = create_requests()[: FEW_REQUESTS if is_short else NUM_REQUESTS]
    return run(family.folder, family.dtype, requests, feature)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((name, dtype), id=f"{name}-{dtype}")
        for name in FAMILIES
        for dtype in (DtypeChoice.FLOAT32, DtypeChoice.BFLOAT16)
    ],
)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    name, dtype = request.param
    model_type, changes = FAMILIES[name]
    folder = write_checkpoint(tmp_path_factory.mktemp("family"), model_type, **changes)
    return Family(folder, dtype, run(folder, dtype, create_requests(), CALM))


@pytest.mark.parametrize("name", FEATURES)
def test_no_feature_changes_a_token_or_a_score(name: str, family: Family) -> None:
    rig = run_feature(family, name)
    assert not list_differences(rig, family.calm)
    lengths = {len(outcome.token_ids) for outcome in rig.outcomes.values()}
    assert lengths == {NUM_TOKENS, FEW_TOKENS}
    assert_has_happened(FEATURES[name], rig)


def note_neighbours(multiply: Callable[[Linear, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A product whose bits depend on how many rows it has."""

    def multiply_unevenly(layer: Linear, x_TK: Tensor) -> Tensor:
        out_TM = multiply(layer, x_TK)
        return out_TM if len(x_TK) == 1 else out_TM * (1 + torch.finfo(out_TM.dtype).eps)

    return multiply_unevenly


@pytest.mark.parametrize("name", ["chunks of 16", "batch of 8", "preemption"])
def test_rows_that_depend_on_their_number_are_seen(
    name: str, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: every family's layers, experts among them, multiply through `Linear`."""
    monkeypatch.setattr(Linear, "__call__", note_neighbours(Linear.__call__))
    assert list_differences(run_feature(family, name), family.calm)


@pytest.mark.parametrize("dtype", [DtypeChoice.FLOAT32, DtypeChoice.BFLOAT16])
def test_experts_alone_that_depend_on_their_rows_are_seen(
    dtype: DtypeChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control for what is new with experts: the rows of one vary with who else is there."""
    model_type, changes = FAMILIES["experts"]
    folder = write_checkpoint(tmp_path, model_type, **changes)
    calm = run(folder, dtype, create_requests(), CALM)

    class UnevenMlp(experts.GatedMlp):
        def __call__(self, x_TD: Tensor) -> Tensor:
            out_TD = super().__call__(x_TD)
            return out_TD if len(x_TD) < 5 else out_TD * (1 + torch.finfo(out_TD.dtype).eps)

    monkeypatch.setattr(experts, "GatedMlp", UnevenMlp)
    assert list_differences(run(folder, dtype, create_requests(), FEATURES["batch of 33"]), calm)
