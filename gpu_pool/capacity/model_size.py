"""From the content of a `config.json` to sizes; nothing of a checkpoint is loaded or run."""

from typing import Any

import msgspec

from gpu_pool.capacity.layouts import ModelSize
from gpu_pool.capacity.stored_size import read_stored_bits
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import require_causal
from gpu_pool.models.registry import FAMILIES, find_family


class _HeaderJson(msgspec.Struct, frozen=True):
    """The fields that no family owns."""

    architectures: tuple[str, ...] = ()
    dtype: str | None = None
    torch_dtype: str | None = None
    quantization_config: Any = None
    text_config: msgspec.Raw = msgspec.Raw(b"")


def read_model_size(content: bytes, kv_element_bytes: int = 2) -> ModelSize:
    """The sizes of the network that `content` describes; of one that sees, its text part's.

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
    return ModelSize(network, read_stored_bits(dtype, quantization), kv_element_bytes)


def _decode(content: bytes) -> _HeaderJson:
    """The header. Raises: `CheckpointError`."""
    try:
        return msgspec.json.decode(content, type=_HeaderJson)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"config.json: {error}.") from error
