"""An `adapter_config.json` as PEFT writes it: what counts of it, and what cannot be computed.

Pure. Nothing is dropped silently: a field that changes what an adapter computes, and is not
computed here, is refused by its name; fields that only say how it was trained are ignored.
Source: PEFT's reference (LoraConfig).
"""

import math
from typing import Any, Final

import msgspec

from contracts.errors import InvalidRequest
from contracts.finetunes import AdapterConfig
from gateway.dialects.strict_json import decode_json

CONFIG_FILE: Final = "adapter_config.json"
MAX_CONFIG_BYTES: Final = 64 * 1024
_KIND: Final = "LORA"
_TASK: Final = "CAUSAL_LM"
_MAX_SCALE: Final = 1e6
_NO_BIAS: Final = "none"
_REFUSED: Final = (
    *("modules_to_save", "use_dora", "rank_pattern", "alpha_pattern", "fan_in_fan_out"),
    *("megatron_config", "layer_replication", "lora_bias", "trainable_token_indices"),
    *("target_parameters", "use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config"),
)
"""They change what is computed: null, false or empty they ask for nothing."""
_OTHER_BASES: Final = ("pissa", "olora", "corda", "loftq")
"""Beginnings of `init_lora_weights` with which training changes the base model's weights, too."""


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that are read."""

    peft_type: str
    r: int
    lora_alpha: float
    use_rslora: bool | None = None
    task_type: str | None = None
    bias: str | None = None
    init_lora_weights: bool | str | None = None
    modules_to_save: Any = None
    use_dora: Any = None
    rank_pattern: Any = None
    alpha_pattern: Any = None
    fan_in_fan_out: Any = None
    megatron_config: Any = None
    layer_replication: Any = None
    lora_bias: Any = None
    trainable_token_indices: Any = None
    target_parameters: Any = None
    use_qalora: Any = None
    use_bdlora: Any = None
    alora_invocation_tokens: Any = None
    arrow_config: Any = None


_decoder: Final = msgspec.json.Decoder(_Config)


def read_adapter_config(data: bytes, max_rank: int) -> AdapterConfig:
    """What counts of the file. Raises: `InvalidRequest`, naming the field."""
    fields = decode_json(_decoder, data)
    if fields.peft_type != _KIND:
        raise _refuse("peft_type", f"must be `{_KIND}`: no other kind of adapter is computed")
    if fields.task_type not in (None, _TASK):
        raise _refuse("task_type", f"must be `{_TASK}`")
    if fields.bias not in (None, _NO_BIAS):
        raise _refuse("bias", f"must be `{_NO_BIAS}`: biases are not computed")
    for name in _REFUSED:
        if getattr(fields, name):
            raise _refuse(name, "is not supported: leave it null, false or empty")
    method = fields.init_lora_weights
    if isinstance(method, str) and method.lower().startswith(_OTHER_BASES):
        raise _refuse(
            "init_lora_weights",
            "names a method that changes the base model's weights; convert the adapter to plain "
            "LoRA when you save it",
        )
    if not 1 <= fields.r <= max_rank:
        raise _refuse("r", f"must be between 1 and {max_rank}")
    config = AdapterConfig(
        rank=fields.r, alpha=fields.lora_alpha, divides_by_root=bool(fields.use_rslora)
    )
    if not math.isfinite(config.alpha) or abs(config.scale) > _MAX_SCALE:
        raise _refuse("lora_alpha", f"comes to a scale beyond {_MAX_SCALE:.0f}")
    return config


def _refuse(field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"`{field}` in {CONFIG_FILE} {reason}.", param=field)
