"""What the node's server process and an engine core tell each other, as msgpack over zmq.

Token ids only: text, templates and stop strings stay on the server's side.
Read next: `gpu_pool.engine.core` (one end), `gpu_pool.server.engine_client` (the other).
"""

from typing import Final

import msgspec

from contracts.encoding import Pooling
from contracts.errors import ErrorReport
from contracts.grant import RetentionClass
from contracts.ids import AccountId, RegionId
from contracts.inference import FinishReason, SamplingParams
from contracts.kv_transfer import KvExported, TransferEvent
from gpu_pool.kv.shared_room import RoomWish
from gpu_pool.kv.tiers.measured_tier import TierFigures
from gpu_pool.plan import AdapterFile, SequenceId, TokenScore


class KvArrival(msgspec.Struct, frozen=True, array_like=True):
    """A sequence's blocks come from another node. Units: ms of `node_clock`."""

    deadline_ms: int
    """It computes its prompt itself when they are not there by then."""


class KvDeparture(msgspec.Struct, frozen=True, array_like=True):
    """A sequence is computed for another node, which fetches its blocks.

    Units: `deadline_ms` in milliseconds of `node_clock`.
    """

    first_block: int
    num_blocks: int
    deadline_ms: int
    """Until then it begins to read; the blocks are kept for as long as that may take."""


