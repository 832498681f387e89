"""The form that GPUs read against the form of the CPU: the same attention, the same tokens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_pool.attention import paged
from gpu_pool.attention.batch import Span, create_attention_batch, order_key
from gpu_pool.attention.device_batch import DeviceBatch
from gpu_pool.attention.kv_cache import KvCache, KvShape
from gpu_pool.attention.padding import pad_context
from gpu_pool.attention.paged import PagedStep, attend, create_paged_step
from gpu_pool.attention.reach import FULL_REACH, Reach
from gpu_pool.kernels import (
    add_rms_norm,
    fp8_write,
    kv_write,
    latent_attention,
    latent_decode,
    norm_rotate_write,
    paged_attention,
    rms_norm,
    rotary,
    silu_mul,
    split_decode,
    split_plan,
)
from gpu_pool.kernels.attention_form import PLAIN, AttentionForm
from gpu_pool.kernels.fp8_slots import narrow_slots
from gpu_pool.plan import KvGroupKind
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.kernels.triton_cases import needs_triton
from tests.gpu_pool.models.deepseek.test_model import VARIANTS
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.plan_driver import PlanDriver
from tests.gpu_pool.tiny_llama import write_tiny_llama

pytestmark = [needs_triton, pytest.mark.slow]

SHAPE = KvShape(num_layers=2, block_size=16, num_kv_heads=2, head_dim=32)
LATENT_SHAPE = KvShape(num_layers=2, block_size=16, num_kv_heads=1, head_dim=48, num_parts=1)
NUM_HEADS = 6
KERNELS = (
    add_rms_norm,
    fp8_write,
    kv_write,
    latent_attention,
    latent_decode,
    norm_rotate_write,
    paged_attention,
    rms_norm,
    rotary,
    silu_mul,
    split_decode,
    split_plan,
)


@pytest.fixture
def kernels_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels serve CPU tensors, too, through the interpreter."""
    for module in (*KERNELS, paged):
        monkeypatch.setattr(module, "uses_triton", lambda tensor: True)


def create_spans(cache_blocks: int) -> list[Span]:
    """Three decodes and two chunks, of contexts short and long."""
    ids = np.random.default_rng(5).permutation(cache_blocks)
    spans: list[Span] = []
    for start, num_tokens in ((0, 1), (37, 1), (530, 1), (0, 21), (70, 45)):
        num_blocks = -(-(start + num_tokens) // SHAPE.block_size)
        table = np.full(pad_context(1024) // SHAPE.block_size, ids[num_blocks - 1])
        table[:num_blocks], ids = ids[:num_blocks], ids[num_blocks:]
        spans.append(Span(start, num_tokens, table))
    return sorted(spans, key=order_key)


@pytest.mark.parametrize(
    "reach",
    [FULL_REACH, Reach(KvGroupKind.SLIDING_WINDOW, 24), Reach(KvGroupKind.CHUNKED, 32)],
    ids=lambda reach: reach.kind,
)
@pytest.mark.parametrize("form", ["plain", "softcap", "sinks", "latent", "fp8", "fp8 latent"])
def test_both_forms_mix_alike(kernels_everywhere: None, reach: Reach, form: str) -> None:
    generator = torch.Generator().manual_seed(1)
    forms = {
        "plain": PLAIN,
        "softcap": AttentionForm(softcap=4.0, scale=0.3),
        "sinks": AttentionForm(sinks_N=torch.randn(NUM_HEADS, generator=generator)),
        "latent": AttentionForm(scale=0.2, value_dim=32),
    }
    shape = LATENT_SHAPE if "latent" in form else SHAPE
    shape = replace(shape, is_fp8="fp8" in form)
    caches = [KvCache(shape, 60, torch.float32, torch.device("cpu")) for _ in range(2)]
    filled = torch.randn(len(caches[0].slots_XE), shape.slot_elements, generator=generator)
    for cache in caches:
        cache.slots_XE.copy_(filled if shape.fp8 is None else narrow_slots(filled, shape.fp8))
    spans = create_spans(60)
    num_tokens = sum(span.num_tokens for span in spans)
    q = torch.randn(num_tokens, NUM_HEADS, shape.head_dim, generator=generator)
    kv = torch.randn(num_tokens, shape.slot_elements, generator=generator)
    plain_step = PagedStep(caches[0], create_attention_batch(spans, caches[0], reach))
    device_step = create_paged_step(spans, caches[1], reach)
    assert isinstance(device_step.batch, DeviceBatch)
    chosen = forms[form.removeprefix("fp8").strip() or "plain"]
    expected = attend(1, q, kv, plain_step, chosen)
    actual = attend(1, q, kv, device_step, chosen)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(caches[0].blocks, caches[1].blocks)


def write_tiny_deepseek(folder: Path) -> None:
    """A DeepSeek whose latents have odd sizes."""
    model_type, changes = VARIANTS["v3"]
    write_checkpoint(folder, model_type, **changes)


@pytest.mark.parametrize("write_model", [write_tiny_llama, write_tiny_deepseek])
def test_a_model_draws_the_same_tokens_through_the_kernels(
    write_model: Callable[[Path], object], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    write_model(tmp_path)
    settings = WorkerSettings(
        model_dir=tmp_path,
        dtype=DtypeChoice.FLOAT32,
        block_size=16,
        num_blocks=64,
        native_kernels=False,
    )

    def generate() -> list[list[int]]:
        driver = PlanDriver(create_executor(settings))
        prompts = [[1 + i % 200 for i in range(length)] for length in (3, 40)]
        return driver.generate([driver.add(p) for p in prompts], 2, max_chunk=30)

    expected = generate()
    request.getfixturevalue("kernels_everywhere")
    assert generate() == expected
