"""A packed copy of a model's weights before anybody starts it: its first start maps it as later
ones do.

Who adds a model has time, who starts it has a request. The copy is that of a node on this machine
with settings as they are by themselves; another node's first start writes over it.
Read next: `packed_loading`, `gpu_pool.weights.packed_copy`, `cli.models` (the caller).
"""

import time
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Final

import torch

from gpu_pool.compute_choice import CpuLevel, WeightCheck
from gpu_pool.load_progress import Progress, told_to
from gpu_pool.lull import Lull
from gpu_pool.memory_room import read_free_bytes
from gpu_pool.models.network import CausalNetwork
from gpu_pool.parallel.ranks import SOLE_RANK
from gpu_pool.weights.config import read_config
from gpu_pool.worker.compute import find_kernels
from gpu_pool.worker.model_loading import ModelLoader
from gpu_pool.worker.model_memory import CpuPlaces
from gpu_pool.worker.packed_loading import create_keeper
from gpu_pool.worker.settings import LEAST_COPY_BYTES, WorkerSettings

_MEMORY_SHARE: Final = 1.25
"""Of the weights' size: what is joined and packed comes beside them."""


class Prepared(StrEnum):
    """What has become of it."""

    YES = "yes"
    NOT_NEEDED = "not needed"
    """No start of this model would look for a copy."""
    NO_MEMORY = "no memory"
    """The weights do not fit here, beside what else there is."""
    NOT_TAKEN = "not taken"
    """The drive or the folder does not take it; why is in the log."""


def prepare_copy(
    model_dir: Path, progress: Progress, num_threads: int, least_bytes: int = LEAST_COPY_BYTES
) -> Prepared:
    """Loads the model's weights, packs them with so many threads and writes them; all memory is
    given back.

    Nothing is needed where a GPU computes, for encoders, for what torch computes alone and for
    checkpoints of less than `least_bytes`.

    Raises: `CheckpointError` for a checkpoint that cannot be served.
    """
    checked = read_config(model_dir)
    network = checked.network
    if torch.cuda.is_available() or not isinstance(network, CausalNetwork):
        return Prepared.NOT_NEEDED
    kernels = find_kernels(torch.device("cpu"), checked.dtype, CpuLevel.AUTO)
    settings = WorkerSettings(model_dir=model_dir, packed_copy_bytes=least_bytes)
    keeper = create_keeper(settings, kernels, SOLE_RANK, checked.content)
    if not keeper.keeps:
        return Prepared.NOT_NEEDED
    loader = ModelLoader(
        model_dir, checked.find_packed, checked.dtype, kernels, WeightCheck.FIRST, SOLE_RANK
    )
    if loader.measure_bytes(network) * _MEMORY_SHARE > read_free_bytes():
        return Prepared.NO_MEMORY
    torch.set_num_threads(num_threads)
    with told_to(progress), closing(loader):
        model = keeper.load_causal(loader, network, network.context_window, CpuPlaces().join)
        copy = keeper.keep(keeper.find_revision(loader))
        checked.confirm(model_dir)
    copy.begin(Lull(time.monotonic))
    try:
        copy.wait()
    finally:
        copy.close()  # where somebody has lost patience nothing half written is left
    del model  # whose memory was read until now
    return Prepared.YES if copy.is_there else Prepared.NOT_TAKEN
