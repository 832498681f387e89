"""The gateway's settings: every option, its default and its bounds.

Owns names, defaults and ranges; must not know files or the environment, which commands read
(overrides: `HEARTH_GATEWAY__SECTION__FIELD`). Each component gets its own section only.
Read next: `gateway.app`, `contracts.settings`.
"""

import ipaddress
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec

from contracts.adapters import MAX_ADAPTER_BYTES
from contracts.ids import (
    AccountId,
    GatewayId,
    NodeId,
    RegionId,
    find_jurisdiction_fault,
    find_region_fault,
    is_account_id,
    is_node_id,
)
from contracts.sections import LogSettings, MetricsSettings, Port, TlsSettings, TracingSettings
from contracts.settings import Secret, require_distinct

PREFIX: Final = "HEARTH_GATEWAY"
DEFAULT_HEADS_NAME: Final = "audit_heads.jsonl"
_CREDENTIAL: Final = re.compile(r"[!-~]{32,512}")
_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]{1,255}")
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class ListenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The tenants' port. Loopback unless configured; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: Port = 8787
    tls: TlsSettings | None = None


class AdminSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operators' port; never open to tenants."""

    host: str = "127.0.0.1"
    port: Port = 8788
    tls: TlsSettings | None = None


class DegradedMode(StrEnum):
    """What a limit means while the store that it is counted in is away."""

    SHARE = "share"
    """This process's share of the limit."""
    REFUSE = "refuse"
    """Nothing is admitted that has such a limit."""
    ADMIT = "admit"
    """The limit is not enforced."""


class DatabaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where tenancy lives: a SQLAlchemy URL of SQLite (aiosqlite) or PostgreSQL (asyncpg)."""

    url: str = "sqlite+aiosqlite:///.hearth/hearth.db"


class KeyRingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The file with peppers and master keys."""

    file: Path = Path(".hearth/keys/key_ring.json")


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the pool.

    `url` is `ws://host:port` or `wss://…`; the key file holds the pair's key, 64 hex digits.
    """

    node_id: NodeId
    url: str
    key_file: Path
    ca_file: Path | None = None
    """Trusted issuers of the node's certificate; None means the system's."""
    region: RegionId | None = None
    """Where it is, whatever it says: reports of another region are refused. None believes it."""
    allow_plaintext: bool = False
    """True admits `ws://` to another machine, on a network that is itself trusted."""

    def __post_init__(self) -> None:
        """Raises: `ValueError` for a malformed id or URL, or plain text over a network."""
        if not is_node_id(self.node_id):
            raise ValueError(f"`{self.node_id}` is not a node id.")
        if self.region is not None:
            _require_region(self.region)
        parts = urlsplit(self.url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise ValueError(f"The URL of node {self.node_id} must be ws://host:port or wss://…")
        if parts.scheme == "ws" and not self.allow_plaintext and not _is_loopback(parts.hostname):
            raise ValueError(
                f"Node {self.node_id} is on another machine: use wss://, or set `allow_plaintext`."
            )


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what clients may hold. Units: bytes, seconds, counts."""

    max_connections: Count = 4096
    max_concurrent_requests: Count = 1024
    """Of which one account may have eight open for each that is left: the last are for others."""
    max_header_bytes: Count = 64 * 1024
    max_body_bytes: Count = 10_000_000
    max_body_bytes_in_all: Count = 512 * 1024 * 1024
    """Of all requests that are open; beyond it, those whose body is still coming are refused. One
    account may have eight for each byte that is left."""
    header_timeout_s: Seconds = 10.0
    """From the first byte of a request to the end of its headers."""
    body_timeout_s: Seconds = 30.0
    """From the end of the headers to the end of the body."""
    keep_alive_s: Count = 75
    slow_reader_timeout_s: Seconds = 30.0
    """A client that takes nothing for so long while data waits for it is cut off."""
    ping_after_s: Seconds = 10.0
    """A stream on which nothing was sent for so long carries a comment, so that nobody between us
    and the client takes it for dead."""
    queue_deadline_s: Seconds = 60.0
    """How long a request may wait for a place at a node."""
    request_deadline_s: Seconds = 600.0
    """How long a request may take in all."""
    shutdown_notice_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """How long after a stop signal requests are still accepted, while `/health/ready` says no:
    what a balancer takes to look elsewhere."""
    shutdown_grace_s: Count = 30
    """How long running requests may go on after that; what outlasts it ends with an error."""


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The cache of principals. A revocation holds everywhere after one poll."""

    max_cached_principals: Count = 10_000
    max_cached_rejections: Count = 10_000
    rejection_ttl_s: Seconds = 1.0
    epoch_poll_s: Seconds = 1.0
    max_failures_per_address_per_min: Count | None = 300
    """Wrong credentials of one address (one /64 of IPv6) before further unknown ones get 429; None
    counts nothing. Behind a proxy that is not named in `proxies` all clients have its address."""
    max_staleness_s: Seconds = 10.0
    """With the store out of reach, cached principals are trusted for so long and no longer."""


class StandbyAccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What hot standby may prove itself with here, instead of an operator's credential."""

    credential: Secret
    """32 to 512 characters by chance, the same in hot standby's settings. Opens what a planner
    needs: it reads where weights are and sends nodes their plans."""

    def __post_init__(self) -> None:
        """Raises: `ValueError` for what could be guessed or not be sent, without quoting it."""
        if _CREDENTIAL.fullmatch(self.credential.reveal()) is None:
            raise ValueError("A credential has 32 to 512 characters of ASCII and no blanks.")


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Proxies before the gateway, as networks such as `10.0.0.0/8`: who may name a client."""

    trusted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises: `ValueError` for what is no network."""
        for network in self.trusted:
            ipaddress.ip_network(network)


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the signed heads of the audit log go: on another disk than the database's, at best."""

    heads_file: Path | None = None
    """None means `audit_heads.jsonl` beside the key ring."""

    def find_heads_file(self, key_ring: Path) -> Path:
        """The file, for an installation with this key ring."""
        return self.heads_file or key_ring.with_name(DEFAULT_HEADS_NAME)


class IdempotencySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How many answers are remembered by their `Idempotency-Key`. Units: bytes, seconds."""

    ttl_s: Seconds = 600.0
    max_keys_per_account: Count = 1024
    max_bytes_per_account: Count = 4 * 1024 * 1024
    max_bytes: Count = 64 * 1024 * 1024
    """Of all accounts together; those that asked last keep theirs."""


class CrossOriginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """From which web pages' scripts an account may be used; from none unless listed."""

    account_id: AccountId
    origins: tuple[str, ...]
    """Such as `https://app.example.com`; `*` stands for every page."""

    def __post_init__(self) -> None:
        """Raises: `ValueError` for a malformed account id or origin."""
        if not is_account_id(self.account_id):
            raise ValueError(f"`{self.account_id}` is not an account id.")
        for origin in self.origins:
            if origin != "*" and _ORIGIN.fullmatch(origin) is None:
                raise ValueError(f"`{origin}` is not an origin such as https://app.example.com.")


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Asynchronous batches: what may be kept, and how much of this gateway they may take."""

    max_items: Count = 1000
    """Requests of one batch."""
    max_batches_per_account: Count = 1000
    """In store, answered ones included."""
    max_bytes_per_account: Count = 256 * 1024 * 1024
    """Of all that was asked in those."""
    max_running: Count = 16
    """Items that this gateway has under way at once; interactive requests go before all of them."""
    patience_s: Seconds = 86_400.0
    """An item that has found no room for so long fails."""
    kept_s: Seconds = 86_400.0
    """After that time, answers are kept for so long."""
    poll_s: Seconds = 1.0
    """How often the store is asked for items that other gateways have taken in or put back."""
    lease_s: Seconds = 30.0
    """An item is run by another gateway so long after its own has died."""


class PayloadLogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked and answered, for accounts that want it kept. Units: bytes."""

    max_bytes_each: Count = 256 * 1024
    """Of a request and of its answer; what is longer is cut."""
    max_bytes_per_account: Count = 256 * 1024 * 1024
    """In store; beyond that the oldest go."""
    max_waiting_bytes: Count = 32 * 1024 * 1024
    """That the store has not taken yet; beyond that requests go unlogged."""
    flush_s: Seconds = 1.0
    """How often the store gets what has come."""


class FinetuneSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Adapters (LoRA) that accounts upload. Units: bytes, seconds."""

    max_per_account: Count = 30
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_ADAPTER_BYTES)] = MAX_ADAPTER_BYTES
    """Of a file of weights."""
    max_rank: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64
    """What nodes take of a model may be less."""
    max_uploads_per_account: Count = 2
    """Under way at once at this gateway."""
    max_uploads: Count = 16
    """The same of all accounts; each takes four megabytes of memory at most."""
    idle_timeout_s: Seconds = 30.0
    """An upload of which nothing has come for so long ends."""
    piece_timeout_s: Seconds = 60.0
    """So does one that takes longer than this for each megabyte; one whose gateway has died keeps
    others from beginning again for so long."""
    sweep_s: Seconds = 10.0
    """How often what is left of such uploads, and of deleted finetunes, is looked for."""
    max_cached: Count = 10_000
    """Finetunes that this gateway remembers between two changes in the store."""


class SharedLimitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Valkey or Redis, in which several gateway processes count limits together."""

    url: Secret
    """`redis://…` or `rediss://…`, with the password if there is one."""
    budget_s: Seconds = 0.05
    """What one call may take."""
    max_failures: Count = 5
    """After so many in a row nobody waits for the store any more, until a probe succeeds."""
    probe_pause_s: Seconds = 1.0
    lease_s: Seconds = 30.0
    """A stream's place is free again so long after its gateway has died."""
    num_gateways: Count = 2
    """How many processes share a limit while the store is away."""
    requests_without_store: DegradedMode = DegradedMode.SHARE
    tokens_without_store: DegradedMode = DegradedMode.SHARE
    streams_without_store: DegradedMode = DegradedMode.SHARE


class MembershipSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Valkey or Redis, in which enrolled nodes say that they are there. Units: seconds."""

    url: Secret
    """`redis://…` or `rediss://…`, with the password if there is one."""
    folder: Path = Path(".hearth/members")
    """Who is enrolled, with their keys; `hearth node enrol` writes there."""
    poll_s: Seconds = 1.0
    """How often both are looked at."""
    budget_s: Seconds = 0.25
    """What one call may take."""
    gone_after_s: Seconds = 30.0
    """A node that cannot be reached and has written nothing for so long is no member any more."""
    max_skew_s: Seconds = 15.0
    """How far a node's clock may be from ours; an older heartbeat is not believed."""


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where usage is written down before the ledger has it; one folder per gateway process."""

    folder: Path = Path(".hearth/journal")
    fsync: bool = False
    """True: an answer ends only when its usage is on the disk, safe against a power cut too."""
    max_bytes: Count = 1 << 30
    """With so much that the ledger could not take, requests are refused."""
    flush_s: Seconds = 0.5
    """How often the ledger gets what has been written."""


class RegionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A region that this gateway knows. Units: milliseconds."""

    name: RegionId
    jurisdiction: str
    """Whose law holds there, such as `eu`. Nodes that say otherwise are not believed."""
    latency_ms: Annotated[float, msgspec.Meta(ge=0)]
    """From this gateway there and back."""
    entry: str | None = None
    """The origin of the gateways there, named to clients who must not enter here."""

    def __post_init__(self) -> None:
        """Raises: `ValueError` for a malformed name, jurisdiction or origin."""
        _require_region(self.name)
        fault = find_jurisdiction_fault(self.jurisdiction)
        if fault is not None:
            raise ValueError(fault)
        if self.entry is not None and _ORIGIN.fullmatch(self.entry) is None:
            raise ValueError(f"`{self.entry}` is not an origin such as https://weur.example.com.")


class RoutingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a node counts as full, as lost, and how often requests are tried again."""

    report_ttl_s: Seconds = 5.0
    """A node that has said nothing for so long counts as saturated."""
    silence_s: Seconds = 10.0
    """A connection on which nothing has come for so long is cut; its answers go on elsewhere."""
    max_waiting_per_model: Count = 32
    """Requests for one model that may wait at a node, beyond those that it computes; what comes
    then goes to another node, or waits here for the first one with room."""
    regions: tuple[RegionSettings, ...] = ()
    strict_entry: bool = False
    """True: requests of accounts that are bound to other regions are refused here before their
    body is read, and told where to go instead."""
    max_sessions: Count = 100_000
    """Sessions whose node is remembered, as clients name them in `x-session-affinity` or known by
    their opening; and as many again of which nodes tell."""
    session_idle_s: Seconds = 600.0
    max_attempts: Count = 4
    """Nodes that one request may be sent to, one after the other."""
    retry_reserve: Count = 256
    """Retries that may be made at once, of all requests together; each request earns a fifth of
    one more."""
    resume_patience_s: Seconds = 10.0
    """How long an answer that broke off may wait for a node that can go on with it."""

    def __post_init__(self) -> None:
        """Raises: `ValueError` for a region that is named twice: one would hold, unseen, and its
        jurisdiction decides where accounts may go.
        """
        require_distinct("The region", (region.name for region in self.regions))


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What may wait in this gateway while every node that it may go to is full. Those of one model
    may take half of each bound."""

    max_requests: Annotated[int, msgspec.Meta(ge=0)] = 512
    """They count among `limits.max_concurrent_requests` too. 0: nothing waits here."""
    max_tokens: Count = 4 << 20
    """Of prompts and expected answers; a generated token counts twice."""
    max_bytes: Count = 64 * 1024 * 1024
    """As the requests would be sent."""
    max_wait_s: Seconds = 60.0
    """From when the request came; after that it is refused."""


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a gateway can be told."""

    gateway_id: GatewayId = GatewayId("gateway-1")
    region: RegionId = RegionId("local")
    listen: ListenSettings = ListenSettings()
    admin: AdminSettings = AdminSettings()
    database: DatabaseSettings = DatabaseSettings()
    key_ring: KeyRingSettings = KeyRingSettings()
    nodes: tuple[NodeSettings, ...] = ()
    limits: LimitSettings = LimitSettings()
    auth: AuthSettings = AuthSettings()
    standby: StandbyAccessSettings | None = None
    """None: hot standby needs an operator's credential, which opens everything."""
    proxies: ProxySettings = ProxySettings()
    audit: AuditSettings = AuditSettings()
    routing: RoutingSettings = RoutingSettings()
    queue: QueueSettings = QueueSettings()
    idempotency: IdempotencySettings = IdempotencySettings()
    cross_origin: tuple[CrossOriginSettings, ...] = ()
    batches: BatchSettings = BatchSettings()
    payload_logs: PayloadLogSettings = PayloadLogSettings()
    finetunes: FinetuneSettings = FinetuneSettings()
    journal: JournalSettings = JournalSettings()
    shared_limits: SharedLimitSettings | None = None
    """None: limits are counted in this process, the only one on its database."""
    membership: MembershipSettings | None = None
    """None: the nodes are those of `nodes`."""
    metrics: MetricsSettings | None = None
    """None: metrics are on the operators' port alone, behind an operator's credential."""
    tracing: TracingSettings | None = None
    """None: nothing is traced."""
    log: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        """Raises: `ValueError` for a malformed id or region, or a node that is named twice."""
        if not is_node_id(self.gateway_id):
            raise ValueError(f"`{self.gateway_id}` is not a gateway id.")
        _require_region(self.region)
        require_distinct("The `node_id`", (node.node_id for node in self.nodes))


def _require_region(name: str) -> None:
    """Raises: `ValueError` for what no region can be called."""
    fault = find_region_fault(name)
    if fault is not None:
        raise ValueError(fault)


def _is_loopback(host: str) -> bool:
    """True when `host` can only be this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
