"""Models that also see: their text part alone gives the logits of the whole on text."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.gpu_pool.models.deepseek.test_model import V3
from tests.gpu_pool.models.family_check import MAX_ERROR, measure_error
from tests.gpu_pool.models.family_checkpoint import SIZES, Reference, sharpen

VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
LLAMA4_VISION = VISION | {
    "vision_output_dim": 32,
    "projector_input_dim": 32,
    "projector_output_dim": 32,
}
KIMI_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "pos_emb_height": 4,
    "pos_emb_width": 4,
}
PARTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 6,
            "sliding_window": 40,
            "query_pre_attn_scalar": 24,
            "tie_word_embeddings": True,
        },
        VISION,
    ),
    "Llama4": (
        "llama4_text",
        {
            "head_dim": 64,
            "num_local_experts": 4,
            "intermediate_size_mlp": 96,
            "attention_chunk_size": 48,
        },
        LLAMA4_VISION,
    ),
    "Kimi_K25": ("deepseek_v3", V3, KIMI_VISION),
}


def restore_names(file: Path) -> None:
    """What transformers 5.23 saves of a Kimi K2.5 under other names than it was loaded from: it
    turns `blocks` into `layers` as it reads, and all `layers` into `blocks` as it writes.
    """
    state = load_file(file)
    names = {
        name: name.replace("language_model.model.blocks.", "language_model.model.layers.").replace(
            "model.mm_projector.", "mm_projector."
        )
        for name in state
    }
    save_file({names[name]: weight for name, weight in state.items()}, file, {"format": "pt"})


@pytest.mark.parametrize("family", PARTS)
def test_the_text_part_gives_the_logits_of_the_whole(family: str, tmp_path: Path) -> None:
    model_type, changes, vision = PARTS[family]
    text = transformers.AutoConfig.for_model(
        model_type, **(SIZES | changes | {"initializer_range": 0.1})
    )
    config_class: Any = getattr(transformers, f"{family}Config")
    model_class: Any = getattr(transformers, f"{family}ForConditionalGeneration")
    torch.manual_seed(0)
    config = config_class(
        text_config=text.to_dict(), vision_config=vision, tie_word_embeddings=family == "Gemma3"
    )
    model = model_class(config)
    sharpen(getattr(model, "language_model", model.get_decoder()), changes.get("sharpness", 2.5))
    model.save_pretrained(tmp_path)
    restore_names(tmp_path / "model.safetensors")
    assert measure_error(tmp_path, Reference(tmp_path, kind=model_class)) <= MAX_ERROR
