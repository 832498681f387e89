"""Prompts without a cached prefix by torch's attention: the same values, and only where told."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from gpu_pool.attention import device_batch
from gpu_pool.attention.batch import Span
from gpu_pool.attention.device_batch import attend_on_device, create_device_batch
from gpu_pool.attention.kv_cache import KvCache, KvShape
from gpu_pool.attention.reach import FULL_REACH, Reach
from gpu_pool.attention.whole_prompts import (
    WHOLE_PROMPTS,
    WholePromptTable,
    attend_to_whole_prompts,
    can_be_whole,
)
from gpu_pool.kernels.attention_form import PLAIN, AttentionForm
from gpu_pool.kernels.fp8_slots import Fp8Slots
from gpu_pool.kernels.gpu_traits import get_traits
from gpu_pool.kernels.paged_attention import PagedLayout
from gpu_pool.plan import KvGroupKind

SHAPE = KvShape(num_layers=2, block_size=16, num_kv_heads=2, head_dim=32)
NUM_HEADS, LAYER = 6, 1
ALWAYS = WholePromptTable(MappingProxyType({(90, 32): 20}))
LAYOUT = PagedLayout(LAYER, 2, 16, 2, 32**-0.5)


@pytest.fixture
def torch_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Prompts that torch computed, where it is faster from twenty tokens on."""
    calls: list[Any] = []

    def attend(*args: Any) -> torch.Tensor:
        calls.append(args[2])
        return attend_to_whole_prompts(*args)

    monkeypatch.setattr(device_batch, "WHOLE_PROMPTS", ALWAYS)
    monkeypatch.setattr(device_batch, "attend_to_whole_prompts", attend)
    return calls


def attend(
    chunks: list[tuple[int, int]], reach: Reach = FULL_REACH, form: AttentionForm = PLAIN
) -> torch.Tensor:
    """What chunks (start, tokens) get beside a single token, from memory that holds noise."""
    torch.manual_seed(3)
    cache = KvCache(SHAPE, 64, torch.float32)
    cache.blocks.normal_()
    ids = np.random.default_rng(5).permutation(64)
    spans: list[Span] = []
    for start, num_tokens in [(30, 1), *chunks]:
        num_blocks = -(-(start + num_tokens) // 16)
        table = np.full(64, ids[num_blocks - 1])
        table[:num_blocks], ids = ids[:num_blocks], ids[num_blocks:]
        spans.append(Span(start, num_tokens, table))
    q_TNH = torch.randn(sum(span.num_tokens for span in spans), NUM_HEADS, 32)
    batch = create_device_batch(spans, cache, reach)
    return attend_on_device(LAYER, q_TNH, cache, batch, form)


def test_the_values_are_those_of_the_kernel(
    torch_calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [(0, 45), (0, 20), (0, 33)]
    by_torch = attend(chunks)
    assert torch_calls == [(45, 20, 33)]
    monkeypatch.setattr(device_batch, "WHOLE_PROMPTS", WHOLE_PROMPTS)
    assert torch.allclose(by_torch, attend(chunks), atol=1e-5)
    assert len(torch_calls) == 1


@pytest.mark.parametrize(
    ("chunks", "reach", "form"),
    [
        ([(0, 45), (16, 30)], FULL_REACH, PLAIN),  # one has a cached prefix
        ([(0, 45), (0, 19)], FULL_REACH, PLAIN),  # one is too short for it to pay
        ([(0, 45)], Reach(KvGroupKind.SLIDING_WINDOW, 44), PLAIN),
        ([(0, 45)], FULL_REACH, AttentionForm(softcap=5.0)),
        ([(0, 45)], FULL_REACH, AttentionForm(sinks_N=torch.zeros(NUM_HEADS))),
    ],
)
def test_other_prompts_are_the_kernels(
    torch_calls: list[Any], chunks: list[tuple[int, int]], reach: Reach, form: AttentionForm
) -> None:
    attend(chunks, reach, form)
    assert not torch_calls


def test_a_window_that_holds_the_prompt_is_none(torch_calls: list[Any]) -> None:
    reach = Reach(KvGroupKind.SLIDING_WINDOW, 45)
    mixed = attend([(0, 45)], reach)
    assert torch_calls == [(45,)]
    assert torch.allclose(mixed, attend([(0, 45)]), atol=1e-5)


def test_slots_of_eight_bits_are_the_kernels() -> None:
    assert can_be_whole(LAYOUT, [45])
    assert not can_be_whole(replace(LAYOUT, fp8=Fp8Slots(128, 4)), [45])


def test_torch_serves_only_where_a_gpu_has_shown_it() -> None:
    for capability in (80, 86, 89, 90):
        for head_dim in (64, 128, 256):
            asked = [[1 << 20], [5000, 1024], [5000, 1023]]
            traits = get_traits(capability, 100)
            found = [WHOLE_PROMPTS.prefers_torch(traits, head_dim, lengths) for lengths in asked]
            shown = (capability, head_dim) == (90, 128)
            assert found == [shown, shown, False]
