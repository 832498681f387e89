"""The settings of a node, and the part of them that each engine-core process is handed.

Owns names, defaults and ranges; must not know files or the environment, which `node` reads.
Overrides start with `HEARTH_POOL__`. Read next: `node`.
"""

import ipaddress
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec

from contracts.ids import (
    JURISDICTION_FORM,
    GatewayId,
    ModelName,
    NodeId,
    RegionId,
    is_jurisdiction,
    is_model_name,
    is_node_id,
)
from contracts.node_roles import NodeRole
from contracts.placement import ServiceClass
from contracts.sections import LogSettings, MetricsSettings, Port, TlsSettings, TracingSettings
from contracts.settings import Secret
from gpu_pool.compute_choice import CpuLevel, DeviceChoice, DtypeChoice, KvDtypeChoice, WeightCheck
from gpu_pool.engine.settings import NgramSettings, SchedulerSettings
from gpu_pool.kv.tiers.settings import TierSettings
from gpu_pool.upstream_settings import UpstreamSettings

PREFIX: Final = "HEARTH_POOL"
PATH_FROM_STDIN: Final = "-"
"""What a core process is told in place of its settings' path, which then comes as a line."""

MAX_RANKS: Final = 64
BLOCK_SIZES: Final = (16, 32, 64)
Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Price = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class ListenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where gateways connect. Port 0 lets the system choose."""

    host: str = "127.0.0.1"
    port: Port = 8790
    tls: TlsSettings | None = None
    """Needed wherever others can listen in; without it, only loopback is safe."""

    @property
    def is_loopback(self) -> bool:
        """True when nothing outside this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway that may connect."""

    gateway_id: GatewayId
    key_file: Path
    """The key of this gateway and this node: 32 bytes in hexadecimal, mode 0600."""

    def __post_init__(self) -> None:
        """Checks the id's shape."""
        if not is_node_id(self.gateway_id):
            raise ValueError("gateway_id has letters, digits, `-`, `_`, `.`; at most 63")


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where each engine core computes and how much it takes on."""

    device: DeviceChoice = DeviceChoice.CPU
    block_size: Positive = 16
    """Tokens of KV memory handed out together: 16, 32 or 64."""
    kv_dtype: KvDtypeChoice = KvDtypeChoice.AUTO
    """In what keys and values are kept: `auto`, what a model computes in, or `fp8_e4m3`."""
    kv_bytes: Positive = 512 * 1024 * 1024
    """KV memory of each model."""
    kv_least_bytes: Positive | None = None
    """What of that a model always has; the rest, up to `kv_bytes`, it takes of what models share
    (`kv_shared_bytes`) while it needs it and they do not. It bounds a request's length. None: all
    is the model's own. On a CPU alone, for models of one process."""
    adapter_bytes: NotNegative | None = None
    """Memory of each model for the adapters (LoRA) that requests bring, beside weights and KV; a
    sixteenth of the weights unless it is said, 2 MiB at least and 2 GiB at most."""
    max_adapter_rank: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 64
    """The largest rank of such an adapter; 0: none is taken."""
    swap_bytes: NotNegative = 0
    """Host memory of each model for what preempted sequences have computed; 0 computes it again."""
    tiers: TierSettings | None = None
    """Where prefixes go that leave the device; None: they are computed again."""
    max_batch_tokens: Positive = 2048
    max_chunk_tokens: Positive = 1024
    max_pause_ms: NotNegative = 25
    """Answers wait so long for prompts beside them, or three of their own steps; 0: without end."""
    max_running: Positive = 64
    max_waiting: NotNegative = 512
    max_waiting_tokens: Positive = 4 << 20
    max_account_waiting: NotNegative = 384
    max_account_waiting_tokens: Positive = 3 << 20
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
    num_threads: Positive | None = None
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


class TransferSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How KV blocks come from other nodes and go there. Models need `engine.swap_bytes` for it."""

    engine: Literal["nixl", "mooncake", "memory"] = "nixl"
    """What moves the bytes; `memory` works between processes of one machine, for tests."""
    host: str = "127.0.0.1"
    """Where other nodes find this one; NIXL finds that out itself."""
    network_namespace: Path | None = None
    """The engine's process lives in it, such as `/run/netns/kv`, and nothing else of the node: its
    ports, which ask for no password, exist nowhere else. It takes CAP_SYS_ADMIN to enter one."""
    batch_s: Annotated[float, msgspec.Meta(gt=0)] = 3.0
    """How long one batch of blocks may take. It should be the same at all nodes that exchange them:
    what others may be reading is kept for three times as long."""


class MembershipSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Valkey or Redis, in which this node says that it is there. Units: seconds."""

    url: Secret
    """`redis://…` or `rediss://…`, with the password if there is one."""
    advertised_url: str
    """Where gateways connect: `wss://gpu-7:8790`."""
    budget_s: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    """What one write may take."""

    def __post_init__(self) -> None:
        """Raises: `ValueError` for a URL that no gateway would connect to."""
        parts = urlsplit(self.advertised_url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise ValueError("`advertised_url` must be wss://host:port or ws://…")


class PlacementSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much memory the models of a node share, where not all of them fit at once.

    A model takes its weights and its KV memory of the device, and its weights of the host's memory
    while it sleeps there. On a CPU both are main memory, counted apart.
    """

    device_bytes: Positive
    host_bytes: NotNegative = 0
    """For models that sleep; what has no room there is read from disk again."""
    disk_bytes: Positive | None = None
    """For weights that were fetched and can be fetched again; None bounds nothing."""
    turn_s: Annotated[float, msgspec.Meta(ge=0)] = 2.0
    """How long a model at work stays when another waits for its room."""


class ServedModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A model that this node serves."""

    name: ModelName
    path: Path
    """A directory with `config.json`, `tokenizer.json` and safetensors files."""
    dtype: DtypeChoice = DtypeChoice.AUTO
    description: str = ""
    service_class: ServiceClass = ServiceClass.BEST_EFFORT
    """How much its first tokens may be delayed where models share memory."""
    tensor_parallel: Positive = 1
    """Processes that share every layer, each on a GPU of its own."""
    pipeline_parallel: Positive = 1
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


class AdapterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where files of tenants' adapters (LoRA) stay that gateways bring."""

    folder: Path = Path(".hearth/adapters")
    """Each node has a folder of its own in it, named after its id; it is made when the first
    adapter comes, for the node's user alone."""
    disk_bytes: Positive = 4 * 1024 * 1024 * 1024
    """What they may take together; an adapter that is larger is not computed here."""
    keep_days: Annotated[float, msgspec.Meta(gt=0)] = 7.0
    """A file that nobody has used for so long goes, whether there is room or not."""


class RunningCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a node costs its operator, in any one currency; for metrics alone, nobody is charged."""

    per_hour: Price = 0.0
    """The machine, in use or not: rent, or purchase over its life."""
    per_kilowatt_hour: Price = 0.0
    """The energy of its GPUs, where `per_hour` does not contain it."""


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

    node_id: NodeId = NodeId("node-1")
    region: RegionId = RegionId("local")
    jurisdiction: str = ""
    """Whose law holds there, such as `eu`; empty: this node does not say."""
    listen: ListenSettings = ListenSettings()
    gateways: tuple[GatewaySettings, ...] = ()
    models: tuple[ServedModelSettings, ...] = ()
    upstreams: tuple[UpstreamSettings, ...] = ()
    """Models that engines of others compute."""
    engine: EngineSettings = EngineSettings()
    kv_shared_bytes: NotNegative | None = None
    """KV memory beside what is each model's own (`kv_least_bytes`), for whichever needs it. None:
    as much as the one of them can take that can take most."""
    placement: PlacementSettings | None = None
    """None: all models stay on the device."""
    adapters: AdapterSettings = AdapterSettings()
    weights_token: Secret | None = None
    """For servers that weights are fetched from; sent to those named beside a model alone."""
    role: NodeRole = NodeRole.MIXED
    """Which half of a generation this node is there for when it starts."""
    roles: tuple[NodeRole, ...] = ()
    """`prefill` and `decode`, `role` among them: hot standby may turn this node from one to the
    other. Empty: `role` holds."""
    transfer: TransferSettings | None = None
    """None: KV blocks stay on this node."""
    hello_timeout_s: float = 2.0
    """How long a connection may take to prove itself."""
    max_cold_wait_s: float = 30.0
    """How long a request may wait for a model that is being loaded, woken or restarted."""
    max_cold_waiting: Positive = 512
    """Requests that may wait so, of each model."""
    drain_s: float = 30.0
    """How long streams may go on after the node was told to stop."""
    membership: MembershipSettings | None = None
    """None: gateways know this node from their settings."""
    metrics: MetricsSettings | None = None
    """None: this node's metrics cannot be read."""
    running_costs: RunningCosts | None = None
    """None: metrics do not tell what tokens cost."""
    tracing: TracingSettings | None = None
    """None: this node tells nothing of requests that a gateway traces."""
    log: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        """Checks the shape of id and jurisdiction, and that nothing is named twice."""
        if not is_node_id(self.node_id):
            raise ValueError("node_id has letters, digits, `-`, `_`, `.`; at most 63")
        if self.jurisdiction and not is_jurisdiction(self.jurisdiction):
            raise ValueError(
                f"`{self.jurisdiction}` names no jurisdiction: it takes {JURISDICTION_FORM}"
            )
        for what, names in (
            ("model", [model.name for model in (*self.models, *self.upstreams)]),
            ("gateway", [gateway.gateway_id for gateway in self.gateways]),
        ):
            if len(set(names)) < len(names):
                raise ValueError(f"a {what} is listed twice")
        self._check_roles()
        self._check_shared_kv()
        self._check_stores()

    @property
    def shared_kv_bytes(self) -> int:
        """KV memory for whichever model needs it, beside what is each one's own."""
        if self.kv_shared_bytes is not None:
            return self.kv_shared_bytes
        engines = (model.engine or self.engine for model in self.models)
        return max((engine.most_shared_bytes for engine in engines), default=0)

    def _check_shared_kv(self) -> None:
        """Memory that is shared has somebody who takes it, in one process, and room."""
        sharing = [
            model
            for model in self.models
            if (model.engine or self.engine).kv_least_bytes is not None
        ]
        if self.kv_shared_bytes and not sharing and self.engine.kv_least_bytes is None:
            raise ValueError("kv_shared_bytes is for models whose engine has `kv_least_bytes`")
        if any(model.num_ranks > 1 for model in sharing):
            raise ValueError("kv_least_bytes: a model of several processes does not share its KV")
        if self.placement is not None and self.shared_kv_bytes >= self.placement.device_bytes:
            raise ValueError("kv_shared_bytes is a part of the placement's device_bytes")

    def _check_stores(self) -> None:
        """Who says where the nodes of a KV store stand is one of them."""
        for engine in (self.engine, *(model.engine or self.engine for model in self.models)):
            store = None if engine.tiers is None else engine.tiers.store
            if store is not None and store.regions and self.region not in store.regions:
                raise ValueError(
                    f"`regions` of a KV store are those of all its nodes, and lack {self.region}"
                )

    def _check_roles(self) -> None:
        """A node that may be turned has to be able to do its part in either role."""
        if not self.roles:
            return
        if sorted(self.roles) != [NodeRole.DECODE, NodeRole.PREFILL]:
            raise ValueError('`roles` are "prefill" and "decode", both of them, or left out')
        if self.role not in self.roles:
            raise ValueError(f'`role` is "{self.role}", which is none of `roles`')
        if self.transfer is None:
            raise ValueError("`roles` need `[transfer]`: without it no prompt leaves this node")


class CoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine-core process is told, through a file in the node's private directory."""

    node_id: NodeId
    model: ServedModelSettings
    engine: EngineSettings
    transfer: TransferSettings | None
    num_default_threads: int
    """This model's share, for when `engine.num_threads` is not set."""
    log: LogSettings
    to_core_endpoint: str
    from_core_endpoint: str
    parent_pid: int
    """The server process; the core ends with it."""
    copy_room_bytes: int | None = None
    """What a packed copy of the weights may take on disk; None leaves it to the drive."""
    rendezvous: Path = Path()
    """A file in the private directory at which the ranks of a model meet."""


def encode_core_settings(settings: CoreSettings) -> bytes:
    """The settings as JSON."""
    return msgspec.json.encode(settings, enc_hook=str)


def decode_core_settings(document: bytes) -> CoreSettings:
    """The settings in `document`. Raises: `msgspec.MsgspecError`."""
    return msgspec.json.decode(document, type=CoreSettings, dec_hook=_decode_path)


def _decode_path(kind: type, value: object) -> Path:
    """Paths are text in JSON."""
    assert kind is Path
    return Path(str(value))
