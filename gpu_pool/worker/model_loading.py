"""From a checkpoint's folder to a model with its weights in place.

Joins a family's mathematics and names with the reader of files; must not know KV memory or plans.
Read next: `gpu_pool.weights.reader`, `gpu_pool.models.llama.names`.
"""

from pathlib import Path

import torch

from gpu_pool.models.llama.config import LlamaConfig
from gpu_pool.models.llama.model import LlamaModel
from gpu_pool.models.llama.names import list_ignored, list_parameters
from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.reader import ParameterReader


def load_model(
    model_dir: Path, config: LlamaConfig, dtype: torch.dtype, device: torch.device
) -> LlamaModel:
    """The model with its weights packed; the checkpoint's files are closed again.

    Raises: `CheckpointError` naming the file or tensor that does not fit.
    """
    with torch.inference_mode(), Checkpoint(model_dir) as checkpoint:
        reader = ParameterReader(
            checkpoint, list_parameters(config), list_ignored(config), dtype=dtype, device=device
        )
        return LlamaModel(config, reader.read)
