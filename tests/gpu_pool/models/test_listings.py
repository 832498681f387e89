"""Every family's list of parameters against what transformers saves, and its table of splits."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_pool.models.deepseek.sharding import SPLITS as DEEPSEEK
from gpu_pool.models.gemma.sharding import SPLITS as GEMMA
from gpu_pool.models.gpt_oss.sharding import SPLITS as GPT_OSS
from gpu_pool.models.llama4.sharding import SPLITS as LLAMA4
from gpu_pool.models.mistral.sharding import SPLITS as MISTRAL
from gpu_pool.models.parameters import Split
from gpu_pool.models.qwen.sharding import SPLITS as QWEN
from tests.gpu_pool.models.deepseek import test_model as deepseek
from tests.gpu_pool.models.family_check import Variant, write_variant
from tests.gpu_pool.models.gemma import test_model as gemma
from tests.gpu_pool.models.gpt_oss import test_model as gpt_oss
from tests.gpu_pool.models.listing_check import find_unlisted, list_last_names
from tests.gpu_pool.models.llama4 import test_model as llama4
from tests.gpu_pool.models.mistral import test_model as mistral
from tests.gpu_pool.models.qwen import test_model as qwen

FAMILIES: dict[str, tuple[Mapping[str, Variant], Mapping[str, Split]]] = {
    "qwen": (qwen.VARIANTS, QWEN),
    "mistral": (mistral.VARIANTS, MISTRAL),
    "gemma": (gemma.VARIANTS | {"biases": ("gemma2", {"attention_bias": True})}, GEMMA),
    "gpt_oss": (gpt_oss.VARIANTS, GPT_OSS),
    "deepseek": (deepseek.VARIANTS, DEEPSEEK),
    "llama4": (
        llama4.VARIANTS | {"biases": ("llama4_text", llama4.LLAMA4 | {"attention_bias": True})},
        LLAMA4,
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_what_transformers_saves_and_each_has_a_split(
    family: str, tmp_path: Path
) -> None:
    variants, splits = FAMILIES[family]
    used: set[str] = set()
    for name, variant in variants.items():
        folder = write_variant(tmp_path / name, variant)
        assert find_unlisted(folder) == set(), name
        used |= list_last_names(folder)
    assert used == set(splits)
