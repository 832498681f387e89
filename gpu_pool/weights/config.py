"""`config.json` and `generation_config.json`: which family a checkpoint belongs to, and the rest.

Refuses unknown architectures and packed weights. Code that a checkpoint names (`auto_map`) is never
looked for: an architecture is computed here or refused. What the network is, its family reads.
Read next: `gpu_pool.models.registry`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import torch

from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import CausalNetwork, Network, require_causal
from gpu_pool.models.registry import ModelFamily, find_family
from gpu_pool.weights.config_header import ConfigHeader, read_config_header
from gpu_pool.weights.formats.pieces import FindPacked
from gpu_pool.weights.packing import read_packing

_DTYPES: Final = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """All that a checkpoint's JSON files say about the network."""

    family: ModelFamily
    network: Network
    dtype: torch.dtype
    """Of the stored weights, or of what packed ones stand for."""
    find_packed: FindPacked | None
    """None where nothing is packed."""
    eos_token_ids: tuple[int, ...]
    content: bytes
    """Of `config.json`, as it was read."""

    def confirm(self, model_dir: Path) -> None:
        """Returns where `config.json` is still what was read.

        Raises: `CheckpointError` where it has changed: what was hashed may be another model.
        """
        path = model_dir / "config.json"
        if _read_file(path) != self.content:
            raise CheckpointError(f"{path} has changed during the load.")

    def require_causal(self) -> CausalNetwork:
        """The network, which generates text. Raises: `CheckpointError` for an encoder."""
        return require_causal(self.network)


class _GenerationJson(msgspec.Struct, frozen=True):
    """The field of `generation_config.json` that matters."""

    eos_token_id: int | tuple[int, ...] | None = None


def read_config(model_dir: Path) -> CheckpointConfig:
    """The configuration of the checkpoint in `model_dir`.

    Raises: `CheckpointError` naming the field.
    """
    path = model_dir / "config.json"
    content = _read_file(path)
    header = read_config_header(content, str(path))
    family, find_packed, dtype = _check_header(header)
    network = family.describe(content)
    eos_token_ids = _list_eos(header, model_dir, network.vocab_size)
    return CheckpointConfig(family, network, dtype, find_packed, eos_token_ids, content)


def find_obstacle(content: bytes) -> str | None:
    """Why no checkpoint with this `config.json` is loaded; None where nothing in it speaks against
    that."""
    try:
        _check_header(read_config_header(content))
    except CheckpointError as error:
        return str(error)
    return None


def _check_header(header: ConfigHeader) -> tuple[ModelFamily, FindPacked | None, torch.dtype]:
    """The family, what finds packed tensors, and the dtype. Raises: `CheckpointError`."""
    family = find_family(header.architectures)
    quantization = header.quantization_config
    find_packed = None if quantization is None else read_packing(quantization)
    dtype = _find_dtype(header.dtype, is_packed=find_packed is not None)
    return family, find_packed, dtype


def _read_file(path: Path) -> bytes:
    """The content of a file that has to be there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist.") from None


def _decode_generation(path: Path) -> _GenerationJson:
    """What `generation_config.json` says."""
    try:
        return msgspec.json.decode(_read_file(path), type=_GenerationJson)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: {error}.") from error


def _find_dtype(declared: str | None, *, is_packed: bool) -> torch.dtype:
    """The dtype the checkpoint declares; where it is silent, float32, or bfloat16 if packed."""
    name = declared or ("bfloat16" if is_packed else "float32")
    if name not in _DTYPES:
        raise CheckpointError(f"dtype `{name}` is not supported; only {', '.join(_DTYPES)}.")
    return _DTYPES[name]


def _list_eos(header: ConfigHeader, model_dir: Path, vocab_size: int) -> tuple[int, ...]:
    """The ids that end a sequence; none is allowed, for models without one."""
    eos = header.eos_token_id
    path = model_dir / "generation_config.json"
    if path.is_file():
        generation = _decode_generation(path)
        eos = eos if generation.eos_token_id is None else generation.eos_token_id
    ids = () if eos is None else (eos,) if isinstance(eos, int) else eos
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise CheckpointError(f"eos_token_id {token_id} is outside the vocabulary.")
    return ids