class AddSequence(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Starts a sequence. The server has checked the shape; the core checks what it alone knows.

    `sampling.max_tokens` is set and fits the context. `deadline_ms` is of `node_clock`.
    """

    sequence_id: SequenceId
    account_id: AccountId
    cache_salt: bytes
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int
    deadline_ms: int
    reject_if_busy: bool
    grammar: str | None = None
    """What the answer has to match, in the form that the core's matchers read."""
    retention: RetentionClass = RetentionClass.STANDARD
    """`none`: the blocks are zeroed at the end. `cache_salt` is the request's own then, so that it
    shares blocks with nobody but other answers to itself."""
    num_generated_tokens: int = 0
    """The last ones of `token_ids`, where an answer goes on that began elsewhere; `max_tokens`
    counts them, too."""
    arrival: KvArrival | None = None
    departure: KvDeparture | None = None
    cached_share: float = 0.0
    """Of its tokens, those that are expected to be cached: a guess from outside, by which the
    server counts a sequence that the core has not looked at."""
    adapter: AdapterFile | None = None
    choices_salt: bytes = b""
    """The request's own, where it wants several answers: they share its prompt by that in a core
    that keeps no prefixes. Empty where there is one."""
    regions: tuple[RegionId, ...] | None = None
    """Where its blocks may be; None: anywhere."""


class AbortSequence(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Ends a sequence within one step; answered by `SequenceFinished(aborted)` unless over."""

    sequence_id: SequenceId


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Ends the core after the current step."""


class AddTexts(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Starts a sequence of whole texts at an encoder's core; lengths and ids have been checked."""

    sequence_id: SequenceId
    account_id: AccountId
    token_ids: tuple[tuple[int, ...], ...]
    """One per text, at least one."""
    nums_query_tokens: tuple[int, ...]
    """How many of each text's first tokens are the query's."""
    pooling: Pooling
    priority: int
    reject_if_busy: bool


class Sleep(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Moves the weights to the host's memory and gives the device's back; what the KV memory holds
    is lost.

    Answered by `CoreSlept`, or by `SleepRefused` while there are sequences. Those that come to a
    sleeping core wait for `Wake`; not even their deadlines are looked at before.
    """


class Wake(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Brings the weights back; answered by `CoreWoken`."""


class ImportBlocks(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Another node has exported blocks of a sequence that waits for them."""

    sequence_id: SequenceId
    exported: KvExported


class StopImport(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Nothing comes any more for a sequence that waits."""

    sequence_id: SequenceId


class ReleaseExport(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Another node is done with the blocks of a sequence, over or not."""

    sequence_id: SequenceId
    may_be_read: bool = False
    """What it has begun to read it may still be reading."""


class GrantRoom(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """More of the KV memory that the node's models share is this core's."""

    num_bytes: int


class ClaimRoom(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Some of that memory is to go, as nobody uses it any more; `RoomNews` answers, bit by bit."""

    num_bytes: int
    """Beside what was claimed before; 0: nothing of that is wanted any more."""


class ForgetExport(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Nobody hears of a sequence's blocks any more; what was told of stays until its lease is over,
    since another node may be reading it."""

    sequence_id: SequenceId


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Asks for a sign of life; answered by `Pong` between two steps, also by a core that sleeps."""


ToCore = (
    AddSequence
    | AddTexts
    | AbortSequence
    | Shutdown
    | Sleep
    | Wake
    | ImportBlocks
    | StopImport
    | ReleaseExport
    | ForgetExport
    | Ping
    | GrantRoom
    | ClaimRoom
)


class SequenceStarted(msgspec.Struct, frozen=True, array_like=True):
    """The sequence has its blocks and is being computed."""

    sequence_id: SequenceId
    num_cached_tokens: int


class SequenceTokens(msgspec.Struct, frozen=True, array_like=True):
    """Newly generated tokens; an end-of-sequence token is never among them."""

    sequence_id: SequenceId
    token_ids: tuple[int, ...]
    scores: tuple[TokenScore, ...] = ()
    """One per token where `sampling.num_logprobs` is set."""


class PromptScored(msgspec.Struct, frozen=True, array_like=True):
    """Scores of the next tokens of the prompt, in order and each once."""

    sequence_id: SequenceId
    scores: tuple[TokenScore, ...]


class TextsEncoded(msgspec.Struct, frozen=True, array_like=True):
    """Vectors of some texts of a sequence, each of which comes once."""

    sequence_id: SequenceId
    indices: tuple[int, ...]
    vectors: tuple[bytes, ...]
    """As `contracts.encoding.Encoded` has them."""


class SequenceFinished(msgspec.Struct, frozen=True, array_like=True):
    """The sequence is over and its blocks are free. `error` is set instead of `reason`."""

    sequence_id: SequenceId
    num_completion_tokens: int
    """All sampled tokens, the end-of-sequence token included."""
    reason: FinishReason | None = None
    error: ErrorReport | None = None


class CoreLoad(msgspec.Struct, frozen=True, array_like=True):
    """How busy the core is after a step."""

    num_running: int
    num_waiting: int
    """For a place or for memory."""
    num_blocks: int
    num_free_blocks: int
    num_queued_tokens: int = 0
    """Of prompts, still to be computed."""
    prefill_per_s: float = 0.0
    decode_per_s: float = 0.0
    """Tokens per second, as `speed_meter` measures them."""
    latest_id: int = 0
    """The highest sequence that the core had taken in by then: what came later is not counted."""
    num_coming: int = 0
    """Sequences whose blocks come from elsewhere; their prompts are not to be computed."""
    num_preempted: int = 0
    """Times that a sequence has given up its place for want of memory, since the core started."""
    decode_step_s: float = 0.0
    """See `contracts.fleet.ModelLoad`."""


class KvFacts(msgspec.Struct, frozen=True, array_like=True):
    """What other nodes have to know to exchange blocks with a core: see `KvEndpoint`."""

    engine: str
    incarnation: str
    layout: str
    block_size: int
    bytes_per_token: int


class CoreReady(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The model is loaded; the first message of a core that came up."""

    context_window: int
    vocab_size: int
    block_size: int
    num_blocks: int
    model_revision: str
    weights_bytes: int = 0
    """What the weights have really taken on the device."""
    kv_bytes: int = 0
    """The same of the KV memory; both are what a sleep gives back."""
    kv_facts: KvFacts | None = None
    """None: its blocks do not move."""
    max_running: int = 0
    """Sequences that it computes at the same time."""
    adapter_bytes: int = 0
    """Kept free for adapters on the device, beside weights and KV memory."""
    max_adapter_rank: int = 0
    """The largest rank of an adapter that a sequence may bring; 0: none may."""
    shares_kv: bool = False
    """Beside `kv_bytes`, which stay its own, it takes and gives memory that models share."""


class StepOutput(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """All that one step (or one abort) brought: started, prompt scores, tokens, finished."""

    started: tuple[SequenceStarted, ...]
    tokens: tuple[SequenceTokens, ...]
    finished: tuple[SequenceFinished, ...]
    load: CoreLoad
    prompt_scores: tuple[PromptScored, ...] = ()
    """All of a sequence's come before its first tokens."""
    encoded: tuple[TextsEncoded, ...] = ()
    """From an encoder's core, which brings nothing else but starts and ends."""


class CoreFailed(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The core cannot start or go on; it exits after this."""

    error: ErrorReport
    reason: str = ""
    """For operators: which file or setting is at fault. Clients never see it."""
    is_final: bool = False
    """True when another start would fail in the same way."""


class CoreSlept(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The core sleeps; it takes `Wake` and `Shutdown`."""

    seconds: float
    """What it took."""
    num_bytes: int
    """What the device got back; 0 when the core slept already."""


class CoreWoken(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The core computes again, with KV memory that holds nothing. Its first step may still wait for
    weights, layer by layer.
    """

    seconds: float
    """Until it took requests again."""
    num_bytes: int
    """What the device gave; 0 when the core was awake already."""


class SleepRefused(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The core does not sleep: nothing has changed."""

    num_sequences: int
    """Those that it holds."""


class KvTiers(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """What the tiers that keep KV beside the device came to, since the core started."""

    tiers: tuple[TierFigures, ...] = ()
    """The fastest first; none where there are none."""
    num_refused: int = 0
    """Blocks that were there and would have taken longer than computing."""


class TransferNews(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """What has become of blocks that come and go."""

    events: tuple[tuple[SequenceId, TransferEvent], ...]
    is_ready: bool = False
    """Blocks can be moved now."""


class RoomNews(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """What becomes of a core's part in the KV memory that the node's models share."""

    given_bytes: int
    """No longer its own: they can be another's."""
    wish: RoomWish | None = None
    """In the place of what it wished before; None: as before."""
    late_bytes: int | None = None
    """Of what was claimed, what cannot go before somebody stops using it; None: as before."""


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """The core has taken in all that was sent before the ping."""


class CoreLoading(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """The model is being loaded and has got further; about once a second, before `CoreReady`."""

    num_bytes: int
    """Of its files, read so far."""
    num_expected_bytes: int
    """Of those that are to be read, as far as that is known; never fewer."""


FromCore = (
    CoreReady
    | StepOutput
    | CoreFailed
    | CoreSlept
    | CoreWoken
    | SleepRefused
    | TransferNews
    | KvTiers
    | CoreLoading
    | Pong
    | RoomNews
)

encoder: Final = msgspec.msgpack.Encoder()
to_core_decoder: Final[msgspec.msgpack.Decoder[ToCore]] = msgspec.msgpack.Decoder(ToCore)
from_core_decoder: Final[msgspec.msgpack.Decoder[FromCore]] = msgspec.msgpack.Decoder(FromCore)
