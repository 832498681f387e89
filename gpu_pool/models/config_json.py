"""The fields of `config.json` that decoders share, read and checked.

Refuses what would silently compute something else, naming the field. Both spellings of rotary
settings are read: `rope_parameters` and the older `rope_scaling`.
Read next: `llama.config`, then `registry`.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from gpu_pool.attention.reach import FULL_REACH, Reach
from gpu_pool.layers.rotary_embedding import (
    LinearScaling,
    Llama3Scaling,
    RotaryForm,
    RotaryScaling,
    YarnScaling,
)
from gpu_pool.models.decoder_config import DecoderConfig, ExpertSizes
from gpu_pool.models.errors import CheckpointError
from gpu_pool.plan import KvGroupKind

NumLayers = Annotated[int, msgspec.Meta(le=10_000)]
"""More than any model has; lists as long as this are made before a weight is looked for."""
_MOST_EXPERTS: Final = 1_000_000
"""The same of all layers' experts: each has a name in these lists."""
_FULL_ATTENTION: Final = "full_attention"
_REACHES: Final = {
    "sliding_attention": KvGroupKind.SLIDING_WINDOW,
    "chunked_attention": KvGroupKind.CHUNKED,
}
StructT = TypeVar("StructT", bound=msgspec.Struct)
ConfigT = TypeVar("ConfigT", bound=DecoderConfig)


class RopeJson(msgspec.Struct, frozen=True):
    """`rope_parameters` or `rope_scaling`."""

    rope_type: str = "default"
    type: str | None = None
    rope_theta: float | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float = 1.0
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True


class DecoderJson(msgspec.Struct, frozen=True):
    """The fields that matter in every family; others are ignored."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: NumLayers
    num_attention_heads: int
    max_position_embeddings: int
    rms_norm_eps: float
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rope_theta: float | None = None
    rope_scaling: RopeJson | None = None
    rope_parameters: RopeJson | None = None
    partial_rotary_factor: float | None = None
    tie_word_embeddings: bool = False
    layer_types: tuple[str, ...] | None = None
    sliding_window: int | None = None


def decode_config(content: bytes, kind: type[StructT]) -> StructT:
    """The struct inside the content of a `config.json`."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"config.json: {error}.") from error


class _MultimodalJson(msgspec.Struct, frozen=True):
    """A file whose text part is a section of its own."""

    text_config: msgspec.Raw


def read_text_part(content: bytes) -> bytes:
    """The text part of a model that sees, as a file of its own. Raises: `CheckpointError`."""
    return bytes(decode_config(content, _MultimodalJson).text_config)


def require_positive(sizes: Mapping[str, float]) -> None:
    """Raises for the first that is not."""
    for name, size in sizes.items():
        if size <= 0:
            raise CheckpointError(f"{name} is {size}; it must be positive.")


def require_whole_heads(partial_rotary_factor: float) -> None:
    """Raises where positions would turn a part of each head alone."""
    if partial_rotary_factor != 1.0:
        raise CheckpointError("partial_rotary_factor is not supported; heads turn as a whole.")


def require_activation(asked: str, *known: str) -> None:
    """Raises for an activation that the family does not compute."""
    if asked not in known:
        names = " and ".join(f"`{name}`" for name in known)
        raise CheckpointError(f"hidden_act `{asked}` is not supported; only {names}.")


def read_decoder(
    json: DecoderJson,
    reaches: tuple[Reach, ...],
    kind: type[ConfigT] = DecoderConfig,
    **switches: Any,
) -> ConfigT:
    """The network's configuration, sizes checked; `switches` are the family's own fields."""
    num_kv_heads = json.num_key_value_heads or json.num_attention_heads
    require_positive(
        {
            "vocab_size": json.vocab_size,
            "hidden_size": json.hidden_size,
            "intermediate_size": json.intermediate_size,
            "num_hidden_layers": json.num_hidden_layers,
            "num_attention_heads": json.num_attention_heads,
            "num_key_value_heads": num_kv_heads,
            "max_position_embeddings": json.max_position_embeddings,
            "rms_norm_eps": json.rms_norm_eps,
        }
    )
    if json.num_attention_heads % num_kv_heads:
        raise CheckpointError("num_attention_heads is no multiple of num_key_value_heads.")
    head_dim = json.head_dim or json.hidden_size // json.num_attention_heads
    if head_dim <= 0 or head_dim % 2:
        raise CheckpointError(f"head_dim is {head_dim}; it must be even and positive.")
    if json.partial_rotary_factor is not None:
        require_whole_heads(json.partial_rotary_factor)
    _bound_experts(switches.get("experts"), json.num_hidden_layers)
    if "rotary" not in switches:
        switches["rotary"] = read_rotary(json)
    return kind(
        vocab_size=json.vocab_size,
        hidden_size=json.hidden_size,
        intermediate_size=json.intermediate_size,
        num_heads=json.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_window=json.max_position_embeddings,
        rms_norm_eps=json.rms_norm_eps,
        reaches=reaches,
        has_tied_embeddings=json.tie_word_embeddings,
        **switches,
    )


