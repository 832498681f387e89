"""An engine-core process: one loaded model behind two pipes (entry point).

Joins the tensor side to what every engine-core process does; must not know text or clients.
Read next: `core_runner`, `gpu_pool.worker.worker`, `gpu_pool.worker.encoder_worker`.
"""

import sys

from gpu_pool.core_runner import find_settings_path, run_core
from gpu_pool.models.network import EncoderNetwork
from gpu_pool.plan import EncoderExecutor, Executor
from gpu_pool.settings import CoreSettings
from gpu_pool.weights.config import read_config
from gpu_pool.worker.encoder_worker import create_encoder_executor
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor


def load_model(settings: CoreSettings) -> Executor | EncoderExecutor:
    """The model that `settings` names, loaded: one that generates, or an encoder.

    Raises: `ValueError` when it cannot be; the message names the file or setting.
    """
    worker = WorkerSettings(
        model_dir=settings.model.path,
        dtype=settings.model.dtype,
        device=settings.engine.device,
        block_size=settings.engine.block_size,
        kv_bytes=settings.engine.kv_bytes,
        swap_bytes=settings.engine.swap_bytes,
        num_threads=settings.engine.num_threads,
        num_default_threads=settings.num_default_threads,
        check_weights=settings.engine.check_weights,
        native_kernels=settings.engine.native_kernels,
    )
    checked = read_config(worker.model_dir)
    if isinstance(checked.network, EncoderNetwork):
        return create_encoder_executor(worker, checked, checked.network)
    return create_executor(worker)


if __name__ == "__main__":
    sys.exit(run_core(find_settings_path(sys.argv[1]), load_model))
