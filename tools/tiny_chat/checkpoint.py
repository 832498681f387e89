"""The files of a finished tiny-chat, in Hugging Face form.

Owns `config.json`, `generation_config.json` and `model.safetensors`. Read next: `answer.py`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from tools.tiny_chat.model import TinyChat
from tools.tiny_chat.tokenizer import BOS, END, PAD, id_of, save_tokenizer


def save_checkpoint(model: TinyChat, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the whole folder; the weights are rounded to bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = {
        "bos_token_id": id_of(tokenizer, BOS),
        "eos_token_id": id_of(tokenizer, END),
        "pad_token_id": id_of(tokenizer, PAD),
    }
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "mlp_bias": False,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        **asdict(model.config),
        **ids,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {**ids, "do_sample": False})
    save_tokenizer(tokenizer, folder, model.config.max_position_embeddings)
    weights = {
        name: tensor.detach().to(torch.bfloat16) for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def load_checkpoint(folder: Path) -> tuple[Tokenizer, dict[str, Tensor]]:
    """Returns the tokenizer and the weights in fp32."""
    weights = load_file(folder / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer, {name: tensor.float() for name, tensor in weights.items()}


def rounded_copy(model: TinyChat) -> TinyChat:
    """Returns the model as it will be after saving: bf16 weights, computed in fp32."""
    copy = TinyChat(model.config)
    copy.load_state_dict(
        {name: tensor.to(torch.bfloat16).float() for name, tensor in model.state_dict().items()}
    )
    return copy.eval()


def _write_json(path: Path, table: dict[str, object]) -> None:
    path.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n")