def _bound_experts(experts: ExpertSizes | None, num_layers: int) -> None:
    """Raises for more experts than any model has."""
    if experts is not None and experts.num_experts * num_layers > _MOST_EXPERTS:
        raise CheckpointError(
            f"{experts.num_experts} experts in {num_layers} layers are more than any model has."
        )


def read_reaches(
    json: DecoderJson, layer_types: tuple[str, ...] | None, window: int | None
) -> tuple[Reach, ...]:
    """How far each layer looks back; `layer_types` None is full attention everywhere."""
    require_positive({"num_hidden_layers": json.num_hidden_layers})
    if layer_types is None:
        return (FULL_REACH,) * json.num_hidden_layers
    if len(layer_types) != json.num_hidden_layers:
        raise CheckpointError("layer_types names another number of layers than there are.")
    return tuple(_read_reach(name, window) for name in layer_types)


def _read_reach(layer_type: str, window: int | None) -> Reach:
    """How far a layer of that type looks back."""
    if layer_type == _FULL_ATTENTION:
        return FULL_REACH
    if layer_type not in _REACHES:
        raise CheckpointError(f"layer type `{layer_type}` is not supported.")
    if window is None or window <= 0:
        raise CheckpointError(f"layer type `{layer_type}` needs a positive number of tokens.")
    return Reach(_REACHES[layer_type], window)


def read_rotary(json: DecoderJson, default_theta: float = 10_000.0) -> RotaryForm:
    """How positions turn heads."""
    rope = json.rope_parameters or json.rope_scaling or RopeJson()
    said = json.rope_theta if rope.rope_theta is None else rope.rope_theta
    theta = default_theta if said is None else said
    return read_rope(rope, theta, json.max_position_embeddings)


def read_rope(rope: RopeJson, theta: float, context_window: int) -> RotaryForm:
    """How positions turn heads, by one object of rotary settings."""
    if theta <= 0:
        raise CheckpointError(f"rope_theta is {theta}; it must be positive.")
    require_whole_heads(rope.partial_rotary_factor)
    scaling = _read_scaling(rope, context_window)
    if isinstance(scaling, YarnScaling) and theta <= 1:
        raise CheckpointError(f"rope type `yarn` needs a rope_theta above 1; it is {theta}.")
    return RotaryForm(theta, scaling)


def _read_scaling(rope: RopeJson, context_window: int) -> RotaryScaling | None:
    """The frequencies' scaling, if any."""
    match rope.type or rope.rope_type:
        case "default":
            return None
        case "linear":
            return LinearScaling(_require_factor(rope, "linear"))
        case "llama3":
            return _read_llama3(rope)
        case "yarn":
            return _read_yarn(rope, context_window)
        case kind:
            raise CheckpointError(
                f"rope type `{kind}` is not supported; only default, linear, llama3 and yarn."
            )


def _require_factor(rope: RopeJson, kind: str) -> float:
    """The factor, at least one."""
    if rope.factor is None or rope.factor < 1:
        raise CheckpointError(f"rope type `{kind}` needs a factor of at least one.")
    return rope.factor


def _read_llama3(rope: RopeJson) -> Llama3Scaling:
    """Llama 3.1's scaling."""
    factor, low, high = rope.factor, rope.low_freq_factor, rope.high_freq_factor
    original = rope.original_max_position_embeddings
    if factor is None or low is None or high is None or original is None:
        raise CheckpointError(
            "rope type `llama3` needs factor, low_freq_factor, high_freq_factor and "
            "original_max_position_embeddings."
        )
    if factor < 1 or low <= 0 or high <= low or original <= 0:
        raise CheckpointError("The values of rope type `llama3` are out of range.")
    return Llama3Scaling(factor, low, high, original)


def _read_yarn(rope: RopeJson, context_window: int) -> YarnScaling:
    """YaRN, whose amplitude follows from the factor where it is not given."""
    factor = _require_factor(rope, "yarn")
    original = rope.original_max_position_embeddings or context_window
    fast, slow = rope.beta_fast or 32.0, rope.beta_slow or 1.0
    weights = (rope.mscale or 0.0, rope.mscale_all_dim or 0.0)
    if original <= 0 or slow <= 0 or fast < slow or min(weights) < 0:
        raise CheckpointError("The values of rope type `yarn` are out of range.")
    amplitude = rope.attention_factor
    if amplitude is None:
        amplitude = compute_yarn_amplitude(factor)
        if all(weights):
            amplitude = compute_yarn_amplitude(factor, weights[0]) / compute_yarn_amplitude(
                factor, weights[1]
            )
    return YarnScaling(factor, original, fast, slow, rope.truncate, amplitude)


def compute_yarn_amplitude(factor: float, weight: float = 1.0) -> float:
    """By how much YaRN raises scores' inputs, so that long contexts stay as sharp as short ones."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
