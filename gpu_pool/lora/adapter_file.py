"""The pairs of matrices in an adapter's safetensors file, by the module that each changes.

Names, shapes and dtypes are checked before any data is read; nothing in the file is believed. What
is refused is refused in words for the client: they name the tensor and never the node's own files.
Must not know a model. Source: PEFT's names. Read next: `products`.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contracts.adapters import MAX_ADAPTER_BYTES
from contracts.errors import AdapterUnsupported
from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.header import TensorEntry, read_header

DTYPES: Final = frozenset({"F32", "F16", "BF16"})
_MAX_HEADER_BYTES: Final = 2 << 20
"""More than the pairs of any model take whose products accept them."""
_SHOWN_CHARACTERS: Final = 120
_NAME: Final = re.compile(
    r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])(\.default)?\.weight", re.DOTALL
)
_UNSUPPORTED: Final[Mapping[str, str]] = {
    "lora_magnitude_vector": "belongs to DoRA, which is not supported",
    "lora_embedding_": "changes an embedding, which takes no adapter",
    "modules_to_save": "replaces a whole module, which is not supported",
    ".base_layer.": "is a matrix of the model itself",
    "bias": "is a bias, which adapters do not change here",
}


@dataclass(frozen=True, slots=True)
class LowRankPair:
    """What changes one module by `B · A`: A is `[rank, inputs]`, B `[outputs, rank]`."""

    module: str
    """As the checkpoint calls it, without `.weight`."""
    a: TensorEntry
    b: TensorEntry

    @property
    def rank(self) -> int:
        """Rows of A and columns of B."""
        return self.a.shape[0]


def refuse(reason: str) -> AdapterUnsupported:
    """The error for an adapter that a request was to be computed with."""
    return AdapterUnsupported(f"The adapter cannot be used: {reason}.", param="lora")


def quote(name: str) -> str:
    """A name out of the file, which anybody may have written, as it is shown."""
    text = "".join(letter if letter.isprintable() else "?" for letter in name[:_SHOWN_CHARACTERS])
    return f"`{text}…`" if len(name) > _SHOWN_CHARACTERS else f"`{text}`"


def read_pairs(path: Path, max_rank: int) -> dict[str, LowRankPair]:
    """The pairs by their modules.

    Raises: `AdapterUnsupported` for whatever is in the file that is no such pair, or half of one,
    or of a higher rank; `OSError` where there is no file.
    """
    if os.stat(path).st_size > MAX_ADAPTER_BYTES:
        raise refuse(f"its file has more than {MAX_ADAPTER_BYTES} bytes")
    try:
        header = read_header(path, max_header_bytes=_MAX_HEADER_BYTES)
    except CheckpointError as error:
        reason = str(error).removeprefix(f"{path}: ").rstrip(".")
        raise refuse(f"its file is malformed: {reason[: 2 * _SHOWN_CHARACTERS]}") from error
    halves: dict[str, dict[str, TensorEntry]] = {}
    for entry in header.tensors.values():
        module, half = _parse_name(entry.name)
        found = halves.setdefault(module, {})
        if half in found:
            raise refuse(f"{quote(entry.name)} is there twice")
        _check_entry(entry)
        found[half] = entry
    if not halves:
        raise refuse("its file has no tensors")
    return {module: _join_halves(module, found, max_rank) for module, found in halves.items()}


def _parse_name(name: str) -> tuple[str, str]:
    """Module and half. Raises: `AdapterUnsupported`."""
    match = _NAME.fullmatch(name)
    if match is not None:
        return match["module"], match["half"]
    for part, reason in _UNSUPPORTED.items():
        if part in name:
            raise refuse(f"{quote(name)} {reason}")
    raise refuse(f"{quote(name)} is not the name of an adapter's matrix")


def _check_entry(entry: TensorEntry) -> None:
    """Raises: `AdapterUnsupported` for what is no matrix of numbers."""
    if len(entry.shape) != 2 or min(entry.shape) < 1:
        raise refuse(f"{quote(entry.name)} has shape {list(entry.shape)} and is no matrix")
    if entry.dtype not in DTYPES:
        raise refuse(f"{quote(entry.name)} is {entry.dtype}; only bf16, fp16 and fp32")


def _join_halves(module: str, found: Mapping[str, TensorEntry], max_rank: int) -> LowRankPair:
    """The pair. Raises: `AdapterUnsupported` for one that is not whole, or of too high a rank."""
    if len(found) < 2:
        missing = "lora_B" if "A" in found else "lora_A"
        raise refuse(f"{quote(module)} has no {missing}")
    a, b = found["A"], found["B"]
    if a.shape[0] != b.shape[1]:
        raise refuse(f"{quote(module)} has rank {a.shape[0]} in lora_A and {b.shape[1]} in lora_B")
    if a.shape[0] > max_rank:
        raise refuse(
            f"{quote(module)} has rank {a.shape[0]}; this node takes ranks up to {max_rank}"
        )
    return LowRankPair(module, a, b)
