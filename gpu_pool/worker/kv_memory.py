"""How much KV memory a worker takes, and in what pieces."""

import os
from pathlib import Path
from typing import Final

import torch

from contracts.settings import SettingsError
from gpu_pool.attention.kv_cache import KvShape
from gpu_pool.attention.padding import GRANULE_TOKENS
from gpu_pool.compute_choice import KvDtypeChoice
from gpu_pool.models.network import KvLayers
from gpu_pool.worker.settings import WorkerSettings

_MIN_BLOCK_SIZE: Final = 16
_FREE_SHARE: Final = 4
"""On a CPU one part in so many of the free memory, where settings leave it open."""
_MAX_DEFAULT_BYTES: Final = 4 << 30
_GPU_RESERVE: Final = 12
"""On a GPU one part in so many stays free for steps where those are not measured."""


def shape_kv(layers: KvLayers, settings: WorkerSettings) -> KvShape:
    """The shape of the KV memory of one group of layers.

    Raises: `SettingsError` when blocks of that size do not fill padded contexts.
    """
    block_size = settings.block_size
    if block_size < _MIN_BLOCK_SIZE or GRANULE_TOKENS % block_size:
        raise SettingsError(f"block_size is {block_size}; it must be 16, 32 or 64.")
    return KvShape(
        layers.num_layers,
        block_size,
        layers.num_kv_heads,
        layers.head_dim,
        layers.num_parts,
        is_fp8=settings.kv_dtype is KvDtypeChoice.FP8_E4M3,
    )


def count_blocks(
    settings: WorkerSettings,
    block_bytes: int,
    device: torch.device,
    weight_bytes: int,
    *,
    is_measured: bool = False,
) -> int:
    """The number of KV blocks that settings ask for or memory allows.

    `block_bytes` is what one block takes in all groups together, `weight_bytes` what the weights,
    not loaded yet, will take; `is_measured` as `share_memory` has it.

    Raises: `SettingsError` when there is room for none.
    """
    num_blocks = settings.num_blocks
    if num_blocks is None:
        kv_bytes = settings.kv_bytes
        if kv_bytes is None:
            free_bytes = _measure_free_bytes(device)
            kv_bytes = share_memory(free_bytes, weight_bytes, device, is_measured=is_measured)
        num_blocks = kv_bytes // block_bytes
    if num_blocks < 1:
        raise SettingsError(
            f"The KV memory holds no block; one takes {block_bytes} bytes. Raise `kv_bytes`."
        )
    return num_blocks


def share_memory(
    free_bytes: int, weight_bytes: int, device: torch.device, *, is_measured: bool = False
) -> int:
    """Bytes of KV memory where settings leave it open.

    A GPU is there for the model: all but a reserve for steps, or all where `is_measured` says that
    what steps need is found out once the weights are there. A CPU's memory is everyone's: a modest
    share.
    """
    if device.type == "cuda":
        reserve = 0 if is_measured else free_bytes // _GPU_RESERVE
        return max(0, free_bytes - reserve - weight_bytes)
    return min(free_bytes // _FREE_SHARE, _MAX_DEFAULT_BYTES)


def _measure_free_bytes(device: torch.device) -> int:
    """Free memory of the device now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
