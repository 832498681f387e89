"""A family's list of parameters beside a checkpoint that transformers wrote."""

from pathlib import Path

from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.config import read_config


def find_unlisted(folder: Path) -> set[tuple[str, tuple[int, ...]]]:
    """Tensors with their shapes that are listed or saved but not both."""
    parameters = read_config(folder).network.parameters
    listed = {(part.name, part.shape) for source in parameters.values() for part in source.parts}
    with Checkpoint(folder) as checkpoint:
        return listed ^ set(checkpoint.shapes.items())


def list_last_names(folder: Path) -> set[str]:
    """The parameters' names without their layers."""
    return {name.rpartition(".")[2] for name in read_config(folder).network.parameters}
