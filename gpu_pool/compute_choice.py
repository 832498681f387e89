"""What an operator may choose about a model's computation: closed sets, without torch.

Read next: `gpu_pool.settings` (where they are set), `gpu_pool.worker.settings` (where they arrive).
"""

from enum import StrEnum


class DtypeChoice(StrEnum):
    """In what the model computes. `auto` is what the checkpoint is stored in."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class WeightCheck(StrEnum):
    """When weights are compared with what was noted as the model was added.

    `first` is when they are loaded for the first time, and again whenever a file has been touched.
    """

    FIRST = "first"
    ALWAYS = "always"
    NEVER = "never"


class DeviceChoice(StrEnum):
    """Where the model computes. `cuda` is the first NVIDIA GPU that the process can see."""

    CPU = "cpu"
    CUDA = "cuda"
