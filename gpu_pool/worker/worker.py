"""Loads a model: the `Executor` of this process.

`create_executor` is the composition of the tensor column: reading it is reading how a checkpoint
becomes something that runs. Read next: `plan_worker`, `gpu_pool.runner.model_runner`.
"""

from contextlib import closing

import torch

from gpu_pool.parallel.ranks import SOLE_RANK, Ranks
from gpu_pool.plan import ExecutorInfo
from gpu_pool.weights.config import read_config
from gpu_pool.worker.compute import choose_dtype, choose_num_threads, find_kernels
from gpu_pool.worker.kv_groups import divide_kv
from gpu_pool.worker.lanes import LaneChoice, choose_lane
from gpu_pool.worker.model_loading import CreateLoader, LoadedAs, ModelLoader
from gpu_pool.worker.model_memory import create_places
from gpu_pool.worker.packed_loading import create_keeper
from gpu_pool.worker.plan_worker import Worker, create_worker
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.step_memory import CudaMeter, fit_blocks


def create_executor(
    settings: WorkerSettings,
    ranks: Ranks = SOLE_RANK,
    create_loader: CreateLoader = ModelLoader,
    lane: LaneChoice | None = None,
) -> Worker:
    """The loaded model, ready for plans. Sets the process's number of CPU threads.

    One of several `ranks` loads and computes its own part; its revision is for others to find out.
    Weights that come from elsewhere than the checkpoint's files have a loader of their own. Without
    a `lane` the device says which it is.

    Raises: `CheckpointError` for a checkpoint that cannot be served, `SettingsError` for settings
    that no KV memory can be made from.
    """
    checked = read_config(settings.model_dir)
    whole = network = checked.require_causal()
    is_sole = ranks.place.shape.num_ranks == 1
    if not is_sole:
        network = network.share(ranks.place, ranks.tensor)
    torch.set_num_threads(choose_num_threads(settings))
    device = torch.device(settings.device)
    dtype = choose_dtype(settings.dtype, checked.dtype)
    link = ranks.create_stage_link(network.hidden_size, dtype)
    lane = lane or choose_lane(device, ranks, link)
    division = divide_kv(network.kv_groups, settings, dtype, lane.num_spare_blocks)
    has_kernels = settings.native_kernels
    kernels = find_kernels(device, dtype, settings.cpu_level) if has_kernels else None
    loader = create_loader(
        settings.model_dir,
        checked.find_packed,
        dtype,
        kernels,
        settings.check_weights,
        ranks,
        keeps_blocks=device.type == "cuda",
    )
    weights_bytes = loader.measure_bytes(network)
    adapter_bytes = settings.choose_adapter_bytes(weights_bytes)
    keeper = create_keeper(settings, kernels, ranks, checked.content)
    is_measured = device.type == "cuda" and is_sole and settings.leaves_kv_open
    kept_bytes = weights_bytes + adapter_bytes
    fitting = division.count_all(settings, device, kept_bytes, is_measured=is_measured)
    num_blocks = ranks.agree_on_least(fitting)
    context_window = min(
        settings.context_window or network.context_window,
        network.context_window,
        division.count_own(num_blocks) * settings.block_size,
    )
    bound_bytes = division.bound_bytes(num_blocks)
    places = create_places(device, weights_bytes, bound_bytes, settings.kv_least_bytes)
    with closing(loader):
        model = keeper.load_causal(loader, network, context_window, places.join)
        if is_measured:
            sizes = (context_window, network.vocab_size)
            fitting = fit_blocks(model, division, settings, sizes, CudaMeter(), adapter_bytes)
            num_blocks = min(num_blocks, fitting)
            context_window = min(context_window, num_blocks * settings.block_size)
        groups = division.create_groups(num_blocks, settings, places.create_zeros, kernels, ranks)
        revision = keeper.find_revision(loader) if is_sole else ""
        checked.confirm(settings.model_dir)
    described = division.describe(groups)
    memory = places.finish(model, [group.cache.blocks for group in groups], keeper.keep(revision))
    info = ExecutorInfo(
        kv_groups=described,
        block_size=settings.block_size,
        num_blocks=num_blocks,
        context_window=context_window,
        vocab_size=network.vocab_size,
        eos_token_ids=checked.eos_token_ids,
        model_revision=revision,
        kv_dtype=division.stored_dtype,
        max_in_flight=lane.max_in_flight,
        weights_bytes=memory.weights_bytes,
        kv_bytes=division.measure_own(described) or memory.kv_bytes,
        max_adapter_rank=settings.max_adapter_rank if adapter_bytes else 0,
        adapter_bytes=adapter_bytes,
    )
    loaded = LoadedAs(network, whole, ranks, dtype, kernels)
    return create_worker(model, groups, lane, memory, info, settings, loaded)
