"""A step whose numbers are none ends the request that it was for, and no other.

Poisoned keys and values make every logit behind them NaN, as a broken kernel or weight would.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels import draw
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.runner.lane_rig import LaneRig
from tests.gpu_pool.tiny_llama import write_tiny_llama

NUM_TOKENS = 12
POISONED_STEP = 5
VICTIM = 1
PROMPTS = [list(range(first, first + 40)) for first in (3, 90, 180)]
PLAIN: dict[str, Any] = {}
ADJUSTED = {"num_logprobs": 2, "temperature": 0.8, "seed": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(path)
    return path


class GarbledRig(LaneRig):
    """A rig in which one running sequence's newest block becomes NaN before some step."""

    is_poisoned = True
    parts = slice(None)
    """Keys are the first, values the second."""

    def step(self) -> Any:
        books = self.scheduler.books
        victim = books.find(VICTIM)  # type: ignore[arg-type]
        if self.is_poisoned and victim is not None and len(self.plans) == POISONED_STEP:
            assert self.worker._runner is not None
            blocks = self.worker._runner._groups[0].cache.blocks
            with torch.inference_mode():
                blocks[victim.table.groups[0].block_ids[-1], :, :, self.parts] = float("nan")
        return super().step()


def serve(folder: Path, asked: dict[str, Any], *, is_ahead: bool, is_poisoned: bool) -> GarbledRig:
    """Three requests side by side."""
    rig = GarbledRig(folder, is_ahead=is_ahead)
    rig.is_poisoned = is_poisoned
    requests = [
        create_request(n, prompt, max_tokens=NUM_TOKENS, **asked)
        for n, prompt in enumerate(PROMPTS)
    ]
    rig.serve(requests)
    return rig


@pytest.mark.parametrize("parts", [slice(0, 1), slice(1, 2)], ids=["keys", "values"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_keys_or_values_alone_end_it_and_nobody_finds_them_again(
    dtype: torch.dtype, parts: slice, tmp_path: Path
) -> None:
    """In bf16 by the native kernels, which have a softmax of their own."""
    write_tiny_llama(tmp_path, dtype=dtype, head_dim=32)
    calm = serve(tmp_path, PLAIN, is_ahead=False, is_poisoned=False)
    rig = GarbledRig(tmp_path, is_ahead=False)
    rig.parts = parts
    requests = [create_request(n, p, max_tokens=NUM_TOKENS) for n, p in enumerate(PROMPTS)]
    rig.serve(requests)
    assert rig.outcomes[VICTIM].error_codes == ["internal_error"]
    for other in (0, 2):
        assert rig.outcomes[other].token_ids == calm.outcomes[other].token_ids
    rig.is_poisoned = False
    (again,) = rig.serve([create_request(10, PROMPTS[VICTIM], max_tokens=NUM_TOKENS)])
    assert again == calm.outcomes[VICTIM].token_ids
    assert max(rig.outcomes[10].num_cached_tokens) == 0


@pytest.mark.parametrize("asked", [PLAIN, ADJUSTED], ids=["plain", "adjusted"])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_it_ends_with_an_error_and_the_others_go_on(
    asked: dict[str, Any], is_ahead: bool, folder: Path
) -> None:
    calm = serve(folder, asked, is_ahead=is_ahead, is_poisoned=False)
    rig = serve(folder, asked, is_ahead=is_ahead, is_poisoned=True)
    victim = rig.outcomes[VICTIM]
    assert victim.error_codes == ["internal_error"]
    assert 0 < len(victim.token_ids) < NUM_TOKENS
    assert victim.token_ids == calm.outcomes[VICTIM].token_ids[: len(victim.token_ids)]
    assert victim.num_completion_tokens == len(victim.token_ids)
    assert len(victim.scores) == (len(victim.token_ids) if asked else 0)
    for other in (0, 2):
        assert rig.outcomes[other].token_ids == calm.outcomes[other].token_ids
        assert rig.outcomes[other].scores == calm.outcomes[other].scores
    if not asked:
        assert_none_finds_it(rig, calm)


def assert_none_finds_it(rig: GarbledRig, calm: GarbledRig) -> None:
    """The blocks of who ended so are zeroed and forgotten; those of the others are found."""
    num_cached: list[int] = []
    for number, of in ((10, VICTIM), (11, 0)):
        (answer,) = rig.serve([create_request(number, PROMPTS[of], max_tokens=NUM_TOKENS)])
        assert answer == calm.outcomes[of].token_ids
        num_cached += rig.outcomes[number].num_cached_tokens
    assert num_cached == [0, 32]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_unseen_it_would_be_an_answer_of_the_first_token(
    is_ahead: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""

    def let_pass(logits_RV: Tensor, token_ids_R: Tensor) -> Tensor:
        del logits_RV
        return token_ids_R

    monkeypatch.setattr(draw, "_refuse_garbage", let_pass)
    victim = serve(folder, PLAIN, is_ahead=is_ahead, is_poisoned=True).outcomes[VICTIM]
    assert victim.error_codes == []
    assert victim.token_ids[-4:] == [0, 0, 0, 0]
