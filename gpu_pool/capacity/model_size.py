"""From the content of a `config.json` to sizes; nothing of a checkpoint is loaded or run."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gpu_pool.capacity.layouts import ModelSize
from gpu_pool.capacity.stored_size import read_stored_form
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import require_causal
from gpu_pool.models.parameters import ParameterSource, Split
from gpu_pool.models.registry import FAMILIES, find_family
from gpu_pool.weights.block_reader import measure_kept

_COPIED: Final = (Split.WHOLE, Split.FIRST)


class _HeaderJson(msgspec.Struct, frozen=True):
    """The fields that no family owns."""

    architectures: tuple[str, ...] = ()
    dtype: str | None = None
    torch_dtype: str | None = None
    quantization_config: Any = None
    text_config: msgspec.Raw = msgspec.Raw(b"")


def read_model_size(
    content: bytes, kv_element_bytes: int = 2, *, is_loaded: bool = False
) -> ModelSize:
    """The sizes of the network that `content` describes; of one that sees, its text part's.

    Weights count as the checkpoint stores them, or as they are on a GPU once they are loaded.
    Raises: `CheckpointError` naming the field.
    """
    header = _decode(content)
    inner = _decode(bytes(header.text_config)) if bytes(header.text_config) else header
    known = {name for family in FAMILIES for name in family.architectures}
    if not known & set(header.architectures) and known & set(inner.architectures):
        content, header = bytes(header.text_config), inner
    dtype = header.dtype or header.torch_dtype or inner.dtype or inner.torch_dtype or "bfloat16"
    quantization = header.quantization_config or inner.quantization_config
    network = require_causal(find_family(header.architectures).describe(content))
    form = read_stored_form(dtype, quantization)

    def measure_stored(parameters: Mapping[str, ParameterSource], num_ranks: int) -> int:
        return sum(
            size if source.split in _COPIED else -(-size // num_ranks)
            for source in parameters.values()
            for size in [sum(map(form.count_bytes, source.parts))]
        )

    def measure_loaded(parameters: Mapping[str, ParameterSource], num_ranks: int) -> int:
        return measure_kept(form, parameters, 4 if dtype == "float32" else 2, num_ranks)

    return ModelSize(network, measure_loaded if is_loaded else measure_stored, kv_element_bytes)


def _decode(content: bytes) -> _HeaderJson:
    """The header. Raises: `CheckpointError`."""
    try:
        return msgspec.json.decode(content, type=_HeaderJson)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"config.json: {error}.") from error
