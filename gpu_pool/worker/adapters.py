"""The adapters of a model that has been loaded. Read next: `gpu_pool.lora.adapter_memory`."""

import torch

from gpu_pool.lora.adapter_memory import AdapterMemory
from gpu_pool.lora.loading import AdapterLoading
from gpu_pool.lora.products import ModelProducts
from gpu_pool.models.network import CausalModel
from gpu_pool.worker.model_loading import LoadedAs
from gpu_pool.worker.settings import WorkerSettings


def create_adapters(
    model: CausalModel, loaded: LoadedAs, settings: WorkerSettings
) -> AdapterMemory:
    """Room for the adapters of `model`, of which none is there yet."""
    products = ModelProducts(
        model,
        loaded.whole.parameters,
        loaded.network.parameters,
        rank=loaded.ranks.tensor.rank,
        num_ranks=loaded.ranks.tensor.size,
    )
    loading = AdapterLoading(
        products,
        dtype=loaded.dtype,
        device=torch.device(settings.device),
        kernels=loaded.kernels,
        max_rank=settings.max_adapter_rank,
    )
    return AdapterMemory(loading)
