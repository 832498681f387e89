"""How the tiles of prompts are cut and launched, by kind of GPU.

Must not know batches or slots. Read next: `paged_attention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu_pool.kernels.gpu_traits import GpuTraits

_LAUNCHES: Final = ((64, 3), (64, 2), (32, 3), (32, 2), (16, 3), (16, 2))
"""Keys of one product and stages, the best first where shared memory has room."""
_LARGE_LAUNCHES: Final = ((128, 3), *_LAUNCHES)
"""The same for tiles of more than 64 rows."""
_HOPPER: Final = 90
"""Four of its warps compute 64 rows in one instruction, from shared memory: registers are left."""
_LIGHT_BYTES: Final = 256
"""Of a head, beside which registers hold large tiles."""
_OTHER_SHARED_BYTES: Final = 4 << 10
"""What a program's sums, weights and table take beside queries, keys and values."""


@dataclass(frozen=True, slots=True)
class TileLaunch:
    """How the programs of tiles are launched."""

    keys: int
    """Of one product."""
    num_warps: int
    num_stages: int


def choose_tile_rows(traits: GpuTraits, head_dim: int, itemsize: int, *, is_fp8: bool) -> int:
    """Rows of a full tile, as many as registers hold.

    128 rows read keys half as often. On an H200, heads of 128 elements in bf16, long prompts took
    half the time of 64 rows, with a second loop for keys that all rows see, which is gone.
    """
    is_light = head_dim * itemsize <= _LIGHT_BYTES and not is_fp8
    return 128 if is_light and traits.capability == _HOPPER else 64


def choose_paged_attention_launch(
    traits: GpuTraits, num_rows: int, padded_dim: int, itemsize: int
) -> TileLaunch:
    """The most keys and stages that fit beside the queries; as few warps as hold the sums.

    Raises: `ValueError` where not even the fewest fit.
    """
    is_hopper, is_light = traits.capability == _HOPPER, padded_dim * itemsize <= _LIGHT_BYTES
    num_warps = 4 if num_rows <= 16 or (num_rows <= 64 and is_hopper and is_light) else 8
    most_keys = 128 if is_hopper or is_light else 32
    room = traits.shared_bytes - num_rows * padded_dim * itemsize - _OTHER_SHARED_BYTES
    for keys, num_stages in _LARGE_LAUNCHES if num_rows > 64 else _LAUNCHES:
        needed = (num_stages - 1) * 2 * keys * padded_dim * itemsize
        if keys <= most_keys and needed <= room:
            return TileLaunch(keys, num_warps, num_stages)
    raise ValueError(
        f"Attention over heads of {padded_dim} elements of {itemsize} bytes does not fit into the "
        f"{traits.shared_bytes} bytes of shared memory of this GPU."
    )
