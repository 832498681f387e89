"""`config.json` and `generation_config.json`, validated into a typed configuration.

Refuses what would silently compute something else: unknown architectures, activations, position
encodings and quantisation, and `auto_map`, which asks for code from the checkpoint to be run.
Both spellings of rotary settings are read: `rope_parameters` and the older `rope_scaling`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import torch

from gpu_pool.layers.rotary_embedding import Llama3Scaling
from gpu_pool.models.llama.config import LlamaConfig
from gpu_pool.weights.errors import CheckpointError

ARCHITECTURES: Final = ("LlamaForCausalLM",)
_DTYPES: Final = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
_DEFAULT_ROPE_THETA: Final = 10_000.0
StructT = TypeVar("StructT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """All that a checkpoint's JSON files say about the network."""

    llama: LlamaConfig
    dtype: torch.dtype
    """Of the stored weights."""
    eos_token_ids: tuple[int, ...]


class _Rope(msgspec.Struct, frozen=True):
    """`rope_parameters` or `rope_scaling`."""

    rope_type: str = "default"
    type: str | None = None
    rope_theta: float | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float = 1.0


class _ModelJson(msgspec.Struct, frozen=True):
    """The fields of `config.json` that matter; others are ignored."""

    architectures: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    rms_norm_eps: float
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rope_theta: float | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str | None = None
    torch_dtype: str | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    sliding_window: int | None = None
    quantization_config: Any = None
    auto_map: Any = None


class _GenerationJson(msgspec.Struct, frozen=True):
    """The field of `generation_config.json` that matters."""

    eos_token_id: int | tuple[int, ...] | None = None


def read_config(model_dir: Path) -> CheckpointConfig:
    """The configuration of the checkpoint in `model_dir`.

    Raises: `CheckpointError` naming the field.
    """
    model = _decode(model_dir / "config.json", _ModelJson)
    _refuse_unsupported(model)
    generation = _GenerationJson()
    if (model_dir / "generation_config.json").is_file():
        generation = _decode(model_dir / "generation_config.json", _GenerationJson)
    llama = _build_llama(model)
    eos = model.eos_token_id if generation.eos_token_id is None else generation.eos_token_id
    return CheckpointConfig(llama, _find_dtype(model), _list_eos(eos, llama.vocab_size))


def _decode(path: Path, kind: type[StructT]) -> StructT:
    """The struct inside a JSON file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: {error}.") from error


def _refuse_unsupported(model: _ModelJson) -> None:
    """Raises for everything that this family does not compute."""
    if model.auto_map is not None:
        raise CheckpointError("config.json has `auto_map`; code in checkpoints is never run.")
    if len(model.architectures) != 1 or model.architectures[0] not in ARCHITECTURES:
        known, asked = ", ".join(ARCHITECTURES), ", ".join(model.architectures)
        raise CheckpointError(f"Architecture `{asked}` is not supported; supported: {known}.")
    if model.quantization_config is not None:
        raise CheckpointError("config.json has `quantization_config`; only bf16, fp16 and fp32.")
    if model.hidden_act != "silu":
        raise CheckpointError(f"hidden_act `{model.hidden_act}` is not supported; only `silu`.")
    if model.sliding_window is not None:
        raise CheckpointError("config.json has `sliding_window`; only full attention.")


def _build_llama(model: _ModelJson) -> LlamaConfig:
    """The network's configuration, sizes checked."""
    num_kv_heads = model.num_key_value_heads or model.num_attention_heads
    sizes = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": model.max_position_embeddings,
        "rms_norm_eps": model.rms_norm_eps,
    }
    for name, size in sizes.items():
        if size <= 0:
            raise CheckpointError(f"{name} is {size}; it must be positive.")
    if model.num_attention_heads % num_kv_heads:
        raise CheckpointError("num_attention_heads is no multiple of num_key_value_heads.")
    head_dim = model.head_dim or model.hidden_size // model.num_attention_heads
    if head_dim <= 0 or head_dim % 2:
        raise CheckpointError(f"head_dim is {head_dim}; it must be even and positive.")
    theta, scaling = _read_rope(model)
    return LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_layers=model.num_hidden_layers,
        num_heads=model.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_window=model.max_position_embeddings,
        rms_norm_eps=model.rms_norm_eps,
        rope_theta=theta,
        rope_scaling=scaling,
        has_tied_embeddings=model.tie_word_embeddings,
        has_attention_bias=model.attention_bias,
        has_mlp_bias=model.mlp_bias,
    )


def _read_rope(model: _ModelJson) -> tuple[float, Llama3Scaling | None]:
    """The base of the rotary frequencies and their scaling, if any."""
    rope = model.rope_parameters or model.rope_scaling or _Rope()
    theta = rope.rope_theta or model.rope_theta or _DEFAULT_ROPE_THETA
    if theta <= 0:
        raise CheckpointError(f"rope_theta is {theta}; it must be positive.")
    if rope.partial_rotary_factor != 1.0:
        raise CheckpointError("partial_rotary_factor is not supported; heads turn as a whole.")
    kind = rope.type or rope.rope_type
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise CheckpointError(f"rope type `{kind}` is not supported; only default and llama3.")
    factor, low, high = rope.factor, rope.low_freq_factor, rope.high_freq_factor
    original = rope.original_max_position_embeddings
    if factor is None or low is None or high is None or original is None:
        raise CheckpointError(
            "rope type `llama3` needs factor, low_freq_factor, high_freq_factor and "
            "original_max_position_embeddings."
        )
    if factor < 1 or low <= 0 or high <= low or original <= 0:
        raise CheckpointError("The values of rope type `llama3` are out of range.")
    return theta, Llama3Scaling(factor, low, high, original)


def _find_dtype(model: _ModelJson) -> torch.dtype:
    """The dtype the checkpoint declares; float32 where it is silent."""
    name = model.dtype or model.torch_dtype or "float32"
    if name not in _DTYPES:
        raise CheckpointError(f"dtype `{name}` is not supported; only {', '.join(_DTYPES)}.")
    return _DTYPES[name]


def _list_eos(eos: int | tuple[int, ...] | None, vocab_size: int) -> tuple[int, ...]:
    """The ids that end a sequence; none is allowed, for models without one."""
    ids = () if eos is None else (eos,) if isinstance(eos, int) else eos
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise CheckpointError(f"eos_token_id {token_id} is outside the vocabulary.")
    return ids
