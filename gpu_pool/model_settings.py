"""A model that a node serves, and the engine core that computes it.

Owns names, defaults and ranges; must not know tensors. Read next: `settings` (whose sections these
are), `gpu_pool.engine.settings` and `gpu_pool.worker.settings` (where they arrive).
"""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from contracts.ids import ModelName, is_model_name
from contracts.placement import ServiceClass
from gpu_pool.compute_choice import CpuLevel, DeviceChoice, DtypeChoice, KvDtypeChoice, WeightCheck
from gpu_pool.engine.settings import NgramSettings, SchedulerSettings
from gpu_pool.kv.tiers.settings import TierSettings

MAX_RANKS: Final = 64
BLOCK_SIZES: Final = (16, 32, 64)
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_NotNegative = Annotated[int, msgspec.Meta(ge=0)]


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where each engine core computes and how much it takes on."""

    device: DeviceChoice = DeviceChoice.CPU
    block_size: _Positive = 16
    """Tokens of KV memory handed out together: 16, 32 or 64."""
    kv_dtype: KvDtypeChoice = KvDtypeChoice.AUTO
    """In what keys and values are kept: `auto`, what a model computes in, or `fp8_e4m3`."""
    kv_bytes: _Positive = 512 * 1024 * 1024
    """KV memory of each model."""
    kv_least_bytes: _Positive | None = None
    """What of that a model always has; the rest, up to `kv_bytes`, it takes of what models share
    (`kv_shared_bytes`) while it needs it and they do not. It bounds a request's length. None: all
    is the model's own. On a CPU alone, for models of one process."""
    adapter_bytes: _NotNegative | None = None
    """Memory of each model for the adapters (LoRA) that requests bring, beside weights and KV; a
    sixteenth of the weights unless it is said, 2 MiB at least and 2 GiB at most."""
    max_adapter_rank: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 64
    """The largest rank of such an adapter; 0: none is taken."""
    swap_bytes: _NotNegative = 0
    """Host memory of each model for what preempted sequences have computed; 0 computes it again."""
    tiers: TierSettings | None = None
    """Where prefixes go that leave the device; None: they are computed again."""
    max_batch_tokens: _Positive = 2048
    max_chunk_tokens: _Positive = 1024
    max_pause_ms: _NotNegative = 25
    """Answers wait so long for prompts beside them, or three of their own steps; 0: without end."""
    max_running: _Positive = 64
    max_waiting: _NotNegative = 512
    max_waiting_tokens: _Positive = 4 << 20
    max_account_waiting: _NotNegative = 384
    max_account_waiting_tokens: _Positive = 3 << 20
    prefix_caching: bool = True
    ngram: NgramSettings | None = None
    """Guesses next tokens from what was said before and checks them: pays for repetitive text."""
    check_weights: WeightCheck = WeightCheck.FIRST
    """When weights are compared with what `hearth models add` has noted of them."""
    native_kernels: bool = True
    """bf16 on a CPU: computes with kernels of our own, built at the first start, where there is a
    C++ compiler or the installation brought them; False computes with torch alone."""
    packed_copies: bool = True
    """Keeps weights, packed for these kernels, in a file beside the checkpoint, which later starts
    map instead of reading, packing and holding a copy of their own."""
    cpu_level: CpuLevel = CpuLevel.AUTO
    """The vector instructions that these kernels, and torch beside them, use at most: nodes with
    other CPUs compute the same bits at the same level."""
    row_invariant: bool = True
    """On a CPU: the same bits for a request whatever computes beside it, at the price of AMX for
    what torch computes; kernels of our own use it all the same."""
    max_silence_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 120.0
    """A core that is replaced has owed a word for so long: it is to be longer than any one step,
    move of weights or standstill of the drive that weights are read from."""
    num_threads: _Positive | None = None
    """Threads a core computes with; None shares what the process may use among the models."""

    def __post_init__(self) -> None:
        """Checks that the scheduler and workers take these."""
        self.create_scheduler_settings()
        if self.block_size not in BLOCK_SIZES:
            raise ValueError("block_size is 16, 32 or 64")
        if self.kv_least_bytes is not None and self.kv_least_bytes > self.kv_bytes:
            raise ValueError("kv_least_bytes is a part of kv_bytes")
        if self.kv_least_bytes is not None and self.device != DeviceChoice.CPU:
            raise ValueError("kv_least_bytes: a GPU's models have KV memory of one size so far")
        if self.tiers is not None and not self.prefix_caching:
            raise ValueError("tiers keep prefixes: they need `prefix_caching`")

    @property
    def asked_adapter_bytes(self) -> int | None:
        """What is kept free for adapters; None: a part of the weights."""
        return self.adapter_bytes if self.max_adapter_rank else 0

    @property
    def most_shared_bytes(self) -> int:
        """The most that such a model can take of what models share."""
        return 0 if self.kv_least_bytes is None else self.kv_bytes - self.kv_least_bytes

    def create_scheduler_settings(self) -> SchedulerSettings:
        """The scheduler's section."""
        return SchedulerSettings(
            max_batch_tokens=self.max_batch_tokens,
            max_chunk_tokens=self.max_chunk_tokens,
            max_pause_ms=self.max_pause_ms,
            max_running=self.max_running,
            max_waiting=self.max_waiting,
            max_waiting_tokens=self.max_waiting_tokens,
            max_account_waiting=self.max_account_waiting,
            max_account_waiting_tokens=self.max_account_waiting_tokens,
            prefix_caching=self.prefix_caching,
            ngram=self.ngram,
        )


class ServedModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A model that this node serves."""

    name: ModelName
    path: Path
    """A directory with `config.json`, `tokenizer.json` and safetensors files."""
    dtype: DtypeChoice = DtypeChoice.AUTO
    description: str = ""
    service_class: ServiceClass = ServiceClass.BEST_EFFORT
    """How much its first tokens may be delayed where models share memory."""
    tensor_parallel: _Positive = 1
    """Processes that share every layer, each on a GPU of its own."""
    pipeline_parallel: _Positive = 1
    """Stages that share out the layers, each of `tensor_parallel` processes."""
    engine: EngineSettings | None = None
    """This model's own section; None takes the node's `engine` as a whole."""

    def __post_init__(self) -> None:
        """Checks the name's shape."""
        if not is_model_name(self.name):
            raise ValueError("a model's name looks like `@scope/author/name`")
        if self.num_ranks > MAX_RANKS:
            raise ValueError(
                f"tensor_parallel x pipeline_parallel is at most {MAX_RANKS}: the GPUs of a machine"
            )
        if self.num_ranks > 1 and self.engine is not None and self.engine.tiers is not None:
            raise ValueError("tiers keep the KV of one process: not of a model with several ranks")

    @property
    def num_ranks(self) -> int:
        """Processes that hold the model together."""
        return self.tensor_parallel * self.pipeline_parallel
