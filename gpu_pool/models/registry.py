"""Which model families there are, and which of them a checkpoint belongs to.

A new family is a folder and a line here. Read next: `llama.config`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpu_pool.encoder_architectures import ENCODER_ARCHITECTURES
from gpu_pool.models.bert import config as bert
from gpu_pool.models.deepseek import config as deepseek
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.gemma import config as gemma
from gpu_pool.models.gpt_oss import config as gpt_oss
from gpu_pool.models.llama import config as llama
from gpu_pool.models.llama4 import config as llama4
from gpu_pool.models.mistral import config as mistral
from gpu_pool.models.network import Network
from gpu_pool.models.qwen import config as qwen


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A family: what `config.json` calls its architectures, and how the file is read."""

    name: str
    architectures: tuple[str, ...]
    describe: Callable[[bytes], Network]


FAMILIES: Final = (
    ModelFamily("Llama", ("LlamaForCausalLM",), llama.describe),
    ModelFamily("Qwen2", ("Qwen2ForCausalLM",), qwen.describe_qwen2),
    ModelFamily("Qwen3", ("Qwen3ForCausalLM",), qwen.describe_qwen3),
    ModelFamily("Qwen3 MoE", ("Qwen3MoeForCausalLM",), qwen.describe_qwen3_moe),
    ModelFamily("Mistral", ("MistralForCausalLM",), mistral.describe_mistral),
    ModelFamily("Mixtral", ("MixtralForCausalLM",), mistral.describe_mixtral),
    ModelFamily("Gemma 2", ("Gemma2ForCausalLM",), gemma.describe_gemma2),
    ModelFamily("Gemma 3", ("Gemma3ForCausalLM",), gemma.describe_gemma3),
    ModelFamily(
        "Gemma 3, its text part",
        ("Gemma3ForConditionalGeneration",),
        gemma.describe_multimodal_gemma3,
    ),
    ModelFamily("gpt-oss", ("GptOssForCausalLM",), gpt_oss.describe),
    ModelFamily("DeepSeek-V2", ("DeepseekV2ForCausalLM",), deepseek.describe_v2),
    ModelFamily("DeepSeek-V3", ("DeepseekV3ForCausalLM",), deepseek.describe_v3),
    ModelFamily(
        "Kimi K2.5, its text part",
        ("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"),
        deepseek.describe_kimi,
    ),
    ModelFamily("Llama 4", ("Llama4ForCausalLM",), llama4.describe),
    ModelFamily(
        "Llama 4, its text part", ("Llama4ForConditionalGeneration",), llama4.describe_multimodal
    ),
    ModelFamily("BERT", ENCODER_ARCHITECTURES, bert.describe),
)


def find_family(architectures: tuple[str, ...]) -> ModelFamily:
    """The family that computes `architectures`.

    Raises: `CheckpointError` naming what is supported.
    """
    for family in FAMILIES:
        if len(architectures) == 1 and architectures[0] in family.architectures:
            return family
    asked = ", ".join(architectures) or "none"
    known = "; ".join(f"{family.name}: {', '.join(family.architectures)}" for family in FAMILIES)
    raise CheckpointError(f"Architecture `{asked}` is not supported. Supported are {known}.")
