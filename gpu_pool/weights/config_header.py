"""What `config.json` says of any checkpoint, whatever its architecture.

A model that sees has its text part in a section of its own, and either may say what holds for the
weights: the whole counts first, the text part speaks where the whole is silent. Whoever reads these
fields reads them here. Read next: `gpu_pool.weights.config`, `gpu_pool.models.registry`.
"""

from typing import Any

import msgspec

from gpu_pool.models.errors import CheckpointError


class ConfigHeader(msgspec.Struct, frozen=True):
    """The fields that no family owns; None where nothing is said."""

    architectures: tuple[str, ...]
    """Of the whole."""
    dtype: str | None
    eos_token_id: int | tuple[int, ...] | None
    quantization_config: Any
    text_architectures: tuple[str, ...]
    """Of the text part; none where that says nothing of it, or is the whole."""


class _PartJson(msgspec.Struct, frozen=True):
    """What is read of a model, or of its text part: a dtype has either name."""

    architectures: tuple[str, ...] = ()
    dtype: str | None = None
    torch_dtype: str | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    quantization_config: Any = None


class _ConfigJson(_PartJson, frozen=True):
    """What is read of the file."""

    text_config: _PartJson | None = None


def read_config_header(content: bytes, source: str = "config.json") -> ConfigHeader:
    """The header of a `config.json`, `source` in errors. Raises: `CheckpointError`."""
    try:
        config = msgspec.json.decode(content, type=_ConfigJson)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{source}: {error}.") from error
    text = config.text_config
    return ConfigHeader(
        config.architectures,
        _find(config, "dtype", "torch_dtype"),
        _find(config, "eos_token_id"),
        _find(config, "quantization_config"),
        () if text is None else text.architectures,
    )


def _find(config: _ConfigJson, *names: str) -> Any:
    """What is said first under one of `names`, by the whole or else by its text part."""
    parts = (config, config.text_config or config)
    said = (getattr(part, name) for part in parts for name in names)
    return next((value for value in said if value is not None), None)
