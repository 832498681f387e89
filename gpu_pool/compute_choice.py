"""What an operator may choose about a model's computation: closed sets, without torch.

Read next: `gpu_pool.model_settings` (where they are set), `gpu_pool.worker.settings` (where they
arrive).
"""

from enum import StrEnum


class DtypeChoice(StrEnum):
    """In what the model computes. `auto` is what the checkpoint is stored in."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class KvDtypeChoice(StrEnum):
    """In what keys and values are kept. `auto` is what the model computes in.

    `fp8_e4m3` takes eight bits for each number and a scale for each head of a token: about half of
    bfloat16's memory, and answers that differ by rounding.
    """

    AUTO = "auto"
    FP8_E4M3 = "fp8_e4m3"


class CpuLevel(StrEnum):
    """The vector instructions that native kernels use at most. `auto` is all that the CPU has."""

    AUTO = "auto"
    AMX = "amx"
    AVX512_BF16 = "avx512-bf16"
    AVX512 = "avx512"
    AVX2 = "avx2"
    PLAIN = "plain"


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
