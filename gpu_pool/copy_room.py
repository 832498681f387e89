"""How much of a node's disk packed copies of fetched weights may take.

Pure but for the origins beside the models. A copy is written by its model's core, long after the
node has looked; so each model's part of what the budget leaves beside all files that can be fetched
is settled before any core starts, and all copies together never take more than is left.
Read next: `gpu_pool.weights.packed_writing` (who keeps to it), `weight_origin`.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from contracts.errors import UnsupportedFeature
from gpu_pool.model_settings import ServedModelSettings
from gpu_pool.weight_origin import read_origin


def share_copy_room(
    models: Sequence[ServedModelSettings], disk_bytes: int | None
) -> dict[Path, int]:
    """The most bytes that the copy in a model's folder may take. Folders that are not named, whose
    weights are nowhere else, are bounded by the drive alone, as all are without a budget.
    """
    if disk_bytes is None:
        return {}
    fetched: dict[Path, int] = {}
    for model in models:
        with suppress(UnsupportedFeature):  # it is refused elsewhere, and has no core
            origin = read_origin(model.path)
            if origin is not None:
                fetched[model.path] = origin.num_bytes
    total = sum(fetched.values())
    left = max(0, disk_bytes - total)
    return {path: left * num_bytes // total for path, num_bytes in fetched.items()}
