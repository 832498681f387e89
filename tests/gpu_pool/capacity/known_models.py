"""Published models as their `config.json` describes them, the fields that decide sizes."""

import json
from typing import Any

_SCOUT_TEXT: dict[str, Any] = {
    "vocab_size": 202_048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16_384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "attention_chunk_size": 8192,
    "max_position_embeddings": 10_485_760,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
_KIMI_TEXT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 163_840,
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.827,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50_000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": 32,
                },
            }
        },
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        ],
    },
}
SCOUT = json.dumps(
    {
        "architectures": ["Llama4ForConditionalGeneration"],
        "torch_dtype": "bfloat16",
        "text_config": _SCOUT_TEXT,
    }
).encode()
KIMI = json.dumps(
    {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "dtype": "bfloat16",
        "auto_map": {"AutoModel": "modeling.KimiK25"},
        "text_config": _KIMI_TEXT,
    }
).encode()
KIMI_TEXT = json.dumps(_KIMI_TEXT | {"dtype": "bfloat16"}).encode()
"""The part of it that Hearth computes, as a checkpoint of its own."""
DEEPSEEK = json.dumps(
    _KIMI_TEXT
    | {
        "vocab_size": 129_280,
        "num_attention_heads": 128,
        "n_routed_experts": 256,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
).encode()
