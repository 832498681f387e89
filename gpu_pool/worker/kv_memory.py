"""How much KV memory a worker takes, and in what pieces."""

import os
from pathlib import Path
from typing import Final

import torch

from contracts.settings import SettingsError
from gpu_pool.attention.kv_cache import KvShape
from gpu_pool.attention.padding import GRANULE_TOKENS
from gpu_pool.models.llama.config import LlamaConfig
from gpu_pool.worker.settings import WorkerSettings

_MIN_BLOCK_SIZE: Final = 16
_FREE_SHARE: Final = 4
"""One part in so many of the free memory, where settings leave it open."""
_MAX_DEFAULT_BYTES: Final = 4 << 30


def shape_kv(config: LlamaConfig, block_size: int) -> KvShape:
    """The shape of the model's KV memory.

    Raises: `SettingsError` when blocks of that size do not fill padded contexts.
    """
    if block_size < _MIN_BLOCK_SIZE or GRANULE_TOKENS % block_size:
        raise SettingsError(f"block_size is {block_size}; it must be 16, 32 or 64.")
    return KvShape(config.num_layers, block_size, config.num_kv_heads, config.head_dim)


def count_blocks(settings: WorkerSettings, block_bytes: int, device: torch.device) -> int:
    """The number of KV blocks that settings ask for or memory allows.

    Raises: `SettingsError` when there is room for none.
    """
    num_blocks = settings.num_blocks
    if num_blocks is None:
        kv_bytes = settings.kv_bytes
        if kv_bytes is None:
            kv_bytes = min(_measure_free_bytes(device) // _FREE_SHARE, _MAX_DEFAULT_BYTES)
        num_blocks = kv_bytes // block_bytes
    if num_blocks < 1:
        raise SettingsError(
            f"The KV memory holds no block; one takes {block_bytes} bytes. Raise `kv_bytes`."
        )
    return num_blocks


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
