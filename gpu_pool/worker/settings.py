"""What an operator chooses about a worker."""

from pathlib import Path
from typing import Final

import msgspec

from gpu_pool.adapter_share import choose_adapter_bytes
from gpu_pool.compute_choice import CpuLevel, DtypeChoice, KvDtypeChoice, WeightCheck

LEAST_COPY_BYTES: Final = 64 << 20
"""Smaller checkpoints are packed as soon as a copy of them is found."""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one device."""

    model_dir: Path
    """A folder in Hugging Face layout: `config.json` and safetensors."""
    dtype: DtypeChoice = DtypeChoice.AUTO
    kv_dtype: KvDtypeChoice = KvDtypeChoice.AUTO
    block_size: int = 16
    """Tokens per KV block: 16, 32 or 64."""
    kv_bytes: int | None = None
    """KV memory; None takes a share of what is free. `num_blocks`, where set, decides instead."""
    num_blocks: int | None = None
    """Blocks of each KV group."""
    kv_least_bytes: int | None = None
    """What of the KV memory is always there; the rest comes and goes as plans say. None: all."""
    swap_bytes: int = 0
    """Host memory for what preempted sequences have computed; 0 computes it again."""
    staging_tokens: int = 0
    """Host memory beside that, for the KV of so many tokens that comes or leaves, and as much again
    that is left to other accounts, preempted sequences and hand-overs."""
    context_window: int | None = None
    """Tokens of prompt and output; None takes the model's own. Never more than it or the KV memory
    allow."""
    adapter_bytes: int | None = 0
    """What all adapters that are there may take together, beside weights and KV memory; None: a
    part of what the weights take."""
    max_adapter_rank: int = 0
    """0: none is taken."""
    max_rows: int = 256
    """Sequences that may run at once where their rows stay on the device."""
    max_step_tokens: int = 2048
    """Tokens of the largest step."""
    num_threads: int | None = None
    """CPU threads; None takes the default, or one alone for a model of a few megabytes."""
    num_default_threads: int | None = None
    """None is one per CPU that the process may use."""
    device: str = "cpu"
    check_weights: WeightCheck = WeightCheck.FIRST
    packed_copy_bytes: int | None = None
    """Checkpoints of at least so many bytes are kept packed for native kernels; None: none is."""
    copy_room_bytes: int | None = None
    """What such a copy may take on disk; None leaves it to the drive."""
    native_kernels: bool = True
    """bf16 on a CPU: computes with kernels of our own where they can be built, else with torch."""
    cpu_level: CpuLevel = CpuLevel.AUTO
    """The vector instructions that these use at most."""

    @property
    def leaves_kv_open(self) -> bool:
        """True where the device's memory decides on the KV memory."""
        return self.num_blocks is None and self.kv_bytes is None

    def choose_adapter_bytes(self, weights_bytes: int) -> int:
        """What is kept for adapters beside weights of so many bytes."""
        return choose_adapter_bytes(self.adapter_bytes, weights_bytes)
