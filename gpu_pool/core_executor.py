"""What an engine core executes its plans with: the model that settings name, loaded.

Turns settings into what a worker needs (composition root of the tensor side); must not know text,
clients or pipes. Read next: `gpu_pool.worker.worker`, `gpu_pool.worker.encoder_worker`.
"""

import os

import structlog

from gpu_pool.core_settings import CoreSettings
from gpu_pool.garbage import settle_garbage
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import EncoderNetwork
from gpu_pool.parallel.place import ParallelShape
from gpu_pool.plan import EncoderExecutor, Executor
from gpu_pool.weights.config import read_config
from gpu_pool.worker.encoder_worker import create_encoder_executor
from gpu_pool.worker.parallel_executor import RankSurroundings, create_parallel_executor
from gpu_pool.worker.settings import LEAST_COPY_BYTES, WorkerSettings
from gpu_pool.worker.worker import create_executor


def load_model(settings: CoreSettings) -> Executor | EncoderExecutor:
    """The model that `settings` names, loaded, and out of the garbage collector's way.

    Raises: as `create_model_executor`.
    """
    executor = create_model_executor(settings)
    settle_garbage()
    return executor


def create_model_executor(settings: CoreSettings) -> Executor | EncoderExecutor:
    """The model that `settings` names, loaded: one that generates, or an encoder.

    Raises: `ValueError` when it cannot be; the message names the file or setting.
    """
    worker = WorkerSettings(
        model_dir=settings.model.path,
        dtype=settings.model.dtype,
        device=settings.engine.device,
        kv_dtype=settings.engine.kv_dtype,
        block_size=settings.engine.block_size,
        kv_bytes=settings.engine.kv_bytes,
        kv_least_bytes=settings.engine.kv_least_bytes,
        swap_bytes=settings.engine.swap_bytes,
        adapter_bytes=settings.engine.asked_adapter_bytes,
        max_adapter_rank=settings.engine.max_adapter_rank,
        staging_tokens=0 if settings.engine.tiers is None else settings.engine.tiers.staging_tokens,
        max_rows=settings.engine.max_running,
        max_step_tokens=settings.engine.max_batch_tokens,
        num_threads=settings.engine.num_threads,
        num_default_threads=settings.num_default_threads,
        check_weights=settings.engine.check_weights,
        native_kernels=settings.engine.native_kernels,
        packed_copy_bytes=LEAST_COPY_BYTES if settings.engine.packed_copies else None,
        copy_room_bytes=settings.copy_room_bytes,
        cpu_level=settings.engine.cpu_level,
    )
    checked = read_config(worker.model_dir)
    shape = ParallelShape(settings.model.tensor_parallel, settings.model.pipeline_parallel)
    if isinstance(checked.network, EncoderNetwork):
        if shape.num_ranks > 1:
            raise CheckpointError("An encoder is not divided: leave its parallel settings at 1.")
        return create_encoder_executor(worker, checked, checked.network)
    if shape.num_ranks > 1:
        around = _describe_surroundings(settings)
        return create_parallel_executor(worker, checked.network, shape, around)
    return create_executor(worker)


def _describe_surroundings(settings: CoreSettings) -> RankSurroundings:
    """What the ranks of a model are told besides its settings."""
    return RankSurroundings(
        rendezvous=settings.rendezvous,
        step_timeout_s=settings.engine.max_silence_s,
        log=settings.log,
        log_context={"node": settings.node_id, "model": settings.model.name},
        on_lost=_end_without_ranks,
    )


def _end_without_ranks(reason: str) -> None:
    """Ends a process that has lost a rank without noticing: nothing was asked of it."""
    structlog.get_logger().error("the engine core ends without its ranks", reason=reason)
    os._exit(1)
