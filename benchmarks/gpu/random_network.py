"""Networks of true shapes with random weights, made on the device: no file is read or written."""

import json
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.attention.kv_cache import KvCache
from gpu_pool.models.network import CausalNetwork
from gpu_pool.models.registry import find_family
from gpu_pool.runner.group_blocks import KvGroupMemory
from gpu_pool.runner.model_runner import ModelRunner
from gpu_pool.worker.kv_memory import shape_kv
from gpu_pool.worker.model_memory import Places, PlainPlaces

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of a published model."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    is_tied: bool = False


SHAPES = {
    "llama-3.1-8b": Shapes("LlamaForCausalLM", 4096, 14336, 32, 32, 8, 128_256),
    "qwen3-8b": Shapes("Qwen3ForCausalLM", 4096, 12288, 36, 32, 8, 151_936),
    "qwen3-4b": Shapes("Qwen3ForCausalLM", 2560, 9728, 36, 32, 8, 151_936, is_tied=True),
    "qwen3-0.6b": Shapes("Qwen3ForCausalLM", 1024, 3072, 28, 16, 8, 151_936, is_tied=True),
}


def create_random_runner(
    name: str, num_blocks: int, context_window: int, places: Places | None = None
) -> ModelRunner:
    """A runner of that shape in bf16; its memory lies in `places`, None: where torch puts it."""
    network = describe_network(SHAPES[name], context_window)
    device, dtype = torch.device("cuda"), torch.bfloat16
    places = places or PlainPlaces(device)

    def read(parameter: str) -> Tensor:
        parts = network.parameters[parameter].parts
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        if len(shape) == 1:
            return places.put(torch.ones(shape, dtype=dtype, device=device))
        return places.put(torch.randn(shape, dtype=dtype, device=device).mul_(0.02))

    with torch.inference_mode():
        model = network.create(read, context_window)
    groups = [
        KvGroupMemory(
            KvCache(
                shape_kv(layers, BLOCK_SIZE),
                num_blocks,
                dtype,
                create_zeros=places.create_zeros,
            ),
            layers.reach,
        )
        for layers in network.kv_groups
    ]
    return ModelRunner(model, groups, vocab_size=network.vocab_size, context_window=context_window)


def describe_network(shapes: Shapes, context_window: int) -> CausalNetwork:
    """The network as its family describes it."""
    config = {
        "architectures": [shapes.architecture],
        "model_type": shapes.architecture.removesuffix("ForCausalLM").lower(),
        "hidden_size": shapes.hidden_size,
        "intermediate_size": shapes.intermediate_size,
        "num_hidden_layers": shapes.num_layers,
        "num_attention_heads": shapes.num_heads,
        "num_key_value_heads": shapes.num_kv_heads,
        "head_dim": 128,
        "vocab_size": shapes.vocab_size,
        "max_position_embeddings": context_window,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": shapes.is_tied,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
    }
    network = find_family((shapes.architecture,)).describe(json.dumps(config).encode())
    assert isinstance(network, CausalNetwork)
    return network
